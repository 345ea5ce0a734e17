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
    gold_for,
    open_input,
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
Answers questions or a batch file with a real model, so that as many answers as possible are correct and the budget
is never exceeded. Forecasts every request, clears the market, and sends the admitted requests with their
grants as hard limits. Everything is kept in a run folder: after Ctrl-C or a crash, the same command with
--resume continues where it stopped and pays for nothing twice.

  shadowprice run requests.jsonl --budget 200k --base-url http://127.0.0.1:8000/v1 --model NAME
  shadowprice run questions.csv --budget 20k --local

--accounting reserved counts grants. Tokens that answers did not use are offered to declined requests, until
none can pay. With --no-reclaim there is one clearing only: with --policy clear, this is the paper's CLEAR.

--accounting metered counts tokens when they are generated. An answer that was cut continues from where it
stopped, which is cheap on servers that cache prefixes (llama.cpp, vLLM, SGLang). If a server cannot
continue answers, each is generated in a single request. --policy index always continues the request with
the highest index: the chance of a correct answer per token that it is still expected to take. It uses the
spread and solve of the forecasts. Other policies are cleared in rounds. When the budget is spent,
unfinished answers are written as they are, with the finish_reason length.

  shadowprice run requests.jsonl --budget 200k --base-url http://127.0.0.1:8000/v1 --accounting metered

--routes FILE names several models with their rates; the budget is in money. One price decides which model
answers each request and with how many tokens. If a route fails, the others answer its requests within the
same budget.

  shadowprice run questions.csv --budget '$5' --routes routes.toml

--policy tale first asks a teacher how many tokens each request needs, divides the budget in proportion, and
also states every limit in its prompt. By default the teacher is the model that answers, and is paid from
the budget: at most 16 tokens for an estimate, at most half of the budget for all. --teacher-url names
another model, whose tokens are counted but not charged. If a reply is not one whole number, the teacher is
asked once more; after that the forecast is used. A model that reasons before it answers cannot be the
teacher. --max-tokens limits what one wild estimate can take.

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
        help="with --routes: an answer of a cheap route corrects the forecasts of the others, and a more expensive "
        "route may answer again; needs forecasters made by train --routes",
    )
    command.add_argument("--out", metavar="FILE", help="answers (default: IN.answers.jsonl)")
    command.add_argument("--csv", metavar="FILE", help="also write all results as a table for spreadsheets")
    command.add_argument(
        "--accounting",
        choices=["reserved", "metered"],
        help="what counts against the budget: grants until their answers end, or tokens as they are generated "
        "(default: metered without --policy and with --policy index, else reserved)",
    )
    command.add_argument(
        "--landing",
        metavar="NAME",
        help="how to ask for the final answer of answers that would be cut: math, think (for models that think "
        "first), plain, a file with the text, or none (default: math with --prompt-template math, else none)",
    )
    command.add_argument("--no-reclaim", action="store_true", help="one clearing only: unused tokens stay unused")
    command.add_argument(
        "--samples",
        type=int,
        default=1,
        metavar="K",
        help="up to K answers per request from its grant, until one is correct or, where nothing is graded, has ended "
        "(default: 1); with --routes, each from the route that is worth most at that moment, and answers that are not "
        "graded vote",
    )
    command.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="for requests that do not set one; 0 gives the same answer every time "
        "(default: 0 with --local and one sample, else the server's)",
    )
    command.add_argument(
        "--gold",
        metavar="FILE",
        help="JSONL of custom_id, gold, grader: grade answers; a correct sample ends its request",
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
        help="run on a Ray cluster (default: on this machine); the input may be several .parquet, .jsonl or .csv files",
    )
    command.add_argument(
        "--workers", type=int, default=2, metavar="N", help="with --ray: processes that send requests (default: 2)"
    )
    command.add_argument(
        "--teacher-url",
        metavar="URL",
        help="tale: the server of another model to ask for estimates; the key is $TEACHER_API_KEY",
    )
    command.add_argument(
        "--teacher-model", default="", metavar="NAME", help="its name there (default: the one in each request)"
    )
    command.set_defaults(command=run, policy=None)


def _address(text: str) -> str:
    """The address of a cluster; refuses an input file given by mistake, as in `--ray big.parquet`."""
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
        source = stack.enter_context(open_input(options, temperature=_temperature(options)))
        folder = run_folder(options, out)
        requests = requests_from(source.requests, label=source.label)
        parse_budget(options.budget, len(requests), settings["rates"])  # before a model is fetched or started
        gold = gold_for(options, source, requests)
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
    """The settings of the run, as arguments of `Run`."""
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
        raise InputError(f"{wrong} with --routes", fix="leave it out: the file of routes describes each model")
    routes = read_routes(options.routes)
    parse_budget(options.budget, 1, routes[0].rates)
    options.landing = "none"
    return routes


def _landing(options: argparse.Namespace) -> str | None:
    """By default answers to mathematics land, if each request has one sample; both together are refused later."""
    if options.landing is None:
        return "math" if options.prompt_template == "math" and options.samples == 1 else None
    return None if options.landing == "none" else str(options.landing)


def _temperature(options: argparse.Namespace) -> float | None:
    """--temperature. By default a model on this machine answers the same every time."""
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
