"""The `shadowprice` command. Only the files of this folder print; heavy imports wait until a command runs."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shadowprice import __version__
from shadowprice.cli import collect, demo, forecast, plan, report, reproduce, run, serve, train
from shadowprice.cli.common import BAD_INPUT, DONE, INTERRUPTED, Interrupted
from shadowprice.cli.options import EXIT, Parser
from shadowprice.cli.terminal import cleaned_streams, say
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
            for name in _TEXTS:
                (getattr(options, name, None) or "").encode()
            code: int = options.command(options)
            if sys.stdout is not None:
                sys.stdout.flush()
            return code
    except BaseException as raised:
        error = _first(raised)
        if isinstance(error, BrokenPipeError):  # the reader closed the pipe, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return DONE
        if (problem := _in_words(error)) is not None:
            interrupted = isinstance(error, KeyboardInterrupt | Interrupted)
            return _fail(problem, INTERRUPTED if interrupted else BAD_INPUT)
        raised.add_note(_BUG)
        raise


_TEXTS = ("model", "system", "teacher_model")  # arguments that are written into files and requests
_FIXES = {
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.EISDIR: "name a file",
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.EROFS: "choose a place that can be written",
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room",
    errno.EMFILE: "allow more open files: ulimit -n 4096",
}
_BUG = (
    "This is a bug in shadowprice: please report it with the lines above. "
    "A run is kept in its folder: the same command with --resume continues it."
)


def _first(error: BaseException) -> BaseException:
    """The error itself, or the first one of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _in_words(error: BaseException) -> str | None:
    """The message for an expected error; None if it is a bug."""
    match error:
        case ShadowpriceError() | Interrupted():
            return str(error)
        case KeyboardInterrupt():
            return "interrupted; nothing was written"
        case UnicodeEncodeError():  # names that are not UTF-8 can be files, but nothing else
            return f"{error.object!r:.60} is not text in UTF-8 (check the arguments)"
        case OSError():
            fix = _FIXES.get(error.errno or 0)
            return f"{error.filename or 'output'}: {error.strerror or error}{f' ({fix})' if fix else ''}"
        case RecursionError():
            return "a request is nested too deeply (fix or remove it)"
        case MemoryError():
            return "not enough memory (split the input, or lower --concurrency)"
        case sqlite3.Error():
            return f"the ledger cannot be used: {error} (check the disk; --resume continues the run)"
    return None


def _fail(message: str, code: int = BAD_INPUT) -> int:
    say(f"shadowprice: {' '.join(message.split())}")
    return code


@contextmanager
def _signals_like_ctrl_c() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP clean up as Ctrl-C does; ignored ones (nohup) stay ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = (signal.SIGTERM, signal.SIGHUP) if hasattr(signal, "SIGHUP") else (signal.SIGTERM,)
    handled = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, signal.default_int_handler) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parser() -> Parser:
    parser = Parser(
        prog="shadowprice",
        description=_DESCRIPTION,
        epilog=f"shadowprice help COMMAND explains one of them.\n\n{EXIT}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"shadowprice {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (plan, run, serve, collect, train, forecast, reproduce, report, demo):
        command.add(commands)
    return parser
