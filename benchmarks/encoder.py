"""Fine-tuned encoders compared with the text forecaster: the same training traces, the same test traces.

    python benchmarks/encoder.py BASE... --train TRACES... --test TRACES... [--cap TOKENS] [--epochs N] [--questions N]
                                 [--test-questions N] [--max-length N] [--learning-rate X] [--threads N]

BASE is an encoder: a folder, or a name on the Hugging Face hub. Each is compared on every file of test traces; the
forecaster that ships, adapted to the training traces, is compared as well. The average difference of each model from
the others is subtracted from the lengths to train on, as the text forecaster does by itself. Processor time, so that it
can be compared. In brackets 95% bootstrap intervals; those of the differences from the text forecaster draw the same
questions for both.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from shadowprice.forecast import DEFAULT, Forecaster, load
from shadowprice.forecast.encoder import EncoderForecaster
from shadowprice.forecast.evaluation import evaluate
from shadowprice.forecast.splits import question_key, questions_of
from shadowprice.forecast.text import TextForecaster
from shadowprice.formats.traces import read_traces
from shadowprice.types import Forecast, Request, Trace

RESAMPLES = 400


def without_habits(traces: Sequence[Trace]) -> list[Trace]:
    """As if one model had answered: log length = question + model, fitted by taking turns."""
    y = np.log([trace.tokens for trace in traces])
    question = questions_of(traces)
    _, model = np.unique([f"{trace.model} {trace.extra.get('variant')}" for trace in traces], return_inverse=True)
    habit = np.zeros(model.max() + 1)
    for _ in range(20):
        level = np.bincount(question, y - habit[model]) / np.bincount(question)
        habit = np.bincount(model, y - level[question]) / np.bincount(model)
        habit -= habit.mean()
    tokens = np.maximum(1, np.exp(y - habit[model])).round().astype(int).tolist()
    return [replace(trace, tokens=n) for trace, n in zip(traces, tokens, strict=True)]


def capped(trace: Trace, cap: int) -> Trace:
    return trace if trace.tokens <= cap else replace(trace, tokens=cap, truncated=True, correct=False)


def traces_of_some(traces: Sequence[Trace], questions: int) -> list[Trace]:
    chosen = set(
        np.random.default_rng(0).permutation(sorted({question_key(trace.prompt) for trace in traces}))[:questions]
    )
    return [trace for trace in traces if question_key(trace.prompt) in chosen]


def difference(forecast: Forecast, text: Forecast, test: Sequence[Trace], measure: str) -> str:
    """How much better than the text forecaster, with the 95% interval over questions drawn for both."""
    rng = np.random.default_rng(0)

    def gain(rows: NDArray[np.intp]) -> float:
        some = [test[i] for i in rows]
        ours, theirs = (getattr(evaluate(f.take(rows), some, resamples=1).overall, measure) for f in (forecast, text))
        return float(np.nan if ours is None or theirs is None else ours - theirs)

    gains = [gain(rng.integers(len(test), size=len(test))) for _ in range(RESAMPLES)]
    low, high = np.nanquantile(gains, (0.025, 0.975))
    return f"{gain(np.arange(len(test))):+.3f} ({low:+.2f} to {high:+.2f})"


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("base", nargs="+")
    options.add_argument("--train", type=Path, nargs="+", required=True)
    options.add_argument("--test", type=Path, nargs="+", required=True)
    options.add_argument("--cap", type=int, default=4096)
    options.add_argument("--questions", type=int, default=10**9)
    options.add_argument("--test-questions", type=int, default=10**9, help="of each file, one answer to each")
    options.add_argument("--epochs", type=int, default=1)
    options.add_argument("--max-length", type=int, default=128)
    options.add_argument("--learning-rate", type=float, default=1e-4)
    options.add_argument("--threads", type=int, default=1)
    given = options.parse_args()
    torch.set_num_threads(given.threads)

    traces = [trace for path in given.train for trace in read_traces(path) if trace.tokens > 0]
    few = traces_of_some(traces, given.questions)
    adjusted = without_habits(few)
    tests = {}
    for path in given.test:
        first = {question_key(trace.prompt): trace for trace in reversed(list(read_traces(path)))}
        some = traces_of_some(list(first.values()), given.test_questions)
        tests[path.name] = [capped(trace, given.cap) for trace in some]

    def encoder(base: str) -> Forecaster:
        return EncoderForecaster(
            base,
            heads=("correct",),
            per_question=True,
            epochs=given.epochs,
            max_length=given.max_length,
            learning_rate=given.learning_rate,
            progress=lambda line: print(line, file=sys.stderr, flush=True),
        ).fit(adjusted)

    ways: dict[str, Callable[[], Forecaster]] = {
        "text": lambda: TextForecaster().fit(few),
        "default, adapted": lambda: load(DEFAULT).adapt(few),
        **{f"encoder {Path(base).name}": partial(encoder, base) for base in given.base},
    }
    print("| test | n | forecaster | Spearman | from text | AUC | from text | training | a request |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    text: dict[str, Forecast] = {}
    for name, make in ways.items():
        start = time.process_time()
        forecaster = make()
        training = time.process_time() - start
        for file, test in tests.items():
            start = time.process_time()
            forecast = forecaster.predict([Request(trace.id, trace.prompt) for trace in test])
            each = (time.process_time() - start) / len(test)
            s = evaluate(forecast, test, resamples=RESAMPLES).overall
            low, high = s.spearman_range or (0.0, 0.0)
            least, most = s.auc_range or (0.0, 0.0)
            base = text.setdefault(file, forecast)
            ranks, grades = (
                "" if base is forecast else difference(forecast, base, test, measure) for measure in ("spearman", "auc")
            )
            print(
                f"| {file} | {len(test)} | {name} | {s.spearman:.3f} ({low:.2f} to {high:.2f}) | {ranks} "
                f"| {s.auc:.3f} ({least:.2f} to {most:.2f}) | {grades} | {training:,.0f} s | {1000 * each:.1f} ms |",
                flush=True,
            )


if __name__ == "__main__":
    main()
