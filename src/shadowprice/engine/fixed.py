"""The same grant for every request, in order: collecting traces, asking a teacher."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shadowprice.backends.base import LANDING, prefix
from shadowprice.cost import TOKENS, Rates
from shadowprice.engine.scheduler import Batch, Report, Round, Work
from shadowprice.errors import InputError
from shadowprice.types import Completion, Forecast, Request, Result

LANDING_TOKENS = 16  # for stating a final answer


@dataclass(frozen=True)
class Ages:
    """The ages at which answers are probed, in tokens and as shares of their length."""

    tokens: tuple[int, ...]
    shares: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> Ages:
        """Parses `0,64,256,50%`."""
        tokens: list[int] = []
        shares: list[int] = []
        for part in text.split(","):
            number, percent = part.strip().removesuffix("%"), part.strip().endswith("%")
            if not number.isdecimal() or (percent and int(number) > 100):
                raise InputError(f"--probe {text}: {part!r} is not an age", fix="write ages as 0,64,256,50%")
            (shares if percent else tokens).append(int(number))
        return cls(tuple(tokens), tuple(share / 100 for share in shares))

    @property
    def most(self) -> int:
        """The most tokens that probing one answer takes."""
        return (len(self.tokens) + len(self.shares) + 1) * LANDING_TOKENS

    def of(self, answer: Completion) -> list[int]:
        """The ages for one answer, the longest first; its end is one of them only if it was cut."""
        ages = {*self.tokens, *(round(share * answer.tokens) for share in self.shares)}
        inside = {age for age in ages if age < answer.tokens}
        return sorted(inside | ({answer.tokens} if answer.finish == "length" else set()), reverse=True)


class _Turn(NamedTuple):
    place: int
    age: int | None = None  # to probe at; None: the answer itself


class Fixed:
    """Grants every request `grant` tokens.

    probe          after an answer, ask for the final answer at each of these ages, from the longest to the
                   shortest, so that the server need not read anything again; the final answers are in the result's
                   `extra["probes"]`: age -> [text, tokens]
    give_up_after  how many requests are sent before one of them is answered; None: no limit
    most           the most units that may be spent
    attempts       at one request, whatever their outcome
    """

    def __init__(
        self,
        grant: int,
        *,
        probe: Ages | None = None,
        give_up_after: int | None = None,
        most: int | None = None,
        attempts: int = 4,
        rates: Rates = TOKENS,
    ) -> None:
        self.grant, self.probe, self.give_up_after, self.most = grant, probe, give_up_after, most
        self.rounds: list[Round] = []
        self._batch = Batch(grant, attempts, rates)
        self._queue: deque[_Turn] = deque()
        self._answer: dict[int, Completion] = {}
        self._correct: dict[int, bool | None] = {}
        self._ages: dict[int, list[int]] = {}  # ages still to be probed, the next one last
        self._probes: dict[int, dict[str, tuple[str, int]]] = {}
        self._sent = self._answers = 0

    price: float | None = None

    def add(self, requests: Sequence[Request], forecast: Forecast | None = None) -> None:
        first = len(self._batch)
        self._batch.add(requests, forecast or Forecast([1.0] * len(requests)))
        self._queue.extend(map(_Turn, range(first, len(self._batch))))

    def restore(self, place: int, state: Result | Completion, *, sample: int = 0, landing: bool = False) -> None:
        """An answer whose probes were interrupted is kept, and probed again."""
        if isinstance(state, Result):
            self._batch.restore(place, state)
            return
        self._batch.paid(place, state)
        if not landing:
            self._keep_answer(place, state)
            self._queue_probe(place)

    def dropped(self, place: int, part: Completion) -> None:
        self._batch.dropped(place, part)

    def charged(self, costs: Mapping[int, int]) -> None:
        self._batch.charged(costs)

    def next(self, available: int, avoid: Collection[int] = ()) -> Work | None:
        waits = self.give_up_after and not self._answers and self._sent >= self.give_up_after
        if avoid:
            self._queue = deque(sorted(self._queue, key=lambda turn: turn.place in avoid))
        while self._queue and self._is_done(self._queue[0]):
            self._queue.popleft()
        if not self._queue or waits:
            return None
        turn = self._queue[0]
        work = self._work(turn)
        if work.bound > available or (self.most is not None and work.bound > self.most):
            return None
        if self.most is not None:
            self.most -= work.bound
        self._queue.popleft()
        self._sent += 1
        return work

    def done(self, report: Report) -> Result | None:
        batch, place = self._batch, report.work.place
        batch.charge(report)
        if self.most is not None:
            self.most += report.work.bound - report.cost
        age = report.work.so_far.tokens if report.work.so_far else 0
        if batch.is_postponed(report):
            self._sent -= 1
            self._queue.append(_Turn(place, age if report.work.suffix else None))
            return None
        if report.work.suffix:
            if report.completion is not None:
                self._probes[place][str(age)] = (report.completion.text, report.completion.tokens)
        elif report.completion is None:
            if result := batch.after_error(place):
                return result
            self._queue.append(_Turn(place))
            return None
        else:
            self._answers += 1
            self._correct[place] = report.correct
            self._keep_answer(place, report.completion)
        return None if self._queue_probe(place) else self._answered(place)

    def close(self, stopped: str = "") -> Iterable[Result]:
        if not stopped:
            for place in [*self._answer]:
                yield self._answered(place)
        yield from self._batch.left(None, stopped)

    def _is_done(self, turn: _Turn) -> bool:
        """Whether an earlier execution has done this turn."""
        return self._batch.ended[turn.place] or (turn.age is None and turn.place in self._answer)

    def _work(self, turn: _Turn) -> Work:
        if turn.age is None:
            return self._batch.work(turn.place, int(self._batch.cap[turn.place]))
        start = prefix(self._answer[turn.place], turn.age)
        return self._batch.work(turn.place, LANDING_TOKENS, so_far=start, suffix=LANDING, probe=True)

    # --- probes --------------------------------------------------------------------------------

    def _keep_answer(self, place: int, answer: Completion) -> None:
        self._answer[place], self._probes[place] = answer, {}
        self._ages[place] = self.probe.of(answer)[::-1] if self.probe else []

    def _queue_probe(self, place: int) -> bool:
        """Puts the next probe of an answer first in the queue; returns False if there are no more."""
        if not self._ages[place]:
            return False
        self._queue.appendleft(_Turn(place, self._ages[place].pop()))
        return True

    def _answered(self, place: int) -> Result:
        answer, probes = self._answer.pop(place), self._probes.pop(place)
        extra = {"probes": probes} if self.probe else {}
        return self._batch.answered(place, answer, self._correct.pop(place, None), **extra)
