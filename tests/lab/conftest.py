"""Pools of real answers: what the package ships."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shadowprice.datasets.shipped import shipped_traces
from shadowprice.lab.pools import Pool, make_pool, recorded, trained_without
from shadowprice.lab.reproduction import Config, reproduce
from shadowprice.lab.results import Results
from shadowprice.report.reproduction import report


@pytest.fixture(scope="session")
def pool() -> Pool:
    """The shipped answers, with forecasts learned from the shipped training traces."""
    (model,) = recorded(shipped_traces("eval", "smollm2"))
    forecaster, _ = trained_without(shipped_traces("train", "smollm2"), [model])
    return make_pool(model, forecaster, about="trained")


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """A path that is made once for all the processes of a run of the tests."""
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent

    def made(name: str, make: Callable[[Path], object]) -> Path:
        path = place / name
        with open(place / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                make(new := place / f"new {name}")
                new.rename(path)
        return path

    return made


@pytest.fixture(scope="session")
def results(once) -> Results:
    """A whole reproduction on the shipped answers, as quick as it can be, as it is kept in a folder."""
    about = {
        "command": "shadowprice reproduce --quick --out lab",
        "files": [{"role": "traces", "path": "shipped", "sha256": "0123456789abcdef"}],
    }
    config = Config(quick=True, streams=["balanced", "mostly-hard"])

    def make(folder: Path) -> None:
        reproduce(
            shipped_traces("eval", "smollm2"), shipped_traces("train", "smollm2"), config=config, about=about
        ).write(folder)

    return Results.read(once("results", make))


@pytest.fixture(scope="session")
def page(once, results: Results) -> str:
    """The report of the results."""
    return once("page.html", lambda path: path.write_text(report(results))).read_text()
