"""What the commands that talk to a model share: the backend, progress, signals."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from shadowprice.cli.common import Interrupted
from shadowprice.errors import InputError

if TYPE_CHECKING:
    from shadowprice.backends.base import Backend
    from shadowprice.cost import Rates
    from shadowprice.engine.executor import Progress

_CACHE = 1024  # MiB, for a model on this machine: the state of answers that wait to be continued
_CTRL_C = "interrupted"
_T = TypeVar("_T")


def make_backend(options: argparse.Namespace, *, cache: bool = False) -> Backend:
    """The backend of --base-url or --local; `cache` keeps the state of answers that wait."""
    if options.concurrency < 1:
        raise InputError(f"--concurrency {options.concurrency}", fix="give 1 or more")
    if options.base_url:
        from shadowprice.backends.openai import OpenAIBackend

        return OpenAIBackend(
            options.base_url, options.model, limit_field=options.limit_field or "max_completion_tokens"
        )
    from shadowprice.backends.llamacpp import LlamaCppBackend

    def report(text: str) -> None:
        if not options.quiet:
            print(text, file=sys.stderr)

    return LlamaCppBackend(
        options.local or None,
        progress=report,
        slots=min(8, options.concurrency),
        threads=options.threads,
        cache=_CACHE if cache else 0,
    )


def run_to_end(
    work: Callable[[], Coroutine[None, None, _T]], progress: Progress, backends: list[Backend | None], folder: str
) -> _T:
    """Runs `work` and closes the backends.

    After the first Ctrl-C nothing more is sent and what is under way is finished: it would count as spent otherwise.
    A second one, or any other signal, cancels.
    """

    async def main() -> _T:
        async with _closing(backends):
            with _signals(progress):
                return await work()

    try:
        result = asyncio.run(main())
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise Interrupted(f"interrupted; the same command with --resume continues it ({folder})") from None
    if progress.stopped == _CTRL_C:
        raise Interrupted(f"interrupted; the same command with --resume continues it ({folder})")
    return result


@asynccontextmanager
async def _closing(backends: list[Backend | None]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for backend in backends:
            if backend is not None:
                await backend.close()


@contextmanager
def _signals(progress: Progress) -> Iterator[None]:
    task = asyncio.current_task()
    assert task is not None

    def interrupt() -> None:
        if progress.stopped or not progress.running:
            task.cancel()
            return
        progress.stop(_CTRL_C)
        print(
            "\nfinishing what is under way (Ctrl-C again stops at once, and counts it as spent)",
            file=sys.stderr,
            flush=True,
        )

    loop, before = asyncio.get_running_loop(), {}
    with suppress(NotImplementedError, ValueError, RuntimeError):  # not on Windows, and only in the main thread
        for number, action in ((signal.SIGINT, interrupt), (signal.SIGTERM, task.cancel), (signal.SIGHUP, task.cancel)):
            handler = signal.getsignal(number)
            loop.add_signal_handler(number, action)
            before[number] = handler
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


@contextmanager
def show_progress(requests: int, rates: Rates, *, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Shows the progress of a run: a bar on a terminal, otherwise a line every ten seconds."""
    from shadowprice.cost import show_spent

    if quiet or sys.stderr is None:
        yield lambda progress: None
        return

    def words(progress: Progress) -> str:
        price = f", price {progress.price:.3g}" if progress.price is not None else ""
        failed = f", {progress.outcomes['failed']:,} failed" if progress.outcomes["failed"] else ""
        return f"{show_spent(progress.spent, progress.budget, rates)} spent{price}{failed}"

    def answered(progress: Progress) -> int:
        return sum(progress.outcomes[name] for name in ("finished", "landed", "truncated"))

    if sys.stderr.isatty():
        from tqdm import tqdm

        with tqdm(total=requests, unit=" requests", leave=False) as bar:

            def draw(progress: Progress) -> None:
                bar.set_postfix_str(words(progress), refresh=False)
                bar.update(answered(progress) - bar.n)

            yield draw
        return
    last = time.monotonic()

    def line(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= 10:
            last = time.monotonic()
            print(f"{answered(progress):,} of {requests:,} answered, {words(progress)}", file=sys.stderr, flush=True)

    yield line
