"""From traces to results: models, forecasts, all experiments, and a record of what they were made from."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from shadowprice import __version__
from shadowprice.errors import InputError
from shadowprice.forecast import Forecaster
from shadowprice.lab.config import Lab, budgets_of, selected
from shadowprice.lab.experiments import EXPERIMENTS, Progress, run_experiments
from shadowprice.lab.figure_data import query_table
from shadowprice.lab.pools import FEWEST, TIERS, Pool, Recorded, make_pool, recorded, trained_without
from shadowprice.lab.results import Results
from shadowprice.lab.simulations import ACCOUNTINGS
from shadowprice.lab.streams import STREAMS, counts
from shadowprice.types import Trace

SEEDS, QUICK_SEEDS = 5, 2


@dataclass(frozen=True)
class Config:
    """The options of a reproduction; the defaults are the paper's, as far as the traces allow."""

    model: str = ""
    cap: int | None = None
    streams: Sequence[str] = ()
    budgets: Sequence[str] = ()
    policies: Sequence[str] = ()
    seeds: int | None = None
    calibrate: int = 0
    quick: bool = False


_PAPER = Config()


def reproduce(
    traces: Sequence[Trace],
    train: Sequence[Trace] = (),
    forecaster: Forecaster | None = None,
    config: Config = _PAPER,
    *,
    progress: Progress = lambda done, total, name: None,
    about: Mapping[str, Any] | None = None,
) -> Results:
    """All tables. `about` is added to the meta of the results: the command, files and their hashes."""
    steps = len(EXPERIMENTS) + 1
    progress(0, steps, "forecasts")
    streams = selected("stream", config.streams, list(STREAMS))
    policies = selected("policy", config.policies, list(ACCOUNTINGS))
    seeds = config.seeds or (QUICK_SEEDS if config.quick else SEEDS)
    models = _models(traces, config)
    budgets_of(models[0].median, config.budgets)  # report an invalid budget before the work starts
    pools = _pools(models, train, forecaster, config.calibrate)
    budgets = budgets_of(pools[0].median, config.budgets)
    lab = Lab(pools, models, streams, budgets, policies, seeds, quick=config.quick)
    rows, left_out = run_experiments(lab, lambda done, _, name: progress(1 + done, steps, name))
    queries, cell = query_table(lab)
    progress(steps, steps, "done")
    meta = {**(about or {}), **_meta(lab, left_out), "queries_are_of": cell, "notes": _notes(traces, models, pools[0])}
    return Results(rows, meta, queries)


def _models(traces: Sequence[Trace], config: Config) -> list[Recorded]:
    """The recorded answers of each model, the selected one first."""
    if config.cap is not None and config.cap < 1:
        raise InputError(f"--cap {config.cap} is not a valid limit", fix="give at least 1")
    models = recorded(traces, config.cap)
    if not models:
        problem = f"none of the {len(traces):,} traces is graded" if traces else "no traces"
        raise InputError(problem, fix='every line needs "correct": true or false')
    if config.model:
        names = [pool.model for pool in models]
        first = selected("model", [config.model], names)[0]
        models.insert(0, models.pop(names.index(first)))
    return models


def _pools(
    models: Sequence[Recorded], train: Sequence[Trace], forecaster: Forecaster | None, calibrate: int
) -> list[Pool]:
    """With forecasts: the first model, and the next one with enough questions.

    Forecasts are learned from the training traces of the model itself, if there are enough, else from all.
    """
    if calibrate < 0:
        raise InputError(f"--calibrate {calibrate} is not a number of questions", fix="give 0 or more")
    others = [pool for pool in models[1:] if len(pool) >= FEWEST + calibrate]
    pools = []
    for pool in [models[0], *others[:1]]:
        about = "of the forecaster given; make sure that it was not trained on these questions"
        if train:
            own = [trace for trace in train if trace.model == pool.model]
            forecaster, used = trained_without(own if len(own) >= FEWEST else train, models, pool.cap)
            about = f"trained on {used:,} traces of other questions"
        pools.append(make_pool(pool, forecaster, calibrate=calibrate, about=about))
    return pools


def _meta(lab: Lab, left_out: Mapping[str, str]) -> dict[str, Any]:
    pool = lab.pool
    n = min(lab.queries, len(pool))
    return {
        "shadowprice": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "model": pool.model,
        "second_model": lab.pools[1].model if len(lab.pools) > 1 else None,
        "questions": len(pool),
        "cap": pool.cap,
        "median_tokens": pool.median,
        "forecasts": pool.forecast_from,
        "tiers": {name: int(np.sum(pool.tier == tier)) for tier, name in enumerate(TIERS)},
        "tiers_by": pool.tiers_by,
        "streams": {name: counts(pool, name, n) for name in lab.streams},
        "queries": n,
        "budgets": list(lab.budgets),
        "policies": list(lab.policies),
        "seeds": list(range(lab.seeds)),
        "quick": lab.quick,
        "left_out": dict(left_out),
    }


def _notes(traces: Sequence[Trace], models: Sequence[Recorded], pool: Pool) -> list[str]:
    """What a reader has to know about the data."""
    notes = [
        "tale is left out: traces have no estimates of a teacher, and with forecasts instead it equals proportional"
    ]
    if ungraded := sum(trace.correct is None for trace in traces):
        notes.append(f"{ungraded:,} traces are not graded and left out")
    early = sum(trace.truncated and trace.tokens < pool.cap for trace in pool.first)
    if early:
        notes.append(
            f"{early:,} answers were truncated below the cap of {pool.cap:,}: they count as that long, and not correct"
        )
    if late := sum(trace.tokens > pool.cap for trace in pool.first):
        notes.append(f"{late:,} answers are longer than the cap of {pool.cap:,}: they count as truncated, not correct")
    several = sum(len(question) > 1 for question in pool.questions)
    if several:
        notes.append(f"{several:,} questions have several answers: the first is used, and all of them for best of K")
    if len(models) > 2:
        notes.append(f"{len(models)} models in the traces: compared are {pool.model} and the next largest")
    repeated = len(pool) - len({trace.prompt for trace in pool.first})
    if repeated:
        notes.append(f"{repeated:,} questions repeat another one under a different id")
    return notes
