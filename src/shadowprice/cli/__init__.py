"""The command. Only the files of this folder print; heavy imports wait until a command runs."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shadowprice import __version__
from shadowprice.cli import collect, demo, forecast, plan, report, reproduce, run, train
from shadowprice.cli.common import BAD_INPUT, DONE, INTERRUPTED, Interrupted
from shadowprice.cli.options import EXIT, Parser
from shadowprice.cli.terminal import cleaned_streams
from shadowprice.errors import ShadowpriceError

_DESCRIPTION = "Spend a fixed budget of tokens or money where it buys the most correct answers, and never exceed it."


def main(arguments: Sequence[str] | None = None) -> int:
    with cleaned_streams():
        return _main(list(sys.argv[1:] if arguments is None else arguments))


def _main(given: list[str]) -> int:
    if not given or given[0] == "help":  # `shadowprice help run` is `shadowprice run --help`
        given = [*given[1:], "--help"]
    options = _parser().parse_args(given)
    options.arguments = given
    try:
        with _signals_like_ctrl_c():
            code: int = options.command(options)
            if sys.stdout is not None:
                sys.stdout.flush()
            return code
    except ShadowpriceError as error:
        return _fail(str(error))
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return DONE
    except OSError as error:
        fix = " (check the path)" if isinstance(error, FileNotFoundError) else ""
        return _fail(f"{error.filename or 'output'}: {error.strerror or error}{fix}")
    except RecursionError:
        return _fail("a request is nested too deeply (fix or remove it)")
    except Interrupted as error:
        return _fail(str(error), INTERRUPTED)
    except KeyboardInterrupt:
        return _fail("interrupted; nothing was written", INTERRUPTED)


def _fail(message: str, code: int = BAD_INPUT) -> int:
    print(f"shadowprice: {' '.join(message.split())}", file=sys.stderr)
    return code


@contextmanager
def _signals_like_ctrl_c() -> Iterator[None]:
    """Lets other signals that end a program clean up as Ctrl-C does."""
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


def _parser() -> Parser:
    parser = Parser(
        prog="shadowprice",
        description=_DESCRIPTION,
        epilog=f"shadowprice help COMMAND says more about one.\n\n{EXIT}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"shadowprice {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (plan, run, collect, train, forecast, reproduce, report, demo):
        command.add(commands)
    return parser
