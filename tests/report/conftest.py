"""What tests of reports share: one reproduction of the shipped answers with its page, and runs on these answers."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from shadowprice.backends.base import response
from shadowprice.backends.recorded import RecordedBackend
from shadowprice.cost import Rates
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.errors import Refused, Unavailable
from shadowprice.lab.results import Results
from shadowprice.report.reproduction import report
from shadowprice.run_folder import RunFolder
from shadowprice.runs import Run
from shadowprice.types import Completion, Request
from tests.quick import QUICK

from ..lab.conftest import once, results  # noqa: F401

TRACES = shipped_traces("eval", "smollm2")[:120]
GOLD = {trace.id: (trace.gold, "numeric") for trace in TRACES if trace.gold.isdecimal()}
BUDGET = 1200
RATES = Rates.dollars("0.1", "0.5")


@pytest.fixture(scope="session")
def page(once, results: Results) -> str:  # noqa: F811
    def make(path: Path) -> None:
        path.write_text(report(results))

    return once("page.html", make).read_text()


# --- runs --------------------------------------------------------------------------------------


class Recorded(RecordedBackend):
    """Recorded answers, from a server that counts prompts, and can be asked how long an answer will be."""

    async def complete(self, body, limit, **options):
        text = body["messages"][-1]["content"].partition("\n\nKeep the entire response")[0]
        if text.startswith("How many tokens"):
            form = response(body, name="estimate", model=self.model, text="40", finish="stop", tokens=2)
            return Completion("40", 2, "stop", "server", (), form)
        answer = await super().complete({"messages": [{"role": "user", "content": text}]}, limit, **options)
        return replace(answer, input_tokens=len(text) // 4)


class Failing(Recorded):
    """Refuses some prompts, and answers others only after a connection was lost, or never."""

    def __init__(self, traces):
        super().__init__(traces)
        self.lost = set()

    async def complete(self, body, limit, **options):
        text = body["messages"][-1]["content"]
        place = next(i for i, trace in enumerate(TRACES) if trace.prompt == text)
        if place % 10 == 3:
            raise Refused(f"no model '{place}' on this server, for {place} tokens", code="model_not_found")
        if place % 10 == 6:
            raise Unavailable("the server answered 503", tokens=0)
        if place % 10 == 7 and place not in self.lost:
            self.lost.add(place)
            raise Unavailable("the connection was lost", tokens=None)
        return await super().complete(body, limit, **options)


def requests(count):
    return [
        Request(trace.id, trace.prompt, body={"messages": [{"role": "user", "content": trace.prompt}]})
        for trace in TRACES[:count]
    ]


def make_run(folder, count=60, *, backend=Recorded, budget=BUDGET, **options):
    """A run on recorded answers of a real model, to its end; returns its folder."""
    options.setdefault("concurrency", 4)
    with Run(requests(count), budget=budget, backend=backend(TRACES), folder=folder, **options) as run:
        asyncio.run(run.execute(tolerance=replace(QUICK, patience=30.0, exposure=1.0)))  # failures do not end it
    return folder


RUNS = {
    "reserved": {"policy": "clear"},
    "graded": {"policy": "clear", "gold": GOLD, "reclaim": False},
    "metered": {"policy": "index", "accounting": "metered", "count": 120},
    "rounds": {"policy": "clear", "accounting": "metered"},
    "tale": {"policy": "tale"},
    "taught": {"policy": "tale", "teacher": Recorded(TRACES)},
    "failing": {"policy": "uniform", "backend": Failing, "budget": 6000, "attempts": 2},
    "samples": {"policy": "uniform", "samples": 3, "max_tokens": 512, "gold": GOLD, "budget": 6000},
    "money": {"policy": "index", "accounting": "metered", "budget": "$0.004", "rates": RATES},
}


@pytest.fixture(scope="session")
def run_of(tmp_path_factory):
    """The folder of a run of `RUNS`, made once; tests must not change it."""
    folders = {}

    def run_of(name):
        if name not in folders:
            folders[name] = make_run(tmp_path_factory.mktemp("runs") / name, **RUNS[name])
        return folders[name]

    return run_of


@pytest.fixture
def folder(tmp_path):
    """Makes a run folder in which a test writes the ledger itself."""
    made = []

    def folder(budget=100, **asked):
        made.append(RunFolder.create(tmp_path / "run", budget, asked))
        return made[-1]

    yield folder
    for each in made:
        each.ledger.close()


@pytest.fixture
def own(run_of, tmp_path):
    """A copy of a run, to be changed."""

    def own(name):
        return shutil.copytree(run_of(name), tmp_path / "own")

    return own
