"""The command: `shadowprice`, or `python -m shadowprice` if the script is not on the path."""

import os
import signal
import sys
import threading

_INTERRUPTED = 130


def main() -> int:
    """Runs the command. Ctrl-C ends it without a traceback, even during imports and after its work is done."""
    _exit_on_ctrl_c(_INTERRUPTED, b"shadowprice: interrupted; nothing was written\n")
    from shadowprice.cli import main as command

    _handle_ctrl_c(signal.default_int_handler)
    try:
        code = command()
    except KeyboardInterrupt:  # outside the part that handles it with a message
        code = _INTERRUPTED
    _exit_on_ctrl_c(code)
    return code


def _exit_on_ctrl_c(code: int, message: bytes = b"") -> None:
    """Exits at once: an exception would be shown as a traceback of an import or of the shutdown."""

    def leave(*_: object) -> None:
        os.write(2, message)
        os._exit(code)

    _handle_ctrl_c(leave)


def _handle_ctrl_c(handler: object) -> None:
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # shells set this for background jobs
    if threading.current_thread() is threading.main_thread() and not ignored:
        signal.signal(signal.SIGINT, handler)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
