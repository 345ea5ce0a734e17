"""The answers that requests of `engine.routed` have while they wait: which is the best, and what more would gain.

**Cascades.** With a reviser for a route, its answer is evidence (`forecast.revise`): how likely it is correct, and what
to expect of the other routes. If another route promises more, the answer is kept and the request stays in the market,
where only the gain counts: a chance of p where the answer at hand has q is worth p - q. Of both answers the one that
is more likely correct, given its length, is the result.

**Samples.** With `samples` above 1 a grader is a verifier: an answer that it finds wrong is bought again, from the same
route or another, as long as that is worth its price, and the first correct one ends the request. A wrong answer lowers
what the next one promises, because answers to one question are alike (`market.samples`). Samples are bought one by one,
but the market counts on them from the start (`Pieces.repeated`).

**Votes.** A request that nobody grades, and that is added as one to vote on, has its further answers as votes
(`engine.voting`): they are bought while they may change which answer most agree on, and that gains enough for the
price. Other requests that nobody grades have one answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array
from shadowprice.engine.scheduler import Batch
from shadowprice.engine.sites import Kept, Site, replace_solve, solve_of, with_one
from shadowprice.engine.voting import Voting
from shadowprice.forecast.revise import Evidence, Reviser
from shadowprice.market.samples import next_samples
from shadowprice.market.votes import Votes
from shadowprice.types import Completion, Forecast, Result


class Answers:
    """By place: the best answer so far, what each route was charged, and the state of samples and votes.

    revisers  by the names of two routes: what an answer of the first says about the second; a route with itself: about
              the answer
    samples   answers that a request may have from each route
    """

    def __init__(
        self,
        batch: Batch,
        sites: Sequence[Site],
        revisers: Mapping[tuple[str, str], Reviser],
        samples: int,
        correlation: float,
        agreement: float,
    ) -> None:
        self.revisers, self.samples, self.correlation = dict(revisers), samples, correlation
        self.kept: dict[int, Kept] = {}
        self.voted: NDArray[np.bool_] = np.zeros(0, dtype=bool)  # whether votes decide
        self._batch, self._sites = batch, {site.route.name: site for site in sites}
        self._voting = Voting(Votes(correlation, agreement))
        self._wrong: dict[int, int] = {}  # answers of any route that are known to be wrong
        self._charged: dict[int, dict[str, int]] = {}  # units by route

    def add(self, requests: int, voted: Sequence[bool] | None) -> None:
        """Adds requests; `voted`: which of them several answers vote on."""
        none = np.zeros(requests, dtype=bool)
        self.voted = np.append(self.voted, none if voted is None or self.samples == 1 else np.array(voted))

    # --- one answer more -----------------------------------------------------------------------

    def keep(self, place: int, own_site: Site, answer: Completion, correct: bool | None, vote: str | None) -> None:
        """Keeps an answer, unless the one at hand is better, and revises what is expected of the other routes."""
        name, voted = own_site.route.name, bool(self.voted[place])
        evidence = Evidence([answer.tokens], [float(answer.finish == "length")])
        own = self.revisers.get((name, name))
        whole = answer.finish == "stop"
        chance = float(whole)
        if self.samples > 1 and correct is not None:
            chance = float(correct)
        elif own is not None and whole:  # not by `correct`: grades are for measuring
            chance = float(own.chance(own_site.revised.take([place]), evidence)[0])
        elif voted and (whole or answer.tokens >= own_site.cap[place]):  # not if the price has cut it
            chance = solve_of(own_site.forecast, place)
        again = chance > 0 if voted else self.samples > 1 and correct is False and whole
        if self.samples > 1 and not chance:
            self._wrong[place] = self._wrong.get(place, 0) + 1
        sample = int(own_site.taken[place])
        for site in self._sites.values():
            if site.route.name == name:
                site.taken[place] += 1
                if not again or site.taken[place] >= self.samples:
                    site.cap[place] = 0  # the same answer again
            elif (reviser := self.revisers.get((name, site.route.name))) is not None:
                second = reviser.second(site.revised.take([place]), evidence, chance if whole else 0.0)
                site.forecast, site.revised = (with_one(each, place, second) for each in (site.forecast, site.revised))
                site.corrected = None
        before, now = self.kept.get(place), Kept(answer, correct, name, chance, sample)
        if voted:
            self._voting.add(place, now, vote)
            self.kept[place] = self._voting.leading(place)
        else:
            self.kept[place] = now if before is None or now.worth >= before.worth else before

    def settled(self, place: int) -> Result | None:
        """The result if no other route promises more than the answer at hand, or nothing would change a vote."""
        chance = self.kept[place].chance
        if self.voted[place]:
            at = np.array([place], dtype=np.intp)
            adds = any(self._votes(site, at, site.forecast.take(at))[1].any() for site in self.open_sites(place))
            return None if adds else self.chosen(place)
        more = self.revisers or self.samples > 1
        if more and any(solve_of(site.forecast, place) > chance for site in self.open_sites(place)):
            return None
        return self.chosen(place)

    def chosen(self, place: int) -> Result:
        kept = self.kept.pop(place)
        charged = self._charged.get(place, {})
        which = {}
        if self.samples > 1:
            which = {"sample": kept.sample, "samples": int(sum(site.taken[place] for site in self._sites.values()))}
        if self.voted[place]:
            which["votes"] = self._voting.votes(place)
            self._voting.end(place)
        return self._batch.answered(place, kept.answer, kept.correct, route=kept.route, charged=charged, **which)

    def open_sites(self, place: int) -> list[Site]:
        """The routes that may still answer a request."""
        return [site for site in self._sites.values() if not site.reason and site.cap[place] >= 1]

    # --- units -------------------------------------------------------------------------------------

    def charge(self, place: int, site: Site, units: int) -> None:
        site.units += units
        by_route = self._charged.setdefault(place, {})
        by_route[site.route.name] = by_route.get(site.route.name, 0) + units

    def count(self, charged: object) -> None:
        """Counts what a request that has its result was charged."""
        if isinstance(charged, Mapping):
            for name, units in charged.items():
                if name in self._sites:
                    self._sites[name].units += int(units)

    def recharge(self, place: int, charged: Mapping[str, int]) -> None:
        """Replaces what was added up from parts of answers by what the ledger has."""
        for name, units in self._charged.pop(place, {}).items():
            self._sites[name].units -= units
        for name in charged.keys() & self._sites.keys():
            self.charge(place, self._sites[name], charged[name])

    def charged(self, place: int) -> Mapping[str, int]:
        """What each route was charged for a request."""
        return self._charged.get(place, {})

    # --- what more would gain ----------------------------------------------------------------------

    def gains(self, forecast: Forecast, places: NDArray[np.intp]) -> Forecast:
        """The forecast where only what an answer adds to the one at hand counts."""
        if not self.kept:
            return forecast
        at_hand = np.array([self.kept[at].chance if at in self.kept else 0.0 for at in places.tolist()])
        at_hand[self.voted[places]] = 0.0  # the whole chance, of which shares are bought
        return replace_solve(forecast, np.clip(np.broadcast_to(forecast.solve, places.shape) - at_hand, 0.0, 1.0))

    def further(self, site: Site, places: NDArray[np.intp], forecast: Forecast) -> tuple[Array, Array]:
        """What each further answer of a route gains, as a share of its chance, and the chance that it is bought."""
        wrong = np.array([self._wrong.get(place, 0) for place in places.tolist()])
        left = self.samples - site.taken[places]
        share, reach = next_samples(forecast.solve, wrong, left, self.correlation)
        if (voted := np.flatnonzero(self.voted[places])).size:
            adds, needed = self._votes(site, places[voted], forecast.take(voted))
            reach[voted] = 0.0
            share[voted, : adds.shape[1]], reach[voted, : adds.shape[1]] = adds, needed
        return share, reach

    def _votes(self, site: Site, places: NDArray[np.intp], forecast: Forecast) -> tuple[Array, Array]:
        """What further answers of a route add to votes."""
        chance = np.broadcast_to(forecast.solve, places.shape)
        return self._voting.ahead(places.tolist(), chance, self.samples - site.taken[places])
