"""Deliberately broken variants of the executor and the ledger. The audit must catch each of them.

They change what the parts say to each other, not the inside of functions, so that they stay what they are when
those functions are rewritten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

from shadowprice import collect, run_folder, runs, tale
from shadowprice.accounts.journal import Balances
from shadowprice.accounts.sqlite import Ledger, Settlement
from shadowprice.engine import executor
from shadowprice.engine.breaker import Breaker
from shadowprice.engine.executor import Progress
from shadowprice.engine.reserved import Reserved
from shadowprice.engine.scheduler import Batch
from shadowprice.errors import Refused, Unavailable
from shadowprice.types import Completion

from .server import Client

Mutant = Callable[[], AbstractContextManager[Any]]
MUTANTS: dict[str, Mutant] = {}
unchanged: Mutant = nullcontext


def mutant(make: Mutant) -> Mutant:
    MUTANTS[make.__name__] = make
    return make


# --- the ledger --------------------------------------------------------------------------------


@mutant
def reserves_without_waiting_for_the_disk() -> AbstractContextManager[Any]:
    append = Ledger._append
    return patch.object(Ledger, "_append", lambda self, drafts, *, wait: append(self, drafts, wait=False))


@mutant
def writes_a_moment_later() -> AbstractContextManager[Any]:
    """What is written together reaches the disk at the next turn of the loop: work is sent before that."""

    @contextmanager
    def together(self: Ledger) -> Iterator[None]:
        late: list[tuple[Any, bool]] = []
        store = self._store
        with patch.object(self, "_store", _Late(store, late)), original(self):
            yield

        def write() -> None:
            for rows, wait in late:
                store.append(rows, wait=wait)

        asyncio.get_running_loop().call_soon(write)

    original = Ledger.together
    return patch.object(Ledger, "together", together)


class _Late:
    def __init__(self, store: Any, late: list[tuple[Any, bool]]) -> None:
        self._store, self._late = store, late

    def append(self, rows: Any, *, wait: bool) -> None:
        self._late.append((rows, wait))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@mutant
def attempts_that_a_crash_hid_are_free() -> AbstractContextManager[Any]:
    def charge_lost(self: Ledger) -> None:
        for reservation in list(self._balances.open):
            self.void(reservation)

    return patch.object(Ledger, "charge_lost", charge_lost)


@mutant
def attempts_that_a_crash_hid_are_forgotten() -> AbstractContextManager[Any]:
    return patch.object(Ledger, "charge_lost", lambda self: None)


@mutant
def the_budget_is_off_by_one() -> AbstractContextManager[Any]:
    available = Balances.available.fget
    assert available is not None
    return patch.object(Balances, "available", property(lambda self: available(self) + 1))


def _settling(change: Callable[[Settlement], Settlement]) -> AbstractContextManager[Any]:
    settle_many = Ledger.settle_many

    def changed(self: Ledger, settlements: Iterable[Settlement]) -> None:
        settle_many(self, [change(each) for each in settlements])

    return patch.object(Ledger, "settle_many", changed)


@mutant
def settles_one_unit_less() -> AbstractContextManager[Any]:
    return _settling(lambda each: each._replace(units=max(0, each.units - 1)))


@mutant
def settles_failures_as_free() -> AbstractContextManager[Any]:
    return _settling(lambda each: each._replace(units=each.units if each.line is not None else 0))


@mutant
def settles_without_the_result() -> AbstractContextManager[Any]:
    return _settling(lambda each: each._replace(line=None) if each.kind == "settle" else each)


@mutant
def a_resumed_run_forgets_parts_of_answers() -> AbstractContextManager[Any]:
    return patch.object(Ledger, "chunks", lambda self: iter(()))


@mutant
def a_resumed_run_forgets_what_failures_cost() -> AbstractContextManager[Any]:
    return patch.object(run_folder, "charged_before", lambda ledger, place: {})


@mutant
def a_resumed_run_forgets_results() -> AbstractContextManager[Any]:
    return patch.object(Batch, "restore", lambda self, place, state: None)


# --- the executor ------------------------------------------------------------------------------


def _sending(change: Callable[..., Any]) -> AbstractContextManager[Any]:
    complete = Client.complete

    async def changed(self: Client, body: Mapping[str, Any], limit: int, **rest: Any) -> Completion:
        found: Completion = await change(lambda limit: complete(self, body, limit, **rest), limit)
        return found

    return patch.object(Client, "complete", changed)


@mutant
def takes_unknown_costs_for_free() -> AbstractContextManager[Any]:
    async def change(send: Callable[[int], Any], limit: int) -> Any:
        try:
            return await send(limit)
        except Unavailable as error:
            if error.tokens is None:
                error.tokens = 0
            raise

    return _sending(change)


@mutant
def repeats_unknown_attempts_on_the_same_reservation() -> AbstractContextManager[Any]:
    async def change(send: Callable[[int], Any], limit: int) -> Any:
        try:
            return await send(limit)
        except Unavailable as error:
            if error.tokens is not None:
                raise
            return await send(limit)

    return _sending(change)


@mutant
def gives_up_at_the_first_failure() -> AbstractContextManager[Any]:
    async def change(send: Callable[[int], Any], limit: int) -> Any:
        try:
            return await send(limit)
        except Unavailable as error:
            raise error if error.tokens is None else Refused(str(error), tokens=error.tokens) from None

    return _sending(change)


@mutant
def sends_nothing() -> AbstractContextManager[Any]:
    return patch.multiple(Reserved, next=lambda self, available, avoid=(): None)


@mutant
def asks_for_one_token_more() -> AbstractContextManager[Any]:
    return _sending(lambda send, limit: send(limit + 1))


def _executing(**changes: Callable[[Any], Any]) -> AbstractContextManager[Any]:
    execute = executor.execute

    async def changed(*args: Any, **options: Any) -> Progress:
        for name, change in changes.items():
            if name in options:
                options[name] = change(options[name])
        return await execute(*args, **options)

    @contextmanager
    def everywhere() -> Iterator[None]:
        with (
            patch.object(runs, "execute", changed),
            patch.object(collect, "execute", changed),
            patch.object(tale, "execute", changed),
        ):
            yield

    return everywhere()


@mutant
def one_more_is_under_way() -> AbstractContextManager[Any]:
    return _executing(concurrency=lambda most: most + 1)


@mutant
def reports_a_result_twice() -> AbstractContextManager[Any]:
    def twice(report: Callable[[Any], None]) -> Callable[[Any], None]:
        def both(result: Any) -> None:
            report(result)
            report(result)

        return both

    return _executing(on_result=twice)


@mutant
def sends_on_after_a_stop() -> AbstractContextManager[Any]:
    """The reason is kept, so that the end is that of a stopped run, but it stops nothing."""

    class Deaf(str):
        def __bool__(self) -> bool:
            return False

    def stop(self: Progress, reason: str) -> None:
        self.stopped = Deaf(reason)

    return patch.object(Progress, "stop", stop)


@mutant
def probes_with_what_has_just_failed() -> AbstractContextManager[Any]:
    nobody = property(lambda self: set(), lambda self, value: None)
    return patch.object(Breaker, "failing", nobody, create=True)
