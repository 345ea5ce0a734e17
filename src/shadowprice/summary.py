"""How a run ended, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from shadowprice.engine.scheduler import Round
from shadowprice.types import Completion, Result, Usage


@dataclass(frozen=True)
class Summary:
    """How a run ended. `overspent` is by how much the budget was exceeded: 0 if servers keep their limits."""

    requests: int
    outcomes: dict[str, int]
    correct: int | None
    graded: int
    budget: int
    spent: int
    overspent: int
    beyond_grants: int  # units charged above grants, whether the budget covers them or not
    usage: Usage
    rounds: list[Round]
    causes: dict[str, int]  # of failures, the most frequent first: how many requests each has
    flags: dict[str, int]  # violations by the server, and how often each occurred
    stopped: str  # why the run stopped early; empty if it did not
    failed: int = 0  # units charged for requests that failed: what they cost is unknown, so their whole grants are
    lost: int = 0  # units charged for what was under way when the run crashed or was cancelled
    sandbox: str = ""  # the level that programs in answers were run at; empty if none were
    dollars: float | None = None  # what `usage` costs; None where prices are unknown
    generated: int = 0  # tokens that were certainly generated; what is charged may be an estimate, or a whole limit
    counted: bool = True  # whether the server counted the tokens of all answers
    routes: dict[str, dict[str, int]] = field(default_factory=dict)  # answers and units by route, if there are several
    dropped: dict[str, str] = field(default_factory=dict)  # routes that left the menu, and why
    samples: int = 0  # answers that were bought where a request may have several from routes
    voted: int = 0  # requests that two votes or more decided
    unvaried: int = 0  # requests that were not voted on, since at temperature 0 all answers are the same

    @property
    def price(self) -> float | None:
        return self.rounds[-1].price if self.rounds else None

    def count(self, *outcomes: str) -> int:
        return sum(self.outcomes.get(name, 0) for name in outcomes)


@dataclass
class Tally:
    """What results add up to; they are added one by one, since all of them may not fit into memory."""

    outcomes: Counter[str] = field(default_factory=Counter)
    grades: Counter[bool | None] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    flags: Counter[str] = field(default_factory=Counter)
    generated: int = 0
    counted: bool = True
    failed: int = 0  # units
    samples: int = 0
    voted: int = 0
    routes: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, result: Result) -> None:
        for name, units in (result.extra.get("charged") or {}).items():
            route = self.routes.setdefault(name, {"answers": 0, "units": 0})
            route["units"] += units
            route["answers"] += result.completion is not None and result.extra.get("route") == name
        self.samples += result.extra.get("samples", 0)
        self.voted += result.extra.get("votes", 0) > 1
        self.outcomes[result.outcome] += 1
        self.grades[result.correct] += 1
        self.causes.update(causes_of([result]))
        if result.outcome == "failed":
            self.failed += result.cost
        if result.completion is not None:
            self.add_answer(result.completion)

    def add_answer(self, answer: Completion) -> None:
        """An answer, or a part of one that has not become an answer."""
        self.flags.update(flags_of(answer))
        self.generated += answer.certain
        self.counted &= answer.usage_source == "server"


def flags_of(answer: Completion) -> tuple[str, ...]:
    """What was wrong with an answer; a server that counts no tokens is, too."""
    return answer.flags or (("not_counted",) if answer.usage_source == "assumed" else ())


def causes_of(results: Iterable[Result]) -> dict[str, int]:
    """The causes of failures, the most frequent first: how many requests each has."""
    failures = (result.failure for result in results if result.outcome == "failed" and result.failure)
    return dict(Counter(failure.details.get("cause", failure.message) for failure in failures).most_common())
