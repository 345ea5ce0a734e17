"""How many recorded answers repeat themselves, and what ending them there would save.

python scripts/loops.py TRACES...

Texts are cut in proportion to their tokens, and looked at every 64 tokens, as a run does.
"""

from __future__ import annotations

import sys

from shadowprice.forecast.loops import is_looping
from shadowprice.formats.traces import read_traces
from shadowprice.types import Trace

STEP = 64
FEWEST = 100  # answers of a model


def looping_at(trace: Trace) -> int | None:
    """The age at which an answer is first seen to loop."""
    text = trace.response or ""
    for age in range(STEP, trace.tokens + 1, STEP):
        if is_looping(text[: len(text) * age // trace.tokens]):
            return age
    return None


def main(paths: list[str]) -> None:
    first: dict[str, dict[tuple[str, str], Trace]] = {}
    for path in paths:
        for trace in read_traces(path):
            first.setdefault(trace.model, {}).setdefault((trace.dataset, trace.id), trace)
    print("| model | answers | loop | of them end | of them correct | tokens after it |\n|---|---|---|---|---|---|")
    for model, answers in first.items():
        if len(answers) < FEWEST:
            continue
        loops = [(trace, age) for trace in answers.values() if (age := looping_at(trace)) is not None]
        ended = [trace for trace, _ in loops if not trace.truncated]
        after = sum(trace.tokens - age for trace, age in loops) / sum(trace.tokens for trace in answers.values())
        correct = sum(bool(trace.correct) for trace in ended)
        print(f"| {model} | {len(answers)} | {len(loops)} | {len(ended)} | {correct} | {100 * after:.0f}% |")


if __name__ == "__main__":
    main(sys.argv[1:])
