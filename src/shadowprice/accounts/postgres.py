"""The accounts of several machines, in one PostgreSQL. What is promised is in `owner` and `tree`.

Every machine keeps the counters of its own processes; a process that ended is settled by another one of its machine.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from shadowprice.accounts.owner import TABLES, Owner
from shadowprice.errors import LedgerError, MissingExtra
from shadowprice.redact import redact, register_secret

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
except ImportError:
    raise MissingExtra("postgres", "a ledger in PostgreSQL") from None

__all__ = ["PostgresOwner"]

_LOCK = 0x5348_4144_4F57  # any number: transactions take their turns by it


class PostgresOwner(Owner):
    """Through one connection, which is opened again after it broke."""

    shared = True

    def __init__(self, address: str) -> None:
        self._address = address
        self._guard = threading.RLock()
        self._connection: psycopg.Connection[Any] | None = None
        with self._errors():
            register_secret(str(conninfo_to_dict(address).get("password") or ""))
            with self.transaction():
                for statement in TABLES:
                    self.run(statement)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._guard, self._errors():
            connection = self._connected()
            with connection.transaction():
                # A lost lease would be lent twice: the commit waits for the disk, whatever the server's default is.
                connection.execute("SET LOCAL synchronous_commit = on")
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                yield

    def run(self, statement: str, *values: Any) -> list[Any]:
        with self._guard, self._errors():
            cursor = self._connected().execute(statement.replace("?", "%s").encode(), values)
            return cursor.fetchall() if cursor.description else []

    def run_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._guard, self._errors():
            self._connected().cursor().executemany(statement.replace("?", "%s").encode(), rows)

    def close(self) -> None:
        with self._guard:
            if self._connection:
                self._connection.close()

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.broken:
            self._connection = psycopg.connect(self._address, autocommit=True, connect_timeout=10)
        return self._connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            reason = redact(" ".join(str(error).split()))[:200]
            raise LedgerError(f"the ledger in PostgreSQL cannot be used: {reason}") from None
