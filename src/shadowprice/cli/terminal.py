"""Text on a terminal: without control characters, and with lines at the bottom that are redrawn every second."""

from __future__ import annotations

import io
import os
import re
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import IO, Any, cast

# Escape sequences can move the cursor, rename the window and worse; direction marks reorder text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """The text with control characters spelled out: `\\x1b`. Tabs and line ends stay."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class _Cleaned:
    """A stream that cleans what is written to it; everything else is the stream's own."""

    def __init__(self, stream: IO[str]) -> None:
        self.raw = stream

    def write(self, text: str) -> int:
        return self.raw.write(clean(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


@contextmanager
def cleaned_streams() -> Iterator[None]:
    """Cleans all that is printed inside: names of models, ids of requests, messages of servers."""
    out, err = ((stream and cast(IO[str], _Cleaned(stream))) for stream in (sys.stdout, sys.stderr))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal cannot show must not be an error
            stream.reconfigure(errors="backslashreplace")
    with redirect_stdout(out), redirect_stderr(err):
        yield


def raw(stream: IO[str]) -> IO[str]:
    """The stream itself, for callers that move the cursor on purpose."""
    return stream.raw if isinstance(stream, _Cleaned) else stream


def can_redraw(stream: IO[str] | None) -> bool:
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def fitted(line: str, width: int) -> str:
    """The line, cut to `width` columns."""
    used = 0
    for place, character in enumerate(line):
        used += 0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if used > width:
            return line[: max(0, place - 1)] + "…"
    return line


class Screen:
    """Lines at the bottom of a terminal, from `lines(width)`, redrawn every second and by `redraw`.

    Other output must go through `say`, which puts it above the lines.
    """

    def __init__(self, lines: Callable[[int], list[str]], stream: IO[str], *, every: float = 1.0) -> None:
        self._lines, self._stream, self._every = lines, raw(stream), every
        self._drawn, self._at = 0, 0.0
        self._lock, self._closed = threading.RLock(), threading.Event()
        self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)
        self._thread.start()

    def redraw(self, *, least: float = 0.1) -> None:
        """Draws the lines, unless they were drawn in the last `least` seconds."""
        with self._lock:
            if time.monotonic() - self._at >= least and not self._closed.is_set():
                self._write("")

    def say(self, text: str) -> None:
        with self._lock:
            self._write(clean(text).rstrip("\n") + "\n")

    def close(self) -> None:
        """Removes the lines."""
        self._closed.set()
        with self._lock, suppress(OSError):
            self._stream.write(self._start())
            self._stream.flush()
            self._drawn = 0
        self._thread.join(timeout=2)

    def _tick(self) -> None:
        while not self._closed.wait(self._every):
            self.redraw(least=0.0)

    def _start(self) -> str:
        """The escape sequence that moves to the first line and clears everything below."""
        return "\r" + (f"\x1b[{self._drawn - 1}A" if self._drawn > 1 else "") + "\x1b[J"

    def _write(self, above: str) -> None:
        width = _width(self._stream) - 1  # the last column makes some terminals begin a new line
        lines = [fitted(clean(line), width) for line in self._lines(width)]
        with suppress(OSError):  # the terminal was closed; what it would show is not worth the run
            self._stream.write(f"{self._start()}{above}" + "\n".join(lines))
            self._stream.flush()
        self._drawn, self._at = len(lines), time.monotonic()


_screen: Screen | None = None


@contextmanager
def screen(lines: Callable[[int], list[str]]) -> Iterator[Screen]:
    """Lines on standard error for as long as the context lasts."""
    global _screen
    _screen = current = Screen(lines, sys.stderr)
    try:
        current.redraw()
        yield current
    finally:
        _screen = None
        current.close()


def say(text: str) -> None:
    """Prints a line to standard error, above what is drawn there."""
    if _screen is not None:
        _screen.say(text)
    elif sys.stderr is not None:
        with suppress(OSError):  # the terminal or the pipe was closed
            print(clean(text), file=sys.stderr, flush=True)


def _width(stream: IO[str]) -> int:
    try:
        return max(20, os.get_terminal_size(stream.fileno()).columns or 80)
    except (OSError, ValueError):
        return 80
