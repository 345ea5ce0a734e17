"""How good the text forecaster is on a model and questions it was not trained on.

    python benchmarks/forecast.py qwen2.5-14b-instruct.math.jsonl.gz \\
        --train llama-3.1-8b-instruct.math-train.jsonl.gz zeroeval-12-models.gsm8k-mathl5.jsonl.gz

Trains on the files after --train, which must share no question with the first file. Rows: unchanged; adapted
to 100 traces and evaluated on the others (mean and standard deviation over 16 draws); cross-fitted in five
folds, from nothing and from the forecaster trained elsewhere. Then the percentage that is correct under
several policies on the rest of the first draw, in reserved accounting.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from shadowprice import TextForecaster, allocate
from shadowprice.forecast.evaluation import Scores, evaluate
from shadowprice.forecast.splits import question_key
from shadowprice.formats.traces import read_traces
from shadowprice.types import Forecast, Request, Trace

DRAWS, FEW, FOLDS = 16, 100, 5


def requests(traces: Sequence[Trace]) -> list[Request]:
    return [Request(trace.id, trace.prompt) for trace in traces]


def drawn(pool: Sequence[Trace], seed: int) -> tuple[list[Trace], list[Trace]]:
    order = np.random.default_rng(seed).permutation(len(pool))
    return [pool[i] for i in order[:FEW]], [pool[i] for i in order[FEW:]]


def cross_fitted(pool: Sequence[Trace], learn: Callable[[list[Trace]], TextForecaster]) -> Forecast:
    order = np.random.default_rng(0).permutation(len(pool))
    parts, places = [], []
    for fold in range(FOLDS):
        out = order[fold::FOLDS]
        parts.append(learn([pool[i] for i in np.setdiff1d(order, out)]).predict(requests([pool[i] for i in out])))
        places.append(out)
    return Forecast.joined(parts).take(np.argsort(np.concatenate(places)))


def row(name: str, *scores: Scores) -> None:
    def mean(values: Sequence[float]) -> str:
        return f"{np.mean(values):.3f}" + (f" ± {np.std(values):.3f}" if len(values) > 1 else "")

    columns = [
        [s.spearman for s in scores],
        [s.auc for s in scores],
        [s.calibration_error for s in scores],
        *([s.coverage[share] for s in scores] for share in ("50%", "80%", "95%")),
    ]
    print(f"| {name} | " + " | ".join(mean(values) for values in columns) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("traces", type=Path)
    parser.add_argument("--train", type=Path, nargs="+", required=True)
    parser.add_argument("--cap", type=int, default=4096)
    options = parser.parse_args()
    pool = [
        replace(t, tokens=options.cap, correct=False, truncated=True) if t.tokens > options.cap else t
        for t in read_traces(options.traces)
    ]
    train = [trace for path in options.train for trace in read_traces(path)]
    assert not {question_key(t.prompt) for t in train} & {question_key(t.prompt) for t in pool}
    elsewhere = TextForecaster().fit(train)

    print("| forecaster | Spearman | AUC | ECE | 50% | 80% | 95% |\n|---|---|---|---|---|---|---|")

    def scores(forecast: Forecast, traces: Sequence[Trace]) -> Scores:
        return evaluate(forecast, traces, resamples=2).overall

    row("trained elsewhere", scores(elsewhere.predict(requests(pool)), pool))
    row(
        f"adapted to {FEW} traces",
        *(
            scores(elsewhere.adapt(few).predict(requests(rest)), rest)
            for few, rest in (drawn(pool, seed) for seed in range(DRAWS))
        ),
    )
    row("cross-fitted, from nothing", scores(cross_fitted(pool, lambda traces: TextForecaster().fit(traces)), pool))
    row("cross-fitted, from elsewhere", scores(cross_fitted(pool, elsewhere.adapt), pool))

    few, rest = drawn(pool, 0)
    forecast = elsewhere.adapt(few).predict(requests(rest))
    length, correct = np.array([t.tokens for t in rest]), np.array([bool(t.correct) for t in rest])
    print("\n| budget / median | uniform | clear | expected |\n|---|---|---|---|")
    for share in (0.125, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0):
        budget = int(share * np.median(length) * len(rest))
        percent = [
            100 * np.mean(correct & (length <= allocate(forecast, budget, policy, max_tokens=options.cap).tokens))
            for policy in ("uniform", "clear", "expected")
        ]
        print(f"| {share:g} | " + " | ".join(f"{each:.1f}" for each in percent) + " |")


if __name__ == "__main__":
    main()
