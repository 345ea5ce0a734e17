r"""What landings could save on a long thinker, from the texts of its recorded answers.

    python scripts/long_thinkers.py traces.jsonl.gz

Not a measurement of landings: nobody asked these models for their answers early. The landing oracle here lands an
answer where its gold first appears in the text as a number, and pays four tokens; the oracle pays it to its end. Both
know every answer and serve the cheapest correct ones first. To measure it, on a server that continues answers:

    shadowprice collect QUESTIONS --base-url URL --probe 0,512,1024,2048,25%,50%,75% --out traces.jsonl
    shadowprice run QUESTIONS --base-url URL --landing think --forecaster FOLDER --budget BUDGET
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict

import numpy as np

from shadowprice.formats.traces import read_traces
from shadowprice.types import Trace

_TOKENS = 4  # of a final answer
_FEWEST = 50  # questions of a model


def first_appearance(trace: Trace) -> float | None:
    """The tokens up to where the gold first appears as a number; None: it is not a number, or never appears."""
    gold, text = trace.gold.replace(",", "").strip(), trace.response or ""
    if not re.fullmatch(r"-?\d+(\.\d+)?", gold):
        return None
    match = re.search(rf"(?<![\d.]){re.escape(gold)}(?![\d]|\.\d)", text.replace(",", ""))
    return None if match is None else trace.tokens * match.end() / max(1, len(text.replace(",", "")))


def main(path: str) -> None:
    models: defaultdict[str, list[Trace]] = defaultdict(list)
    for trace in read_traces(path):
        if trace.sample == 0 or "s1.1" in trace.model:
            models[trace.model].append(trace)
    print("| model | answers | first appearance, share of the length | budget | oracle | landing oracle |")
    print("|---|---|---|---|---|---|")
    for model, traces in sorted(models.items()):
        some = [t for t in traces if re.fullmatch(r"-?\d+(\.\d+)?", t.gold.replace(",", "").strip())]
        right = [t for t in some if t.correct and not t.truncated]
        at = [(t, age) for t in right if (age := first_appearance(t)) is not None]
        if len(some) < _FEWEST or not at:
            continue
        share = float(np.median([age / t.tokens for t, age in at]))
        median = float(np.median([t.tokens for t in some]))
        landing = {id(t): min(float(t.tokens), age + _TOKENS) for t, age in at}
        for times in (0.25, 0.5, 1.0):
            cells = [
                np.searchsorted(np.cumsum(sorted(costs)), times * median * len(some), side="right")
                for costs in ([t.tokens for t in right], [landing.get(id(t), float(t.tokens)) for t in right])
            ]
            full, landed = (100 * float(each) / len(some) for each in cells)
            print(f"| {model} | {len(some)} | {share:.2f} | {times:g} | {full:.1f} | {landed:.1f} |")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/long_thinkers.py TRACES")
    main(sys.argv[1])
