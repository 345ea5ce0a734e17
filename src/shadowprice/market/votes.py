r"""What votes are worth: several answers to one query, none of them graded, and the answer that most agree on.

**The model.** A query is easy or hard: z is standard normal, and an answer of a route whose chance is p is correct with

    t(z) = N((N^-1(p) + sqrt(r) z) / sqrt(1 - r)),        so that E[t(z)] = p

independently of other answers, given z. r follows from the correlation c between the grades of two answers to a query,
r = sin(pi c / 2), which is exact at p = 1/2. Correct answers are equal. Wrong ones fall into groups by the urn of
Hoppe: of w wrong answers before it, the next repeats each with the chance 1 / (w + a), and is new with a / (w + a);
a = 1/g - 1, so that two wrong answers agree with the chance g (`agreement`).

**Posterior.** The votes divide the answers into k groups. Hypothesis j says that group j is correct, hypothesis 0 that
none is. Each has a likelihood, a function of z: the product of t over the votes for it, of 1 - t over all others, and
of what the urn says of the others. Integrated over z this is L_j, and P(j | votes) = L_j / sum_i L_i. Answers
that cannot vote, since nothing final is to be found in them, are wrong answers of no group.

**The leader** is the group with the largest sum of chances, p of the route of each vote; of those with equal sums the
one with the largest L_j, and of these the first.

**What further answers add.** With M the L_j of the leader, the chance that it is correct after h more answers is

    V_h = sum of M over all ways in which they can vote / sum_i L_i

since the likelihoods of all ways add up to the present one. Answers are bought one by one, and only while one of the
next few can still change the outcome: the h-th is reached with a chance of R_h. V need not be concave (a second equal
vote changes nothing, a third breaks a tie), so what is sold is its upper concave envelope over the expected number
of answers: who buys one at a price would have bought all those up to the next corner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from shadowprice.arrays import Array, checked_scalar
from shadowprice.errors import MarketError

# Where no traces say what they are: of 16 answers to each of 12 questions, which ship with the package.
CORRELATION = 0.5  # between the grades of two answers to a question
AGREEMENT = 0.16  # the chance that two wrong ones agree
_AHEAD, _AHEAD_OF_SEVERAL = 3, 2  # further answers that are looked at together, before and after answers differ
_AT_ONCE = 4096  # queries, so that what is looked at fits into memory
_LEAST = 1e-9  # a chance that is worth nothing
_Z, _WEIGHT = np.polynomial.hermite_e.hermegauss(32)
_WEIGHT = _WEIGHT / _WEIGHT.sum()


@dataclass(frozen=True, eq=False)
class Standing:
    """How the votes on several queries stand; all have equally many groups, in the order of their first votes.

    likelihood  of hypothesis j at each z: query, j, z; column 0: no group is correct
    votes       in each group: query, group
    weight      the sum of their chances
    """

    likelihood: Array
    votes: Array
    weight: Array

    @classmethod
    def empty(cls, queries: int) -> Self:
        none = np.zeros((queries, 0))
        return cls(np.ones((queries, 1, _Z.size)), none, none)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))

    def __len__(self) -> int:
        return len(self.likelihood)

    def take(self, queries: NDArray[np.intp]) -> Self:
        return type(self)(self.likelihood[queries], self.votes[queries], self.weight[queries])

    @property
    def total(self) -> Array:
        """The likelihood of the votes, whatever is correct."""
        return np.asarray((self.likelihood @ _WEIGHT).sum(1))

    @property
    def groups(self) -> int:
        return int(self.votes.shape[1])

    @property
    def posterior(self) -> Array:
        """The chance that each group is correct; the first column: that none is."""
        each = self.likelihood @ _WEIGHT
        return np.asarray(each / each.sum(1, keepdims=True))

    @property
    def leader(self) -> NDArray[np.intp]:
        """The group of each query that most agree on; there must be one."""
        each = (self.likelihood @ _WEIGHT)[:, 1:]
        most = self.weight >= self.weight.max(1, keepdims=True) - _LEAST
        found: NDArray[np.intp] = np.where(most, each, -1.0).argmax(1)
        return found

    @property
    def mass(self) -> Array:
        """The likelihood of the leader; 0 where nobody has voted."""
        if not self.groups:
            return np.zeros(len(self))
        rows = np.arange(len(self))
        return np.asarray(self.likelihood[rows, 1 + self.leader] @ _WEIGHT)


@dataclass(frozen=True)
class Votes:
    """Answers to a query as votes.

    correlation  between the grades of two answers to a query
    agreement    the chance that two wrong answers to a query agree
    """

    correlation: float = CORRELATION
    agreement: float = AGREEMENT

    def __post_init__(self) -> None:
        checked_scalar("correlation", self.correlation, high=1.0)
        checked_scalar("agreement", self.agreement, high=1.0)

    def add(self, standing: Standing, chance: ArrayLike, group: int | None) -> Standing:
        """One more answer to every query, for the same group; the number of groups is a new one; None: it cannot vote.

        `chance` is that of such an answer, before anything is known of the query.
        """
        p = np.broadcast_to(np.asarray(chance, dtype=np.float64), len(standing))
        t = self._chances(p)[:, None, :]
        new = 1 / min(max(self.agreement, _LEAST), 1 - _LEAST) - 1
        total = standing.votes.sum(1)
        votes = np.hstack([np.zeros((len(standing), 1)), standing.votes])
        before = total[:, None] - votes + new  # of the urn, by hypothesis
        if group is None:
            return Standing(standing.likelihood * (1 - t), standing.votes, standing.weight)
        likelihood, weight, column = standing.likelihood, standing.weight, group + 1
        if group == standing.groups:
            other = likelihood * (1 - t) * (new / before)[:, :, None]
            likelihood = np.concatenate([other, likelihood[:, :1] * t], axis=1)
            votes, weight = (np.hstack([each, np.zeros((len(each), 1))]) for each in (votes, weight))
        else:
            repeated = likelihood * (1 - t) * (votes[:, column, None] / before)[:, :, None]
            repeated[:, column] = likelihood[:, column] * t[:, 0]
            likelihood = repeated
        votes, weight = votes[:, 1:].copy(), weight.copy()
        votes[:, group] += 1
        weight[:, group] += p
        return Standing(likelihood, votes, weight)

    def ahead(self, standing: Standing, chance: ArrayLike, left: ArrayLike) -> tuple[Array, Array]:
        """What each further answer of a route adds, as a share of its `chance`, and the chance that it is needed.

        Row i may have `left` more answers of the route. Shares fall along a row.
        """
        p = np.broadcast_to(np.asarray(chance, dtype=np.float64), len(standing))
        depth = np.minimum(left, _AHEAD if standing.groups <= 1 else _AHEAD_OF_SEVERAL)
        depth = np.broadcast_to(np.maximum(depth, 0), len(standing))
        gain, reach = (np.zeros((len(standing), max(1, int(depth.max(initial=1))))) for _ in range(2))
        for each in np.unique(depth[depth > 0]).tolist():
            alike = np.flatnonzero(depth == each)
            for who in np.split(alike, range(_AT_ONCE, alike.size, _AT_ONCE)):
                some = standing.take(who)
                value, needed = self._look(some, p[who], each)
                total = some.total[:, None]
                gain[who, :each], reach[who, :each] = np.diff(value, axis=1) / total, needed / total
        slope = _falling(gain, reach)
        alone = np.maximum(self._chances(p) @ _WEIGHT, 1e-300)  # p, as the integral has it
        return slope / alone[:, None], np.where(slope > 0, reach, 0.0)

    def _look(self, standing: Standing, p: Array, depth: int) -> tuple[Array, Array]:
        """The mass of the leader after 0 to `depth` more answers, and that of the queries which need each of them."""
        value = np.repeat(standing.mass[:, None], depth + 1, axis=1)
        needed = np.zeros((len(standing), depth))
        if not depth:
            return value, needed
        later, reached = np.zeros((len(standing), depth)), np.zeros((len(standing), depth - 1))
        for group in range(standing.groups + 1):
            more, reach = self._look(self.add(standing, p, group), p, depth - 1)
            later, reached = later + more, reached + reach
        total = standing.total
        gains = later.max(1) > value[:, 0] + _LEAST * total
        rising = np.maximum.accumulate(np.maximum(later, value[:, :1]), axis=1)
        value[:, 1:] = np.where(gains[:, None], rising, value[:, :1])
        needed[:, 0] = np.where(gains, total, 0.0)
        needed[:, 1:] = np.where(gains[:, None], reached, 0.0)
        return value, needed

    def _chances(self, chance: ArrayLike) -> Array:
        """The chance of a correct answer at each z."""
        r = min(np.sin(np.pi * self.correlation / 2), 1 - 1e-6)
        p = np.clip(np.asarray(chance, dtype=np.float64), 1e-6, 1 - 1e-6)
        return np.asarray(ndtr((ndtri(p)[..., None] + np.sqrt(r) * _Z) / np.sqrt(1 - r)))


def agreement_of(wrong: Sequence[Sequence[str]]) -> float:
    """The share of pairs of wrong answers to one question that agree, from the final answers of those to each."""
    pairs = [(one == other) for said in wrong for at, one in enumerate(said) for other in said[:at]]
    if not pairs:
        raise MarketError("no question has two wrong answers: how often they agree is unknown")
    return sum(pairs) / len(pairs)


def _falling(gain: Array, reach: Array) -> Array:
    """The slopes of the upper concave envelope of cumulated gain over cumulated reach, at each step."""
    high, far = (np.hstack([np.zeros((len(gain), 1)), np.cumsum(each, 1)]) for each in (gain, reach))
    slopes = np.zeros(gain.shape)
    for step in range(gain.shape[1]):
        least = np.full(len(gain), np.inf)
        for start in range(step + 1):
            ahead = far[:, step + 1 :] - far[:, start, None]
            rise = high[:, step + 1 :] - high[:, start, None]
            best = np.where(ahead > _LEAST, rise / np.maximum(ahead, _LEAST), 0.0).max(1)
            least = np.minimum(least, best)
        slopes[:, step] = np.maximum(least, 0.0)
    return slopes
