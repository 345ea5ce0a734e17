"""What gateways record beside the accounts, in the same database: it survives restarts, and all processes see it.

    tenants   name, record                              those that were added while the gateway ran, as JSON
    prices    account, at, worker, price, available     the posted price over time
    minutes   minute, tenant, kind, requests, tokens    requests and tokens by decision
    latest    worker, number, at, record                the latest requests, without their text
    signals   name, at                                  something that all processes of a gateway should do

No decision about units depends on it: if all of it is lost, no unit is spent twice. Everything but the tenants is
bounded; the oldest is deleted first.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from shadowprice.accounts.owner import Owner

__all__ = ["Notes", "Price"]

_KEPT_PRICES = 2_000  # of every account
_KEPT_MINUTES = 2 * 1440
_KEPT_REQUESTS = 500  # of every process
_SIGNAL = 86_400.0  # seconds
_TABLES = (
    "CREATE TABLE IF NOT EXISTS tenants (name TEXT NOT NULL PRIMARY KEY, record TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS prices (account TEXT NOT NULL, at DOUBLE PRECISION NOT NULL, worker TEXT NOT NULL,"
    " price DOUBLE PRECISION NOT NULL, available BIGINT NOT NULL, PRIMARY KEY (account, at, worker))",
    "CREATE TABLE IF NOT EXISTS minutes (minute BIGINT NOT NULL, tenant TEXT NOT NULL, kind TEXT NOT NULL,"
    " requests BIGINT NOT NULL, tokens BIGINT NOT NULL, PRIMARY KEY (minute, tenant, kind))",
    "CREATE TABLE IF NOT EXISTS latest (worker TEXT NOT NULL, number BIGINT NOT NULL, at DOUBLE PRECISION NOT NULL,"
    " record TEXT NOT NULL, PRIMARY KEY (worker, number))",
    "CREATE TABLE IF NOT EXISTS signals (name TEXT NOT NULL PRIMARY KEY, at DOUBLE PRECISION NOT NULL)",
)


class Price(NamedTuple):
    """The price of an account at a time, and the units that were available in it."""

    account: str
    at: float
    price: float
    available: int


class Notes:
    """Reads and writes notes in the database of an owner. All methods may be called from any thread."""

    def __init__(self, owner: Owner, worker: str) -> None:
        self._owner, self._worker = owner, worker
        with owner.transaction():
            for statement in _TABLES:
                owner.run(statement)

    # --- tenants -------------------------------------------------------------------------------

    def tenants(self) -> dict[str, dict[str, Any]]:
        rows = self._owner.run("SELECT name, record FROM tenants ORDER BY name")
        return {name: orjson.loads(record) for name, record in rows}

    def put_tenant(self, name: str, record: Mapping[str, Any]) -> None:
        with self._owner.transaction():
            self._owner.run(
                "INSERT INTO tenants VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET record = excluded.record",
                *(name, orjson.dumps(record).decode()),
            )

    def remove_tenant(self, name: str) -> None:
        with self._owner.transaction():
            self._owner.run("DELETE FROM tenants WHERE name = ?", name)

    # --- what happens --------------------------------------------------------------------------

    def write(
        self,
        prices: Sequence[Price] = (),
        minutes: Mapping[tuple[int, str, str], tuple[int, int]] | None = None,
        latest: Sequence[tuple[int, float, object]] = (),
    ) -> None:
        """Adds prices, requests and tokens by (minute, tenant, kind), and numbered requests."""
        run = self._owner.run
        rows = [(self._worker, number, at, orjson.dumps(record).decode()) for number, at, record in latest]
        with self._owner.transaction():
            for price in prices:
                run(
                    "INSERT INTO prices VALUES (?, ?, ?, ?, ?) ON CONFLICT (account, at, worker) DO NOTHING",
                    *(price.account, price.at, self._worker, price.price, price.available),
                )
            for account in {price.account for price in prices}:
                oldest = "SELECT at FROM prices WHERE account = ? ORDER BY at DESC LIMIT 1 OFFSET ?"
                run(
                    f"DELETE FROM prices WHERE account = ? AND at <= ({oldest})",
                    *(account, account, _KEPT_PRICES),
                )
            for (minute, tenant, kind), (requests, tokens) in (minutes or {}).items():
                run(
                    "INSERT INTO minutes VALUES (?, ?, ?, ?, ?) ON CONFLICT (minute, tenant, kind) DO UPDATE SET"
                    " requests = minutes.requests + excluded.requests, tokens = minutes.tokens + excluded.tokens",
                    *(minute, tenant, kind, requests, tokens),
                )
            if minutes:
                run("DELETE FROM minutes WHERE minute < ?", max(minutes)[0] - _KEPT_MINUTES)
            if latest:
                self._owner.run_many(
                    "INSERT INTO latest VALUES (?, ?, ?, ?) ON CONFLICT (worker, number) DO NOTHING", rows
                )
                number, at = latest[-1][:2]
                run("DELETE FROM latest WHERE worker = ? AND number <= ?", self._worker, number - _KEPT_REQUESTS)
                run("DELETE FROM latest WHERE at < ?", at - 60.0 * _KEPT_MINUTES)

    def prices(self, since: float = 0.0, account: str | None = None) -> list[Price]:
        """In the order of time."""
        only = " AND account = ?" if account is not None else ""
        rows = self._owner.run(
            f"SELECT account, at, price, available FROM prices WHERE at >= ?{only} ORDER BY at",
            *([since] if account is None else [since, account]),
        )
        return [Price(*row) for row in rows]

    def last_price(self, account: str) -> float:
        """0 if none is known."""
        rows = self._owner.run("SELECT price FROM prices WHERE account = ? ORDER BY at DESC LIMIT 1", account)
        return float(rows[0][0]) if rows else 0.0

    def minutes(self, since: int = 0) -> list[tuple[int, str, str, int, int]]:
        rows = self._owner.run("SELECT * FROM minutes WHERE minute >= ? ORDER BY minute, tenant, kind", since)
        return [tuple(row) for row in rows]

    def latest(self, count: int) -> list[dict[str, Any]]:
        """The latest requests of all processes, the latest first."""
        rows = self._owner.run("SELECT record FROM latest ORDER BY at DESC, number DESC LIMIT ?", count)
        return [orjson.loads(row[0]) for row in rows]

    # --- signals -------------------------------------------------------------------------------

    def signal(self, name: str) -> None:
        with self._owner.transaction():
            self._owner.run("DELETE FROM signals WHERE at < ?", time.time() - _SIGNAL)
            self._owner.run("INSERT INTO signals VALUES (?, ?) ON CONFLICT (name) DO NOTHING", name, time.time())

    def signals(self) -> set[str]:
        return {row[0] for row in self._owner.run("SELECT name FROM signals")}
