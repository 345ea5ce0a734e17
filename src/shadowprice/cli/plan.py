"""`shadowprice plan`: write a batch file whose token limits keep to a budget."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from shadowprice.cli.common import (
    DONE,
    EXHAUSTED,
    about,
    bar,
    check_policy_name,
    count,
    forecaster,
    open_input,
    option,
    outputs,
    rates_of,
    refuse_existing,
    shown,
    standard_output,
)
from shadowprice.cli.options import (
    EXIT,
    INPUTS,
    POLICIES,
    Commands,
    add_command,
    add_limit_field,
    add_market,
    add_rates,
)
from shadowprice.errors import InputError

if TYPE_CHECKING:
    from shadowprice.cost import Rates
    from shadowprice.planning import Plan

_DESCRIPTION = """\
Reads questions or an OpenAI Batch file, forecasts the length of every answer, finds the price per token
at which demand meets the budget, and writes a Batch file with a token limit in every line. Requests that
cannot pay the price are declined and go to the error file. The limits never add up to more than the
budget. A limit that the caller set is never raised, and nothing else in a line changes.

  shadowprice plan questions.csv --budget 200k --prompt-template math --model NAME
  shadowprice plan requests.jsonl --budget 200k
  shadowprice plan requests.jsonl --budget '$5' --routes routes.toml    # a batch file for each model
  shadowprice plan requests.jsonl --budget 256/query --forecast lengths.jsonl --policy expected
"""


def add(commands: Commands) -> None:
    about = "write a batch file whose token limits keep to a budget"
    command = add_command(commands, "plan", about, _DESCRIPTION, f"{INPUTS}\n{POLICIES}\n{EXIT}")
    add_market(command)
    command.add_argument(
        "--to", choices=["batch"], default="batch", help="the format of the output: an OpenAI Batch file (default)"
    )
    command.add_argument("--model", metavar="NAME", help="the model to write into requests made from questions")
    command.add_argument(
        "--out", metavar="FILE", help="planned requests (default: IN.planned.jsonl; - is standard output)"
    )
    command.add_argument(
        "--routes",
        metavar="FILE",
        help="a TOML file of several models with their rates: writes OUT.NAME.jsonl for each",
    )
    add_limit_field(command)
    add_rates(command)
    command.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from shadowprice.formats.files import replacing
    from shadowprice.planning import plan

    out, errors = outputs(options, "planned")
    if options.routes:
        return _run_routes(options, out, errors)
    chosen, (rates, prices) = dict(map(option, options.option)), rates_of(options)
    _check(options.budget, options.policy, chosen, rates)
    with ExitStack() as stack:
        source = stack.enter_context(open_input(options, model=options.model))
        targets = [standard_output() if name == "-" else name for name in (errors, out)]
        # Opened before forecasting, which may take long: a file that cannot be written is reported at once.
        error_file, out_file = stack.enter_context(replacing(targets))
        result = plan(
            source.requests,
            options.budget,
            policy=options.policy,
            forecaster=forecaster(options)[0],
            max_tokens=options.max_tokens,
            limit_field=options.limit_field,
            options=chosen,
            label=source.label,
            rates=rates,
            prices=prices,
            progress=bar(options),
        )
        result.write_to(out_file, error_file)
    verdict = json.dumps(result.summary(), indent=2) if options.json else _verdict(result, out, errors)
    print(verdict, file=sys.stderr if "-" in (out, errors) else sys.stdout)
    if result.older_limits and not options.json:
        carry = "carries" if result.older_limits == 1 else "carry"
        print(
            f"note: {count(result.older_limits, 'planned request')} {carry} max_tokens beside max_completion_tokens, "
            "which OpenAI rejects; --limit-field max_tokens writes the older field alone",
            file=sys.stderr,
        )
    return EXHAUSTED if result.declined else DONE


def _run_routes(options: argparse.Namespace, out: str, errors: str) -> int:
    """A batch file for each route."""
    from shadowprice.cost import parse_budget, show
    from shadowprice.forecast import load, predict_all
    from shadowprice.forecast.routes import believed, folder_name, trained_together
    from shadowprice.formats.files import replacing
    from shadowprice.formats.routes import read_routes
    from shadowprice.planning import batch_lines
    from shadowprice.route_plans import plan_routes

    of_one_model = {"--rate-in": options.rate_in, "--rate-out": options.rate_out, "--model": options.model}
    of_one_model |= {"--count": options.count, "--forecast": options.forecast, "--option": options.option}
    if wrong := next((name for name, value in of_one_model.items() if value), None):
        raise InputError(f"{wrong} with --routes", fix="leave it out: the file of routes describes each model")
    if out == "-":
        raise InputError("--out - with --routes, which writes several files", fix="name a file")
    routes = read_routes(options.routes)
    rates = routes[0].rates
    parse_budget(options.budget, 1, rates)
    files = [f"{os.path.splitext(out.removesuffix('.gz'))[0]}.{folder_name(route.name)}.jsonl" for route in routes]
    for i, (route, file) in enumerate(zip(routes, files, strict=True)):
        if (other := files.index(file)) < i:
            problem = f"routes {routes[other].name!r} and {route.name!r} would be written to the same file, {file}"
            raise InputError(problem, path=options.routes, fix="rename one of them")
    refuse_existing(options, *files)
    with ExitStack() as stack:
        source = stack.enter_context(open_input(options, model=routes[0].model or "-"))
        lines = batch_lines(source.requests, source.label)
        shared, _ = forecaster(options)
        requests = [line.request for line in lines]
        by_route = [predict_all(load(r.forecaster) if r.forecaster else shared, requests) for r in routes]
        forecasts = believed(by_route, trained_together([r.forecaster for r in routes]))
        result = plan_routes(lines, options.budget, routes, forecasts, max_tokens=options.max_tokens)
        error_file, *opened = stack.enter_context(replacing([standard_output() if errors == "-" else errors, *files]))
        result.write_to(opened, error_file)
    summary = result.summary()
    rows = [f"{count(summary['requests'], 'request')}, {show(result.budget, rates)}, policy routes"]
    for (name, route), file in zip(summary["routes"].items(), files, strict=True):
        most = f"{show(route['cost'], rates)} at most"
        rows.append(
            f"  {name}: {count(route['requests'], 'request')}, {count(route['granted'], 'token')}, {most} -> {file}"
        )
    rows.append(f"  declined  {count(result.declined, 'request')} -> {shown(errors)}")
    gap = (result.bound - result.utility) / result.bound if result.bound else 0.0
    rows.append(f"  expected  {about(result.utility)} correct answers: {_certificate(gap)}")
    talk = sys.stderr if errors == "-" else sys.stdout
    print(json.dumps(summary, indent=2) if options.json else "\n".join(rows), file=talk)
    return EXHAUSTED if result.declined else DONE


def _check(budget: str, policy: str, chosen: dict[str, Any], rates: Rates) -> None:
    """Refuses invalid arguments before the input is read."""
    from shadowprice.cost import parse_budget
    from shadowprice.market import check_policy

    parse_budget(budget, 1, rates)
    check_policy_name(policy)
    check_policy(policy, chosen)


def _verdict(result: Plan, out: str, errors: str) -> str:
    from shadowprice.cost import prompts_in_words, show

    rates = result.rates
    rows = [f"{count(result.requests, 'request')}, {show(result.budget, rates)}, policy {result.policy}"]
    most = f", {show(result.cost, rates)} at most with prompts" if rates.priced else ""
    if result.dollars is not None and not rates.money:
        most += f", ${result.dollars:,.6f}".rstrip("0").rstrip(".") + " at most"
    granted = f"{count(result.granted, 'token')} granted{most}"
    rows.append(f"  admitted  {count(result.admitted, 'request')}, {granted} -> {shown(out)}")
    rows.append(f"  declined  {count(result.declined, 'request')} -> {shown(errors)}")
    if result.price is not None and result.utility is not None and result.bound is not None:
        gap = (result.bound - result.utility) / result.bound if result.bound else 0.0
        # Only the utility of `expected` is something that can be counted.
        worth = f"{about(result.utility)} correct answers: " if result.policy == "expected" else ""
        rows.append(f"  expected  {worth}{_certificate(gap)}")
    if rates.priced and not result.admitted:
        rows.append(f"  prompts   {prompts_in_words()}")
    worth = ""
    if result.more_utility is not None and result.policy == "expected":
        worth = f", {about(result.more_utility)} correct answers"
    more = show(result.more_budget, rates)
    rows.append(f"  10% more  {more} would buy {result.more_admitted:+,} admitted{worth}")
    return "\n".join(rows)


def _certificate(gap: float) -> str:
    """How far a plan may be from the best division of the budget."""
    if gap < 1e-9:
        return "no division of the budget is better"
    percent = max(0.01, 100 * gap)
    return f"within {percent:.0f}% of the best" if percent >= 10 else f"within {percent:.2g}% of the best"
