"""What metered accounting loses when requests are divided among workers: one node beside shares with rounds.

    python benchmarks/metered_shares.py [SEEDS]

Recorded answers and the forecaster that come with the package (qwen2.5-coder-1.5b, eval), budgets of 0.25, 0.5
and 1 times the median length a request. Requests are put into shares at random, SEEDS times (default: 20). Shown are
correct answers, the mean over seeds and the range of 95% of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from shadowprice import Forecast, Request, Trace
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.distributed.metered import HALVES, MOST_ROUNDS, allowances, demand_of
from shadowprice.engine.metered import Metered
from shadowprice.engine.scheduler import Report
from shadowprice.forecast import default, predict_all
from shadowprice.types import Completion

CAP = 4096


class Share:
    """Some of the requests, served over recorded answers as a worker serves them."""

    def __init__(self, traces: Sequence[Trace], forecast: Forecast) -> None:
        self.traces, self.scheduler, self.correct = traces, Metered(max_tokens=CAP), 0
        self.scheduler.add([Request(trace.id, trace.prompt) for trace in traces], forecast)

    def round(self, allowance: int) -> int:
        spent = 0
        while work := self.scheduler.next(allowance - spent):
            trace = self.traces[work.place]
            done = work.so_far.tokens if work.so_far else 0
            count = min(work.grant, max(1, trace.tokens - done))
            ends = done + count >= trace.tokens and not trace.truncated
            self.scheduler.done(Report(work, count, Completion("", count, "stop" if ends else "length", "server")))
            self.correct += bool(ends and trace.correct)
            spent += count
        return spent


def correct_with(traces: list[Trace], forecast: Forecast, budget: int, workers: int, rng: np.random.Generator) -> int:
    """Correct answers of so many workers, in the rounds of `distributed.jobs`; one worker is one node, in one round."""
    order = rng.permutation(len(traces))
    parts = np.array_split(order, workers)
    shares = [Share([traces[at] for at in part], forecast.take(part)) for part in parts]
    left = budget
    for number in range(MOST_ROUNDS if workers > 1 else 1):
        units = left // 2 if workers > 1 and number < HALVES else left
        _, allowed = allowances([demand_of(share.scheduler) for share in shares], units, left)
        spent = sum(share.round(some) for share, some in zip(shares, allowed, strict=True))
        left -= spent
        if left <= 0 or (not spent and number >= HALVES):
            break
    return sum(share.correct for share in shares)


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    every = shipped_traces("eval")
    first: dict[tuple[str, str], Trace] = {}
    for trace in every:
        first.setdefault((trace.dataset, trace.id), trace)
    traces = list(first.values())
    forecast = predict_all(default(), [Request(trace.id, trace.prompt) for trace in traces])
    median = float(np.median([trace.tokens for trace in traces]))
    print(f"{len(traces)} requests, median length {median:.0f}, {seeds} seeds; correct answers")
    print(f"{'budget':>8} {'one node':>9} " + " ".join(f"{f'{n} workers':>17}" for n in (2, 4, 8, 16)))
    for times in (0.25, 0.5, 1.0):
        budget = int(times * median * len(traces))
        one = correct_with(traces, forecast, budget, 1, np.random.default_rng(0))
        cells = []
        for workers in (2, 4, 8, 16):
            correct = [correct_with(traces, forecast, budget, workers, np.random.default_rng(s)) for s in range(seeds)]
            spread = 1.96 * np.std(correct, ddof=1) / np.sqrt(seeds)
            cells.append(f"{np.mean(correct):8.1f} ± {spread:5.1f} ")
        print(f"{times:8} {one:9} " + " ".join(f"{cell:>17}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
