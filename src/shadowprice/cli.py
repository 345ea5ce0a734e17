"""The command. The only file that prints; heavy imports wait until a command runs."""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any

from shadowprice import __version__
from shadowprice.errors import InputError, ShadowpriceError

if TYPE_CHECKING:
    from shadowprice.batchfile import Request
    from shadowprice.planner import Plan

DONE, BAD_INPUT, EXHAUSTED, INTERRUPTED = 0, 2, 3, 130

_DESCRIPTION = "Spend a fixed token budget where it buys the most correct answers."
_EXIT = """\
exit codes:
  0    done
  2    usage or bad input; nothing was written
  3    done, and some queries were abandoned for want of budget
  130  interrupted
"""
_PLAN = """\
Reads an OpenAI Batch file, forecasts the length of every answer, finds the price per token at
which demand meets the budget, and writes the batch file again with a token limit in every line.
Requests that cannot pay the price go to the error file. The limits never add up to more than the
budget; a limit the caller set is never raised; nothing else in a line changes.

  shadowprice plan requests.jsonl --budget 200k
  shadowprice plan requests.jsonl --budget 256/query --forecast lengths.jsonl --policy expected
"""
_POLICIES = """\
policies:
  clear         one price per token, closed-form demand, abandonment (the paper's CLEAR)
  expected      the same market on the chance of a correct answer: wants spread and solve
  triangular, quadratic
                CLEAR with other utility curves
  auction       the shortest forecasts that fit
  heuristic     when scarce, the shorter half
  uniform       the same limit for everyone
  proportional, tale
                limits in proportion to the forecast, nobody abandoned
"""


def main(arguments: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal cannot show is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    options = _parser().parse_args(arguments)
    try:
        with _stopped_like_ctrl_c():
            code = int(options.command(options))
            if sys.stdout is not None:
                sys.stdout.flush()
            return code
    except ShadowpriceError as error:
        return _fail(str(error))
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return DONE
    except OSError as error:
        fix = " (check the path)" if isinstance(error, FileNotFoundError) else ""
        return _fail(f"{error.filename or 'output'}: {error.strerror or error}{fix}")
    except RecursionError:
        return _fail("a request is nested too deeply (mend or remove it)")
    except KeyboardInterrupt:
        return _fail("interrupted; nothing was written", INTERRUPTED)


def _fail(message: str, code: int = BAD_INPUT) -> int:
    print(f"shadowprice: {' '.join(message.split())}", file=sys.stderr)
    return code


@contextmanager
def _stopped_like_ctrl_c() -> Iterator[None]:
    """Being told to terminate or hung up on cleans up as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = (signal.SIGTERM, signal.SIGHUP) if hasattr(signal, "SIGHUP") else (signal.SIGTERM,)
    before = {number: signal.signal(number, signal.default_int_handler) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shadowprice",
        description=_DESCRIPTION,
        epilog=_EXIT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"shadowprice {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    plan = commands.add_parser(
        "plan",
        help="write a batch file whose token limits keep to a budget",
        description=_PLAN,
        epilog=f"{_POLICIES}\n{_EXIT}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    plan.add_argument("file", metavar="IN.jsonl", help="OpenAI Batch file; - reads standard input")
    plan.add_argument("--budget", required=True, help="tokens for all answers: 200000, 200k, 1.5M or 256/query")
    plan.add_argument("--policy", default="clear", help="who gets what (default: clear)")
    plan.add_argument(
        "--forecast",
        metavar="FILE",
        help="JSONL of custom_id, tokens, spread, solve (default: a rule from the length of the prompt)",
    )
    plan.add_argument("--max-tokens", type=int, metavar="N", help="no answer gets more than this")
    plan.add_argument(
        "--out", metavar="FILE", help="planned requests (default: IN.planned.jsonl; - is standard output)"
    )
    plan.add_argument(
        "--errors", metavar="FILE", help="abandoned requests (default: IN.abandoned.jsonl; - is standard output)"
    )
    plan.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the policy, e.g. beta=0.002"
    )
    plan.add_argument(
        "--limit-field",
        choices=["max_completion_tokens", "max_tokens"],
        help="the field that limits chats (default: max_completion_tokens; older servers know only max_tokens)",
    )
    plan.add_argument("--json", action="store_true", help="print the verdict as JSON")
    plan.add_argument("--quiet", action="store_true", help="no progress bar")
    plan.set_defaults(command=_plan)
    return parser


def _plan(options: argparse.Namespace) -> int:
    from shadowprice.budget import LARGEST
    from shadowprice.forecast import ForecastTable, PromptLength
    from shadowprice.planner import plan

    if os.path.isdir(options.file) or not options.file:
        raise InputError("is not a file", path=options.file or "''", fix="name an OpenAI Batch file, or - to read one")
    name = "requests" if options.file == "-" else os.path.splitext(options.file)[0]
    out, errors = options.out or f"{name}.planned.jsonl", options.errors or f"{name}.abandoned.jsonl"
    _refuse_same_file(input=options.file, out=out, errors=errors, forecast=options.forecast)
    if options.max_tokens is not None and not 1 <= options.max_tokens <= LARGEST:
        raise InputError(f"--max-tokens {options.max_tokens} is no limit", fix=f"give 1 to {LARGEST}")
    talk = sys.stderr if "-" in (out, errors) else sys.stdout
    with ExitStack() as stack:
        source = options.file
        if not os.path.isfile(source):  # a pipe: it is read twice, so it is kept
            source = stack.enter_context(_kept(options.file))
        result = plan(
            source,
            options.budget,
            ForecastTable(options.forecast) if options.forecast else PromptLength(),
            out=_standard_output() if out == "-" else out,
            errors=_standard_output() if errors == "-" else errors,
            policy=options.policy,
            max_tokens=options.max_tokens,
            options=dict(map(_option, options.option)),
            limit_field=options.limit_field,
            label="standard input" if options.file == "-" else options.file,
            progress=_silent if options.quiet or not sys.stderr or not sys.stderr.isatty() else _bar,
        )
    print(json.dumps(asdict(result), indent=2) if options.json else _verdict(result, out, errors), file=talk)
    if result.older_limits and not options.json:
        carry = "carries" if result.older_limits == 1 else "carry"
        print(
            f"note: {_some(result.older_limits, 'planned request')} {carry} max_tokens beside max_completion_tokens, "
            "which OpenAI refuses; --limit-field max_tokens writes the older field alone",
            file=sys.stderr,
        )
    return EXHAUSTED if result.abandoned else DONE


@contextmanager
def _kept(source: str) -> Iterator[str]:
    """A temporary copy of standard input or a pipe."""
    with tempfile.NamedTemporaryFile(prefix="shadowprice-") as copy:
        if source == "-" and sys.stdin is None:
            raise InputError("standard input is closed", fix="name a file")
        with ExitStack() as opened:
            stream = sys.stdin.buffer if source == "-" else opened.enter_context(open(source, "rb"))
            shutil.copyfileobj(stream, copy)
        copy.flush()
        yield copy.name


def _standard_output() -> IO[bytes]:
    if sys.stdout is None:
        raise InputError("standard output is closed", fix="name a file")
    return sys.stdout.buffer


def _refuse_same_file(**paths: str | None) -> None:
    seen: dict[str, str] = {}
    for role, path in paths.items():
        if path is None or (path == "-" and role == "input"):
            continue
        real = path if path == "-" else os.path.realpath(path)
        if real in seen:
            raise InputError(f"is both {seen[real]} and {role}", path=path, fix="name another file")
        seen[real] = role


def _option(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        raise InputError(f"--option {text!r} is not NAME=NUMBER", fix="write it as beta=0.002") from None


def _verdict(result: Plan, out: str, errors: str) -> str:
    rows = [f"{_some(result.queries, 'query')}, {result.budget:,} tokens, policy {result.policy}"]
    if result.price is not None and result.utility is not None and result.bound is not None:
        short = (result.bound - result.utility) / result.bound if result.bound else 0.0
        best = "the best possible" if short < 1e-9 else f"within {short:.2g} of the best possible"
        rows.append(
            f"  price      {result.price:.4g} per token, utility {result.utility:.6g} ({result.status}: {best})"
        )
    rows.append(f"  admitted   {_some(result.admitted, 'query')}, {result.granted:,} tokens granted -> {out}")
    rows.append(f"  abandoned  {_some(result.abandoned, 'query')} -> {errors}")
    worth = f", worth {result.more_utility:.4g} at this price" if result.more_utility is not None else ""
    rows.append(f"  10% more   {result.more_budget:,} tokens{worth}: {result.more_admitted:+,} admitted")
    return "\n".join(rows)


def _some(number: int, noun: str) -> str:
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{number:,} {noun if number == 1 else plural}"


def _silent(requests: Iterator[Request], label: str) -> Iterator[Request]:
    return requests


def _bar(requests: Iterator[Request], label: str) -> Iterator[Request]:
    from tqdm import tqdm

    bar: Iterator[Request] = iter(tqdm(requests, desc=label, unit=" requests", unit_scale=True, leave=False))
    return bar
