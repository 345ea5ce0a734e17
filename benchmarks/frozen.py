"""Features of a transformer that is not trained any further, beside words: forecasts for models and questions unseen.

    python benchmarks/frozen.py FOLDER BASE [--only PATTERN] [--train FILE...] [--draws N] [--threads N] [--save FILE]

The pools of FOLDER, and what the forecaster of each is trained on, are those of `benchmarks/metered.py FOLDER`; files
of code are left out. BASE is an encoder: a folder, or a name on the Hugging Face hub. Spearman of the length and AUC of
correctness, by the text forecaster and with the features, trained elsewhere and adapted to 100 traces (the mean of the
draws of the hundred). In brackets the 95% bootstrap interval of the difference; a resample has each question as often
in one pool as in another.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pools import DRAWS, drawn, requests, unseen, without
from scipy.stats import rankdata

from shadowprice.forecast.frozen import FrozenForecaster
from shadowprice.forecast.splits import question_key
from shadowprice.forecast.text import TextForecaster
from shadowprice.formats.traces import read_traces
from shadowprice.lab.pools import Recorded
from shadowprice.types import Forecast

CODE = re.compile("code|humaneval")
CAP, RESAMPLES = 4096, 400
MEASURES = ("Spearman", "AUC")

Floats = NDArray[np.float64]


def remembering(base: str) -> FrozenForecaster:
    """Reads no question twice: many forecasters are trained on nearly the same ones."""
    forecaster = FrozenForecaster(base)
    network = forecaster._network
    read, known = network.outputs, dict[str, Floats]()

    def outputs(texts: Sequence[str], batch: int) -> Floats:
        if new := [text for text in dict.fromkeys(texts) if text not in known]:
            known.update(zip(new, read(new, batch).astype(np.float32), strict=True))
        return np.array([known[text] for text in texts], float).reshape(len(texts), network.width)

    network.outputs = outputs  # type: ignore[method-assign]
    return forecaster


@dataclass(frozen=True, eq=False)
class Pair:
    """Forecasts for the same answers: by words, and with features."""

    pool: Recorded
    words: Forecast
    features: Forecast

    def questions(self) -> list[str]:
        return [question_key(trace.prompt) for trace in self.pool.first]

    def quality(self, rows: NDArray[np.intp]) -> Floats:
        """(words, features) by (Spearman, AUC). Answers that were cut count as equal, and as longer than all others."""
        length, correct = np.where(self.pool.truncated, 2**40, self.pool.length)[rows], self.pool.correct[rows]
        forecasts = [each.take(rows) for each in (self.words, self.features)]
        return np.array(
            [
                [spearman(each.tokens, length), area(np.broadcast_to(each.solve, rows.size), correct)]
                for each in forecasts
            ]
        )


def spearman(a: Floats, b: NDArray[np.int64]) -> float:
    return float(np.corrcoef(rankdata(a), rankdata(b))[0, 1])


def area(score: Floats, correct: NDArray[np.bool_]) -> float:
    hits = int(correct.sum())
    if not 0 < hits < correct.size:
        return np.nan
    return float((rankdata(score)[correct].sum() - hits * (hits + 1) / 2) / (hits * (correct.size - hits)))


def measured(pairs: Sequence[Pair]) -> tuple[Floats, Floats]:
    """The mean over the pairs, and the differences in resamples of the questions."""
    number = {key: i for i, key in enumerate(sorted({key for pair in pairs for key in pair.questions()}))}
    places = [np.array([number[key] for key in pair.questions()]) for pair in pairs]
    observed = np.nanmean([pair.quality(np.arange(len(pair.pool))) for pair in pairs], axis=0)
    rng = np.random.default_rng(0)
    gains = []
    for _ in range(RESAMPLES):
        times = rng.poisson(1.0, len(number))
        rows = [np.repeat(np.arange(place.size), times[place]) for place in places]
        found = np.nanmean([pair.quality(row) for pair, row in zip(pairs, rows, strict=True)], axis=0)
        gains.append(found[1] - found[0])
    return observed, np.array(gains)


def shown(pairs: Sequence[Pair]) -> str:
    observed, gains = measured(pairs)
    low, high = np.nanquantile(gains, (0.025, 0.975), axis=0)
    cells = [
        f"{words:.3f} | {features:.3f}, {features - words:+.3f} ({least:+.3f} to {most:+.3f})"
        for words, features, least, most in zip(*observed, low, high, strict=True)
    ]
    return " | ".join(cells)


def pairs(
    folder: Path, base: str, only: str, train: Sequence[str], draws: int
) -> Iterator[tuple[str, Pair, list[Pair]]]:
    """By pool: trained elsewhere, and adapted to each draw of a hundred traces."""
    files = {
        path.name: list(read_traces(path)) for path in sorted(folder.glob("*.jsonl.gz")) if not CODE.search(path.name)
    }
    start = remembering(base)
    trained: dict[tuple[str, str], tuple[TextForecaster, TextForecaster]] = {}
    for file, pool, left_out, others in unseen(files, train=train, only=only, cap=CAP):
        if (file, left_out) not in trained:
            kept = without(others, left_out)
            if not kept:
                continue
            trained[file, left_out] = TextForecaster().fit(kept), start._untrained().fit(kept)
        words, features = trained[file, left_out]
        few = [drawn(pool, seed) for seed in range(draws)]
        yield (
            f"{file.split('.jsonl')[0]} {pool.model}",
            pair(pool, words, features),
            [pair(rest, words.adapt(some), features.adapt(some)) for some, rest in few],
        )


def pair(pool: Recorded, words: TextForecaster, features: TextForecaster) -> Pair:
    asked = requests(pool.first)
    return Pair(pool, words.predict(asked), features.predict(asked))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("base")
    parser.add_argument("--only", default="", help="pools that match this regular expression")
    parser.add_argument("--train", nargs="+", default=[], help="the files to train on (default: all)")
    parser.add_argument("--draws", type=int, default=DRAWS, help="of a hundred traces")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save", type=Path, help="a JSON file for the figures of all pools")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    columns = " | ".join(f"{measure}{when} | with features" for when in ("", " + 100") for measure in MEASURES)
    print(f"| pool | n | {columns} |\n|---|---{'|---' * 8}|", flush=True)
    elsewhere, adapted, figures = list[Pair](), list[Pair](), dict[str, list[list[float]]]()
    for name, first, few in pairs(options.folder, options.base, options.only, options.train, options.draws):
        elsewhere.append(first)
        adapted += few
        figures[name] = [measured(some)[0].tolist() for some in ([first], few)]
        print(f"| {name} | {len(first.pool)} | {shown([first])} | {shown(few)} |", flush=True)
        if options.save:
            options.save.write_text(json.dumps(figures, indent=1))
    print(f"| mean of {len(elsewhere)} | | {shown(elsewhere)} | {shown(adapted)} |")


if __name__ == "__main__":
    main()
