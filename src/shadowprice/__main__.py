"""The command: `shadowprice`, or `python -m shadowprice` where the script is not on the path."""

import os
import signal
import sys
import threading

_INTERRUPTED = 130


def main() -> int:
    """Ctrl-C ends it without a traceback also while it is being imported, and after its work is done."""
    _exit_on_ctrl_c(_INTERRUPTED, b"shadowprice: interrupted; nothing was written\n")
    from shadowprice.cli import main as command

    _handle_ctrl_c(signal.default_int_handler)
    try:
        code = command()
    except KeyboardInterrupt:  # before or after the part of it that says more
        code = _INTERRUPTED
    _exit_on_ctrl_c(code)
    return code


def _exit_on_ctrl_c(code: int, message: bytes = b"") -> None:
    """At once: an exception would show up in whatever happens to be imported or torn down."""

    def leave(*_: object) -> None:
        os.write(2, message)
        os._exit(code)

    _handle_ctrl_c(leave)


def _handle_ctrl_c(handler: object) -> None:
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # in the background, as shells have it
    if threading.current_thread() is threading.main_thread() and not ignored:
        signal.signal(signal.SIGINT, handler)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
