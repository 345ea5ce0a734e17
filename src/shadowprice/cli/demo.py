"""`shadowprice demo`: the same tasks on a real model under the same budget, one policy after the other."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from shadowprice.backends.llamacpp import LocalBackend
from shadowprice.cli.common import DONE, some
from shadowprice.cost import parse_budget
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.datasets.tasks import Task, tasks
from shadowprice.forecast import Predictor
from shadowprice.forecast.text import Text
from shadowprice.formats.batch import BatchLine
from shadowprice.grading import grade
from shadowprice.market import allocate
from shadowprice.metered_runner import run_metered
from shadowprice.runner import Progress, Settings, Summary, run, write_results
from shadowprice.runs import RunFolder
from shadowprice.types import Request

POLICIES = ("uniform", "clear", "metered")


@dataclass(frozen=True)
class Row:
    policy: str
    solved: int
    counted: int  # tokens, by the server itself
    summary: Summary


def demo_command(options: argparse.Namespace) -> int:
    chosen = tasks(options.seed, options.tasks, split="eval")
    budget = parse_budget(options.budget, len(chosen))
    folder = Path(options.out) / time.strftime("%Y%m%d-%H%M%S")
    train = shipped_traces("train")
    forecaster = Text().fit(train)
    print(f"{some(len(chosen), 'task')} (sums, capitals, counting, word problems), one budget of {budget:,} tokens")
    print(f"forecasts learnt from {len(train):,} recorded answers of the same model to other tasks\n")
    _show_market(chosen, forecaster, budget)

    backend = LocalBackend(cache=512, progress=lambda text: print(text, file=sys.stderr, flush=True))
    try:
        rows = asyncio.run(_run_all(chosen, budget, folder, backend, forecaster))
    finally:
        backend.server.close()
    print(f"\n{'policy':<10} {'solved':>14} {'tokens spent':>13} {'by the server':>14} {'cut':>5} {'abandoned':>10}")
    for row in rows:
        share = f"{row.solved} ({100 * row.solved / len(chosen):.0f}%)"
        print(
            f"{row.policy:<10} {share:>14} {row.summary.spent:>13,} {row.counted:>14,} "
            f"{row.summary.truncated:>5} {row.summary.abandoned:>10}"
        )
    print(f"\nevery answer, price and token is in {folder}")
    return DONE


def _show_market(chosen: list[Task], forecaster: Predictor, budget: int) -> None:
    forecast = forecaster.predict([Request(task.id, task.prompt) for task in chosen])
    cleared = allocate(forecast, budget, "clear")
    print(
        f"the market of CLEAR: price {cleared.price:.3g} per token, {cleared.admitted.sum()} of {len(chosen)} admitted"
    )
    for i in (0, 1, 2, 3, 4):
        verdict = f"{cleared.tokens[i]} tokens" if cleared.tokens[i] else "abandoned"
        print(f"  {chosen[i].prompt[:58]:<60} forecast {forecast.tokens[i]:4.0f}   {verdict}")
    print()


async def _run_all(
    chosen: list[Task], budget: int, folder: Path, backend: LocalBackend, forecaster: Predictor
) -> list[Row]:
    requests = [_request(i, task) for i, task in enumerate(chosen, start=1)]
    rows = []
    try:
        for policy in POLICIES:
            before = backend.server.tokens_predicted()
            place = RunFolder.create(folder / policy, budget, {"policy": policy, "model": backend.model})
            with place.ledger:
                told, tell = Settings(policy=policy), _teller(policy, len(chosen))
                if policy == "metered":
                    progress = await run_metered(requests, place.ledger, backend, forecaster, told, tell=tell)
                else:
                    progress = await run(requests, place.ledger, backend, forecaster, told, tell=tell)
                out = folder / policy / "answers.jsonl"
                summary = write_results(
                    requests, place.ledger, progress, out=out, errors=folder / policy / "abandoned.jsonl"
                )
                place.keep_forecast((task.id for task in chosen), progress.forecast)
                place.save(done=True, summary=asdict(summary))
            rows.append(Row(policy, _solved(chosen, out), backend.server.tokens_predicted() - before, summary))
    finally:
        await backend.close()
    return rows


def _request(line: int, task: Task) -> BatchLine:
    body = {"messages": [{"role": "user", "content": task.prompt}], "temperature": 0}
    raw = orjson.dumps({"custom_id": task.id, "body": body})
    return BatchLine(line, raw, Request(task.id, task.prompt), "max_completion_tokens", False)


def _solved(chosen: list[Task], answers: os.PathLike[str]) -> int:
    by_id = {task.id: task for task in chosen}
    solved = 0
    with open(answers, "rb") as lines:
        for line in map(orjson.loads, lines):
            task, said = by_id[line["custom_id"]], line["response"]["body"]["choices"][0]["message"]["content"]
            cut = line["shadowprice"]["finish"] == "length"
            solved += bool(grade(task.grader, said or "", task.answer, truncated=cut).correct)
    return solved


def _teller(policy: str, queries: int) -> Callable[[Progress], None]:
    last = time.monotonic()

    def tell(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last > 5:
            last = time.monotonic()
            told = f"{policy}: {progress.answered} of {queries} answered, {progress.spent:,} tokens spent"
            print(told, file=sys.stderr, flush=True)

    return tell
