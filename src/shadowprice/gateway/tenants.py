"""Tenants: which tenant a key belongs to, and the budgets that its requests spend from.

Budgets are a tree: those of all requests, those of a team, those of one tenant. A request spends from all of them.

    all         budgets = ["20M/month"]
    team        search: budgets = ["5M/day", "$20/day"]
    tenant      search-prod, of team search: budgets = ["1M/hour"]

Only the SHA-256 of a key is stored. A key that the gateway makes has 256 random bits, which cannot be found from the
digest by trying. A key is looked up by its digest, so the time this takes says nothing about other keys.
"""

from __future__ import annotations

import difflib
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from shadowprice.accounts.windows import Account, parse_account
from shadowprice.errors import InputError

__all__ = ["ANYONE", "Directory", "Tenant", "digest", "new_key", "parse_accounts", "parse_tenant"]

ANYONE = "anyone"  # the tenant of a gateway without keys
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
TENANT_FIELDS = ("name", "team", "key_sha256", "budgets", "value", "max_value", "max_tokens", "models")


@dataclass(frozen=True)
class Tenant:
    """A tenant. `path` are the accounts that its requests spend from; `models` those it may use, None: all."""

    name: str
    path: tuple[Account, ...]
    team: str = ""
    digests: frozenset[str] = frozenset()
    value: float = 1.0  # of a correct answer, unless the request says
    max_value: float | None = None  # the most that a request may say
    cap: int | None = None  # tokens of an answer
    models: frozenset[str] | None = None


def new_key() -> str:
    return f"sk-sp-{secrets.token_urlsafe(32)}"


def digest(key: str) -> str:
    return sha256(key.encode(errors="surrogateescape")).hexdigest()


def parse_accounts(owner: str, budgets: Any) -> tuple[Account, ...]:
    """The accounts of `all`, `team NAME` or `tenant NAME`; each window and unit once."""
    given = [budgets] if isinstance(budgets, str | int) and not isinstance(budgets, bool) else budgets
    if not isinstance(given, list) or not all(isinstance(budget, str | int) for budget in given):
        raise InputError("budgets is not a list of texts", fix='write it as budgets = ["1M/day", "$20/month"]')
    accounts = tuple(parse_account(owner, str(budget)) for budget in given)
    if len({account.name for account in accounts}) < len(accounts):
        raise InputError("two budgets have the same window", fix="give each window once")
    return accounts


def parse_tenant(
    record: Mapping[str, Any], everyone: Sequence[Account], teams: Mapping[str, Sequence[Account]]
) -> Tenant:
    """A tenant from a table of the configuration, or from a request to /admin/tenants."""
    check_fields(record, TENANT_FIELDS)
    name, team = parse_name(record), record.get("team", "")
    if not isinstance(team, str):
        raise InputError(f"team is {team!r:.40}", fix="give the name of a team")
    if team and team not in teams:
        near = difflib.get_close_matches(str(team), teams, 1)
        raise InputError(
            f"team {team!r:.40} does not exist", fix=f"did you mean {near[0]}?" if near else "add [[team]]"
        )
    hashes = record.get("key_sha256", [])
    hashes = [hashes] if isinstance(hashes, str) else hashes
    if not isinstance(hashes, list) or not all(isinstance(h, str) and _DIGEST.fullmatch(h) for h in hashes):
        raise InputError("key_sha256 is not a SHA-256 in hex", fix="make one: shadowprice serve --new-key")
    value, most = _number(record, "value"), _number(record, "max_value")
    models = record.get("models")
    if models is not None and (not isinstance(models, list) or not all(isinstance(m, str) for m in models)):
        raise InputError("models is not a list of names", fix='write it as models = ["small"]')
    own = parse_accounts(f"tenant {name}", record.get("budgets", []))
    return Tenant(
        name,
        (*everyone, *(teams[team] if team else ()), *own),
        team,
        frozenset(hashes),
        1.0 if value is None else value,
        most,
        parse_count(record, "max_tokens"),
        None if models is None else frozenset(models),
    )


def parse_name(record: Mapping[str, Any]) -> str:
    name = record.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name == ANYONE:
        raise InputError(f"name is {name!r:.40}", fix="give up to 64 letters, digits, dots and dashes")
    return name


def parse_count(record: Mapping[str, Any], field: str) -> int | None:
    value = record.get(field)
    if value is not None and (type(value) is not int or not 1 <= value <= 2**31):
        raise InputError(f"{field} is {value!r:.40}", fix="give a whole number from 1")
    return value


def _number(record: Mapping[str, Any], field: str) -> float | None:
    value = record.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e9:
        raise InputError(f"{field} is {value!r:.40}", fix="give a number from 0 to 1e9")
    return float(value)


def check_fields(record: Mapping[str, Any], known: Iterable[str]) -> None:
    for field in record:
        if field not in known:
            near = difflib.get_close_matches(field, known, 1)
            raise InputError(
                f"unknown field {field!r:.40}", fix=f"did you mean {near[0]}?" if near else f"use {', '.join(known)}"
            )


class Directory:
    """All tenants: those of the configuration, and those that were added while the gateway ran."""

    def __init__(
        self,
        everyone: Sequence[Account],
        teams: Mapping[str, Sequence[Account]] | None = None,
        tenants: Sequence[Tenant] = (),
        *,
        require_keys: bool = False,
    ) -> None:
        self.everyone, self.teams = tuple(everyone), dict(teams or {})
        self.require_keys = require_keys or bool(tenants or teams)
        self._fixed = {tenant.name: tenant for tenant in tenants}
        self._records: dict[str, dict[str, Any]] = {}
        self._anyone = Tenant(ANYONE, self.everyone)
        self.replace({})

    def replace(self, records: dict[str, dict[str, Any]]) -> None:
        """Replaces the added tenants, by name. Accounts that do not change stay the same objects."""
        if records == self._records and hasattr(self, "tenants"):
            return
        added = {}
        for name, record in records.items():
            with suppress(InputError):  # its team has left the configuration: its key opens nothing
                if name not in self._fixed:
                    added[name] = parse_tenant(record, self.everyone, self.teams)
        self._records = records
        self.tenants = {**self._fixed, **added}
        self._by_digest = {digest: tenant for tenant in self.tenants.values() for digest in tenant.digests}

    def find(self, key: str) -> Tenant | None:
        """The tenant of a key. If no keys are required, requests with any key or none belong to one tenant."""
        if not self.require_keys:
            return self._anyone
        return self._by_digest.get(digest(key)) if key else None

    def is_fixed(self, name: str) -> bool:
        """Whether a tenant belongs to the configuration, and cannot be changed while the gateway runs."""
        return name in self._fixed

    def accounts(self) -> list[Account]:
        """Every account of the tree."""
        parts = [self.everyone, *self.teams.values(), *(tenant.path for tenant in self.tenants.values())]
        return list({account.name: account for part in parts for account in part}.values())
