"""The progress of a run as text: what was spent, the outcomes of requests, and how long the rest will take."""

from __future__ import annotations

import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shadowprice.cost import Rates, show_spent

if TYPE_CHECKING:
    from shadowprice.engine.executor import Progress

_WINDOW = 120.0  # seconds that speeds are measured over
_FEW = 32  # tokens: fewer do not show how long the rest will take
_BAR = 40  # columns
_ENDED = ("finished", "landed", "truncated", "declined", "failed")


@dataclass
class Meter:
    """What a run has done, and how fast. Call `update` on every event; the rest can be read at any time."""

    requests: int
    rates: Rates
    clock: Callable[[], float] = time.monotonic
    progress: Progress | None = None
    _began: float = field(init=False)
    _seen: deque[tuple[float, int, int, int]] = field(default_factory=deque)  # time, used, tokens, ended

    def __post_init__(self) -> None:
        self._began = self.clock()

    def update(self, progress: Progress) -> None:
        """Takes the new state. Speeds are measured from the first one, so an earlier execution does not count."""
        self.progress = progress
        now = self.clock(), self._used(progress), self._tokens(progress), self._ended(progress)
        if not self._seen or now[1:] != self._seen[-1][1:]:
            self._seen.append(now)
        while len(self._seen) > 2 and self._seen[1][0] < now[0] - _WINDOW:
            self._seen.popleft()

    @property
    def elapsed(self) -> float:
        return self.clock() - self._began

    @property
    def share(self) -> float:
        """How much is done: the share of the budget used or of requests ended, whichever is larger."""
        if self.progress is None:
            return 0.0
        used = self._used(self.progress) / self.progress.budget if self.progress.budget else 0.0
        return min(1.0, max(used, self._ended(self.progress) / max(1, self.requests)))

    @property
    def waiting(self) -> bool:
        """Whether the server is unavailable."""
        return self.progress is not None and bool(self.progress.waiting)

    def speed(self, kind: int) -> float:
        """Per second: units used (1), tokens (2) or requests that have ended (3)."""
        if not self._seen:
            return 0.0
        first, last = self._seen[0], self._seen[-1]
        return (last[kind] - first[kind]) / max(1e-9, self.clock() - first[0])

    @property
    def left(self) -> float | None:
        """Seconds until the budget is spent or the requests have ended, whichever is first; None: unknown."""
        if self.progress is None or self.progress.stopped or not self._seen:
            return None
        first, last = self._seen[0], self._seen[-1]
        if last[2] - first[2] < _FEW and last[3] == first[3]:  # only prompts were read so far: no speed is known
            return None
        units, requests = self.progress.budget - self._used(self.progress), self.requests - self._ended(self.progress)
        rates = [(units, self.speed(1)), (requests, self.speed(3))]
        return min((max(0, amount) / speed for amount, speed in rates if speed > 0), default=None)

    # --- text ------------------------------------------------------------------------------------

    def lines(self, width: int = 79) -> list[str]:
        """For a terminal: a bar, the budget, the requests, and what the run is waiting for."""
        if self.progress is None:
            return [f"{self._preparing()}, {_span(self.elapsed)}"]
        filled, empty = "█░" if _can_print("█░") else "#-"
        columns = min(_BAR, max(10, width - 38))
        done = round(columns * self.share)
        bar = filled * done + empty * (columns - done)
        return [
            f"{100 * self.share:3.0f}% {bar}  {_span(self.elapsed)}{self._left()}",
            *_wrapped(self._budget(), width),
            *_wrapped(f"{self._outcomes()}; {self.progress.running:,} in flight", width),
            *(_wrapped(f"waiting: {self.progress.waiting}", width) if self.progress.waiting else []),
        ]

    def line(self) -> str:
        """The same on one line, for a log."""
        if self.progress is None:
            return f"{self._preparing()}, {_span(self.elapsed)}"
        waiting = f"; waiting: {self.progress.waiting}" if self.progress.waiting else ""
        return (
            f"{100 * self.share:.0f}%, {_span(self.elapsed)}{self._left()}: {self._outcomes()}, "
            f"{self.progress.running:,} in flight; {self._budget()}{waiting}"
        )

    def _preparing(self) -> str:
        return f"forecasting {self.requests:,} request{'' if self.requests == 1 else 's'}"

    def _left(self) -> str:
        return "" if self.left is None else f", about {_span(self.left)} left"

    def _budget(self) -> str:
        assert self.progress is not None
        price = f"; price {self.progress.price:.3g}" if self.progress.price is not None else ""
        unit, word = (" tokens", "spent") if self.rates.priced else ("", "used")
        used = show_spent(self._used(self.progress), self.progress.budget, self.rates)
        return f"{used} {word}, {self.speed(2):,.0f}{unit} per second{price}"

    def _outcomes(self) -> str:
        assert self.progress is not None
        outcomes = self.progress.outcomes
        answered = outcomes["finished"] + outcomes["landed"]
        return (
            f"{answered:,} of {self.requests:,} answered, {outcomes['truncated']:,} cut, "
            f"{outcomes['declined']:,} declined, {outcomes['failed']:,} failed"
        )

    def _used(self, progress: Progress) -> int:
        """Units spent; for a budget of output tokens also what answers in flight have so far."""
        return progress.spent if self.rates.priced else progress.spent + progress.generating

    def _tokens(self, progress: Progress) -> int:
        return progress.tokens + progress.generating if self.rates.priced else self._used(progress)

    def _ended(self, progress: Progress) -> int:
        return sum(progress.outcomes[name] for name in _ENDED)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=" " * 5, subsequent_indent=" " * 5)


def _span(seconds: float) -> str:
    """0:42, 12:05 or 3:04:05."""
    whole = int(seconds + 0.5)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _can_print(text: str) -> bool:
    try:
        text.encode(getattr(sys.stderr, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return False
    return True
