"""Serving with several routes: one price decides which model answers each request, and how long it may take.

Every request has a menu: decline, or any route that is alive, each with its forecast and its rates. Options are
compared by what they are expected to cost (`market.pieces`), so the budget is neither left over nor promised twice;
what is *sent* is reserved in full as everywhere. The market is cleared again as costs become known: after every few
answers, when the queue is empty, and when a route leaves.

**Fallback.** A request that a route refuses, or fails at after all attempts, waits again without that route; it fails
when none is left. A dead route leaves the menu of all requests. What was spent on it stays spent: the budget is one.

**Continuing.** An answer that was cut may be continued once nobody else has a use for what is left (`engine.parts`).
Until then it is no answer, sample or vote. With revisers it is evidence at once, and is not continued.

Answers that a request has while it waits for a better one are in `engine.answers`: cascades, samples, votes.

**Prompts.** What a prompt costs is reserved by its bound, and expected by what earlier prompts took of theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shadowprice.backends.base import join
from shadowprice.cost import prompt_bound
from shadowprice.engine.answers import Answers
from shadowprice.engine.parts import Parts, reading_bound
from shadowprice.engine.scheduler import TRIAL, Batch, CanContinue, Report, Round, Work
from shadowprice.engine.sites import FIRST_LESSON, Site, Turn, at_their_caps
from shadowprice.errors import Refused
from shadowprice.forecast.learning import recalibrate
from shadowprice.forecast.revise import Reviser
from shadowprice.formats.routes import Route
from shadowprice.market.gittins import chunks
from shadowprice.market.menu import MenuClearing, clear_menu
from shadowprice.market.options import DECLINE, Option, at_price
from shadowprice.market.pieces import Pieces
from shadowprice.market.votes import AGREEMENT, CORRELATION
from shadowprice.types import Completion, Forecast, Request, Result

_STEPS = 24  # clearings of a batch, about; at least `_FEWEST` answers apart
_FEWEST = 8


class Routed:
    """Serves requests by the option with the largest surplus at one price.

    routes    in any order; forecasts are given in the same
    revisers  by the names of two routes: what an answer of the first says about the second; a route with itself: about
              the answer
    whole     answers are bought whole, up to their caps: the market chooses routes, and not how long answers may take
    samples   answers that a request may have from each route, while a grader finds them wrong or a vote is open;
              `correlation` is that between the grades of two answers to a question (`market.samples.correlation_of`),
              `agreement` the chance that two wrong ones agree (`market.votes`)

    can_continue  by the names of routes: which answers can be continued from a part of them; other routes continue none
    """

    policy = "routes"

    def __init__(
        self,
        routes: Sequence[Route],
        *,
        max_tokens: int | None = None,
        attempts: int = 4,
        revisers: Mapping[tuple[str, str], Reviser] | None = None,
        learn: bool = True,
        whole: bool = False,
        samples: int = 1,
        correlation: float = CORRELATION,
        agreement: float = AGREEMENT,
        can_continue: Mapping[str, CanContinue] | None = None,
    ) -> None:
        self.rounds: list[Round] = []
        self.learn, self.whole, self.samples = learn, whole, samples
        self._batch = Batch(max_tokens, attempts)
        nothing, none = Forecast([]), np.zeros(0, dtype=np.int64)
        self._sites = [
            Site(route, nothing, nothing, np.zeros(0), none, np.zeros(0, dtype=bool), none) for route in routes
        ]
        self._names = {route.name: number for number, route in enumerate(routes)}
        self._prompt: NDArray[np.int64] = np.zeros(0, dtype=np.int64)  # bounds
        self._queue: list[Turn] = []
        self._running: dict[int, tuple[Work, float]] = {}  # by place, with the units that it is expected to cost
        self._answers = Answers(self._batch, self._sites, revisers or {}, samples, correlation, agreement)
        # With revisers a cut answer is evidence at once.
        self._parts = Parts(self._batch, self._sites, {} if revisers else can_continue or {})
        self._spare = False  # whether what is left is spare: nobody but parts has a use for it
        self._since = 0  # the last clearing: answers
        self._outdated = True

    @property
    def batch(self) -> Batch:
        """The requests and the state of each."""
        return self._batch

    @property
    def price(self) -> float | None:
        """Of a unit."""
        return self.rounds[-1].price if self.rounds else None

    @property
    def units(self) -> dict[str, int]:
        """What each route was charged."""
        return {site.route.name: site.units for site in self._sites}

    def add(
        self,
        requests: Sequence[Request],
        forecast: Forecast | Sequence[Forecast],
        revised: Sequence[Forecast] | None = None,
        voted: Sequence[bool] | None = None,
    ) -> None:
        """Adds requests, with a forecast by route, or one for all routes.

        revised  forecasts that revisers start from; None: the same
        voted    which requests several answers vote on; None: no request
        """
        each = [forecast] * len(self._sites) if isinstance(forecast, Forecast) else list(forecast)
        starts = each if revised is None else list(revised)
        if any(len(some) != len(self._sites) or {*map(len, some)} != {len(requests)} for some in (each, starts)):
            raise ValueError("one forecast per route and request is needed")
        before = len(self._batch)
        self._batch.add(requests, each[0])
        own = self._batch.cap[before:]
        more = len(requests)
        self._answers.add(more, voted)
        self._prompt = np.concatenate([self._prompt, [prompt_bound(request.body) for request in requests]]).astype(
            np.int64
        )
        for site, some, start in zip(self._sites, each, starts, strict=True):
            room = np.array([site.route.room(request) for request in requests], dtype=np.float64)  # NaN: any
            site.forecast = some if not before else Forecast.joined([site.forecast, some])
            site.revised = start if not before else Forecast.joined([site.revised, start])
            site.corrected = None
            site.cap = np.concatenate([site.cap, np.fmin(own, room)])
            site.age = np.concatenate([site.age, np.zeros(more, dtype=np.int64)])
            site.ended = np.concatenate([site.ended, np.zeros(more, dtype=bool)])
            site.taken = np.concatenate([site.taken, np.zeros(more, dtype=np.int64)])
        self._outdated, self._spare = True, False

    def restore(
        self,
        place: int,
        state: Result | Completion,
        *,
        sample: int = 0,
        landing: bool = False,
        route: str = "",
        vote: str | None = None,
    ) -> None:
        if isinstance(state, Result):
            self._batch.restore(place, state)
            self._answers.count(state.extra.get("charged"))
        elif route in self._names:  # an answer at hand: it may be replaced, as before the restart
            site = self._sites[self._names[route]]
            self._batch.paid(place, state)
            self._answers.charge(place, site, site.route.rates.cost(state.usage))
            self._restore(place, site, state, sample, vote)
        self._outdated = True

    def dropped(self, place: int, part: Completion) -> None:
        self._batch.dropped(place, part)

    def charged(self, costs: Mapping[int, int], by_route: Mapping[int, Mapping[str, int]] | None = None) -> None:
        """`by_route` has the same costs by route, where the ledger knows the routes of all attempts."""
        self._batch.charged(costs)
        for place, charged in (by_route or {}).items():
            if sum(charged.values()) == costs[place]:
                self._answers.recharge(place, charged)

    def drop(self, route: str, reason: str) -> bool:
        """Takes a dead route off the menu; False if none is left."""
        self._sites[self._names[route]].reason = reason
        self._outdated = True
        return any(not site.reason for site in self._sites)

    def next(self, available: int, avoid: Collection[int] = (), closed: Collection[str] = ()) -> Work | None:
        """`closed` are routes that take nothing more now."""
        if available <= 0:
            return None
        if self._outdated or (not self._queue and not self._running):
            self._clear(available)
        shut = {self._names[name] for name in closed}
        for attempt in range(2):
            turn = self._first(avoid, shut)
            if turn is None:
                return None
            work = self._work(turn)
            if work.bound <= available:
                self._queue.remove(turn)
                self._running[turn.place] = work, turn.expected
                return work
            if self._running:
                return None  # until work under way returns units
            if not attempt:
                self._clear(available)  # with limits that can be paid
        return None

    def done(self, report: Report) -> Result | None:
        place, site = report.work.place, self._sites[self._names[report.work.route]]
        del self._running[place]
        self._answers.charge(place, site, report.cost)
        self._batch.charge(report)
        if report.completion is None:
            return self._after_error(report, site)
        self._since += 1
        if self._since >= max(_FEWEST, len(self._batch) // _STEPS):
            self._outdated = True
        part, so_far = report.completion, report.work.so_far
        answer = join(so_far, part)
        self._learn(place, site, part, so_far)
        if self._parts.waits(site, place, part, report.work.grant, answer):
            self._parts.put(site, place, answer)
            self._outdated |= so_far is not None and report.work.grant == TRIAL
            return None
        self._parts.pop(site, place)
        self._answers.keep(place, site, answer, report.correct, report.vote)
        return self._settled(place)

    def close(self, stopped: str = "") -> Iterable[Result]:
        if not stopped:
            self._keep_parts(self._parts.all())
            for place in [*self._answers.kept]:
                yield self._chosen(place)
        places = [place for place, ended in enumerate(self._batch.ended) if not ended]
        for place, result in zip(places, self._batch.left(self.price, stopped), strict=True):
            yield self._with_charges(place, result)

    # --- internal ------------------------------------------------------------------------------

    def _restore(self, place: int, site: Site, part: Completion, sample: int, vote: str | None) -> None:
        """Takes a part of an answer, or the last one, of an earlier execution."""
        before = self._parts.get(site, place)
        if before is not None and sample != site.taken[place]:  # the answer before it had ended
            self._keep_parts([(site, place)])
            before = None
        answer = join(before, part)
        if part.finish == "length" and answer.tokens < site.cap[place] and part.usage_source != "assumed":
            self._parts.put(site, place, answer)  # where it cannot be continued, it is kept by the next clearing
            return
        self._parts.pop(site, place)
        # With samples alone, only an answer that was wrong did not end its request.
        wrong = self.samples > 1 and not self._answers.revisers and not self._answers.voted[place]
        self._answers.keep(place, site, answer, False if wrong else None, vote)

    def _keep_parts(self, which: Iterable[tuple[Site, int]]) -> None:
        """Parts that will not be continued are answers at hand."""
        for site, place in which:
            if (part := self._parts.pop(site, place)) is not None:
                self._answers.keep(place, site, part, None, None)

    def _settled(self, place: int) -> Result | None:
        """The result, unless something better may come."""
        if self._answers.kept[place].answer.finish == "length" and self._parts.at(place):
            return None  # a part of another route waits
        result = self._answers.settled(place)
        if result is not None:
            self._parts.forget(place)
        return result

    def _chosen(self, place: int) -> Result:
        self._parts.forget(place)
        return self._answers.chosen(place)

    def _after_error(self, report: Report, site: Site) -> Result | None:
        """None: the request waits again, with this route or without it."""
        batch, place = self._batch, report.work.place
        if batch.is_postponed(report):
            self._outdated = True
            return None
        if not isinstance(report.error, Refused) and batch.tries[place] < batch.attempts:
            self._outdated = True
            return None
        self._keep_parts([(site, place), *self._parts.lost(self._running)])
        site.cap[place] = 0
        self._outdated = True
        if self._answers.open_sites(place):
            batch.tries[place] = 0
            return None
        if place in self._answers.kept:
            return self._chosen(place)
        batch.tries[place] = batch.attempts
        failed = batch.after_error(place)
        assert failed is not None
        return self._with_charges(place, failed)

    def _with_charges(self, place: int, result: Result) -> Result:
        """A result without an answer, with what each route was charged for attempts at it."""
        charged = self._answers.charged(place)
        return replace(result, extra={"charged": charged}) if charged else result

    def _learn(self, place: int, site: Site, part: Completion, so_far: Completion | None) -> None:
        """Corrects what is expected of a route by what its answers show."""
        if so_far is not None:
            self._parts.continued(site, so_far, part)
        if part.usage_source == "assumed":
            return
        age = so_far.tokens if so_far else 0
        if read := part.input_tokens + part.cached_tokens:
            site.read += max(0, read - age)
            site.read_bound += int(self._prompt[place])
        site.age[place], site.ended[place] = max(1, age + part.tokens), part.finish == "stop"
        if self.learn and np.count_nonzero(site.ended) >= site.lesson:
            site.lesson *= 2
            site.corrected = None
            self._outdated = True

    # --- the market ----------------------------------------------------------------------------

    def _clear(self, available: int) -> None:
        """Finds the price, and the option of every request that waits."""
        batch = self._batch
        self._queue, self._outdated, self._since = [], False, 0
        self._keep_parts(self._parts.lost(self._running))
        waiting = np.array([place for place, end in enumerate(batch.ended) if not end and self._buys(place)], np.intp)
        live = [number for number, site in enumerate(self._sites) if not site.reason]
        cleared = self._buy(waiting, live, available) if waiting.size and live else None
        if not self._queue and not self._running:  # no budget stays idle while requests without an answer wait
            none = [place for place in waiting.tolist() if place not in self._answers.kept]
            new = {place: int(self._prompt[place]) for place in none if not self._parts.at(place)}
            self._queue = at_their_caps(self._sites, live, new, available)
            if not self._queue and not self._spare and self._parts.all():
                self._spare = True
                self._clear(available)
                return
            self._queue = self._queue or self._parts.at_their_caps(none, self._prompt, available)
        if self._queue and cleared is not None:
            granted = round(sum(turn.expected for turn in self._queue))
            admitted = len(self._queue)
            self.rounds.append(Round(available, waiting.size, admitted, granted, cleared.price, cleared.status))

    def _buys(self, place: int) -> bool:
        """Whether a request without a result takes part in the market now."""
        return place not in self._running and (self._spare or self.samples > 1 or not self._parts.at(place))

    def _buy(self, waiting: NDArray[np.intp], live: Sequence[int], available: int) -> MenuClearing:
        """Clears the market, and puts what is bought into the queue."""
        # What is under way is reserved in full, and will return what it does not use.
        returned = sum(max(0.0, work.bound - expected) for work, expected in self._running.values())
        menu = [self._option(self._sites[number], waiting, available) for number in live]
        cleared = clear_menu(menu, available + returned)
        bought = np.flatnonzero(cleared.option != DECLINE)
        surplus = np.zeros((len(menu) + 1, waiting.size))  # of every option at the price; the last: to decline
        limits = np.zeros(waiting.size, dtype=np.int64)
        for number, option in enumerate(menu):
            _, cost, value = at_price(option, np.asarray(cleared.price))
            surplus[number] = value - cleared.price * cost
            curves = option.curves
            assert isinstance(curves, Pieces)
            limits = np.where(cleared.option == number, curves.limit(cleared.price * float(option.rate)), limits)
        # The surest first: those who are almost indifferent can still adapt to what the others cost.
        sure = -np.diff(np.sort(surplus, axis=0)[-2:], axis=0)[0]
        for at in bought[np.argsort(sure[bought], kind="stable")].tolist():
            if limits[at] >= 1:
                route, expected = live[int(cleared.option[at])], float(cleared.cost[at])
                self._queue.append(Turn(int(waiting[at]), route, int(limits[at]), expected))
        return cleared

    def _option(self, site: Site, waiting: NDArray[np.intp], available: int) -> Option:
        rates, prompt, places = site.route.rates, self._prompt[waiting], waiting.tolist()
        age, read = self._parts.ages(site, places), prompt + self._parts.read_bounds(site, places)
        payable = np.array([rates.limit(int(tokens), available) for tokens in read.tolist()], dtype=np.float64)
        entry = self._parts.entry(site, site.expected_share() * prompt, age)
        forecast = self._answers.gains(self._expected(site).take(waiting), waiting)
        cap = np.minimum(site.cap[waiting], payable + age)
        plan = chunks(forecast, np.where(self._spare | (age == 0), cap, 0.0), age, entry)
        pieces = Pieces.of(plan)
        pieces = pieces.whole() if self.whole else pieces
        if self.samples > 1:
            share, reach = self._answers.further(site, waiting, forecast)
            reach[age > 0, 1:] = 0.0  # of a part only the rest of its own answer counts
            pieces = pieces.repeated(share, reach)
        return Option(pieces, rates.output / 10**6)

    def _expected(self, site: Site) -> Forecast:
        """The forecast of a route, corrected by the answers that have ended there."""
        if site.corrected is None:
            enough = self.learn and np.count_nonzero(site.ended) >= FIRST_LESSON
            site.corrected = recalibrate(site.forecast, site.age, site.ended) if enough else site.forecast
        return site.corrected

    def _first(self, avoid: Collection[int], shut: Collection[int]) -> Turn | None:
        """The first turn whose route is open, of requests that have not failed just now if possible."""
        trying = {work.route for work, _ in self._running.values() if work.so_far is not None}
        first = None
        for turn in self._queue:
            site = self._sites[turn.route]
            if turn.route in shut or (site.route.name in trying and self._parts.is_trial(site, turn.place)):
                continue
            if turn.place not in avoid:
                return turn
            first = first or turn
        return first

    def _work(self, turn: Turn) -> Work:
        place, site, request = turn.place, self._sites[turn.route], self._batch.requests[turn.place]
        so_far = self._parts.get(site, place)
        grant = self._parts.grant(site, place, turn.limit)
        read = int(self._prompt[place]) + (reading_bound(so_far) if so_far else 0)
        bound = site.route.rates.bound(read, grant)
        sample = int(site.taken[place])
        body = {**request.body, "seed": sample} if self.samples > 1 else request.body
        return Work(place, request, grant, bound, body, so_far, sample=sample, route=site.route.name)
