"""`shadowprice forecast`: write a forecast for every request, as JSON lines."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from itertools import islice
from typing import IO, TYPE_CHECKING

from shadowprice.cli.common import (
    DONE,
    bar,
    forecaster,
    open_input,
    refuse_existing,
    refuse_folder,
    refuse_same_file,
    standard_output,
)
from shadowprice.cli.options import EXIT, INPUTS, Commands, add_command, add_force, add_forecaster, add_input, add_scout
from shadowprice.errors import InputError

if TYPE_CHECKING:
    from shadowprice.forecast import Predictor
    from shadowprice.forecast.routes import Together

_DESCRIPTION = """\
Writes a forecast for every question or request: the median length of its answer (tokens), the
standard deviation of the log length (spread), the probability that it is correct (solve), and how long
correct answers are (solved_tokens, solved_spread). You can edit the file and pass it to plan and run with
--forecast.

  shadowprice forecast questions.csv --out lengths.jsonl
  shadowprice forecast requests.jsonl --forecaster forecaster --out lengths.jsonl
  shadowprice forecast questions.csv --routes routes.toml    # one line per request and route
  shadowprice forecast requests.jsonl | jq -s 'sort_by(-.tokens) | .[:10]'
"""


def add(commands: Commands) -> None:
    command = add_command(
        commands, "forecast", "write a forecast for every request, as JSON lines", _DESCRIPTION, f"{INPUTS}\n{EXIT}"
    )
    add_input(command)
    where = command.add_mutually_exclusive_group()
    add_forecaster(where)
    where.add_argument("--routes", metavar="FILE", help="one line per route of this file, by its own forecaster")
    add_scout(command)
    command.add_argument("--out", default="-", metavar="FILE", help="forecasts (default: standard output)")
    add_force(command)
    command.add_argument("--quiet", action="store_true", help="no progress bar, and no note about the input")
    command.set_defaults(command=forecast, forecast=None)


def forecast(options: argparse.Namespace) -> int:
    from shadowprice.forecast import CHUNK
    from shadowprice.forecast.routes import believed
    from shadowprice.forecast.shared import SharedText
    from shadowprice.formats.files import replacing
    from shadowprice.formats.forecasts import forecast_line

    refuse_folder(options.file)
    refuse_same_file(input=options.file, out=options.out)
    refuse_existing(options, options.out)
    predictors, together = _predictors(options)
    with ExitStack() as stack:
        questions = stack.enter_context(open_input(options))
        lines = bar(options)(questions.batch(), "forecasting")
        out: IO[bytes]
        if options.out == "-":
            out = standard_output()
        else:
            (out,) = stack.enter_context(replacing([options.out]))
        empty, shared = True, SharedText()
        while requests := [line.request for line in islice(lines, CHUNK)]:
            stripped = shared.strip_requests(requests)
            forecasts = believed([predictor.predict(stripped) for _, predictor in predictors], together)
            out.writelines(
                forecast_line(request.id, forecast, i, route) + b"\n"
                for i, request in enumerate(requests)
                for (route, _), forecast in zip(predictors, forecasts, strict=True)
            )
            out.flush()
            empty = False
        if empty:
            raise InputError("has no requests", path=questions.label, fix="write one JSON object per line")
    return DONE


def _predictors(options: argparse.Namespace) -> tuple[list[tuple[str, Predictor]], list[Together]]:
    """A forecaster for each route, with its name, and which of them were trained together; without routes just one."""
    from shadowprice.forecast import load
    from shadowprice.forecast.routes import trained_together
    from shadowprice.formats.routes import read_routes

    shared, _ = forecaster(options)
    if not options.routes:
        return [("", shared)], []
    routes = read_routes(options.routes)
    predictors = [(route.name, load(route.forecaster) if route.forecaster else shared) for route in routes]
    return predictors, trained_together([route.forecaster for route in routes])
