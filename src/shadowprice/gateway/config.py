"""The configuration of a gateway, from a TOML file or the command line.

    budgets = ["1M/day", "$20/month"]        of all requests together
    max_tokens = 4096

    [[route]]                                a model behind an endpoint
    name = "small"
    base_url = "http://127.0.0.1:8000/v1"
    model = "Qwen/Qwen3-8B"
    rates = { input = 0.15, cached = 0.05, output = 0.60 }
    api_key_env = "VLLM_KEY"
    fallbacks = ["large"]

    [[team]]
    name = "search"
    budgets = ["5M/day"]

    [[tenant]]
    name = "search-prod"
    team = "search"
    key_sha256 = "..."                       or key_env = "SEARCH_KEY"
    budgets = ["1M/hour"]

Secrets are never in the file: `..._env` fields name variables of the environment. Every error is one line with the
file, the line and the fix.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shadowprice.accounts.windows import Account
from shadowprice.errors import InputError
from shadowprice.formats.landings import LANDINGS, read_landing
from shadowprice.formats.limits import CHAT_LIMITS
from shadowprice.formats.routes import Lines, parse_route
from shadowprice.gateway.tenants import (
    TENANT_FIELDS,
    Tenant,
    check_fields,
    digest,
    parse_accounts,
    parse_count,
    parse_name,
    parse_tenant,
)
from shadowprice.gateway.upstreams import AUTO, Route
from shadowprice.redact import register_secret

__all__ = ["Config", "read_config", "secret"]

_POLICIES = ("posted", "fixed", "first-come")
_TOP = (
    "host", "port", "workers", "ledger", "mode", "log", "otel", "budgets", "max_tokens", "policy", "price", "shape",
    "forecaster", "admin_key_env", "require_keys", "route", "team", "tenant",
)  # fmt: skip
_ROUTE = (
    "name", "base_url", "model", "rates", "context", "api_key_env", "max_concurrency", "fallbacks",
    "forecaster", "landing", "limit_field",
)  # fmt: skip
_LITERAL = {"api_key": "api_key_env", "key": "key_env", "admin_key": "admin_key_env"}


@dataclass(frozen=True)
class Config:
    """A checked configuration. `policy` is posted (the price moves), fixed (at `price`) or first-come (at price 0)."""

    routes: Sequence[Route]
    budgets: Sequence[Account]
    teams: Mapping[str, Sequence[Account]] = field(default_factory=dict)
    tenants: Sequence[Tenant] = ()
    require_keys: bool = False
    admin_key: str = ""  # "": no admin endpoints
    policy: str = "posted"
    price: float = 0.0  # utility per output token, if fixed
    shape: Sequence[float] | None = None  # relative arrivals in equal parts of a day, for budgets per day
    cap: int = 4096  # tokens of an answer
    shadow: bool = False  # decide and report, enforce nothing
    forecaster: str = ""  # a folder; "": the one that comes with the package
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    ledger: str = ".shadowprice-gateway"
    log: str = ""  # json: a line for every request, to standard error
    otel: bool = False

    def __post_init__(self) -> None:
        accounts = [*self.budgets, *(a for team in self.teams.values() for a in team)]
        accounts += [account for tenant in self.tenants for account in tenant.path]
        unknown = [route.name for route in self.routes if route.rates is None]
        if unknown and any(account.money for account in accounts):
            raise InputError(
                f"a budget is in dollars, and the cost of {unknown[0]!r} is unknown",
                fix="give its rates in dollars per million tokens: rates = { input = 0.15, output = 0.60 }",
            )


def secret(variable: str) -> str:
    """A secret from the environment. It is registered, so that it appears in no message."""
    value = os.environ.get(variable, "").strip()
    register_secret(value)
    return value


def read_config(path: str | os.PathLike[str]) -> Config:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError("no such file", path=path, fix="docs/gateway.md has an example") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", path=path, fix="give a TOML file in UTF-8") from None
    try:
        return _parse(text, path)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"\(at line (\d+), column \d+\)", str(error))
        message = re.sub(r"\s*\(at .*\)$", "", str(error))
        raise InputError(message, path=path, line=int(match[1]) if match else None, fix="not valid TOML") from None
    except _At as at:
        raise InputError(at.error.problem, path=path, line=_line(text, at), fix=at.error.fix) from None
    except InputError as error:
        raise error if error.line else InputError(error.problem, path=path, fix=error.fix) from None


class _At(Exception):
    """An error in the table number `index` of a kind ("": the top)."""

    def __init__(self, error: InputError, kind: str = "", index: int = 0) -> None:
        self.error, self.kind, self.index = error, kind, index


def _line(text: str, at: _At) -> int | None:
    """The line of the field that the message names, or else of its table."""
    lines = text.splitlines()
    heads = [n for n, line in enumerate(lines) if line.split("#")[0].strip() == f"[[{at.kind}]]"]
    start = heads[at.index] if at.kind and at.index < len(heads) else 0
    ends = (n for n, line in enumerate(lines) if n > start and line.lstrip().startswith("["))
    words = re.findall(r"[a-z_0-9]+", at.error.problem)
    words += [f"{word}s" for word in words]  # a budget is one of budgets
    for number in range(start, next(ends, len(lines))):
        name = lines[number].split("=")[0].strip()
        if name in words and "=" in lines[number]:
            return number + 1
    return start + 1 if at.kind else None


def _parse(text: str, path: str | os.PathLike[str]) -> Config:
    top = tomllib.loads(text)

    def each(kind: str, parse: Callable[[dict[str, Any], int], Any]) -> list[Any]:
        tables = top.get(kind, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise _At(InputError(f"{kind} is not a list of tables", fix=f"write [[{kind}]] above each"))
        entries: list[Any] = []
        for index, table in enumerate(tables):
            try:
                _no_literals(table)
                entries.append(parse(table, index))
                if [other.get("name") for other in tables[:index]].count(table["name"]):
                    raise InputError(f"name {table['name']!r} is used twice", fix="give each its own")
            except InputError as error:
                raise error if error.line else _At(error, kind, index) from None
        return entries

    def team(table: dict[str, Any], _: int) -> tuple[str, tuple[Account, ...]]:
        check_fields(table, ("name", "budgets"))
        name = parse_name(table)
        return name, parse_accounts(f"team {name}", table.get("budgets", []))

    def tenant(table: dict[str, Any], _: int) -> Tenant:
        check_fields(table, (*TENANT_FIELDS, "key_env"))
        given = {name: value for name, value in table.items() if name != "key_env"}
        if variable := table.get("key_env"):
            given["key_sha256"] = digest(_needed(variable, "key_env"))
        if not given.get("key_sha256"):
            raise InputError("no key", fix="give key_env, or key_sha256 from shadowprice serve --new-key")
        made = parse_tenant(given, budgets, teams)
        known = {AUTO, *names, *(route.model for route in routes)}
        if "" not in known and (missing := sorted((made.models or known) - known)):
            raise InputError(f"models: no route {missing[0]!r:.40}", fix=f"use {', '.join(sorted(names))}")
        return made

    try:
        check_fields(top, _TOP)
        _no_literals(top)
        budgets = parse_accounts("all", top.get("budgets", []))
        scalars = _scalars(top)
    except InputError as error:
        raise _At(error) from None
    lines = Lines(path, text)
    routes = each("route", lambda table, number: _route(table, number, lines))
    if not routes:
        raise InputError("no [[route]]", fix='add [[route]] with name = "small" and base_url = "http://..."')
    names = {route.name for route in routes}
    for index, route in enumerate(routes):
        if missing := [name for name in route.fallbacks if name not in names]:
            raise _At(
                InputError(f"fallbacks: no route {missing[0]!r:.40}", fix=f"use {', '.join(names)}"), "route", index
            )
    teams = dict(each("team", team))
    tenants = each("tenant", tenant)
    digests = [each for one in tenants for each in one.digests]
    if len(set(digests)) < len(digests):
        raise InputError("two tenants have the same key", fix="give each its own")
    if not budgets and not all(len(one.path) for one in tenants or [Tenant("", ())]):
        raise InputError("no budgets", fix='add budgets = ["1M/day"] at the top, or to every tenant or its team')
    return Config(routes, budgets, teams, tenants, **scalars)


def _scalars(top: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {"host": str, "ledger": str, "forecaster": str, "require_keys": bool, "otel": bool}
    options: dict[str, Any] = {}
    for name, kind in kinds.items():
        if name in top:
            if not isinstance(top[name], kind):
                raise InputError(f"{name} is {top[name]!r:.40}", fix="give a text" if kind is str else "true or false")
            options[name] = top[name]
    for name, choices in (("mode", ("enforce", "shadow")), ("policy", _POLICIES), ("log", ("json", ""))):
        if name in top and top[name] not in choices:
            raise InputError(f"{name} is {top[name]!r:.40}", fix=f"use {' or '.join(filter(None, choices))}")
    for name, most in (("port", 65535), ("workers", 64)):
        if name in top:
            if type(top[name]) is not int or not 0 <= top[name] <= most or (name == "workers" and not top[name]):
                raise InputError(f"{name} is {top[name]!r:.40}", fix=f"give a whole number up to {most}")
            options[name] = top[name]
    price, policy = top.get("price", 0.0), top.get("policy", "fixed" if "price" in top else "posted")
    if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < 1e9:
        raise InputError(f"price is {price!r:.40}", fix="give 0 or more, as 0.001")
    if (policy == "fixed") != ("price" in top):
        raise InputError("price belongs to policy = 'fixed'", fix="give both or neither")
    shape = top.get("shape")
    if shape is not None and not (
        isinstance(shape, list) and all(type(s) in (int, float) and 0 <= s < 1e9 for s in shape) and sum(shape) > 0
    ):
        raise InputError("shape is not a list of numbers", fix="give the relative arrivals of the 24 hours of a day")
    variable = top.get("admin_key_env", "SHADOWPRICE_ADMIN_KEY")
    admin = _needed(variable, "admin_key_env") if "admin_key_env" in top else secret(variable)
    cap = parse_count(top, "max_tokens") or 4096
    return {
        **options, "shadow": top.get("mode") == "shadow", "policy": policy, "price": float(price), "shape": shape,
        "admin_key": admin, "cap": cap, "log": top.get("log", ""),
    }  # fmt: skip


def _route(table: dict[str, Any], number: int, lines: Lines) -> Route:
    """A route as in a file of routes (`formats.routes`), with fallbacks; rates are needed only for budgets in money."""
    check_fields(table, _ROUTE)
    fallbacks = table.get("fallbacks", [])
    if not isinstance(fallbacks, list) or not all(isinstance(fallback, str) for fallback in fallbacks):
        raise InputError("fallbacks is not a list of names", fix='write it as fallbacks = ["large"]')
    given = {"rates": {"input": 0, "output": 1}, **table}
    given.pop("fallbacks", None)
    field = given.pop("limit_field", "")
    if field not in ("", *CHAT_LIMITS):
        raise InputError(f"limit_field is {field!r:.40}", fix=f"use {' or '.join(CHAT_LIMITS)}")
    landing = given.pop("landing", None)
    if landing is not None and not isinstance(landing, str):
        raise InputError("landing is not a text", fix=f"use {', '.join(LANDINGS)}, or name a file")
    route = parse_route(given, number, lines, os.environ)
    key = route.api_key() if route.api_key_env else ""
    register_secret(key)
    return Route(
        route.name,
        route.base_url.rstrip("/"),
        route.model,
        route.rates if "rates" in table else None,
        route.context,
        key,
        route.max_concurrency,
        tuple(fallbacks),
        route.forecaster or "",
        read_landing(landing) if landing else None,
        field,
    )


def _needed(variable: Any, field: str) -> str:
    if not isinstance(variable, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        raise InputError(f"{field} is not the name of a variable", fix="write it as OPENAI_API_KEY")
    if not (value := secret(variable)):
        raise InputError(f"{field}: ${variable} is not set", fix=f"export {variable}=...")
    return value


def _no_literals(table: Mapping[str, Any]) -> None:
    for name, instead in _LITERAL.items():
        if name in table:
            raise InputError(f"{name} holds a secret", fix=f"put it into the environment, and its name into {instead}")
