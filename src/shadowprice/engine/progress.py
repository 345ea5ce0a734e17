"""The progress of an execution, and how many faults of a server it tolerates."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Tolerance:
    """How many faults of a server an execution tolerates.

    patience  seconds that an outage may last before the execution stops
    pause     seconds before the first repetition; later ones wait twice as long each time
    exposure  share of the budget that may be taken on the server's word
    """

    patience: float = 300.0
    pause: float = 0.5
    exposure: float = 0.1


USUAL = Tolerance()


@dataclass
class Progress:
    """The progress of an execution, passed to `on_event` whenever something has happened.

    After `stop` nothing more is sent, and what is under way is finished; `stopped` is the reason. `waiting` says what
    is being waited for, if the server is unavailable. `generating` are the tokens of answers under way, which are not
    in `spent` yet, as far as the backend knows them.
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
        """For another execution of the same run."""
        self.running, self.generating, self.waiting, self.stopped = 0, 0, "", ""
        self.outcomes.clear()

    def stop(self, reason: str) -> None:
        self.stopped = self.stopped or reason
