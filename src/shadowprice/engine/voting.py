"""Votes on the requests of a run that nobody grades: what has been said, what leads, what more answers would add.

The mathematics is in `market.votes`. Here are the answers: by request, the likeliest one for each thing that was said.
An answer without a final answer does not vote. Where most answers of a run have none there is nothing to vote on, and
the first is as good as any.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array
from shadowprice.engine.sites import Kept
from shadowprice.market.votes import Standing, Votes

_ENOUGH = 8  # answers that have ended: from then on it is known whether most of a run have a final answer


class Voting:
    """The answers to each request, by its place, and how the votes on it stand."""

    def __init__(self, votes: Votes) -> None:
        self._votes = votes
        self._standing: dict[int, Standing] = {}
        self._said: dict[int, dict[str, Kept]] = {}  # in the order of first votes
        self._silent: dict[int, Kept] = {}  # an answer that does not vote: the result where none does
        self._ended = self._voted = 0  # answers of the run

    @property
    def pointless(self) -> bool:
        """Whether most answers of this run have no final answer."""
        return self._ended >= _ENOUGH and 2 * self._voted < self._ended

    def add(self, place: int, answer: Kept, vote: str | None) -> None:
        """One more answer, with the chance that such an answer is correct; 0 where the price has cut it short."""
        standing = self._standing.get(place, Standing.empty(1))
        whole = answer.answer.finish == "stop"
        if whole:
            self._ended += 1
            self._voted += vote is not None
        if vote is None or not whole:
            before = self._silent.get(place)
            if before is None or (whole and before.answer.finish != "stop"):
                self._silent[place] = answer
            self._standing[place] = self._votes.add(standing, answer.chance, None)
            return
        said = self._said.setdefault(place, {})
        group = [*said].index(vote) if vote in said else len(said)
        if vote not in said or answer.worth > said[vote].worth:
            said[vote] = answer
        self._standing[place] = self._votes.add(standing, answer.chance, group)

    def leading(self, place: int) -> Kept:
        """The answer that most agree on, with the chance that it is correct."""
        if not (said := self._said.get(place)):
            return self._silent[place]._replace(chance=0.0)
        standing = self._standing[place]
        leader = int(standing.leader[0])
        return [*said.values()][leader]._replace(chance=float(standing.posterior[0, 1 + leader]))

    def votes(self, place: int) -> int:
        """For the answer that leads."""
        standing = self._standing[place]
        return int(standing.votes[0, standing.leader[0]]) if standing.groups else 0

    def end(self, place: int) -> None:
        """Forgets the answers to a request that has its result."""
        for known in (self._standing, self._said, self._silent):
            known.pop(place, None)

    def ahead(self, places: Sequence[int], chance: Array, left: NDArray[np.int64]) -> tuple[Array, Array]:
        """What further answers of a route add: shares of its chance, and the chance that each is needed."""
        by_groups: defaultdict[int, list[int]] = defaultdict(list)
        nothing = Standing.empty(1)
        each = [self._standing.get(place, nothing) for place in places]
        for at, standing in enumerate(each):
            by_groups[standing.groups].append(at)
        found = []
        for rows in by_groups.values():
            who = np.array(rows, dtype=np.intp)
            found.append((who, *self._votes.ahead(Standing.joined([each[at] for at in rows]), chance[who], left[who])))
        width = max((share.shape[1] for _, share, _ in found), default=1)
        share, reach = np.zeros((len(each), width)), np.zeros((len(each), width))
        for who, some, needed in found:
            share[who, : some.shape[1]], reach[who, : some.shape[1]] = some, needed
        if self.pointless:
            reach[[place in self._silent and place not in self._said for place in places]] = 0.0
        return share, reach
