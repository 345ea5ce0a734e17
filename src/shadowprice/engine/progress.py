"""The progress of an execution, and which faults of a server it tolerates."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Tolerance:
    """Which faults of a server an execution tolerates.

    patience  seconds that an outage may last before the execution stops
    pause     seconds before the first retry; each later one waits twice as long
    exposure  stop when the grants of failures that the server says cost nothing exceed this share of the budget
    """

    patience: float = 300.0
    pause: float = 0.5
    exposure: float = 0.1


USUAL = Tolerance()


@dataclass
class Progress:
    """The progress of an execution, passed to `on_event` whenever something has happened.

    After `stop` nothing more is sent, and what is in flight is finished.

    running     requests in flight
    waiting     what the execution is waiting for, if the server is unavailable
    stopped     why it stops early; empty if it does not
    generating  tokens so far of answers in flight, which are not in `spent` yet, as far as the backend knows
    """

    budget: int
    spent: int = 0
    tokens: int = 0  # generated, also where units are money
    price: float | None = None
    rounds: int = 0
    running: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    waiting: str = ""
    stopped: str = ""
    generating: int = 0
    dropped: dict[str, str] = field(default_factory=dict)  # routes that left, and why

    def restart(self) -> None:
        """Prepares for another execution of the same run."""
        self.running, self.generating, self.waiting, self.stopped = 0, 0, "", ""
        self.outcomes.clear()

    def stop(self, reason: str) -> None:
        self.stopped = self.stopped or reason
