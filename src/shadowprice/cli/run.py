"""`shadowprice run`: answer questions on a real model within a budget."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shadowprice.cli.common import (
    DONE,
    EXHAUSTED,
    check_policy_name,
    forecaster,
    given,
    gold_for,
    option,
    outputs,
    rates_of,
    refuse_same_file,
    run_folder,
    standard_output,
)
from shadowprice.cli.live import make_backend, make_routing, resumable, run_to_end, show_progress
from shadowprice.cli.options import (
    EXIT,
    INPUTS,
    POLICIES,
    ROUTES,
    Commands,
    add_command,
    add_market,
    add_model,
    add_rates,
    add_unsafe_code,
)
from shadowprice.cli.tolerance import add_tolerance, tolerance
from shadowprice.errors import InputError

if TYPE_CHECKING:
    from shadowprice.backends.base import Backend
    from shadowprice.formats.questions import Gold
    from shadowprice.formats.routes import Route
    from shadowprice.routing import Routing
    from shadowprice.runs import Run
    from shadowprice.types import Request

_DESCRIPTION = """\
Answers questions or a batch file on a real model so that as many requests as possible are answered correctly and the
budget is never exceeded. Forecasts every request, clears the market, and sends the admitted requests with
their grants as hard limits. Everything is kept in a run folder: after Ctrl-C or a crash the same command
with --resume continues where it stopped and pays for nothing twice.

  shadowprice run requests.jsonl --budget 200k --base-url http://127.0.0.1:8000/v1 --model NAME
  shadowprice run questions.csv --budget 20k --local

--accounting reserved counts grants: what answers did not use is offered to declined requests, until none
can pay (--no-reclaim: one clearing only, the paper's CLEAR with --policy clear).

--accounting metered counts tokens when they are generated. An answer that was cut continues from where it
stopped, which is cheap on servers that cache prefixes (llama.cpp, vLLM, SGLang); a server that cannot
continue is detected, and generates its answers in one go. --policy index serves the highest index next:
the chance of a correct answer per token that a request is still expected to take; it uses the spread and
solve of the forecasts. Other policies are cleared in rounds. When the budget is spent, unfinished answers are
written as far as they were generated, with the finish_reason length.

  shadowprice run requests.jsonl --budget 200k --base-url http://127.0.0.1:8000/v1 --accounting metered

--routes FILE names several models with their rates, and the budget is in money. One price decides which model
answers each request and how long it may take; a route that fails is left out, and its requests are answered by
the others within the same budget.

  shadowprice run questions.csv --budget '$5' --routes routes.toml

--policy tale first asks a teacher how many tokens each request needs, divides the budget in proportion, and
states every limit in its prompt as well. The teacher is the model that answers, and is paid from the
budget: 16 tokens at most for an estimate, half of the budget for all. --teacher-url names another
model, whose tokens are counted but not charged. If a reply is not one whole number, the teacher is asked
once more; after that the forecast is used. A model that reasons before it answers cannot be the teacher.
--max-tokens limits what one wild estimate can take.

  shadowprice run requests.jsonl --budget 200k --base-url http://127.0.0.1:8000/v1 --policy tale \\
    --teacher-url http://127.0.0.1:8001/v1 --teacher-model LARGER

--ray sends from several processes, on one machine or many: one price, one budget, one ledger for all of them.

  shadowprice run big/*.parquet --budget 50M --base-url http://vllm:8000/v1 --model NAME --ray --workers 8
"""
_INDEX = "  index         metered accounting only: the highest index generates next\n"
_TEACHER_TIMEOUT = 120.0  # seconds for an estimate from another server: a run does not depend on it


def add(commands: Commands) -> None:
    command = add_command(
        commands,
        "run",
        "answer questions on a real model within a budget",
        _DESCRIPTION,
        f"{INPUTS}\n{ROUTES}\n{POLICIES}{_INDEX}\n{EXIT}",
    )
    add_market(command, policy="index where the server continues answers, else expected")
    add_model(command, routes=True)
    add_tolerance(command)
    command.add_argument(
        "--scouts",
        action="store_true",
        help="with --routes: an answer of a cheap route is evidence, and may be bought again from a dearer one; needs "
        "forecasters made by train --routes",
    )
    command.add_argument("--out", metavar="FILE", help="answers (default: IN.answers.jsonl)")
    command.add_argument("--csv", metavar="FILE", help="all results as a table as well, for spreadsheets")
    command.add_argument(
        "--accounting",
        choices=["reserved", "metered"],
        help="what counts against the budget: grants until their answers end, or tokens as they are generated "
        "(default: metered without --policy and with --policy index, else reserved)",
    )
    command.add_argument(
        "--landing",
        metavar="NAME",
        help="how answers that would be cut are asked for their final answer: math, think (for models that think "
        "first), plain, a file with the text, or none (default: math with --prompt-template math, else none)",
    )
    command.add_argument("--no-reclaim", action="store_true", help="one clearing only: what is not used stays unused")
    command.add_argument(
        "--samples",
        type=int,
        default=1,
        metavar="K",
        help="answers per request from its grant, one after the other, until one is correct (default: 1); "
        "with --routes each from the route that is worth most then, and answers that nobody grades vote",
    )
    command.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="of requests that state none; 0 gives the same answer every time "
        "(default: 0 with --local and one sample, else the server's own)",
    )
    command.add_argument(
        "--gold",
        metavar="FILE",
        help="JSONL of custom_id, gold, grader: answers are graded, and a correct sample stops the rest",
    )
    add_unsafe_code(command)
    add_rates(command)
    command.add_argument("more", nargs="*", metavar="MORE", help="with --ray: more files, all of one kind")
    command.add_argument(
        "--ray",
        nargs="?",
        const="",
        type=_address,
        metavar="ADDRESS",
        help="on the machines of a Ray cluster: files may be .parquet, .jsonl or .csv, and several (default: a cluster "
        "on this machine)",
    )
    command.add_argument(
        "--workers", type=int, default=2, metavar="N", help="with --ray: processes that send requests (default: 2)"
    )
    command.add_argument(
        "--teacher-url",
        metavar="URL",
        help="tale: a server with another model to ask for estimates; the key is $TEACHER_API_KEY",
    )
    command.add_argument(
        "--teacher-model", default="", metavar="NAME", help="its name there (default: that in each request)"
    )
    command.set_defaults(command=run, policy=None)


def _address(text: str) -> str:
    """The address of a cluster; the input is easily given in its place, as `--ray big.parquet`."""
    if os.path.exists(text) or "*" in text:
        raise argparse.ArgumentTypeError(f"{text} is not an address: give the input before --ray")
    return text


def run(options: argparse.Namespace) -> int:
    if options.ray is not None:
        from shadowprice.cli.on_ray import run_on_ray

        return run_on_ray(options)
    if options.more:
        raise InputError("several files", path=options.more[0], fix="join them, or add --ray")
    from shadowprice.cli.verdict import verdict, warnings
    from shadowprice.cost import parse_budget
    from shadowprice.engine import Settings
    from shadowprice.formats.requests import requests_from
    from shadowprice.formats.routes import check_contexts
    from shadowprice.runs import check_gold

    if options.policy:
        check_policy_name(options.policy, "index")
    out, errors = outputs(options, "answers")
    routes = routes_of(options)
    refuse_same_file(input=options.file, out=out, errors=errors, csv=options.csv)
    settings, tolerated = _settings(options, routes), tolerance(options)
    teacher = _teacher(options)
    with ExitStack() as stack:
        found = stack.enter_context(given(options, temperature=_temperature(options)))
        folder = run_folder(options, out)
        requests = requests_from(found.requests, label=found.label)
        parse_budget(options.budget, len(requests), settings["rates"])  # before a model is fetched or started
        gold = gold_for(options, found, requests)
        check_gold(gold, unsafe_code=options.unsafe_code)
        backend: Backend | Routing
        if routes:
            check_contexts(routes, requests)
            backend = make_routing(options, routes)
        else:
            backend = make_backend(options, cache=Settings(**settings).accounting == "metered")
        with resumable(folder), _make_run(options, requests, gold, backend, teacher, folder, settings) as run:
            with show_progress(len(run.requests), run.settings.rates, quiet=options.quiet) as on_event:
                summary = run_to_end(
                    lambda: run.execute(on_event=on_event, tolerance=tolerated),
                    run.progress,
                    [backend, teacher],
                    folder,
                )
            run.write(
                standard_output() if out == "-" else out,
                standard_output() if errors == "-" else errors,
            )
            if run.folder:
                run.folder.save(files={"answers": os.path.abspath(out), "errors": os.path.abspath(errors)})
            if options.csv:
                from shadowprice.report.csv_results import write_csv

                write_csv(Path(folder), standard_output() if options.csv == "-" else options.csv)
            printed = verdict(run, summary, out=out, errors=errors, folder=folder)
            teaching, rates = run.teaching, run.settings.rates
    talk = sys.stderr if "-" in (out, errors, options.csv) else sys.stdout
    if options.json:
        printed = [json.dumps({**asdict(summary), "teacher": teaching}, indent=2)]
    print("\n".join(printed), file=talk)
    for warning in warnings(summary, rates):
        print(f"warning: {warning}", file=sys.stderr)
    return EXHAUSTED if summary.count("declined", "failed", "not_sent") or summary.overspent else DONE


def _make_run(
    options: argparse.Namespace,
    requests: list[Request],
    gold: Gold | None,
    backend: Backend | Routing,
    teacher: Backend | None,
    folder: str,
    settings: dict[str, Any],
) -> Run:
    from shadowprice.routing import Routing
    from shadowprice.runs import Run

    predictor, name = (None, "") if isinstance(backend, Routing) else forecaster(options)
    return Run(
        requests,
        budget=options.budget,
        **({"routes": backend} if isinstance(backend, Routing) else {"backend": backend}),
        folder=folder,
        forecaster=predictor,
        forecaster_name=name,
        gold=gold,
        teacher=teacher,
        resume=options.resume,
        accept_loss=options.accept_loss,
        unsafe_code=options.unsafe_code,
        concurrency=options.concurrency,
        prices=None if options.routes else rates_of(options)[1],
        **settings,
    )


def _settings(options: argparse.Namespace, routes: list[Route]) -> dict[str, Any]:
    """The settings of the run."""
    if routes:
        common = {"max_tokens": options.max_tokens, "samples": options.samples, "rates": routes[0].rates}
        return {"policy": "routes", **common}
    return {
        "policy": options.policy or "",
        "accounting": options.accounting or "",
        "options": dict(map(option, options.option)),
        "max_tokens": options.max_tokens,
        "reclaim": not options.no_reclaim,
        "samples": options.samples,
        "landing": _landing(options),
        "rates": rates_of(options)[0],
    }


def routes_of(options: argparse.Namespace) -> list[Route]:
    """The routes of --routes, checked; none without it. Options of a single model are refused."""
    if options.routes is None:
        if options.scouts:
            raise InputError("--scouts without --routes", fix="name several models with --routes")
        return []
    from shadowprice.cost import parse_budget
    from shadowprice.formats.routes import read_routes

    given = {
        "--rate-in": options.rate_in, "--rate-out": options.rate_out, "--rate-cached": options.rate_cached,
        "--count": options.count, "--model": options.model, "--policy": options.policy,
        "--accounting": options.accounting, "--landing": options.landing, "--limit-field": options.limit_field,
        "--no-reclaim": options.no_reclaim, "--teacher-url": options.teacher_url, "--forecast": options.forecast,
    }  # fmt: skip
    if wrong := next((name for name, value in given.items() if value), None):
        raise InputError(
            f"{wrong} with --routes", fix="leave it out: the file says what there is to know of each model"
        )
    routes = read_routes(options.routes)
    parse_budget(options.budget, 1, routes[0].rates)
    options.landing = "none"
    return routes


def _landing(options: argparse.Namespace) -> str | None:
    """By default mathematics lands; several samples do not, unless it was asked for: that is refused."""
    if options.landing is None:
        return "math" if options.prompt_template == "math" and options.samples == 1 else None
    return None if options.landing == "none" else str(options.landing)


def _temperature(options: argparse.Namespace) -> float | None:
    """That of --temperature. By default a model on this machine answers the same every time."""
    if options.temperature is None:
        return 0.0 if (options.local is not None or options.routes) and options.samples == 1 else None
    if not 0 <= options.temperature < math.inf:
        raise InputError(f"--temperature {options.temperature:g}", fix="give 0 or more")
    return float(options.temperature)


def _teacher(options: argparse.Namespace) -> Backend | None:
    """The model to ask for estimates; None: the model that answers, or no estimates."""
    if options.policy != "tale" and (options.teacher_url or options.teacher_model):
        raise InputError("--teacher-url and --teacher-model: only policy tale asks a teacher", fix="use --policy tale")
    if options.teacher_model and not options.teacher_url:
        raise InputError("--teacher-model without --teacher-url", fix="say where that model is")
    same_place = (options.teacher_url or "").rstrip("/") == (options.base_url or "").rstrip("/")
    if not options.teacher_url or (same_place and options.teacher_model in ("", options.model)):
        return None
    from shadowprice.backends.openai import OpenAIBackend

    key = os.environ.get("TEACHER_API_KEY") or "none"  # never the key of the server that answers
    return OpenAIBackend(options.teacher_url, options.teacher_model, api_key=key, timeout=_TEACHER_TIMEOUT)
