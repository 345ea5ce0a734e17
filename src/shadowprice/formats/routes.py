"""Routes: the models that may answer, each with its rates, read from a TOML file.

    [[route]]
    name = "small"                          # yours; unique
    base_url = "http://127.0.0.1:8000/v1"   # an OpenAI-compatible server; or local = "smollm2-135m", a model on this
    model = "llama-3.1-8b"                  # machine (the same names as --local); model: its name on the server
    rates = { input = 0.05, output = 0.10 } # dollars per million tokens; cached = 0.02 for prompts from a cache
    context = 8192                          # optional: tokens of a prompt and its answer together
    api_key_env = "SMALL_KEY"               # optional: the environment variable that has the key
    max_concurrency = 8                     # optional: requests in flight at this route
    forecaster = "forecasters/small"        # optional: a folder made by `shadowprice train`

Keys are never in the file. Without `api_key_env` no key is sent. Paths are relative to the file. Everything is checked
before anything is sent.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from shadowprice.cost import LARGEST, Rates, prompt_bound
from shadowprice.errors import InputError
from shadowprice.formats.files import read_regular
from shadowprice.formats.jsonl import decoded
from shadowprice.types import Request

__all__ = ["Lines", "Route", "check_contexts", "is_address", "parse_route", "read_routes"]

_RATES = ("input", "output", "cached")
_REQUIRED = "name", "rates"
_MOST = 64  # routes
_TEXTS = ("name", "base_url", "local", "model", "api_key_env", "forecaster")
_NUMBERS = ("context", "max_concurrency")


@dataclass(frozen=True)
class Route:
    """A model behind an endpoint, with its rates.

    local            the model on this machine, in place of `base_url`
    context          tokens of a prompt and its answer together; None: unknown
    max_concurrency  requests in flight; None: as many as the run has
    forecaster       folder of the forecaster for this model; None: that of the run
    """

    name: str
    rates: Rates
    base_url: str = ""
    local: str = ""
    model: str = ""
    context: int | None = None
    api_key_env: str = ""
    max_concurrency: int | None = None
    forecaster: str | None = None

    def api_key(self, environ: Mapping[str, str] | None = None) -> str:
        """The key in the environment; "none", which local servers accept, without `api_key_env`."""
        return (os.environ if environ is None else environ)[self.api_key_env].strip() if self.api_key_env else "none"

    def room(self, request: Request) -> int | None:
        """Tokens that the context leaves for an answer after the longest prompt that the body can be; None: any."""
        return None if self.context is None else max(0, self.context - prompt_bound(request.body))


def read_routes(path: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> list[Route]:
    """The routes of a file; `environ` (default: that of the process) has the variables of `api_key_env`."""
    text = decoded(read_regular(path), path)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"\(at line (\d+), column \d+\)$", str(error))
        problem = str(error)[: match.start()].strip() if match else str(error)
        raise InputError(
            f"is not TOML: {problem}", path=path, line=int(match[1]) if match else None, fix="see docs/routes.md"
        ) from None
    lines = Lines(path, text)
    if unknown := next((key for key in content if key != "route"), None):
        lines.fail(
            f"unknown key {unknown!r:.60}", None, unknown, fix="a file of routes has [[route]] tables and nothing else"
        )
    tables = content.get("route")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise InputError("has no [[route]]", path=path, fix="write one table per model: see docs/routes.md")
    if len(tables) > _MOST:
        raise InputError(f"has {len(tables)} routes", path=path, fix=f"{_MOST} are the most")
    environment = os.environ if environ is None else environ
    routes = [parse_route(table, number, lines, environment) for number, table in enumerate(tables)]
    for number, route in enumerate(routes):
        if any(route.name == other.name for other in routes[:number]):
            lines.fail(f"a second route {route.name!r:.60}", number, "name", fix="give each its own name")
    return routes


def check_contexts(routes: Sequence[Route], requests: Sequence[Request]) -> None:
    """Refuses a route whose context is too short for every request: it could never be used."""
    if not requests:
        return
    shortest = min(prompt_bound(request.body) for request in requests)
    for route in routes:
        if route.context is not None and route.context <= shortest:
            problem = (
                f"its context of {route.context:,} tokens is too short for every prompt: "
                f"the shortest may take {shortest:,} tokens"
            )
            raise InputError(f"route {route.name}: {problem}", fix="raise its context, or remove the route")


class Lines:
    """Where things are in a file with `[[kind]]` tables, for messages."""

    def __init__(self, path: str | os.PathLike[str], text: str, kind: str = "route") -> None:
        self.path = path
        self._lines = text.splitlines()
        self._tables = [at for at, line in enumerate(self._lines) if re.match(rf"\s*\[\[\s*{kind}\s*\]\]", line)]

    def fail(self, problem: str, number: int | None, key: str, *, fix: str) -> NoReturn:
        """Raises an error about a key of the table with this number; None: a key outside of tables."""
        first = 0 if number is None or number >= len(self._tables) else self._tables[number]
        last = len(self._lines)
        if number is not None and number + 1 < len(self._tables):
            last = self._tables[number + 1]
        pattern = re.compile(rf"""(^|[\s.\[{{,"'])["']?{re.escape(key)}["']?\s*[\].=]""")
        own = (at for at in range(first, last) if key and pattern.search(self._lines[at]))
        raise InputError(problem, path=self.path, line=next(own, first) + 1, fix=fix)


def parse_route(table: dict[str, Any], number: int, lines: Lines, environ: Mapping[str, str]) -> Route:
    """A `[[route]]` table, checked; `number`: which one in its file, from 0."""
    name = table.get("name")
    label = f"route {name!r:.60}" if isinstance(name, str) and name else f"route {number + 1}"

    def fail(problem: str, key: str = "", *, fix: str) -> NoReturn:
        lines.fail(f"{label}: {problem}", number, key, fix=fix)

    known = [option.name for option in fields(Route)]
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            fail(
                f"unknown key {key!r:.60}",
                key,
                fix=f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}",
            )
    if missing := next((key for key in _REQUIRED if key not in table), None):
        example = 'name = "small"' if missing == "name" else "rates = { input = 0.15, output = 0.60 }"
        fail(f"no {missing}", fix=f"add {example}")
    for key in _TEXTS:
        if key in table and (not isinstance(table[key], str) or not table[key].strip()):
            fail(f"{key} is {table[key]!r:.60}, not a text", key, fix="write it in quotes")
    if not re.fullmatch(r"[\w.:+@/-]{1,64}", name or "") or str(name).strip(".") != name:
        fail("its name has other characters than letters, digits and . _ - + : @ /", "name", fix="choose a short name")
    for key in _NUMBERS:
        if key in table and (type(table[key]) is not int or not 1 <= table[key] <= LARGEST):
            fail(f"{key} is {table[key]!r:.60}, not a whole number of 1 or more", key, fix=f"write it as {key} = 8")
    if ("base_url" in table) == ("local" in table):
        both = "base_url" in table
        fail(
            "has both base_url and local" if both else "has neither base_url nor local",
            "local" if both else "",
            fix="give one of them: where the model is",
        )
    if "local" in table and ("api_key_env" in table or "model" in table):
        key = "model" if "model" in table else "api_key_env"
        fail(f"{key} of a model on this machine", key, fix="leave it out: local names the model")
    if "base_url" in table and not is_address(table["base_url"]):
        fail(
            f"base_url {table['base_url']!r:.80} is not an address",
            "base_url",
            fix="write it as http://127.0.0.1:8000/v1",
        )
    variable = table.get("api_key_env")
    if variable is not None and not environ.get(variable, "").strip():
        fail(f"the environment variable {variable:.60} is not set", "api_key_env", fix=f"export {variable:.60}=...")
    folder = table.get("forecaster")
    if folder is not None:
        folder = str(Path(lines.path).parent / folder)
        if not os.path.isdir(folder):
            fail(f"no folder {folder:.120}", "forecaster", fix="name one that `shadowprice train` made")
    return Route(**{**table, "rates": _rates(table["rates"], fail), "forecaster": folder})


def is_address(url: str) -> bool:
    """Whether a server can have this URL."""
    try:
        address = urlsplit(url)
        valid = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:  # a port or an IPv6 address that cannot be
        return False
    return valid and not re.search(r"[\s?#]", url)  # a path is added to it


def _rates(table: Any, fail: Callable[..., NoReturn]) -> Rates:
    if not isinstance(table, dict):
        fail(f"rates is {table!r:.60}, not a table", "rates", fix="write rates = { input = 0.15, output = 0.60 }")
    for key in table:
        if key not in _RATES:
            fail(f"unknown key {key!r:.60} in rates", key, fix=f"known are {', '.join(_RATES)}")
    for key in _RATES[:2]:
        if key not in table:
            fail(f"no rate of {key}", "rates", fix="write rates = { input = 0.15, output = 0.60 }")
    for key, rate in table.items():
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate < float("inf"):
            fail(f"the rate of {key} is {rate!r:.60}, not dollars per million tokens", key, fix=f"write {key} = 0.15")
    try:
        return Rates.dollars(**{key: str(rate) for key, rate in table.items()})
    except InputError as error:
        fail(error.problem, "output", fix=error.fix)
