"""Shared by the commands that talk to a model: making the backend, showing progress, handling signals."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from shadowprice.cli.common import Interrupted
from shadowprice.cli.options import LOCAL
from shadowprice.cli.terminal import can_redraw, say, screen
from shadowprice.errors import InputError

if TYPE_CHECKING:
    from shadowprice.backends.base import Backend
    from shadowprice.cli.progress import Meter
    from shadowprice.cost import Rates
    from shadowprice.engine.executor import Progress
    from shadowprice.formats.routes import Route
    from shadowprice.routing import Routing

_CACHE = 1024  # MiB, for a model on this machine: the state of answers that wait to be continued
_CTRL_C = "interrupted"
_GRACE = 30.0  # seconds after SIGTERM or SIGHUP: what is still in flight then is cancelled
_RESUME = "interrupted; the same command with --resume continues it ({})"
_T = TypeVar("_T")


def make_backend(options: argparse.Namespace, *, cache: bool = False) -> Backend:
    """The backend of --base-url or --local; `cache` keeps the state of answers that wait."""
    if options.concurrency < 1:
        raise InputError(f"--concurrency {options.concurrency}", fix="give 1 or more")
    local = {name.replace("-", "_"): getattr(options, name.replace("-", "_")) for name in LOCAL}
    if options.base_url is not None:
        flags = {**local, "exact": options.exact or None}
        if wrong := next((name for name, value in flags.items() if value is not None), None):
            name = wrong.replace("_", "-")
            raise InputError(f"--{name} with --base-url", fix="only a model of --local has it: set it on the server")
        from shadowprice.backends.openai import OpenAIBackend

        return OpenAIBackend(
            options.base_url, options.model, limit_field=options.limit_field or "max_completion_tokens"
        )
    from shadowprice.backends.llamacpp import LlamaCppBackend

    def report(text: str) -> None:
        if not options.quiet:
            say(text)

    with _stage(f"loading {options.local or 'the model'}", quiet=options.quiet):
        return LlamaCppBackend(
            options.local or None,
            progress=report,
            **{**local, "slots": min(8, options.concurrency) if options.slots is None else options.slots},
            cache=_CACHE if cache else 0,
            exact=options.exact,
        )


def make_routing(options: argparse.Namespace, routes: list[Route]) -> Routing:
    """Backends for all routes; models on this machine are loaded."""
    from shadowprice.cli.common import forecaster
    from shadowprice.routing import open_routing

    if options.concurrency < 1:
        raise InputError(f"--concurrency {options.concurrency}", fix="give 1 or more")

    def local(route: Route) -> Backend:
        from shadowprice.backends.llamacpp import LlamaCppBackend

        with _stage(f"loading {route.local}", quiet=options.quiet):
            return LlamaCppBackend(
                route.local,
                progress=lambda text: None if options.quiet else say(text),
                context=route.context or options.context,
                threads=options.threads,
                gpu_layers=options.gpu_layers,
                slots=options.slots or min(4, options.concurrency, route.max_concurrency or 4),
                exact=options.exact,
            )

    predictor, name = forecaster(options)
    return open_routing(routes, forecaster=predictor, name=name, scouts=options.scouts, local=local)


def run_to_end(
    work: Callable[[], Coroutine[None, None, _T]],
    progress: Progress,
    backends: Sequence[Backend | Routing | None],
    folder: str,
) -> _T:
    """Runs `work` and closes the backends.

    After the first Ctrl-C nothing more is sent, and what is in flight is finished, because it would count as spent
    otherwise. A second Ctrl-C cancels it. SIGTERM and SIGHUP act like one Ctrl-C, and cancel after `_GRACE` seconds.
    """
    signals = _Signals(progress)

    async def main() -> _T:
        async with _closing(backends):
            with signals.handled():
                return await work()

    with signals.deferred():
        try:
            result = asyncio.run(main())
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise Interrupted(_RESUME.format(folder)) from None
    if progress.stopped == _CTRL_C:
        raise Interrupted(_RESUME.format(folder))
    return result


@contextmanager
def resumable(folder: str) -> Iterator[None]:
    """Handles Ctrl-C outside `run_to_end`: if the run folder exists, the message says how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        if not os.path.isdir(folder):
            raise
        raise Interrupted(_RESUME.format(folder)) from None


@asynccontextmanager
async def _closing(backends: Sequence[Backend | Routing | None]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for backend in backends:
            if backend is not None:
                await backend.close()


class _Signals:
    """Handles SIGINT, SIGTERM and SIGHUP while a model is asked; ignored ones stay ignored."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._early: list[int] = []  # signals that came before the loop ran
        names = ("SIGINT", "SIGTERM", "SIGHUP")
        known = [number for name in names if (number := getattr(signal, name, None)) is not None]
        self._numbers = [number for number in known if signal.getsignal(number) is not signal.SIG_IGN]

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Holds back signals before and after the event loop, where an exception would leave work half done."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(number: int, _: object) -> None:
            if self._early:  # the user presses Ctrl-C again: do not wait for the loop
                raise KeyboardInterrupt
            self._early.append(number)

        before = {number: signal.signal(number, note) for number in self._numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handles signals inside the event loop."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        cancel = task.cancel

        def interrupt() -> None:
            if self._progress.stopped or not self._progress.running:
                cancel()
                return
            self._progress.stop(_CTRL_C)
            say("finishing requests in flight (Ctrl-C again stops at once, and counts them as spent)")

        def end() -> None:
            """Waits only for a limited time: there may be no user to press Ctrl-C again."""
            deadlines.append(loop.call_later(_GRACE, cancel))
            if not self._progress.stopped:
                interrupt()

        deadlines: list[asyncio.TimerHandle] = []
        before = {}
        with suppress(NotImplementedError, ValueError, RuntimeError):  # not on Windows, and only in the main thread
            for number in self._numbers:
                handler = signal.getsignal(number)
                loop.add_signal_handler(number, interrupt if number == signal.SIGINT else end)
                before[number] = handler
        if self._early:
            cancel()
        try:
            yield
        finally:
            for deadline in deadlines:
                deadline.cancel()
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)


@contextmanager
def show_progress(requests: int, rates: Rates, *, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Shows the progress of a run. On a terminal it is redrawn every second.

    Elsewhere it is a line every 5% or every ten seconds, whichever comes first; after two minutes every minute.
    """
    from shadowprice.cli.progress import Meter

    if quiet or sys.stderr is None:
        yield lambda progress: None
        return
    meter = Meter(requests, rates)
    with _shown(meter) as refresh:

        def event(progress: Progress) -> None:
            meter.update(progress)
            refresh()

        yield event


@contextmanager
def _shown(meter: Meter) -> Iterator[Callable[[], None]]:
    if can_redraw(sys.stderr):
        with screen(meter.lines) as drawn:
            yield drawn.redraw
        return
    log = _Log(meter)
    timer = threading.Thread(target=log.watch, name="progress", daemon=True)
    timer.start()
    try:
        yield log.event
    finally:
        log.closed.set()
        timer.join(timeout=2)


class _Log:
    """Prints progress as lines, also while nothing happens."""

    def __init__(self, meter: Meter) -> None:
        self.meter, self.closed = meter, threading.Event()
        self._last, self._step, self._waited = 0.0, 0, False
        self._lock = threading.Lock()

    def watch(self) -> None:
        while not self.closed.wait(1.0):
            self.event()

    def event(self) -> None:
        with self._lock:
            now, step = self.meter.elapsed, int(20 * self.meter.share)
            pause = 10 if now < 120 else 60
            waits = not self._waited and self.meter.waiting  # the first time it is reported at once
            if waits or now - self._last >= pause or (step > self._step and now - self._last >= 1):
                self._waited = self._waited or waits
                self._last, self._step = now, step
                say(self.meter.line())


@contextmanager
def _stage(name: str, *, quiet: bool) -> Iterator[None]:
    """Shows what is being done and, on a terminal, for how long."""
    if quiet or sys.stderr is None:
        yield
    elif can_redraw(sys.stderr):
        began = time.monotonic()
        with screen(lambda width: [f"{name}, {time.monotonic() - began:.0f} s"]):
            yield
    else:
        say(name)
        yield
