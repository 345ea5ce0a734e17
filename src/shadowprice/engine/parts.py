"""Answers of routes that were cut at a limit and may be continued where they stopped.

A part waits until nobody else has a use for what is left of the budget, so continuing it takes nothing from other
requests. Then its request is in the market again, with any route. To continue is an option like others: its forecast
starts at its present age, and before its next token its prompt and the part itself are read again, at the cached rate
as far as the server has them in its cache, which is learned from what it counts. The bound of a continuation has
everything read again at the full rate.

A part that cannot be continued, because its server starts over or its route has left the menu, is an answer at hand.
Where it is unknown whether a server continues answers, the first continuation is a short piece, and no other is sent to
that route until it has ended.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array
from shadowprice.engine.scheduler import TRIAL, Batch, CanContinue, is_over
from shadowprice.engine.sites import Site, Turn
from shadowprice.types import Completion

_CACHED = 1000  # tokens that count as read from the cache before any was counted, where it has a rate of its own


class Parts:
    """By route and place, the parts of answers that wait.

    can_continue  by the name of a route: which answers its server continues; other routes continue none
    """

    def __init__(self, batch: Batch, sites: Sequence[Site], can_continue: Mapping[str, CanContinue]) -> None:
        self._batch, self._sites, self._can_continue = batch, sites, can_continue
        self._parts: dict[str, dict[int, Completion]] = {site.route.name: {} for site in sites}
        self._shown: set[str] = set()  # routes that have continued an answer
        self._read: dict[str, tuple[int, int]] = {}  # by route: tokens read again, and those of them from the cache

    def get(self, site: Site, place: int) -> Completion | None:
        return self._parts[site.route.name].get(place)

    def put(self, site: Site, place: int, part: Completion) -> None:
        self._parts[site.route.name][place] = part

    def pop(self, site: Site, place: int) -> Completion | None:
        return self._parts[site.route.name].pop(place, None)

    def forget(self, place: int) -> None:
        """Drops the parts of a request that has its result."""
        for parts in self._parts.values():
            parts.pop(place, None)

    def all(self) -> list[tuple[Site, int]]:
        """All parts, by route and place."""
        return [(site, place) for site in self._sites for place in self._parts[site.route.name]]

    def lost(self, running: Container[int]) -> list[tuple[Site, int]]:
        """Parts that cannot be continued any more, but for those of requests that are under way."""
        return [
            (site, place) for site, place in self.all() if place not in running and self.continues(site, place) is False
        ]

    def at(self, place: int) -> list[Site]:
        """The routes that have a part of an answer to this request."""
        return [site for site in self._sites if place in self._parts[site.route.name]]

    def waits(self, site: Site, place: int, part: Completion, grant: int, answer: Completion) -> bool:
        """Whether `answer`, whose latest part has come for `grant` tokens, may be continued."""
        over = is_over(part, grant, answer.tokens, site.cap[place])
        return not over and part.usage_source != "assumed" and self.continues(site, place) is not False

    def continues(self, site: Site, place: int) -> bool | None:
        """Whether a part at this route can be continued; None: unknown until it is tried."""
        name = site.route.name
        if site.reason or name not in self._can_continue:
            return False
        says = self._can_continue[name](self._batch.requests[place])
        return True if says is None and name in self._shown else says

    # --- continuing ----------------------------------------------------------------------------

    def grant(self, site: Site, place: int, limit: int) -> int:
        """The tokens of the next part of an answer that may grow to `limit`."""
        part = self.get(site, place)
        if part is None:
            return limit
        rest = limit - part.tokens
        return min(rest, TRIAL) if self.continues(site, place) is None else rest

    def is_trial(self, site: Site, place: int) -> bool:
        """Whether this would show if the server continues answers."""
        return place in self._parts[site.route.name] and self.continues(site, place) is None

    def continued(self, site: Site, so_far: Completion, part: Completion) -> None:
        """Takes what the server counted when it continued an answer."""
        name = site.route.name
        self._shown.add(name)
        read, cached = self._read.get(name, (0, 0))
        self._read[name] = read + part.input_tokens + part.cached_tokens, cached + part.cached_tokens

    # --- what it costs -------------------------------------------------------------------------

    def read_bounds(self, site: Site, places: Sequence[int]) -> NDArray[np.int64]:
        """The most tokens that are read before the next token of each answer, beside its prompt."""
        parts = self._parts[site.route.name]
        return np.array([reading_bound(parts[place]) if place in parts else 0 for place in places], dtype=np.int64)

    def ages(self, site: Site, places: Sequence[int]) -> NDArray[np.int64]:
        """The tokens that each answer has so far."""
        parts = self._parts[site.route.name]
        return np.array([parts[place].tokens if place in parts else 0 for place in places], dtype=np.int64)

    def entry(self, site: Site, prompt: NDArray[np.floating[Any]], age: NDArray[np.int64]) -> Array:
        """What is expected to be paid before the next token of each answer, in output tokens.

        prompt  expected tokens
        """
        rates = site.route.rates
        read, cached = self._read.get(site.route.name, (0, 0))
        prior = _CACHED if rates.cached < rates.input else 0
        share = (cached + prior) / (read + _CACHED)
        again = (rates.input + share * (rates.cached - rates.input)) / rates.output
        costs: Array = np.where(age > 0, (prompt + age) * again, prompt * rates.entry(1))
        return costs

    def at_their_caps(self, places: Sequence[int], prompt: NDArray[np.int64], available: int) -> list[Turn]:
        """Turns for parts that promise nothing at any price, where nobody else has a use for the units.

        Each goes up to its cap, or as far as the units go; those that cost the least come first.

        prompt  bounds, by place
        """
        turns = []
        for place in places:
            options = []
            for number, site in enumerate(self._sites):
                if (part := self.get(site, place)) is None or site.reason:
                    continue
                rates, read = site.route.rates, int(prompt[place]) + reading_bound(part)
                limit = int(min(site.cap[place], part.tokens + rates.limit(read, available)))
                if limit > part.tokens:
                    options.append((rates.bound(read, limit - part.tokens), number, limit))
            if options:
                bound, number, limit = min(options)
                turns.append(Turn(place, number, limit, float(bound)))
        return sorted(turns, key=lambda turn: turn.expected)


def reading_bound(part: Completion) -> int:
    """The most tokens that a part can be read as. No tokenizer makes more tokens of a text than it has bytes."""
    return part.tokens if part.ids else max(part.tokens, len(part.text.encode()))
