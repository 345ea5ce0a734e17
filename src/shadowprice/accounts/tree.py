"""The ledger of a tree of budgets, shared by many processes: reserve in every account of a path, or in none.

    reserve   before anything is sent: units from every account, all or none
    settle    what it cost; what is left of the reservation is available again
    void      nothing was used

In every window of every account, what was spent and what is reserved are at most its limit, summed over all processes,
after every step and every crash. Units belong to the window in which they were reserved.

**Speed.** A process leases blocks of units from the owner (`owner`), durably, and reserves from its blocks in memory.
Per block one cell of a memory-mapped file (`counters`) counts what was reserved or spent. Other processes' blocks are
returned when another process needs them, at the end of their window, and when the process ends.

**Crashes.** After `kill -9` the cells show what was used: what was reserved and not settled counts as spent, the rest
of the blocks is available again, as soon as any process starts or looks (`recover`). After a power cut the cells cannot
be trusted, and whole blocks count as spent: at most a 64th of each limit and process, or one reservation.

**Overspending.** A server may use more than was reserved. It is charged in full, even beyond a limit; nothing can be
reserved in that window then.

A Tree belongs to one thread; only `Owner` may be called from others (`wants`, `owner.lease`, `add`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from shadowprice.accounts.counters import CELLS, Counters
from shadowprice.accounts.owner import Granted, Owner, Want
from shadowprice.accounts.windows import Account
from shadowprice.errors import LedgerError

__all__ = ["Balance", "Reservation", "Tree", "Units"]

_BLOCKS = 64  # a block is this part of a limit


@dataclass(slots=True, eq=False)
class _Block:
    """Units of an account in one slot that this process holds: `used` of `units` are reserved or spent."""

    account: Account
    slot: int
    bounds: tuple[float, float] | None  # of the slot
    cell: int
    units: int = 0
    used: int = 0
    open: int = 0  # reservations, and
    reserved: int = 0  # their units
    free: int = 0  # available at the owner when it was last asked


Units: TypeAlias = int | Sequence[int]  # the same in every account of a path, or one number for each


@dataclass(slots=True, eq=False)
class Reservation:
    units: tuple[int, ...]  # in each account of its path
    blocks: tuple[_Block, ...]
    ended: bool = False


class Balance(NamedTuple):
    """The balance of an account in the current window. `spent` includes what other processes hold."""

    limit: int
    available: int
    reserved: int
    spent: int


class Tree:
    """The accounts as one process uses them."""

    def __init__(self, owner: Owner, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.owner, self.folder, self.clock = owner, folder, clock
        self.worker = uuid.uuid4().hex
        folder.mkdir(parents=True, exist_ok=True)
        self._counters = Counters(folder / f"{self.worker}.counters", create=True)
        self._blocks: dict[str, _Block] = {}  # of the current slot, by account
        self._past: list[_Block] = []  # of earlier slots
        self._cells = list(range(CELLS - 1, -1, -1))
        self.recover()

    def recover(self) -> None:
        """Settles the accounts of processes that have ended without doing so."""
        for worker in self.owner.workers():
            if worker == self.worker:
                continue
            path = self.folder / f"{worker}.counters"
            if not path.exists():
                if not self.owner.shared:  # a file that was lost: what it counted is unknown
                    self.owner.recover(worker, None)
                continue
            with suppress(LedgerError):  # it is held: the process is alive
                counters = Counters(path, create=False)
                used = {lease.cell: counters[lease.cell] for lease in self.owner.leases(worker)}
                self.owner.recover(worker, used)
                counters.remove()

    # --- reserving -----------------------------------------------------------------------------

    def reserve(self, path: Sequence[Account], units: Units) -> Reservation:
        """Reserves units in every account of the path. Raises Shortage if one has too few. May wait for the disk."""
        while (reservation := self.reserve_held(path, units)) is None:
            wants = self.wants(path, units)
            self.add(wants, self.owner.lease(self.worker, wants))
        return reservation

    def reserve_held(self, path: Sequence[Account], units: Units) -> Reservation | None:
        """Does the same from blocks that this process holds; None if they do not suffice."""
        each = _each(units, len(path))
        now = self.clock()
        blocks = tuple(self._block(account, now) for account in path)
        if any(block.units - block.used < some for block, some in zip(blocks, each, strict=True)):
            return None
        for block, some in zip(blocks, each, strict=True):
            self._use(block, some)
            block.open += 1
            block.reserved += some
        return Reservation(each, blocks)

    def wants(self, path: Sequence[Account], units: Units) -> list[Want]:
        """The blocks to lease before `units` can be reserved."""
        now = self.clock()
        wants = []
        for account, some in zip(path, _each(units, len(path)), strict=True):
            block = self._block(account, now)
            if (need := some - (block.units - block.used)) > 0:
                like = max(need, account.limit // _BLOCKS)
                first = account.window.first(block.slot)
                wants.append(Want(account.name, account.limit, block.slot, first, need, like, block.cell))
        return wants

    def add(self, wants: Sequence[Want], granted: Sequence[Granted]) -> None:
        """Adds blocks that were leased."""
        for want, (units, free) in zip(wants, granted, strict=True):
            block = next(b for b in self._every() if (b.account.name, b.slot) == (want.account, want.slot))
            block.units += units
            block.free = free

    # --- ending --------------------------------------------------------------------------------

    def settle(self, reservation: Reservation, units: Units) -> None:
        """Ends a reservation with what it cost, which may be more than was reserved."""
        if reservation.ended:
            raise LedgerError("the reservation has ended")
        each = _each(units, len(reservation.blocks))
        reservation.ended = True
        for block, cost, reserved in zip(reservation.blocks, each, reservation.units, strict=True):
            self._cover(block, cost - reserved)
            self._use(block, cost - reserved)
            block.open -= 1
            block.reserved -= reserved

    def void(self, reservation: Reservation) -> None:
        """Ends a reservation without a cost."""
        self.settle(reservation, 0)

    def charge(self, path: Sequence[Account], units: Units) -> None:
        """Charges units that were never reserved, even beyond the limits."""
        now = self.clock()
        for account, some in zip(path, _each(units, len(path)), strict=True):
            block = self._block(account, now)
            self._cover(block, some)
            self._use(block, some)

    def _cover(self, block: _Block, more: int) -> None:
        """Leases units that were used, even if none are available: on disk before the cell counts them."""
        if (excess := more - (block.units - block.used)) > 0:
            like = max(excess, min(block.account.limit // _BLOCKS, block.free))
            self.owner.force(self.worker, block.account.name, block.slot, block.cell, like)
            block.units += like
            block.free -= like

    def _use(self, block: _Block, units: int) -> None:
        block.used += units
        self._counters[block.cell] = block.used

    # --- blocks --------------------------------------------------------------------------------

    def _every(self) -> list[_Block]:
        return [*self._blocks.values(), *self._past]

    def _block(self, account: Account, now: float) -> _Block:
        block = self._blocks.get(account.name)
        if block and block.account is not account:  # its limit may have changed
            block.free += account.limit - block.account.limit
            block.account = account
        if block and (not block.bounds or block.bounds[0] <= now < block.bounds[1]):
            return block
        slot = account.window.slot(now)
        if block:
            self._past.append(block)
        earlier = [b for b in self._past if (b.account.name, b.slot) == (account.name, slot)]
        if earlier:  # the clock was set back
            self._past.remove(earlier[0])
            block = earlier[0]
        else:
            if not self._cells:
                raise LedgerError(f"more than {CELLS} accounts and windows at a time")
            block = _Block(account, slot, account.window.bounds(now), self._cells.pop())
            self._counters[block.cell] = 0
            block.free = account.limit - self.owner.used(account.name, account.window.first(slot), slot)
        self._blocks[account.name] = block
        return block

    def trim(self, wanted: Collection[str] | None = None) -> None:
        """Returns units of past windows, and units that other processes need. Call it regularly.

        wanted  what `owner.wanted` has returned, if it was asked in another thread
        """
        wanted = self.owner.wanted() if wanted is None else wanted
        now = self.clock()
        parts = []
        for block in self._every():
            past = block.bounds is not None and not block.bounds[0] <= now < block.bounds[1]
            last = past and not block.open
            if (idle := block.units - block.used) > 0 and (past or block.account.name in wanted):
                parts.append((block.account.name, block.slot, idle, last))
                block.units -= idle
                block.free += idle
            elif last:
                parts.append((block.account.name, block.slot, 0, True))
        if parts:
            self.owner.give_back(self.worker, parts)
        for block in self._every():
            if block.bounds and not block.bounds[0] <= now < block.bounds[1] and not block.open:
                self._forget(block)

    def _forget(self, block: _Block) -> None:
        if self._blocks.get(block.account.name) is block:
            del self._blocks[block.account.name]
        else:
            self._past.remove(block)
        self._cells.append(block.cell)

    def refresh(self) -> None:
        """Asks the owner what is available in the accounts that are in use."""
        for block in self._blocks.values():
            first = block.account.window.first(block.slot)
            block.free = block.account.limit - self.owner.used(block.account.name, first, block.slot)

    def available(self, account: Account) -> int:
        """Units that can be reserved, as far as this process knows without asking."""
        block = self._block(account, self.clock())
        return max(0, block.free) + block.units - block.used

    def reserved(self, account: Account) -> int:
        """Units of open reservations of this process, in the current window."""
        return self._block(account, self.clock()).reserved

    def balance(self, account: Account) -> Balance:
        """The balance of an account, as the owner knows it."""
        block = self._block(account, self.clock())
        first = account.window.first(block.slot)
        block.free = account.limit - self.owner.used(account.name, first, block.slot)
        available = block.free + block.units - block.used
        return Balance(account.limit, available, block.reserved, account.limit - available - block.reserved)

    def close(self) -> None:
        """Returns everything that is not used. Open reservations are charged in full."""
        try:
            self.owner.give_back(self.worker, [(b.account.name, b.slot, b.units - b.used, True) for b in self._every()])
        finally:
            self._counters.remove()


def _each(units: Units, accounts: int) -> tuple[int, ...]:
    each = (units,) * accounts if isinstance(units, int) else tuple(units)
    if min(each, default=0) < 0:
        raise LedgerError(f"{min(each)} units: less than nothing")
    return each
