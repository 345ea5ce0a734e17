"""A process: it counts its steps, and one of them may be its last."""

from __future__ import annotations

import random
from collections.abc import Callable

from .story import End

MOST_STEPS = 50_000


class Killed(BaseException):
    """The process is no more. What unwinds after this happens to nobody."""


class Violation(BaseException):
    """An invariant does not hold. Not an Exception: the code under test must not take it for a failed request."""


class Process:
    def __init__(self, seed: str, end: End | None) -> None:
        self.rng = random.Random(seed)
        self.alive = True
        self.steps = 0
        self.stop: Callable[[], None] = lambda: None
        self.cancel: Callable[[], None] = lambda: None
        self._end = end

    def step(self) -> None:
        """Something has happened, or is about to."""
        if not self.alive:
            raise Killed
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Violation(f"it does not end within {MOST_STEPS} steps")
        if self._end is not None and self.steps == self._end.step:
            self._meet(self._end.kind)

    def _meet(self, end: str) -> None:
        if end == "stop":
            self.stop()
        elif end == "cancel":
            self.cancel()
        else:
            self.alive = False
            raise Killed
