"""The same grant for everybody, in order: collecting traces, asking a teacher."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shadowprice.backends.base import LANDING, prefix
from shadowprice.cost import TOKENS, Rates
from shadowprice.engine.scheduler import Batch, Report, Round, Work
from shadowprice.errors import InputError
from shadowprice.types import Completion, Forecast, Request, Result

LANDING_TOKENS = 16  # that stating a final answer may take


@dataclass(frozen=True)
class Ages:
    """Where answers are probed: after so many tokens, and after such shares of their length."""

    tokens: tuple[int, ...]
    shares: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> Ages:
        """From `0,64,256,50%`."""
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
        """Tokens that probing one answer may take."""
        return (len(self.tokens) + len(self.shares) + 1) * LANDING_TOKENS

    def of(self, answer: Completion) -> list[int]:
        """The ages of one answer, the longest first; its end is one of them only where it was cut."""
        ages = {*self.tokens, *(round(share * answer.tokens) for share in self.shares)}
        inside = {age for age in ages if age < answer.tokens}
        return sorted(inside | ({answer.tokens} if answer.finish == "length" else set()), reverse=True)


class _Turn(NamedTuple):
    request: int
    age: int | None = None  # to probe at; None: the answer itself


class Fixed:
    """Grants everybody `grant` tokens.

    probe          after an answer, ask for the final answer after beginnings of it, one after the other from the
                   longest to the shortest, so that the server reads nothing again; what it states is in the
                   result's `extra["probes"]`: age -> [text, tokens]
    give_up_after  so many are sent at first, and the others only once one of them is answered
    most           units that may be spent in all
    attempts       at one request, whatever became of them
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
        self._probes: dict[int, dict[str, tuple[str, int]]] = {}
        self._ages: dict[int, list[int]] = {}  # still to probe at, the longest last
        self._sent = self._answers = 0

    price: float | None = None

    def add(self, requests: Sequence[Request], forecast: Forecast | None = None) -> None:
        first = len(self._batch)
        self._batch.add(requests, forecast or Forecast([1.0] * len(requests)))
        self._queue.extend(map(_Turn, range(first, len(self._batch))))

    def restore(self, index: int, state: Result | Completion, *, sample: int = 0, landing: bool = False) -> None:
        """Of an answer whose probes were interrupted the answer is kept, and probed again."""
        if isinstance(state, Result):
            self._batch.restore(index, state)
        elif not landing:
            self._batch.restore(index, state)
            self._batch.so_far.pop(index)
            self._begin_probes(index, state)
            self._probe_next(index)

    def next(self, available: int) -> Work | None:
        waits = self.give_up_after and not self._answers and self._sent >= self.give_up_after
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
        batch, index = self._batch, report.work.place
        batch.charge(report)
        if self.most is not None:
            self.most += report.work.bound - report.cost
        if report.work.suffix:
            return self._probed(index, report)
        if report.completion is None:
            if batch.gives_up(index):
                return batch.failed(index)
            self._queue.append(_Turn(index))
            return None
        self._answers += 1
        if self.probe is None:
            return batch.answered(index, report.completion, report.correct)
        self._correct[index] = report.correct
        self._begin_probes(index, report.completion)
        return None if self._probe_next(index) else self._all_probed(index)

    def close(self, stopped: str = "") -> Iterable[Result]:
        if not stopped:  # answers are kept though there was nothing left to probe them with
            yield from [self._all_probed(index) for index in sorted(self._answer)]
        yield from self._batch.left(None, stopped)

    def _is_done(self, turn: _Turn) -> bool:
        """Whether an earlier execution has done it."""
        return self._batch.ended[turn.request] or (turn.age is None and turn.request in self._answer)

    def _work(self, turn: _Turn) -> Work:
        if turn.age is None:
            return self._batch.work(turn.request, self.grant)
        start = prefix(self._answer[turn.request], turn.age)
        return self._batch.work(turn.request, LANDING_TOKENS, so_far=start, suffix=LANDING)

    def _begin_probes(self, index: int, answer: Completion) -> None:
        assert self.probe is not None
        self._answer[index], self._probes[index] = answer, {}
        self._ages[index] = self.probe.of(answer)[::-1]

    def _probe_next(self, index: int) -> bool:
        """Puts the next probe of an answer before everything else; False if there is none."""
        if ages := self._ages[index]:
            self._queue.appendleft(_Turn(index, ages.pop()))
            return True
        return False

    def _probed(self, index: int, report: Report) -> Result | None:
        if report.completion is not None:
            age = report.work.so_far.tokens if report.work.so_far else 0
            self._probes[index][str(age)] = (report.completion.text, report.completion.tokens)
        return None if self._probe_next(index) else self._all_probed(index)

    def _all_probed(self, index: int) -> Result:
        del self._ages[index]
        self._batch.error.pop(index, None)
        probes = self._probes.pop(index)
        return self._batch.answered(index, self._answer.pop(index), self._correct.pop(index, None), probes=probes)
