"""Serving by index: the next tokens go where they are worth the most (`market.gittins` has the mathematics).

The request with the highest index generates the next chunk of its answer. That changes its index, and it may have to
wait while others generate.

**Learning during the run.** From time to time (`engine.lessons`) the run corrects its forecasts: it estimates the
level, the spread, the slope and the shape of all lengths again (`forecast.learning`). It knows the lengths of answers
that ended, and that the others are longer than what they have generated. It does not learn from grades, so the chance
of a correct answer stays as forecast.

**Reading.** With a reader (`forecast.reading`) a request pauses at some ages, and the text of its answer so far revises
what is forecast of the rest. Where every further chunk pays its prompt again, requests do not pause for that.

**A guard.** If the index promises little more than equal shares of what is left, all answers grow to one level instead
(`engine.guard`, `market.level`).

**Two ways of pausing.** If an answer can be continued from a part of it, its request waits between chunks while others
generate. If not, it is generated in a single request, with a limit at the age where its index falls below the price.
The limit has to end it: if the connection were closed instead, it would be unknown how much the server generated before
it noticed, and the whole grant would be charged. If it is unknown whether the server continues answers, the first
answer is generated in two short pieces before anything else is sent.

**Many at the same time.** While requests are in flight, work is sent ahead of its turn. Near the end of the budget,
nothing is begun unless what is left covers it and what the answers in flight are still expected to need. If all were
begun together, all would be cut; one after another, most of them end.

**At the end of the budget** the request with the highest index takes what is left, once no work is in flight that
could return units. Unfinished answers become results, truncated where they stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array
from shadowprice.backends.base import join
from shadowprice.cost import TOKENS, Rates
from shadowprice.engine._chunk_queue import Chunk, ChunkQueue
from shadowprice.engine.guard import Guard
from shadowprice.engine.lessons import Lessons
from shadowprice.engine.readings import AnswersRead, PartReader, chunks_after
from shadowprice.engine.recall import Call, call
from shadowprice.engine.scheduler import LARGEST_CHUNK, TRIAL, Batch, CanContinue, Report, Round, Work, flagged, is_over
from shadowprice.forecast.learning import recalibrate
from shadowprice.forecast.loops import is_looping
from shadowprice.forecast.reading import next_age
from shadowprice.market.anytime import Anytime
from shadowprice.market.gittins import Chunks
from shadowprice.market.level import steps_to
from shadowprice.types import Completion, Forecast, Request, Result

_MARGIN = 1.5  # for answers in flight that turn out longer than expected


class Metered:
    """Serves the highest index first.

    chunk         minimum tokens of a chunk; if most answers are shorter, the median forecast
    concurrency   pieces of work in flight; none of them takes all that is left
    can_continue  which answers can be continued from a part of them; None: all
    learn         correct the forecasts during the run
    anytime       what stopped answers are worth if they land; None: nothing
    end_loops     do not continue answers that repeat themselves
    reader        revises forecasts by what was generated so far; None: nothing is read
    """

    policy = "index"

    def __init__(
        self,
        *,
        max_tokens: int | None = None,
        chunk: int = 64,
        concurrency: int = 8,
        can_continue: CanContinue | None = None,
        learn: bool = True,
        attempts: int = 4,
        rates: Rates = TOKENS,
        anytime: Anytime | None = None,
        end_loops: bool = False,
        reader: PartReader | None = None,
    ) -> None:
        self.chunk, self.concurrency, self.learn, self.anytime = chunk, concurrency, learn, anytime
        self.end_loops, self.answers_read = end_loops, AnswersRead(reader)
        self.rounds: list[Round] = []
        self._batch = Batch(max_tokens, attempts, rates, can_continue=can_continue or (lambda request: True))
        self.lessons, self._guard = Lessons(), Guard()
        self.corrected = self._batch.forecast  # by what the run has shown
        self._age: NDArray[np.int64] = np.zeros(0, dtype=np.int64)  # tokens generated; 0 if unknown
        self._stopped: NDArray[np.bool_] = np.zeros(0, dtype=bool)  # the model ended its answer at that age
        self._waiting: NDArray[np.bool_] = np.zeros(0, dtype=bool)  # neither ended nor in flight
        self._queue = ChunkQueue(self._pause)
        self._usual = chunk  # median length by the current forecasts
        self._outdated = True  # the queue: forecasts changed or requests were added
        self._ample = 0.0  # tokens that cover any `concurrency` requests: with more, nobody has to wait for others
        self._running: dict[int, Work] = {}  # by place
        self._sent: dict[int, Chunk] = {}  # chunks in flight, by place
        self._cut: dict[int, Chunk] = {}  # chunks of which only a piece was sent, by place
        self._trial: int | None = None  # the request that shows whether the server continues; in flight or next
        self._counts = True  # whether the server counts its tokens: only then they can be metered
        # Whether to hold a request after a part of its answer until `release`: it is probed meanwhile.
        self.hold: Callable[[int], bool] = lambda place: False
        self.left: dict[int, float] = {}  # by place: the share of the gain from continuing that probes left
        self.recall: Call = call  # simulations of the same requests may share one that remembers

    @property
    def batch(self) -> Batch:
        """The requests and the state of each."""
        return self._batch

    @property
    def least(self) -> int:
        """The minimum tokens of a chunk, by the current forecasts. Steps to a level have no minimum."""
        return 1 if self._guard.level else min(self.chunk, self._usual)

    @property
    def reads(self) -> bool:
        """Whether parts of answers are read now; those that grow to a level are not."""
        return self.answers_read.reader is not None and self._guard.level is None

    @property
    def price(self) -> float | None:
        return self.rounds[-1].price if self.rounds else None

    def add(self, requests: Sequence[Request], forecast: Forecast) -> None:
        none = np.zeros(len(requests), dtype=np.int64)
        age = np.append(self.answers_read.as_forecast(self._age, self.corrected), none)
        self._batch.add(requests, forecast)
        self._age = np.append(self._age, none)
        self._stopped = np.append(self._stopped, none > 0)
        self._waiting = np.append(self._waiting, none == 0)
        forecast = self._batch.forecast
        self.corrected = recalibrate(forecast, age, self._stopped) if self.lessons.taken else forecast
        self._outdated = True

    def restore(self, place: int, state: Result | Completion, *, sample: int = 0, landing: bool = False) -> None:
        self._batch.restore(place, state)
        if isinstance(state, Completion):
            self._age[place] = self._batch.age(place)
            self.answers_read.take(place, self._batch.so_far[place])
        else:
            self._waiting[place] = False
            if state.completion is not None:
                self.answers_read.take_ended(place, state.completion)
                self._learn_length(place, state.completion)
        self._outdated = True

    def dropped(self, place: int, part: Completion) -> None:
        self._batch.dropped(place, part)

    def charged(self, costs: Mapping[int, int]) -> None:
        self._batch.charged(costs)

    def next(self, available: int, avoid: Collection[int] = ()) -> Work | None:
        if available <= 0 or not self._waiting.any():
            return None
        if self._outdated:
            self._clear(available)
        avoided = [place for place in avoid if self._waiting[place]]
        if not avoided:
            return self._next(available)
        self._waiting[avoided] = False
        work = self._next(available)
        for place in avoided:
            self._push(place)
        return work or self._next(available)

    def _next(self, available: int) -> Work | None:
        batch = self._batch
        while chunk := self._of_trial() or self._best():
            place = chunk.place
            continues = batch.continues(place)
            if chunk.age and continues is False:  # a part of an earlier execution, by another server
                self._restart(place)
                continue
            if continues is False:  # it may have been queued up to a pause
                chunk = self._next_chunk(place) or chunk
            if continues is None and self._trial not in (None, place):
                return None
            if self._running and self._must_wait(place, available):
                return None
            work = self._work(chunk, available, continues)
            if work is not None:
                self._waiting[place] = False
                self._running[place], self._sent[place] = work, chunk
                if continues is None:
                    self._trial = place
                return work
            if self._running:
                return None  # until work in flight returns units
            self._waiting[place] = False  # its prompt alone costs more than what is left
        return None

    def done(self, report: Report) -> Result | None:
        place, batch = report.work.place, self._batch
        del self._running[place]
        chunk = self._sent.pop(place)
        if self._trial == place:
            self._trial = None
        elif report.work.grant == LARGEST_CHUNK:
            self._cut[place] = chunk
        batch.charge(report)
        if report.completion is None:
            result = batch.after_error(place)
            if result is None:
                self._age[place] = batch.age(place)
                self._push(place)
            return result
        part = report.completion
        if part.usage_source == "assumed":
            self._counts = False
            part = part if part.flags else flagged(part, "not_counted")  # other flags say why there is no count
        answer = join(report.work.so_far, part)
        over = is_over(part, report.work.grant, answer.tokens, batch.cap[place])
        over |= self.end_loops and is_looping(answer.text)
        continues = batch.continues(place)
        if over or continues is False:
            self._learn_length(place, answer)
            return batch.answered(place, answer, report.correct)
        batch.so_far[place] = answer
        self._age[place] = answer.tokens
        was_read = bool(self.reads and chunk.minus_index) and self.answers_read.take(place, answer)
        if chunk.minus_index and answer.tokens >= chunk.stop:
            self._outdated |= self.recalibrate(self._age, self._stopped)
        if was_read:
            self._revise(place)
        if continues is None:
            self._trial = place
        if continues is None or not self.hold(place):
            self._push(place)
        return None

    def release(self, place: int) -> None:
        """Lets a request that was held wait again."""
        self._revise(place)
        self._push(place)

    def _pause(self, place: int, age: int) -> int | None:
        """The next age at which an answer pauses to be read."""
        pauses = self.reads and not self._batch.rates.priced and self._batch.continues(place) is not False
        return next_age(age) if pauses else None

    def _revise(self, place: int) -> None:
        """Replaces the chunks of a request after something new was learned about its answer."""
        self._cut.pop(place, None)
        if not self._outdated:
            alone = np.array([place])
            self._queue.replace(alone, self._chunks(alone, self._age[alone]))

    def close(self, stopped: str = "") -> Iterable[Result]:
        self._waiting[:] = False
        return self._batch.left(self.price, stopped)

    # --- learning -----------------------------------------------------------------------------

    def _learn_length(self, place: int, answer: Completion) -> None:
        """Records the length of an answer that will not be continued."""
        if answer.usage_source == "assumed":  # what was charged says nothing about the length
            self._age[place] = 0
            return
        self._age[place] = max(1, answer.tokens)
        self._stopped[place] = answer.finish == "stop"
        self._outdated |= self.recalibrate(self._age, self._stopped)

    def recalibrate(self, age: NDArray[np.int64], stopped: NDArray[np.bool_]) -> bool:
        """Corrects all forecasts if a lesson is due; returns whether it did."""
        if not self.learn or not self.lessons.due(age, stopped):
            return False
        age = self.answers_read.as_forecast(age, self.corrected)
        self.corrected = self.recall(recalibrate, self._batch.forecast, age, stopped)
        return True

    # --- the next chunk ------------------------------------------------------------------------

    def _clear(self, available: int) -> None:
        """Finds the price, and the next chunk of every request that waits."""
        self._queue.clear()
        waiting, running = np.flatnonzero(self._waiting), np.array(sorted(self._running), dtype=np.intp)
        plan = self.plan(waiting, self._age[waiting], available)
        self._queue.fill(len(self._batch), waiting, plan)
        self._queue.replace(running, self._chunks(running, self._age[running]))
        self._queue.start(waiting, self._age, self.least)
        self._ample = _MARGIN * self.concurrency * float(np.max(self._needs(plan, waiting.size), initial=0.0))
        self._outdated = False

    def plan(self, active: NDArray[np.intp], age: NDArray[np.int64], available: int) -> Chunks:
        """Starts a round: the chunks of the `active` requests, which have generated `age` tokens, and their price."""
        rates = self._batch.rates
        self._usual = max(1, int(np.median(self.corrected.tokens)))
        tokens = self._tokens(available)
        plan = self._by_probes(self.prospects(active, age), active)
        if self.anytime is None:
            self._guard.decide(self.lessons.taken, self.corrected, plan, self._known(active, age), tokens)
        if self._guard.level:
            plan = self._chunks(active, age)
        price = plan.price(tokens)
        worth = plan.index >= price
        expected = min(tokens, round(float(plan.cost[worth].sum())))
        granted = expected if not rates.priced else expected * rates.output // 10**6
        admitted = int(np.count_nonzero(np.diff(np.flatnonzero(worth).searchsorted(plan.first))))
        self.rounds.append(Round(available, active.size, admitted, granted, price, "metered"))
        return plan

    def waiting_chunks(self) -> Chunks:
        """The chunks of all requests that wait, by the current forecasts."""
        waiting = np.flatnonzero(self._waiting)
        return self._by_probes(self.prospects(waiting, self._age[waiting]), waiting)

    def _tokens(self, units: int) -> int:
        """The output tokens that units pay for."""
        rates = self._batch.rates
        return units if not rates.priced else units * 10**6 // rates.output

    def _needs(self, plan: Chunks, requests: int) -> NDArray[np.float64]:
        """The tokens that each request is expected to need as long as its index is above the price."""
        worth = plan.index >= (self.price or 0.0)
        return np.bincount(plan.query[worth], plan.cost[worth], requests).astype(np.float64)

    def _must_wait(self, place: int, available: int) -> bool:
        """Whether too little is left for this request beside those in flight."""
        left = self._tokens(available)
        if left >= self._ample:
            return False
        active = np.array([*self._running, place], dtype=np.intp)
        needs = self._needs(self._chunks(active, self._age[active]), active.size)
        granted = [*(work.grant for work in self._running.values()), 0]
        return left < _MARGIN * float(np.maximum(needs - granted, 0.0).sum())

    def prospects(self, active: NDArray[np.intp], age: NDArray[np.int64]) -> Chunks:
        """The chunks of requests from an age on."""
        read = self.answers_read
        where = (*self.where(active, age), self.anytime, read.since(active))
        return self.recall(chunks_after, self.corrected, active, *where, given=(read,))

    def _known(self, active: NDArray[np.intp], age: NDArray[np.int64]) -> tuple[Forecast, Array, Array, Array]:
        """The arguments of `chunks`: forecasts, caps, ages and entry costs."""
        return self.corrected.take(active), *self.where(active, age)

    def where(self, active: NDArray[np.intp], age: NDArray[np.int64]) -> tuple[Array, Array, Array]:
        """Caps, ages and entry costs."""
        batch = self._batch
        entry = batch.entry(active.tolist()) if batch.rates.priced else np.zeros(active.size)
        return batch.cap[active], age.astype(np.float64), entry

    def _chunks(self, active: NDArray[np.intp], age: NDArray[np.int64]) -> Chunks:
        """The chunks to serve: steps to the level if there is one, else by index."""
        level = self._guard.level
        plan = steps_to(level, *self._known(active, age)) if level else self.prospects(active, age)
        return self._by_probes(plan, active)

    def _by_probes(self, plan: Chunks, active: NDArray[np.intp]) -> Chunks:
        """The chunks with their index lowered by what probes showed."""
        if not self.left:
            return plan
        left = np.array([self.left.get(place, 1.0) for place in active.tolist()])
        return replace(plan, index=plan.index * np.repeat(left, np.diff(plan.first)))

    def _next_chunk(self, place: int) -> Chunk | None:
        return self._queue.next_chunk(place, int(self._age[place]), self.least)

    def _push(self, place: int) -> None:
        self._waiting[place] = True
        cut, age = self._cut.pop(place, None), int(self._age[place])
        if self._outdated:
            return
        # The rest of a chunk that was sent in pieces is still worth what the chunk was worth.
        rest = cut._replace(age=age) if cut and cut.age <= age < cut.stop else None
        if chunk := rest or self._next_chunk(place):
            self._queue.push(chunk)

    def _restart(self, place: int) -> None:
        """Drops a part of an answer that cannot be continued, if it is short; a longer one is kept."""
        self._waiting[place] = False
        if self._batch.start_over(place):
            self._age[place] = 0
            self._push(place)

    def _of_trial(self) -> Chunk | None:
        """The second piece of the answer that shows whether the server continues, before all other chunks."""
        if self._trial is None or not self._waiting[self._trial] or self._batch.continues(self._trial) is not None:
            return None
        return self._next_chunk(self._trial) or self._without_index(self._trial)

    def _best(self) -> Chunk | None:
        """The best chunk of those that wait."""
        return self._queue.best(self._waiting, self._age) or self._beyond_forecast()

    def _beyond_forecast(self) -> Chunk | None:
        """The next chunk of a request whose forecast promises nothing more. No other request has a use for the tokens.

        Answers that are longer than their forecast allowed come first, then requests without a chance.
        """
        begun = next((place for place in self._batch.so_far if self._waiting[place]), None)
        if begun is None and not self._waiting.any():
            return None
        return self._without_index(int(self._waiting.argmax()) if begun is None else begun)

    def _without_index(self, place: int) -> Chunk:
        age = int(self._age[place])
        return Chunk(0.0, place, age, int(min(age + self.chunk, self._batch.cap[place])))

    # --- grants --------------------------------------------------------------------------------

    def _work(self, chunk: Chunk, available: int, continues: bool | None) -> Work | None:
        """The work of a chunk, or None if it is not affordable. If nothing is in flight, it takes what is left."""
        place, batch = chunk.place, self._batch
        if batch.affordable(place, available) < 1:
            return None
        grant, so_far = self._grant(chunk, available, continues), batch.so_far.get(place)
        work = batch.work(place, grant, so_far=so_far)
        if work.bound > available and not self._running:
            grant = min(grant, batch.affordable(place, available))
            work = batch.work(place, grant, so_far=so_far)
        return work if grant > 0 and work.bound <= available else None

    def _grant(self, chunk: Chunk, available: int, continues: bool | None) -> int:
        """The tokens of a chunk, or of the whole answer if it cannot be paused.

        It is at most a share of what is not spent, so that others can be served at the same time.
        """
        length = chunk.stop - chunk.age
        if continues is None:
            return min(length, TRIAL)
        place, batch = chunk.place, self._batch
        reserved = sum(work.bound for work in self._running.values())
        units = (available + reserved) // min(self.concurrency, batch.unanswered)
        share = batch.affordable(place, units)
        if continues:
            if not batch.rates.priced:
                return min(length, max(self.chunk, min(share, LARGEST_CHUNK)))
            active = np.array([place])  # another chunk would pay the prompt again, so this one should be enough
            need = float(self._needs(self._chunks(active, self._age[active]), 1)[0])
            return min(length, max(self.chunk, share, round(_MARGIN * need)))
        if not self._counts:  # whatever is granted will be charged
            return length
        if not chunk.minus_index:
            return int(min(max(length, share), batch.cap[place]))
        plan = self._chunks(np.array([place]), np.zeros(1, dtype=np.int64))
        worth = (plan.index >= (self.price or 0.0)) & (plan.stop <= share)
        return int(np.max(plan.stop[worth], initial=chunk.stop))
