"""The folder of a run.

manifest.json   its settings, and how it ended
requests.jsonl  questions and correct answers, for reports
forecast.jsonl  forecasts
ledger.sqlite   the ledger, with the answers
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

from shadowprice import __version__
from shadowprice.accounts.manifest import FORMAT, MANIFEST, read_manifest
from shadowprice.accounts.sqlite import Ledger
from shadowprice.accounts.view import LEDGER, REQUESTS
from shadowprice.backends.base import join
from shadowprice.engine.progress import Progress
from shadowprice.engine.scheduler import Round, Scheduler
from shadowprice.errors import InputError, ShadowpriceError
from shadowprice.formats.asked import asked_lines
from shadowprice.formats.files import replacing, sync_folder
from shadowprice.formats.forecasts import forecast_line
from shadowprice.formats.questions import Gold
from shadowprice.formats.results import (
    ESTIMATE,
    ROUTES,
    StoredPart,
    dropped_parts,
    parse_chunk,
    parse_result,
    parse_routes,
)
from shadowprice.types import Completion, Forecast, Request

# What to do about a folder that holds another run.
EXISTS = "--resume continues its run; to start a new one, choose other names with --out, or remove it"


@dataclass
class RunFolder:
    """Keeps a run so that it can be resumed after Ctrl-C, a crash or kill -9.

    `asked` is everything that the results depend on. A run can only be resumed with the same values. If it has cost
    nothing so far, it starts again with the new ones.
    """

    path: Path
    manifest: dict[str, Any]
    ledger: Ledger = field(repr=False)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        budget: int,
        asked: Mapping[str, Any],
        resume: bool | None = None,
        *,
        accept_loss: bool = False,
        charge_lost: bool = True,
    ) -> RunFolder:
        """Creates the folder, or resumes its run.

        resume       True: the run must exist; False: it must not; None: it is resumed if it exists
        accept_loss  continue from the valid part of a damaged ledger
        charge_lost  charge what a crash left open (see `shadowprice.accounts.sqlite`)
        """
        if os.path.lexists(path) if resume is None else resume:
            return cls.resume(path, budget, asked, accept_loss=accept_loss, charge_lost=charge_lost)
        if accept_loss:
            raise InputError("--accept-loss is for resuming, and this is a new run", path=path, fix="add --resume")
        return cls.create(path, budget, asked)

    @classmethod
    def create(cls, path: str | os.PathLike[str], budget: int, asked: Mapping[str, Any]) -> RunFolder:
        folder = Path(path)
        manifest = {
            "shadowprice": __version__,
            "format": FORMAT,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "budget": budget,
            "asked": dict(asked),
            "rounds": [],
            "done": False,
        }
        folder.parent.mkdir(parents=True, exist_ok=True)
        new = folder.parent / f".shadowprice-{token_hex(8)}"
        try:
            new.mkdir()
            _write(new, manifest)
            Ledger.create(new / LEDGER, budget).close()
            new.rename(folder)  # the folder appears complete: a run that is killed at any moment can be resumed
            sync_folder(folder)
        except BaseException as error:
            shutil.rmtree(new, ignore_errors=True)
            if isinstance(error, OSError) and os.path.lexists(folder):
                raise InputError("exists", path=path, fix=EXISTS) from None
            if isinstance(error, ShadowpriceError):  # its message names a file in the temporary folder
                raise InputError(str(error).replace(str(new), str(folder))) from None
            raise
        return cls(folder, manifest, Ledger.reopen(folder / LEDGER))

    @classmethod
    def resume(
        cls,
        path: str | os.PathLike[str],
        budget: int,
        asked: Mapping[str, Any],
        *,
        accept_loss: bool = False,
        charge_lost: bool = True,
    ) -> RunFolder:
        folder = Path(path)
        try:
            manifest = read_manifest(folder)
        except (FileNotFoundError, NotADirectoryError):
            raise InputError("is not a run to resume", path=path, fix="leave out --resume to start one") from None
        before = {"budget": manifest["budget"], **manifest["asked"]}
        now = {"budget": budget, **json.loads(json.dumps(dict(asked)))}
        changed = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
        ledger = Ledger.reopen(folder / LEDGER, accept_loss=accept_loss, charge_lost=charge_lost)
        try:
            if ledger.budget != manifest["budget"]:
                problem = f"is of another run: its budget is {ledger.budget:,}, not {manifest['budget']:,}"
                raise InputError(problem, path=folder / LEDGER, fix="start a new run")
            if changed and (ledger.spent or ledger.reserved or any(ledger.results())):
                name = changed[0]
                problem = f"was started with another {name} ({before.get(name)!r:.60}, now {now.get(name)!r:.60})"
                raise InputError(problem, path=path, fix="resume with the same, or start a new run")
        except InputError:
            ledger.close()
            raise
        if changed:
            ledger.close()
            shutil.rmtree(folder)
            return cls.create(path, budget, asked)
        return cls(folder, manifest, ledger)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do: the run ended, was not stopped early, and no request failed."""
        summary = self.manifest.get("summary") or {}
        unfinished = summary.get("stopped") or (summary.get("outcomes") or {}).get("failed")
        return bool(self.manifest["done"]) and not unfinished

    def rounds(self) -> list[Round]:
        """The clearings of the run so far, without one that the run was killed right after: it is repeated."""
        rounds = [Round(**fields) for fields in self.manifest["rounds"]]
        again = rounds and not self.finished and rounds[-1].budget == self.ledger.available
        return rounds[:-1] if again else rounds

    def keep_requests(self, requests: Sequence[Request], gold: Gold | None) -> None:
        """Writes the questions and correct answers, unless they were written before."""
        path = self.path / REQUESTS
        if not path.exists():
            with replacing([path]) as (file,):
                file.writelines(asked_lines(requests, gold))

    def keep_forecast(self, names: Sequence[str], forecast: Forecast) -> None:
        """Writes the forecast of each request, in the form that --forecast reads, unless it was written before."""
        path = self.path / "forecast.jsonl"
        if not path.exists():
            with replacing([path]) as (file,):
                file.writelines(forecast_line(name, forecast, i) + b"\n" for i, name in enumerate(names))

    def save(self, **changes: Any) -> None:
        self.manifest.update(changes)
        _write(self.path, self.manifest)


def _write(folder: Path, manifest: dict[str, Any]) -> None:
    with replacing([folder / MANIFEST]) as (file,):
        file.write(json.dumps(manifest, indent=2).encode() + b"\n")


# --- what a resumed run reads from its ledger ----------------------------------------------------


def restore(
    scheduler: Scheduler,
    ledger: Ledger,
    requests: Sequence[Request],
    progress: Progress,
    *,
    vote: Callable[[str, Completion], str | None] | None = None,
) -> None:
    """Passes what earlier executions left in the ledger to the scheduler: parts of answers, results and costs.

    vote  for a scheduler of routes: what an answer votes for. It also gets the route of each answer
    """
    place = {request.id: index for index, request in enumerate(requests)}
    so_far: dict[tuple[str, str, int], Completion] = {}  # by request, route and sample
    dropped = dropped_parts(_parts(ledger, place))
    for number, (name, (part, sample, landing, route, _)) in enumerate(_parts(ledger, place)):
        if number in dropped:
            scheduler.dropped(place_of(name, place), part)
            continue
        more: dict[str, Any] = {}
        if vote:
            key = name, route, sample
            so_far[key] = join(so_far.get(key), part)  # an answer may have been continued
            more = {"route": route, "vote": vote(name, so_far[key])}
        scheduler.restore(place_of(name, place), part, sample=sample, landing=landing, **more)
    for name, line in _without_estimates(ledger.results(), place):
        result = parse_result(line)
        progress.outcomes[result.outcome] += 1
        scheduler.restore(place_of(name, place), result)
    costs, by_route = charged_before(ledger, place), {"by_route": charged_by_route(ledger, place)} if vote else {}
    scheduler.charged(costs, **by_route)


def _parts(ledger: Ledger, place: Mapping[str, int]) -> Iterator[tuple[str, StoredPart]]:
    """The parts of answers of requests without a result, oldest first."""
    lines = _without_estimates(ledger.chunks(), place)
    return ((name, parse_chunk(line)) for name, line in lines if not ledger.has_result(name))


def _without_estimates(lines: Iterable[tuple[str, bytes]], place: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    """The lines of requests, without those of a teacher's estimates (`tale`)."""
    return ((name, line) for name, line in lines if name in place or not name.startswith(ESTIMATE))


def place_of(name: str, place: Mapping[str, int]) -> int:
    """The place of a request that the ledger names."""
    if name not in place:
        raise InputError(f"the ledger is of another run: it has a request {name!r:.60}", fix="start a new run")
    return place[name]


def lost_to_crashes(ledger: Ledger) -> int:
    """Units charged for attempts that were in flight when the run crashed or was cancelled: their cost is unknown."""
    return sum(entry.units for entry in ledger.entries() if entry.kind == "orphan")


def charged_before(ledger: Ledger, place: Mapping[str, int]) -> dict[int, int]:
    """What requests without a result were charged, by place, including attempts that failed or were lost."""
    costs: Counter[int] = Counter()
    for entry in ledger.entries():
        name = entry.request or ""
        if entry.reservation is not None and name in place and not ledger.has_result(name):
            costs[place[name]] += entry.units
    return dict(costs)


def charged_by_route(ledger: Ledger, place: Mapping[str, int]) -> dict[int, dict[str, int]]:
    """The same by route; without attempts of which the ledger does not know the route."""
    routes = {number: route for line in ledger.notes_on(ROUTES) for number, route in parse_routes(line).items()}
    costs: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for entry in ledger.entries():
        name = entry.request or ""
        if entry.reservation in routes and name in place and not ledger.has_result(name):
            costs[place[name]][routes[entry.reservation]] += entry.units
    return {at: dict(charged) for at, charged in costs.items()}
