"""What an execution needs of a ledger. `Ledger` has these methods, and so has a worker's part of a remote one."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from shadowprice.accounts.sqlite import Settlement
from shadowprice.types import Usage


class Book(Protocol):
    """The methods and their promises are those of `accounts.sqlite.Ledger`."""

    @property
    def budget(self) -> int: ...

    @property
    def available(self) -> int: ...

    @property
    def reserved(self) -> int: ...

    @property
    def spent(self) -> int: ...

    @property
    def usage(self) -> Usage: ...

    def together(self) -> AbstractContextManager[None]: ...

    def reserve_many(self, items: Iterable[tuple[str, int]]) -> list[int]: ...

    def settle_many(self, settlements: Iterable[Settlement]) -> None: ...

    def record(self, request: str, result: bytes) -> None: ...

    def note(self, request: str, line: bytes) -> None: ...

    def note_many(self, items: Iterable[tuple[str, bytes]]) -> None: ...
