"""Landings live: a model answers questions under one budget, with and without landings, beside what is simulated.

    python scripts/live_landing.py build/live-landing                 # 40 questions; minutes to an hour
    python scripts/live_landing.py build/live-landing --questions 12 --budget 100/query

Questions are evaluation questions in the package, forecasts are learned from its training split. The model is not exact
(several answers are generated beside each other), so live and simulated agree within what sampling allows, not request
by request. Stop it, with `kill -9` too, and run it again: it continues, within the same budget.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from live import asked

import shadowprice as sp
from shadowprice.backends.llamacpp import LlamaCppBackend
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.forecast.text import TextForecaster


async def run(options: argparse.Namespace) -> int:
    traces = shipped_traces("eval", options.model)[: options.questions]
    requests = asked(traces)
    gold = {trace.id: (trace.gold, "math") for trace in traces}
    forecaster = TextForecaster().fit(shipped_traces("train", options.model))
    print(f"{len(traces)} questions, {options.budget}\n")
    print("| | correct | landed | tokens | by the server |\n|---|---|---|---|---|", flush=True)
    exceeded = False
    for landing in (None, "math"):
        settings = {"policy": "index", "max_tokens": options.cap, "landing": landing}
        backend = LlamaCppBackend(options.model, slots=8, threads=options.threads)
        folder = options.folder / (landing or "none")
        async with backend:
            with sp.Run(
                requests,
                budget=options.budget,
                backend=backend,
                folder=folder,
                forecaster=forecaster,
                gold=gold,
                **settings,
            ) as live:
                await live.execute()
                results, spent, budget = live.results(), live.spent, live.budget
        exceeded |= spent > budget
        counted = sum(result.usage.output for result in results)
        name = "with landings" if landing else "without"
        print(f"| {name}, live | {_counts(results)} | {spent:,} of {budget:,} | {counted:,} |")
        simulated = sp.simulate(traces, options.budget, forecaster=forecaster, **settings)
        print(f"| {name}, simulated | {_counts(simulated.results)} | {simulated.spent:,} | |", flush=True)
    return int(exceeded)


def _counts(results: list[sp.Result]) -> str:
    return f"{sum(r.correct is True for r in results)} | {sum(r.outcome == 'landed' for r in results)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--cap", type=int, default=1024)
    parser.add_argument("--budget", default="150/query")
    parser.add_argument("--threads", type=int, default=2)
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
