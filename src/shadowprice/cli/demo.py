"""`shadowprice demo`: the same questions on a real model under the same budget, one policy after the other."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shadowprice.cli.common import DONE, count
from shadowprice.cli.live import run_to_end, show_progress
from shadowprice.cli.options import EXIT, Commands, add_command
from shadowprice.errors import InputError

if TYPE_CHECKING:
    from shadowprice.backends.llamacpp import LlamaCppBackend
    from shadowprice.engine.executor import Progress
    from shadowprice.forecast import Predictor
    from shadowprice.formats.questions import Question
    from shadowprice.summary import Summary
    from shadowprice.types import Request

_DESCRIPTION = """\
Answers the same questions with a model on this machine three times, each within the same hard budget: with
the same limit for every request, with CLEAR as in the paper, and with the index in metered accounting.

  shadowprice demo          generated tasks on SmolLM2-135M-Instruct (93 MB, once): a few minutes
  shadowprice demo --math   GSM8K on Qwen2.5-Coder-1.5B-Instruct (1.1 GB, once): says how long it will take,
                            and continues where it stopped if you run it again
"""
# Policy, and the settings of its run.
SETTINGS: dict[str, dict[str, Any]] = {
    "uniform": {"policy": "uniform", "reclaim": False},
    "clear": {"policy": "clear", "reclaim": False},
    "index": {"policy": "index", "accounting": "metered"},
}
_TRIAL = 16  # tokens of each of the first questions, to find out how fast the model is


@dataclass(frozen=True)
class _Demo:
    """The questions, the model that answers them, and where the runs are kept."""

    model: str
    questions: list[Question]
    about: str
    template: str
    folder: Path


def add(commands: Commands) -> None:
    command = add_command(
        commands,
        "demo",
        "see it work: real answers from an embedded model, one budget, three policies",
        _DESCRIPTION,
        EXIT,
    )
    command.add_argument(
        "--math", action="store_true", help="GSM8K instead of small tasks: downloads 1.1 GB and takes longer"
    )
    command.add_argument("--tasks", type=int, metavar="N", help="how many questions (default: 150; --math: 40)")
    command.add_argument("--budget", help="tokens for all answers (default: 12/query; --math: 150/query)")
    command.add_argument("--seed", type=int, default=1, help="of the generated tasks (default: 1)")
    command.add_argument(
        "--out", default="build/demo", metavar="DIR", help="where the run folders go (default: build/demo)"
    )
    command.set_defaults(command=demo)


def demo(options: argparse.Namespace) -> int:
    from shadowprice.backends.llamacpp import LlamaCppBackend
    from shadowprice.cost import parse_budget
    from shadowprice.datasets.shipped import shipped_traces
    from shadowprice.engine.executor import Progress
    from shadowprice.forecast.text import TextForecaster

    if options.tasks is not None and options.tasks < 1:
        raise InputError(f"--tasks {options.tasks}", fix="give 1 or more")
    chosen = _math(options) if options.math else _small(options)
    questions = chosen.questions
    budget = parse_budget(options.budget or ("150/query" if options.math else "12/query"), len(questions))
    train = shipped_traces("train", chosen.model)
    forecaster = TextForecaster().fit(train)
    print(f"{count(len(questions), 'question')} ({chosen.about}), one budget of {budget:,} tokens")
    print(f"forecasts learned from {len(train):,} recorded answers of the same model to other questions\n")
    requests = _requests(chosen)
    _show_market(requests, forecaster, budget)

    backend = LlamaCppBackend(chosen.model, cache=512, progress=lambda text: print(text, file=sys.stderr, flush=True))
    progress = Progress(budget)
    rows = run_to_end(
        lambda: _run_all(chosen, requests, budget, backend, forecaster, progress),
        progress,
        [backend],
        str(chosen.folder),
    )
    print(f"\n{'policy':<10} {'correct':>14} {'tokens spent':>13} {'by the server':>14} {'cut':>5} {'declined':>9}")
    for name, summary, counted in rows:
        share = f"{summary.correct} ({100 * (summary.correct or 0) / len(questions):.0f}%)"
        print(
            f"{name:<10} {share:>14} {summary.spent:>13,} {counted:>14} "
            f"{summary.count('truncated'):>5} {summary.count('declined'):>9}"
        )
    print(f"\nevery answer, price and token is in {chosen.folder}{_reports(chosen.folder)}")
    return DONE


# --- questions ---------------------------------------------------------------------------------


def _small(options: argparse.Namespace) -> _Demo:
    from shadowprice.datasets.shipped import SMALL
    from shadowprice.datasets.tasks import tasks
    from shadowprice.formats.questions import Question
    from shadowprice.formats.templates import PLAIN

    generated = tasks(options.seed, 150 if options.tasks is None else options.tasks, split="eval")
    questions = [Question(task.id, task.prompt, task.answer, grader=task.grader) for task in generated]
    folder = Path(options.out) / time.strftime("%Y%m%d-%H%M%S")
    return _Demo(SMALL, questions, "sums, capitals, counting, word problems", PLAIN, folder)


def _math(options: argparse.Namespace) -> _Demo:
    """The evaluation questions of the recorded answers, GSM8K first."""
    from shadowprice.datasets.shipped import DEFAULT_SET, shipped_traces
    from shadowprice.errors import MissingExtra
    from shadowprice.formats.questions import Question
    from shadowprice.formats.templates import TEMPLATES

    if find_spec("math_verify") is None:
        raise MissingExtra("math", "grading mathematics")
    traces = sorted(shipped_traces("eval"), key=lambda trace: trace.dataset != "gsm8k_test")
    number = min(len(traces), 40 if options.tasks is None else options.tasks)
    questions = [Question(trace.id, trace.prompt, trace.gold) for trace in traces[:number]]
    kinds = " and ".join(dict.fromkeys(trace.dataset for trace in traces[:number]))
    folder = Path(options.out) / f"math-{number}"
    return _Demo(DEFAULT_SET, questions, kinds, TEMPLATES["math"], folder)


def _requests(chosen: _Demo) -> list[Request]:
    from shadowprice.formats.templates import prompted
    from shadowprice.types import Request

    return [
        Request(q.id, q.problem, body={**prompted(q.request_body(), chosen.template), "temperature": 0})
        for q in chosen.questions
    ]


def _show_market(requests: list[Request], forecaster: Predictor, budget: int) -> None:
    from shadowprice.market import allocate

    forecast = forecaster.predict(requests)
    cleared = allocate(forecast, budget, "clear")
    print(
        f"the market of CLEAR: price {cleared.price:.3g} per token, "
        f"{cleared.admitted.sum()} of {len(requests)} admitted"
    )
    for i, request in enumerate(requests[:5]):
        grant = f"{cleared.tokens[i]} tokens" if cleared.tokens[i] else "declined"
        print(f"  {' '.join(request.text.split())[:58]:<60} forecast {forecast.tokens[i]:4.0f}   {grant}")
    print()


# --- runs --------------------------------------------------------------------------------------


async def _run_all(
    chosen: _Demo,
    requests: list[Request],
    budget: int,
    backend: LlamaCppBackend,
    forecaster: Predictor,
    progress: Progress,
) -> list[tuple[str, Summary, str]]:
    """For each policy its name, the summary of its run, and the tokens that the server itself counted."""
    from shadowprice.cost import TOKENS
    from shadowprice.runs import Run

    gold = {question.id: (question.gold, question.grader) for question in chosen.questions}
    await _say_how_long(requests, budget, backend)
    rows: list[tuple[str, Summary, str]] = []
    for name, settings in SETTINGS.items():
        place = chosen.folder / name
        resumed, before = place.exists(), backend.server.tokens_predicted()
        with (
            Run(
                requests, budget=budget, backend=backend, folder=place, forecaster=forecaster, gold=gold, **settings
            ) as run,
            show_progress(len(requests), TOKENS, quiet=False) as on_event,
        ):
            # Ctrl-C stops the current run.
            def event(state: Progress, show: Any = on_event) -> None:
                progress.running = state.running
                if progress.stopped:
                    state.stop(progress.stopped)
                show(state)

            summary = await run.execute(on_event=event)
            if progress.stopped:
                return rows
            run.write(place / "answers.jsonl", place / "declined.jsonl")
        counted = "-" if resumed else f"{backend.server.tokens_predicted() - before:,}"
        rows.append((name, summary, counted))
    return rows


async def _say_how_long(requests: list[Request], budget: int, backend: LlamaCppBackend) -> None:
    """Prints an estimate from a trial, which is not charged to any budget."""
    began = time.monotonic()
    answers = await asyncio.gather(*(backend.complete(each.body, _TRIAL) for each in requests[:8]))
    speed = sum(answer.tokens for answer in answers) / (time.monotonic() - began)
    most = budget * len(SETTINGS)
    minutes = most / speed / 60
    print(
        f"{len(SETTINGS)} runs of at most {budget:,} tokens each, at about {speed:.0f} tokens per second: "
        f"{minutes:.0f} minutes at most\n"
        if minutes >= 1
        else f"{len(SETTINGS)} runs of at most {budget:,} tokens each: less than a minute\n",
        file=sys.stderr,
        flush=True,
    )


def _reports(folder: Path) -> str:
    """Writes a page about each run, where the extra for it is installed."""
    if find_spec("matplotlib") is None or find_spec("jinja2") is None:
        return ""
    from shadowprice.formats.files import replacing
    from shadowprice.report.run import run_report

    for name in SETTINGS:
        with replacing([folder / name / "report.html"]) as (file,):
            file.write(run_report(folder / name).encode())
    return ", with a report.html for each"
