"""Training a forecaster on traces, and evaluating it on questions that it was not trained on.

The traces of a share of the questions are held out, and a forecaster that is trained on the rest is evaluated on them.
Then the forecaster to use is trained on all traces; it should be at least as good as the one that was evaluated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shadowprice.errors import InputError
from shadowprice.forecast import DEFAULT, KINDS, Forecaster, load, predict_all
from shadowprice.forecast.evaluation import Report, evaluate
from shadowprice.forecast.folder import description
from shadowprice.forecast.splits import held_out, questions_of
from shadowprice.formats.traces import numbered_traces
from shadowprice.types import Forecast, Request, Trace

FEWEST_QUESTIONS = 20

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Trainer:
    """How a forecaster is made from traces.

    kind  a key of `forecast.KINDS`
    fit   makes a forecaster from traces; the second argument names the training: `held-out` or `all`
    base  the forecaster that `fit` adapts; None: it starts from nothing
    """

    kind: str
    fit: Callable[[Sequence[Trace], str], Forecaster]
    base: Forecaster | None = None


@dataclass(frozen=True)
class Evaluation:
    """How good a forecaster is on questions that it was not trained on.

    training  the traces it was trained on
    test      the traces it was evaluated on: about `share` of the questions, chosen by `seed`
    forecast  what it forecast for `test`
    base      the same report on the forecaster that was adapted, where one was
    """

    kind: str
    share: float
    seed: int
    training: Sequence[Trace]
    test: Sequence[Trace]
    forecast: Forecast
    report: Report
    base: Report | None = None


@dataclass(frozen=True)
class Training:
    """A forecaster trained on all traces, and the evaluation of one that was trained on some of them."""

    forecaster: Forecaster
    evaluation: Evaluation | None


def train(
    trainer: Trainer,
    traces: Sequence[Trace],
    *,
    validation: float = 0.2,
    seed: int = 0,
    progress: Progress = lambda line: None,
) -> Training:
    """`validation` is the share of questions that are held out; 0: no evaluation. `seed` chooses which."""
    _require_questions(traces, "to train on", "give more traces")
    evaluation = evaluate_held_out(trainer, traces, validation, seed, progress=progress) if validation else None
    progress(f"training on all {sizes(traces)}")
    return Training(trainer.fit(traces, "all"), evaluation)


def evaluate_held_out(
    trainer: Trainer, traces: Sequence[Trace], share: float, seed: int = 0, *, progress: Progress = lambda line: None
) -> Evaluation:
    """Hold out about `share` of the questions, train on the rest, and evaluate the result on them."""
    held = held_out(traces, share, seed)
    training = [trace for trace, out in zip(traces, held, strict=True) if not out]
    test = [trace for trace, out in zip(traces, held, strict=True) if out]
    _require_questions(training, "left to train on", "give more traces, or --validation 0 for no report")
    if not test:
        raise InputError("no question was held out", fix="raise --validation, or give more traces")
    progress(f"training on {sizes(training)}; {sizes(test)} held out")
    forecaster = trainer.fit(training, "held-out")
    progress("evaluating on the questions held out")
    requests = [Request(trace.id, trace.prompt) for trace in test]
    forecast = predict_all(forecaster, requests)
    base = None if trainer.base is None else evaluate(predict_all(trainer.base, requests), test)
    return Evaluation(trainer.kind, share, seed, training, test, forecast, evaluate(forecast, test), base)


def new_forecaster(kind: str = "text", **settings: Any) -> Trainer:
    """A trainer that starts from nothing; `settings` are arguments of the forecaster.

    Invalid settings are refused here, before anything is read. Each training has a folder of its own in `checkpoints`.
    """
    make: Any = KINDS[kind]()
    make(**settings)

    def fit(traces: Sequence[Trace], name: str) -> Forecaster:
        own = {"checkpoints": Path(settings["checkpoints"], name)} if settings.get("checkpoints") else {}
        fitted: Forecaster = make(**{**settings, **own}).fit(traces)
        return fitted

    return Trainer(kind, fit)


def adapted_forecaster(folder: str | os.PathLike[str]) -> Trainer:
    """A trainer that adapts the forecaster in a folder; `default` is the one that the package ships."""
    place = DEFAULT if folder == "default" else folder
    base = load(place)
    return Trainer(description(place)[0], lambda traces, name: base.adapt(traces), base)


def read_training_traces(paths: Sequence[str | os.PathLike[str]]) -> list[Trace]:
    """The traces of all files; those without any tokens are left out, an empty prompt is an error."""
    traces = []
    for path in paths:
        for line, trace in numbered_traces(path):
            if not trace.prompt.strip():
                raise InputError("an empty prompt", path=path, line=line, fix="remove the line")
            if trace.tokens > 0:
                traces.append(trace)
    return traces


def sizes(traces: Sequence[Trace]) -> str:
    """How many there are: `1,200 traces of 300 questions`."""
    return f"{_counted(len(traces), 'trace')} of {_counted(_questions(traces), 'question')}"


def _require_questions(traces: Sequence[Trace], purpose: str, fix: str) -> None:
    if (found := _questions(traces)) < FEWEST_QUESTIONS:
        raise InputError(f"{_counted(found, 'question')} {purpose}, {FEWEST_QUESTIONS} are needed", fix=fix)


def _questions(traces: Sequence[Trace]) -> int:
    return int(questions_of(traces).max(initial=-1)) + 1


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
