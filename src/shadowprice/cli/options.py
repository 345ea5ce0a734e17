"""What the parsers of several commands share. Parsers import nothing heavy: --help must not wait for NumPy."""

from __future__ import annotations

import argparse
from typing import TypeAlias

EXIT = """\
exit codes:
  0    done
  2    usage or bad input
  3    done, and some requests were declined or failed, or a server exceeded the budget
  130  interrupted; a run continues with --resume
"""
POLICIES = """\
policies:
  clear         one price per token, closed-form demand, declining (the paper's CLEAR)
  expected      the same market on the chance of a correct answer: uses spread and solve
  triangular, quadratic
                CLEAR with other utility curves
  auction       the shortest forecasts that fit
  heuristic     when scarce, the shorter half
  uniform       the same limit for everyone
  proportional  limits in proportion to the forecast, none declined
  tale          the same on a teacher model's estimates; plan uses the forecast instead
"""

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(commands: Commands, name: str, about: str, description: str, epilog: str) -> argparse.ArgumentParser:
    shape = argparse.RawDescriptionHelpFormatter
    return commands.add_parser(name, help=about, description=description, epilog=epilog, formatter_class=shape)


def add_market(command: argparse.ArgumentParser, *, policy: str = "expected") -> None:
    command.add_argument("file", metavar="IN.jsonl", help="OpenAI Batch file; - reads standard input")
    command.add_argument("--budget", required=True, help="for all answers: 200000, 200k, 1.5M or 256/query tokens")
    command.add_argument("--policy", default="expected", help=f"how the budget is divided (default: {policy})")
    where = command.add_mutually_exclusive_group()
    where.add_argument("--forecast", metavar="FILE", help="JSONL of custom_id, tokens, spread, solve: your own numbers")
    add_forecaster(where)
    command.add_argument("--max-tokens", type=int, metavar="N", help="no answer gets more than this")
    command.add_argument(
        "--errors", metavar="FILE", help="requests without an answer (default: IN.declined.jsonl; - is standard output)"
    )
    command.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the policy, e.g. beta=0.002"
    )
    command.add_argument("--json", action="store_true", help="print the summary as JSON")
    command.add_argument("--quiet", action="store_true", help="no progress bar")


def add_forecaster(command: argparse._ActionsContainer) -> None:
    command.add_argument(
        "--forecaster", metavar="DIR", help="made by train (default: the one that comes with the package)"
    )


def add_limit_field(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--limit-field",
        choices=["max_completion_tokens", "max_tokens"],
        help="the field that limits chats (default: max_completion_tokens; older servers know only max_tokens)",
    )


def add_unsafe_code(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--unsafe-code",
        action="store_true",
        help="grader code: run programs even where there is no sandbox, with all that you may read and do",
    )


def add_model(command: argparse.ArgumentParser) -> None:
    where = command.add_mutually_exclusive_group(required=True)
    where.add_argument("--base-url", metavar="URL", help="an OpenAI-compatible server; the key is $OPENAI_API_KEY")
    where.add_argument(
        "--local",
        nargs="?",
        const="",
        metavar="MODEL",
        help="a model on this machine: smollm2-135m (default), qwen2.5-coder-1.5b, or the path of a GGUF file",
    )
    command.add_argument("--threads", type=int, default=1, metavar="N", help="threads of --local (default: 1)")
    command.add_argument("--model", default="", help="its name on the server (default: that in each request)")
    add_limit_field(command)
    command.add_argument("--concurrency", type=int, default=8, metavar="N", help="requests in flight (default: 8)")
    command.add_argument("--run-folder", metavar="DIR", help="where the run is kept (default: OUT.run)")
    command.add_argument("--resume", action="store_true", help="continue the run in that folder")
    command.add_argument(
        "--accept-loss",
        action="store_true",
        help="with --resume: go on with what is valid of a damaged ledger, and charge what may have been used",
    )
