"""An event loop without a clock: when nothing is ready, time jumps to the next timer."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable
from typing import Any


class Stuck(BaseException):
    """Everything waits, and nothing will ever happen."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs one callback at a time, calling `on_step` before each; with `shuffle`, any of those that are ready.

    What would run in a thread runs in the loop, so that a seed decides everything.
    """

    def __init__(self, rng: random.Random, *, shuffle: bool, on_step: Callable[[], None]) -> None:
        super().__init__()
        self._now = 1000.0
        self._rng, self._shuffle, self._on_step = rng, shuffle, on_step
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        return self._now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = self.create_future()

        def work() -> None:
            if not future.cancelled():
                try:
                    future.set_result(func(*args))
                except Exception as error:
                    future.set_exception(error)

        self.call_later(self._rng.choice([0.0, 0.01, 1.0]), work)
        return future

    def _run_once(self) -> None:
        timers, ready = self._scheduled, self._ready
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
        if not ready:
            if not timers:
                raise Stuck
            self._now = max(self._now, timers[0]._when)
        while timers and timers[0]._when <= self._now:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            ready.append(timer)
        at = self._rng.randrange(len(ready)) if self._shuffle else 0
        if not ready[at]._cancelled:
            self._on_step()  # it may raise, and then the callback stays where it is
        ready.rotate(-at)
        handle = ready.popleft()
        ready.rotate(at)
        if not handle._cancelled:
            handle._run()

    def _write_to_self(self) -> None:
        """Nothing to wake: there is one thread."""

    def unwind(self) -> None:
        """Cancels everything and lets it run to its end, with no more steps counted."""
        self._on_step = lambda: None
        # All tasks are a set: in the order of their creation, so that what they do on the way out is the same again.
        tasks = sorted(asyncio.all_tasks(self), key=lambda task: int(task.get_name().removeprefix("Task-")))
        for task in tasks:
            task.cancel()
        if tasks:
            self.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.close()
