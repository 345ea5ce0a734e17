"""The parser of `shadowprice plan`."""

from __future__ import annotations

import argparse

from shadowprice.cli.options import EXIT, POLICIES, Commands, add_command, add_limit_field, add_market

_PLAN = """\
Reads an OpenAI Batch file, forecasts the length of every answer, finds the price per token at
which demand meets the budget, and writes the batch file again with a token limit in every line.
Requests that cannot pay the price go to the error file. The limits never add up to more than the
budget; a limit the caller set is never raised; nothing else in a line changes.

  shadowprice plan requests.jsonl --budget 200k
  shadowprice plan requests.jsonl --budget 256/query --forecast lengths.jsonl --policy expected
"""


def add_plan(commands: Commands) -> None:
    plan = add_command(
        commands, "plan", "write a batch file whose token limits keep to a budget", _PLAN, f"{POLICIES}\n{EXIT}"
    )
    add_market(plan)
    plan.add_argument(
        "--out", metavar="FILE", help="planned requests (default: IN.planned.jsonl; - is standard output)"
    )
    add_limit_field(plan)
    plan.set_defaults(command=_plan)


def _plan(options: argparse.Namespace) -> int:
    from shadowprice.cli.plan import command

    return command(options)
