"""The forecasts of every pool in a folder of traces, and what the index makes of them.

A pool is one model of one file with at least 300 graded questions. Its forecaster is trained on the other files,
without the pool's model and without its questions. Variants, all on the same streams:

    elsewhere     the forecaster as it is: the run learns as it goes
    + 100         adapted to 100 traces, which are left out of the streams
    all alike     one forecast for all questions, calibrated on the pool
    scout         + 100, where another model has answered at least half of the questions: the length and the
                  outcome of its answer revise the forecast (`forecast.scout`)

`closed` is the share of the way from the paper's CLEAR (reserved, forecasts of "+ 100") to the oracle that the index
goes: the mean over four streams and budgets of 0.25, 0.5 and 1 times the median length. Intervals are 95% bootstrap
over questions and seeds, paired between policies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shadowprice.forecast.calibration import Calibration
from shadowprice.forecast.evaluation import evaluate
from shadowprice.forecast.reading import Reader
from shadowprice.forecast.scout import ScoutAnswers, with_scout
from shadowprice.forecast.splits import question_key
from shadowprice.forecast.text import TextForecaster
from shadowprice.forecast.training import Trainer
from shadowprice.formats.traces import read_traces
from shadowprice.lab.compare import _weights
from shadowprice.lab.pools import Pool, Recorded, reads_all, recorded, under
from shadowprice.lab.simulations import Queries, Setup, outcome_of
from shadowprice.lab.streams import QUERIES, STREAMS, draw
from shadowprice.types import Forecast, Request, Trace

FEWEST, CALIBRATE, DRAWS = 300, 100, 4
SCARCE = (0.25, 0.5, 1.0)  # times the median length
RESAMPLES = 400

TABLES = (
    ("questions", "median", "cut", "Spearman elsewhere", "Spearman + 100", "AUC elsewhere", "AUC + 100"),
    ("Spearman scout", "AUC scout", "80% scout", "ECE scout", "closed scout", "behind scout"),
    ("80% elsewhere", "80% + 100", "ECE elsewhere", "ECE + 100"),
    ("closed elsewhere", "closed + 100", "least + 100", "closed alike"),
    ("behind elsewhere", "behind + 100", "behind alike"),
    ("correct elsewhere", "correct + 100", "correct alike", "correct oracle"),
)

Counts = NDArray[np.float64]  # (seeds, questions): how often each was correct


@dataclass(frozen=True, eq=False)
class Measured:
    """How often each question was correct, by stream, budget and policy; and how often it was drawn, by stream."""

    tier: NDArray[np.intp]
    drawn: Mapping[str, Counts]
    correct: Mapping[tuple[str, float, str], Counts]

    def shares(self) -> dict[tuple[str, float, str], NDArray[np.float64]]:
        """Percent correct: as observed, then in each resample; all cells share the resamples."""
        random = np.random.default_rng(0)
        seeds = len(next(iter(self.drawn.values())))
        questions = np.vstack([np.ones(self.tier.size), _weights(random, self.tier, RESAMPLES)])
        times = np.vstack([np.ones(seeds), random.multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES)])

        def total(counts: Counts) -> NDArray[np.float64]:
            return ((counts @ questions.T) * times.T).sum(axis=0)

        drawn = {stream: total(counts) for stream, counts in self.drawn.items()}
        return {cell: 100 * total(counts) / drawn[cell[0]] for cell, counts in self.correct.items()}


def measure(
    pool: Recorded,
    forecasts: Mapping[str, Forecast],
    readers: Mapping[str, Reader | None],
    times: Sequence[float],
    seeds: int,
) -> Measured:
    """The index with each of the forecasts, uniform and the oracle; and CLEAR, with the forecasts of `+ 100`."""
    drawn: dict[str, Counts] = {}
    correct: dict[tuple[str, float, str], Counts] = {}
    pools = {
        name: Pool(pool.model, pool.cap, pool.questions, some, name, reader=reads_all(readers.get(name), len(pool)))
        for name, some in forecasts.items()
    }
    for stream in STREAMS:
        drawn[stream] = np.zeros((seeds, len(pool)))
        for seed in range(seeds):
            for name, own in pools.items():
                places = draw(own, stream, min(QUERIES, len(pool)), seed)
                queries = Queries.of(own, places)
                setups = {f"index {name}": Setup("index", "metered")}
                if name == "+ 100":
                    drawn[stream][seed] = np.bincount(places, minlength=len(pool))
                    setups |= {
                        "uniform": Setup("uniform", "metered"),
                        "clear": Setup("clear", "reserved"),
                        "clear metered": Setup("clear", "metered"),
                        "oracle": Setup("oracle", "metered"),
                    }
                if name == "elsewhere":
                    setups["clear elsewhere"] = Setup("clear", "metered")
                for each in times:
                    budget = max(1, round(each * pool.median)) * len(queries)
                    for policy, setup in setups.items():
                        outcome = outcome_of(setup, queries, budget)
                        cell = correct.setdefault((stream, each, policy), np.zeros((seeds, len(pool))))
                        cell[seed] = np.bincount(places, outcome.correct, minlength=len(pool))
    return Measured(pool.tier, drawn, correct)


@dataclass
class Row:
    """What is known about a pool: figures, and (low, high) of some of them."""

    pool: str
    figures: dict[str, float] = field(default_factory=dict)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, name: str, values: NDArray[np.float64]) -> None:
        """The first value is the observation, the others are resamples."""
        self.figures[name] = float(values[0])
        self.ranges[name] = tuple(np.quantile(values[1:], [0.025, 0.975]).tolist())


def rows(
    folder: Path,
    *,
    train: Sequence[str] = (),
    only: str = "",
    cap: int = 4096,
    times: Sequence[float],
    seeds: int,
    reading: bool = True,
) -> Iterator[Row]:
    """The rows of all pools; `train` limits the files that are trained on, `only` the pools (a regular expression).

    reading  whether answers are read on the way
    """
    files = {path.name: list(read_traces(path)) for path in sorted(folder.glob("*.jsonl.gz"))}
    trained: dict[tuple[str, str], TextForecaster | None] = {}  # by the file and the model that are left out
    for file, pool, left_out, others in unseen(files, train=train, only=only, cap=cap):
        if (file, left_out) not in trained:
            kept = without(others, left_out)
            trained[file, left_out] = TextForecaster().fit(kept) if kept else None
        if forecaster := trained[file, left_out]:
            yield row(pool, file, forecaster, files, times, seeds, reading)


def unseen(
    files: Mapping[str, Sequence[Trace]], *, train: Sequence[str], only: str, cap: int
) -> Iterator[tuple[str, Recorded, str, list[Trace]]]:
    """The pools: file, pool, the model that its forecaster must not see ("": no other file has it), and the traces of
    other files and other questions to train on."""
    for file, traces in files.items():
        pools = [each for each in recorded(traces, None) if len(each) >= FEWEST]
        pools = [replace(each, cap=min(cap, each.cap)) for each in pools]
        chosen = [each for each in pools if re.search(only, f"{file} {each.model}")]
        if not chosen:
            continue
        hidden = {question_key(each[0].prompt) for pool in pools for each in pool.questions}
        others = [
            under(trace, cap)
            for name, some in files.items()
            if name != file and (not train or name in train)
            for trace in some
            if question_key(trace.prompt) not in hidden
        ]
        names = {model_key(trace.model) for trace in others}
        for pool in chosen:
            model = model_key(pool.first[0].model)
            yield file, pool, model if model in names else "", others


def without(traces: Sequence[Trace], model: str) -> list[Trace]:
    return [trace for trace in traces if model_key(trace.model) != model]


def model_key(name: str) -> str:
    """The same for the names that different files have for a model."""
    return name.lower().removeprefix("meta-llama/").removeprefix("qwen/").removeprefix("meta-")


def requests(traces: Sequence[Trace]) -> list[Request]:
    return [Request(trace.id, trace.prompt) for trace in traces]


def row(
    pool: Recorded,
    file: str,
    forecaster: TextForecaster,
    files: Mapping[str, Sequence[Trace]],
    times: Sequence[float],
    seeds: int,
    reading: bool,
) -> Row:
    found = Row(f"{file.split('.jsonl')[0]} | {pool.model}")
    found.figures |= {"questions": len(pool), "median": pool.median, "cut": float(pool.truncated.mean())}
    quality(found, "elsewhere", [(forecaster.predict(requests(pool.under_cap)), pool.under_cap)])
    draws = [drawn(pool, seed) for seed in range(DRAWS)]
    adapted = [forecaster.adapt(few) for few, _ in draws]
    quality(
        found,
        "+ 100",
        [
            (each.predict(requests(rest.under_cap)), rest.under_cap)
            for each, (_, rest) in zip(adapted, draws, strict=True)
        ],
    )
    rest = draws[0][1]
    asked = requests(rest.under_cap)
    forecasts = {
        "elsewhere": forecaster.predict(asked),
        "+ 100": adapted[0].predict(asked),
        "alike": alike(rest),
    }
    readers = {"elsewhere": forecaster.reader, "+ 100": adapted[0].reader}
    if scout := scout_of(pool, files):
        trainer = with_scout(Trainer("text", lambda traces, name: forecaster.adapt(traces), forecaster), scout)
        trained = [trainer.fit(few, "all") for few, _ in draws]
        scouted = [each.predict(requests(rest.under_cap)) for each, (_, rest) in zip(trained, draws, strict=True)]
        quality(found, "scout", [(each, rest.under_cap) for each, (_, rest) in zip(scouted, draws, strict=True)])
        forecasts["scout"], readers["scout"] = scouted[0], trained[0].reader
    simulated(found, measure(rest, forecasts, readers if reading else {}, times, seeds))
    return found


def scout_of(pool: Recorded, files: Mapping[str, Sequence[Trace]]) -> ScoutAnswers | None:
    """The answers of the model that has answered the most of the pool's questions; of several, the briefest."""
    own, wanted = model_key(pool.first[0].model), {question_key(trace.prompt) for trace in pool.first}
    answers: dict[tuple[str, str], dict[str, Trace]] = {}
    for file, traces in files.items():
        for trace in traces:
            if model_key(trace.model) != own and trace.tokens > 0 and (key := question_key(trace.prompt)) in wanted:
                answers.setdefault((file, trace.model), {}).setdefault(key, trace)
    shared = max(map(len, answers.values()), default=0)
    most = [list(each.values()) for each in answers.values() if len(each) == shared]
    if 2 * shared < len(wanted):
        return None
    return ScoutAnswers(min(most, key=lambda each: sum(trace.tokens for trace in each)))


def quality(found: Row, name: str, forecasts: Sequence[tuple[Forecast, Sequence[Trace]]]) -> None:
    """Spearman, AUC, coverage and calibration error: the mean over the draws."""
    scores = [evaluate(forecast, traces, resamples=2).overall for forecast, traces in forecasts]
    for figure, values in {
        "Spearman": [s.spearman for s in scores],
        "AUC": [s.auc for s in scores],
        "ECE": [s.calibration_error for s in scores],
        "80%": [s.coverage["80%"] for s in scores],
    }.items():
        known = [each for each in values if each is not None]
        found.figures[f"{figure} {name}"] = float(np.mean(known)) if known else np.nan


def drawn(pool: Recorded, seed: int) -> tuple[list[Trace], Recorded]:
    """The first answers to some questions, to adapt with, and the pool of the others."""
    order = np.random.default_rng(seed).permutation(len(pool))
    few = [pool.under_cap[i] for i in order[:CALIBRATE].tolist()]
    used = {question_key(trace.prompt) for trace in few}
    left = [each for each in pool.questions if question_key(each[0].prompt) not in used]
    return few, Recorded(pool.model, pool.cap, left)


def alike(pool: Recorded) -> Forecast:
    """One calibrated forecast for all questions."""
    one = Forecast(pool.median, 0.5, 0.5).take(np.zeros(len(pool), dtype=np.intp))
    return Calibration.fit(one, pool.under_cap).apply(one)


def simulated(found: Row, measured: Measured) -> None:
    share = measured.shares()
    cells = sorted({cell[:2] for cell in share})
    scarce = [cell for cell in cells if cell[1] in SCARCE]

    def of(cell: tuple[str, float], policy: str) -> NDArray[np.float64]:
        return share[(*cell, policy)]

    variants = sorted({cell[2] for cell in share if cell[2].startswith("index")})
    for policy in variants:
        closed = [
            (of(cell, policy) - of(cell, "clear")) / np.maximum(0.5, of(cell, "oracle") - of(cell, "clear"))
            for cell in scarce
        ]
        name = policy.removeprefix("index ")
        found.add(f"closed {name}", np.mean(closed, axis=0))
        found.figures[f"least {name}"] = min(float(each[0]) for each in closed)
        found.add(f"correct {name}", np.mean([of(cell, policy) for cell in scarce], axis=0))
    found.add("correct oracle", np.mean([of(cell, "oracle") for cell in scarce], axis=0))
    against = {"elsewhere": ["uniform", "clear elsewhere"], "+ 100": ["uniform", "clear metered"], "alike": ["uniform"]}
    for policy in variants:
        name = policy.removeprefix("index ")
        short = [
            (of(cell, other) - of(cell, policy), cell, other)
            for cell in cells
            for other in against.get(name, against["+ 100"])
        ]
        worst = max(short, key=lambda each: each[0][0])
        found.add(f"behind {name}", worst[0])
        found.figures[f"cells behind {name}"] = float(sum(np.quantile(each[0][1:], 0.025) > 0.5 for each in short))


def table(found: Sequence[Row], columns: Sequence[str]) -> Iterator[str]:
    yield "| pool | " + " | ".join(columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for each in found:
        yield f"| {each.pool} | " + " | ".join(_shown(each, name) for name in columns) + " |"
    means = [np.nanmean([each.figures.get(name, np.nan) for each in found]) for name in columns]
    yield "| mean | " + " | ".join(f"{mean:.3f}" for mean in means) + " |"


def _shown(each: Row, name: str) -> str:
    if name not in each.figures:
        return "-"
    value = f"{each.figures[name]:.2f}" if name not in ("questions", "median") else f"{each.figures[name]:.0f}"
    if name not in each.ranges:
        return value
    low, high = each.ranges[name]
    return f"{value} ({low:.2f} to {high:.2f})"


def requirements(found: Sequence[Row], before: Mapping[str, Row]) -> Iterator[tuple[str, bool]]:
    """What has to hold, with the figures, and whether it does."""

    def those(held: Callable[[Row], bool]) -> list[str]:
        return [each.pool for each in found if not held(each)]

    for name in ("elsewhere", "+ 100", "alike"):
        behind = those(lambda each, name=name: each.ranges[f"behind {name}"][0] <= 0.5)  # type: ignore[misc]
        yield f"{name}: nowhere 0.5 points below uniform or CLEAR beyond the interval; not: {behind}", not behind
    outside = those(lambda each: 0.75 <= each.figures["80% + 100"] <= 0.85)
    yield f"80% intervals cover 75 to 85% after 100 traces; not: {outside}", not outside
    wrong = those(lambda each: each.figures["ECE + 100"] <= 0.07)
    yield f"calibration error at most 0.07 after 100 traces; not: {wrong}", not wrong
    less = those(lambda each: each.figures["closed elsewhere"] >= 0.8 * each.figures["closed + 100"])
    yield f"uncalibrated at least 80% of what 100 traces give; not: {less}", not less
    both = [each for each in found if each.pool in before]
    if both:
        gain = np.mean([each.figures["closed + 100"] - before[each.pool].figures["closed + 100"] for each in both])
        yield (
            f"closed with 100 traces at least 0.05 above before on average of {len(both)} pools: {gain:+.3f}",
            gain >= 0.05,
        )
        worse = [
            each.pool for each in both if each.ranges["closed + 100"][1] < before[each.pool].figures["closed + 100"]
        ]
        yield f"no pool worse beyond its interval; worse: {worse}", not worse


def saved(found: Sequence[Row]) -> list[dict[str, Any]]:
    return [vars(each) for each in found]


def load(path: Path) -> dict[str, Row]:
    return {each["pool"]: Row(**each) for each in json.loads(path.read_text())}
