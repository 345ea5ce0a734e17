"""Pools of real answers: what the package ships."""

from __future__ import annotations

import pytest

from shadowprice.data import shipped_traces
from shadowprice.lab.pool import Pool, make_pool, recorded, trained_without
from shadowprice.lab.reproduction import Wishes, reproduce
from shadowprice.lab.results import Results


@pytest.fixture(scope="session")
def pool() -> Pool:
    """The shipped answers, with forecasts learnt from the shipped training traces."""
    (model,) = recorded(shipped_traces("eval"))
    forecaster, _ = trained_without(shipped_traces("train"), [model])
    return make_pool(model, forecaster, about="trained")


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A whole reproduction on the shipped answers, as quick as it can be, as it is kept in a folder."""
    about = {
        "command": "shadowprice reproduce --quick --out lab",
        "files": [{"role": "traces", "path": "shipped", "sha256": "0123456789abcdef"}],
    }
    wishes = Wishes(quick=True, streams=["balanced", "mostly-hard"])
    folder = tmp_path_factory.mktemp("lab")
    reproduce(shipped_traces("eval"), shipped_traces("train"), wishes=wishes, about=about).write(folder)
    return Results.read(folder)
