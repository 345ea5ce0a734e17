"""A read-only view of a run folder: during the run, after its end, or after a crash.

The ledger's lock is not touched, and no new file is created beside the ledger.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shadowprice.accounts.damage import Damaged, Watch
from shadowprice.accounts.journal import (
    Balances,
    Changed,
    OldJournal,
    check_tables,
    find_results,
    first_balances,
    read_chunks,
    read_line,
    read_rows,
)
from shadowprice.accounts.manifest import MANIFEST, read_manifest
from shadowprice.accounts.mark import read_mark
from shadowprice.cost import TOKENS, Rates
from shadowprice.errors import InputError, LedgerError
from shadowprice.formats.jsonl import read_objects
from shadowprice.formats.results import ESTIMATE, ROUTES, StoredPart, parse_chunk, parse_result
from shadowprice.types import Completion, Failure, Outcome, Result, Usage

LEDGER, FORECAST, REQUESTS = "ledger.sqlite", "forecast.jsonl", "requests.jsonl"
_ENDS = {"chunk": "chunk", "orphan": "lost", "void": "void", "free": "void"}
_MOST_TEXT = 240  # characters of an answer that are kept


@dataclass(eq=False)
class Attempt:
    """A grant and its outcome, in units.

    `end` is None while it is in flight, or was lost in a crash and the run was not resumed. Then it is one of
    result   it ended with the result of its request
    chunk    it ended with a chunk, from which its request can continue
    nothing  it failed, and its request may be tried again
    lost     a crash hid the cost: the whole grant is charged
    """

    request: str
    grant: int
    cost: int = 0
    usage: Usage = field(default_factory=Usage)
    end: str | None = None


@dataclass(frozen=True, eq=False)
class RequestView:
    """The state of a request so far.

    outcome   from its result, else from its latest note, else not_sent
    answered  whether it has a result: its outcome is final
    cost      units charged for all its attempts, as the ledger has it
    usage     and their tokens by kind; those of a lost attempt are unknown
    forecast  its line in forecast.jsonl, {} without one
    attempts  oldest first, without those that used nothing
    flags     what the backend found wrong with the server
    text      the beginning of the answer, or of the chunks so far
    extra     what the scheduler added to the result or note
    """

    id: str
    outcome: Outcome
    answered: bool
    cost: int
    usage: Usage
    forecast: Mapping[str, Any]
    attempts: Sequence[Attempt]
    flags: Sequence[str]
    correct: bool | None
    failure: Failure | None
    text: str
    extra: Mapping[str, Any]

    @property
    def grants(self) -> list[int]:
        """Units granted to each attempt."""
        return [attempt.grant for attempt in self.attempts]

    @property
    def in_flight(self) -> bool:
        """Whether an attempt has not ended, or was lost in a crash and the run was not resumed."""
        return any(attempt.end is None for attempt in self.attempts)


@dataclass(frozen=True)
class Moment:
    """The ledger after an attempt ended, in units; `spent` is the true cost, above the budget too."""

    spent: int
    reserved: int


@dataclass
class Account:
    """A run, as stored in its folder."""

    path: Path
    manifest: Mapping[str, Any]
    budget: int
    metered: bool = False
    rates: Rates = TOKENS  # what tokens cost, for `cost.show`
    prices: Rates | None = None  # in dollars, beside a budget of tokens
    attempts: list[Attempt] = field(default_factory=list)  # those of estimates too: see `is_estimate`
    requests: dict[str, RequestView] = field(default_factory=dict)
    course: list[Moment] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)  # of the rounds that could be found: attempts ended before
    usage: Usage = field(default_factory=Usage)
    beyond_grants: int = 0
    lost: int = 0  # units charged for entries of the ledger that were lost to damage
    exposed: int = 0  # grants that were not charged because servers said that they had generated nothing

    @property
    def done(self) -> bool:
        return bool(self.manifest.get("done"))

    @property
    def summary(self) -> Mapping[str, Any]:
        return self.manifest.get("summary") or {}

    @property
    def rounds(self) -> Sequence[Mapping[str, Any]]:
        """The clearings, as far as the manifest has them."""
        rounds: Sequence[Mapping[str, Any]] = self.summary.get("rounds") or self.manifest.get("rounds") or []
        return rounds

    @property
    def spent(self) -> int:
        return self.course[-1].spent if self.course else 0


def is_run(folder: Path) -> bool:
    return (folder / MANIFEST).exists()


def is_estimate(name: str) -> bool:
    """Whether a name in the ledger belongs to an estimate instead of a request."""
    return name.startswith(ESTIMATE)


def read_account(folder: Path) -> Account:
    account = _read_manifest(folder)
    lines = _Lines()
    if os.path.lexists(folder / LEDGER):  # a run killed in its first moments has none
        if not (folder / LEDGER).is_file():
            raise InputError("is not a file", path=folder / LEDGER, fix="start a new run")
        try:
            watch = Watch(read_mark(folder / LEDGER))  # the mark first: a run that continues moves on
            with _opened(folder / LEDGER) as db:
                _read_ledger(db, account, lines, watch)
            lines.parse_notes()
        except OldJournal as error:
            raise InputError(f"{error}", path=folder / LEDGER) from None
        except (Changed, Damaged) as error:
            fix = "--resume --accept-loss continues with what is valid"
            raise InputError(f"not a valid ledger: {error}", path=folder / LEDGER, fix=fix) from None
        except (sqlite3.Error, LedgerError, ValueError, KeyError, TypeError, AttributeError) as error:
            problem = " ".join(str(error).split())
            raise InputError(f"not a valid ledger: {problem}", path=folder / LEDGER, fix="start a new run") from None
    account.requests = _requests(account.attempts, lines, _forecasts(folder / FORECAST))
    return account


@contextmanager
def whole_answers(folder: Path) -> Iterator[Callable[[str], str]]:
    """A function from a request's id to the whole text of its answer, or of its chunks so far.

    Texts are read when they are asked for: those of a large run do not fit into memory.
    """
    if not (folder / LEDGER).exists():
        yield lambda request: ""
        return
    with _opened(folder / LEDGER) as db:
        results = find_results(db)
        parts: dict[str, str] = {}
        for request, line in read_chunks(db):
            if request not in results:
                parts[request] = _extended(parts.get(request, ""), parse_chunk(line))

        def find(request: str) -> str:
            number = results.get(request)
            return parts.get(request, "") if number is None else parse_result(read_line(db, number)).text

        yield find


def result_lines(folder: Path) -> dict[str, bytes]:
    """The lines of the results so far, by request."""
    if not (folder / LEDGER).exists():
        return {}
    with _opened(folder / LEDGER) as db:
        return {request: read_line(db, number) for request, number in find_results(db).items()}


def _read_manifest(folder: Path) -> Account:
    try:
        manifest = read_manifest(folder)
    except FileNotFoundError:
        raise InputError("not a run folder", path=folder, fix="name a folder made by `run`") from None
    asked = manifest["asked"]
    try:
        rates, prices = _rates(asked.get("rates")) or TOKENS, _rates(manifest.get("prices"))
    except (TypeError, ValueError, AttributeError):
        problem = "damaged: `run` did not write this"
        raise InputError(problem, path=folder / MANIFEST, fix="start a new run") from None
    metered = asked.get("accounting") == "metered" and manifest.get("served") != "expected"
    return Account(folder, manifest, manifest["budget"], metered=metered, rates=rates, prices=prices)


def _rates(found: Mapping[str, Any] | None) -> Rates | None:
    if not found:
        return None
    rates = Rates(**found)
    # Folders from before tokens could be counted with their prompts do not name the unit of their rates.
    return replace(rates, unit="nano-dollar") if rates.priced and "unit" not in found else rates


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that writes nothing: opened in the usual way to read, SQLite would leave files behind."""
    beside = [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm")]
    if all(os.access(file, os.W_OK) for file in beside):  # the run continues, or was killed
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            yield db
        return
    with tempfile.TemporaryDirectory(prefix="shadowprice-") as place:
        if beside[0].exists():  # a killed run, copied or not ours to write: its log has to be replayed elsewhere
            for file in (path, beside[0]):
                shutil.copy(file, place)
            path = Path(place) / path.name
            options = "mode=rw"
        else:
            options = "immutable=1"
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?{options}", uri=True)) as db:
            yield db


class _Lines:
    """Results, chunks and notes of requests, parsed and shortened; of a request's notes, the latest only."""

    def __init__(self) -> None:
        self.results: dict[str, Result] = {}
        self.notes: dict[str, Result] = {}
        self.flags: dict[str, dict[str, None]] = {}  # a set that keeps the order
        self.text: dict[str, str] = {}
        self._notes: dict[str, bytes] = {}

    def add(self, kind: str, request: str, line: bytes) -> None:
        if kind == "note":
            self._notes[request] = line
        elif kind == "chunk":
            stored = parse_chunk(line)
            self._completed(request, stored.part, _extended(self.text.get(request, ""), stored))
        else:
            result = parse_result(line)
            if result.completion is not None:
                self._completed(request, result.completion, result.text)
            self.results[request] = replace(result, completion=None)

    def parse_notes(self) -> None:
        waiting = {request: line for request, line in self._notes.items() if request not in self.results}
        self.notes = {request: parse_result(line) for request, line in waiting.items()}

    def _completed(self, request: str, completion: Completion, text: str) -> None:
        self.flags.setdefault(request, {}).update(dict.fromkeys(completion.flags))
        self.text[request] = text[:_MOST_TEXT]


def _extended(text: str, stored: StoredPart) -> str:
    """The text of the first sample with one more part, which may have replaced the parts before it."""
    if stored.sample:
        return text
    return stored.part.text if stored.anew else text + stored.part.text


def _read_ledger(db: sqlite3.Connection, account: Account, lines: _Lines, watch: Watch) -> None:
    """Follows the journal; see `shadowprice.accounts.sqlite` for what its entries mean."""
    check_tables(db)
    rows = read_rows(db)
    balances = Balances(0)
    rounds = [clearing["budget"] for clearing in account.rounds]
    opened: dict[int, Attempt] = {}
    for row in rows:
        watch.see(row)
        entry, line, _ = row
        if entry.id == 1:
            balances = first_balances(row.entry)
            if balances.budget != account.budget:
                raise LedgerError(f"its budget is {balances.budget:,}, that of the run is {account.budget:,}")
            continue
        # A round begins when its budget is available; metered, others may be in flight.
        due = rounds[len(account.starts) : len(account.starts) + 1]
        if due == [balances.available] and (account.metered or (entry.kind == "reserve" and not opened)):
            account.starts.append(len(account.course))
        balances.add(entry)
        request = entry.request or ""
        if entry.kind == "reserve":
            opened[entry.id] = Attempt(request, entry.units)
            account.attempts.append(opened[entry.id])
        elif entry.reservation is not None:
            attempt = opened.pop(entry.reservation)
            attempt.cost, attempt.usage = entry.units, entry.usage or Usage()
            attempt.end = _ENDS.get(entry.kind, "nothing" if line is None else "result")
            if attempt.end != "void":
                account.course.append(Moment(balances.charged, balances.reserved))
        elif entry.kind == "loss":
            account.course.append(Moment(balances.charged, balances.reserved))
        if line is not None and request != ROUTES and not is_estimate(request):
            lines.add(entry.kind, request, line)
    account.attempts = [attempt for attempt in account.attempts if attempt.end != "void"]
    account.usage = Usage(balances.output, balances.input, balances.cached)
    account.beyond_grants = balances.beyond_grants
    account.exposed, account.lost = balances.exposed, balances.lost
    problem = watch.problem()
    if problem is not None:
        raise Damaged(problem)


def _requests(
    attempts: Sequence[Attempt], lines: _Lines, forecasts: Mapping[str, Mapping[str, Any]]
) -> dict[str, RequestView]:
    """All requests that the folder knows: in the order of the forecasts, then of the ledger."""
    by_request: dict[str, list[Attempt]] = {request: [] for request in forecasts}
    for attempt in attempts:
        if not is_estimate(attempt.request):
            by_request.setdefault(attempt.request, []).append(attempt)
    for request in (*lines.results, *lines.notes):
        by_request.setdefault(request, [])
    views = {}
    for request, entries in by_request.items():
        known = lines.results.get(request) or lines.notes.get(request) or Result(request, "not_sent")
        views[request] = RequestView(
            id=request,
            outcome=known.outcome,
            answered=request in lines.results,
            cost=sum(attempt.cost for attempt in entries),
            usage=sum((attempt.usage for attempt in entries), Usage()),
            forecast=forecasts.get(request, {}),
            attempts=entries,
            flags=tuple(lines.flags.get(request, ())),
            correct=known.correct,
            failure=known.failure,
            text=lines.text.get(request, ""),
            extra=known.extra,
        )
    return views


def _forecasts(path: Path) -> dict[str, Mapping[str, Any]]:
    """By request; empty if the file is missing or damaged, because a view shows what can be read."""
    if not path.is_file():
        return {}
    try:
        return {line["custom_id"]: line for _, line in read_objects(path)}
    except (OSError, InputError, KeyError, TypeError):
        return {}
