"""The folder of a run, read and never written: while the run goes on, after its end, after a crash.

The ledger's lock is not touched, and no file appears beside the ledger that was not there.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from shadowprice.errors import InputError
from shadowprice.tale import ESTIMATE

LEDGER, MANIFEST, FORECAST = "ledger.sqlite", "manifest.json", "forecast.jsonl"
_ENTRIES = "SELECT id, kind, query, reservation, tokens, result FROM journal ORDER BY id"
_ENDS = {"pause": "part", "orphan": "lost"}
_MOST_ANSWER = 240  # characters of an answer that are kept


@dataclass(eq=False)
class Attempt:
    """A grant and what became of it.

    `end` is None while it is in flight (or lost in a crash that nobody has settled yet), then one of
    answer  it ended with a result: an answer, whole or cut, or an error
    part    it was paused, and its query goes on from there
    nothing it failed, and its query may be tried again
    lost    a crash hid the truth: the whole grant counts as used
    """

    query: str
    grant: int
    used: int = 0
    end: str | None = None


@dataclass(frozen=True)
class Answer:
    """What a run has got for a query: `finish` is stop, length, or error."""

    finish: str
    flags: Sequence[str] = ()
    text: str = ""


@dataclass(frozen=True)
class Moment:
    """The account after an attempt ended."""

    spent: int
    reserved: int


@dataclass
class Account:
    """A run as its folder tells it; estimates of a teacher are in `attempts` under their reserved names."""

    path: Path
    manifest: Mapping[str, Any]
    budget: int
    attempts: list[Attempt] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    course: list[Moment] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)  # of the rounds that could be found: attempts ended before
    abandoned: list[Mapping[str, Any]] = field(default_factory=list)  # lines of the error file
    forecasts: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # where the run has kept them

    @property
    def done(self) -> bool:
        return bool(self.manifest.get("done"))

    @property
    def metered(self) -> bool:
        asked = self.manifest.get("asked") or {}
        return "metered" in (asked.get("accounting"), asked.get("policy"))

    @property
    def summary(self) -> Mapping[str, Any]:
        return self.manifest.get("summary") or {}

    @property
    def rounds(self) -> Sequence[Mapping[str, Any]]:
        """The clearings, as far as the manifest keeps them."""
        rounds: Sequence[Mapping[str, Any]] = self.summary.get("rounds") or self.manifest.get("rounds") or []
        return rounds

    @property
    def spent(self) -> int:
        return self.course[-1].spent if self.course else 0


def is_run(folder: Path) -> bool:
    return (folder / MANIFEST).exists()


def read_account(folder: Path) -> Account:
    try:
        manifest = orjson.loads((folder / MANIFEST).read_bytes())
        account = Account(folder, manifest, int(manifest["budget"]))
        rounds = [int(each["budget"]) for each in account.rounds]
    except FileNotFoundError:
        raise InputError("is no run", path=folder, fix="name a folder made by `run`") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError("damaged: not what `run` writes", path=folder / MANIFEST, fix="make it again") from None
    if (folder / LEDGER).exists():  # killed in its first moments a run has none
        try:
            with _opened(folder / LEDGER) as db:
                _read(db, account, rounds)
        except (sqlite3.Error, ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
            told = " ".join(str(error).split())
            raise InputError(
                f"not a sound ledger: {told}", path=folder / LEDGER, fix="is it of this version?"
            ) from None
    account.abandoned = _abandoned(account)
    account.forecasts = _forecasts(folder / FORECAST)
    return account


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that writes nothing: SQLite would leave files behind if it were simply told to read."""
    beside = [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm")]
    if all(os.access(each, os.W_OK) for each in beside):  # a run that goes on, or was killed
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            yield db
        return
    with tempfile.TemporaryDirectory(prefix="shadowprice-") as place:
        if beside[0].exists():  # a killed run in a copy or out of reach: its log has to be replayed elsewhere
            for each in (path, beside[0]):
                shutil.copy(each, place)
            path = Path(place) / path.name
            options = "mode=rw"
        else:
            options = "immutable=1"
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?{options}", uri=True)) as db:
            yield db


def _read(db: sqlite3.Connection, account: Account, rounds: Sequence[int]) -> None:
    """Follows the journal; see `shadowprice.accounts.sqlite` for what its entries mean."""
    opened: dict[int, Attempt] = {}
    spent = reserved = ended = 0
    for number, kind, query, reservation, tokens, result in db.execute(_ENTRIES):
        # A round begins when just its budget is left; metered, others may be under way.
        due = rounds[len(account.starts) :][:1]
        if due == [account.budget - spent - reserved] and (account.metered or (kind == "reserve" and not opened)):
            account.starts.append(ended)
        if kind == "reserve":
            opened[number] = Attempt(query, tokens)
            account.attempts.append(opened[number])
            reserved += tokens
        elif kind in ("settle", "pause", "orphan", "void"):
            attempt = opened.pop(reservation)
            attempt.used, attempt.end = tokens, _ENDS.get(kind, "nothing" if result is None else "answer")
            reserved -= attempt.grant
            spent += tokens
            if kind == "void":  # never sent
                account.attempts.remove(attempt)
            else:
                ended += 1
                account.course.append(Moment(spent, reserved))
        if result is not None and kind != "pause":
            account.answers[query] = _answer(orjson.loads(result))


def _answer(line: Mapping[str, Any]) -> Answer:
    if error := line.get("error"):
        return Answer("error", text=f"{error['code']}: {error['message']}")
    told, choice = line["shadowprice"], (line["response"]["body"].get("choices") or [{}])[0]
    said = (choice.get("message") or {}).get("content") or choice.get("text") or ""
    return Answer(told["finish"], told["flags"], str(said)[:_MOST_ANSWER])


def _abandoned(account: Account) -> list[Mapping[str, Any]]:
    """Who was abandoned, from the run's error file, if that is still there and still of this run."""
    named = (account.manifest.get("files") or {}).get("errors")
    path = Path(named) if named else account.path / "abandoned.jsonl"
    try:
        lines = [orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
        found = [line for line in lines if line["custom_id"] not in account.answers and line["error"]["code"]]
        failed = [account.answers[line["custom_id"]] for line in lines if line["custom_id"] in account.answers]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    of_this_run = all(answer.finish == "error" for answer in failed)
    return found if of_this_run and len(found) == account.summary.get("abandoned") else []


def _forecasts(path: Path) -> dict[str, Mapping[str, Any]]:
    try:
        lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
        return {line["custom_id"]: line for line in lines}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def is_estimate(query: str) -> bool:
    """A question to the teacher of a `tale` run, not a query."""
    return query.startswith(ESTIMATE)
