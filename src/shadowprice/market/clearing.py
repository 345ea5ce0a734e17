"""Clearing the market: the one price at which what the queries demand is what the budget supplies.

    maximise  sum_i u_i(t_i)   subject to  sum_i t_i <= budget,  0 <= t_i <= cap_i         (eq. 2)

At a price p every query takes its demand (`curve`). For any p >= 0 the Lagrangian dual

    g(p) = p budget + sum_i max(0, max_t u_i(t) - p t)

is at least the utility of every allocation the budget allows. `Clearing.bound` is g at the
clearing price, so `bound - utility` is a certificate: nobody can do better by more than that.

Total demand falls with the price, but not continuously: when a query's reservation price is
passed, all its tokens leave at once. If the budget falls into such a jump, no price clears it
exactly (the paper's eq. 14 has no solution). Then the price is the one at the jump, the best
division of the budget found around it is returned, and the gap is at most the utility of the one
query at the jump, since at that price it would pay for exactly the tokens that are left over.

Two solvers: `_clear_shared`, exact, for queries that differ by their thresholds alone, and
`_clear_mixed` for everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import lambertw

from shadowprice.arrays import Array, checked, checked_scalar
from shadowprice.market.curve import Curve, ThresholdCurve

Status: TypeAlias = Literal["cleared", "jump", "ample", "starved"]
Mask: TypeAlias = NDArray[np.bool_]

# In a market of this many queries one query more or less changes nothing that matters: larger
# markets are searched to this resolution, smaller ones to the query.
_FINE = 1 << 15
# How much may be tried around a jump: subsets times queries.
_WINDOW = 1 << 13


@dataclass(frozen=True, eq=False)
class Clearing:
    """A solved market, in real-valued tokens.

    status  cleared  demand meets the budget at `price`: optimal
            jump     the budget falls where one query's demand jumps; within `gap` of optimal
            ample    everyone has all the tokens that help, the price is 0: optimal
            starved  no query can be served: the budget or the caps are below every threshold

    `price` is the dual price that `bound` is taken at. At a jump, the marginal utilities of the
    admitted are equal to each other, but only close to it.
    """

    price: float
    tokens: Array
    admitted: Mask
    utility: float
    bound: float
    status: Status
    iterations: int

    @property
    def gap(self) -> float:
        """No allocation beats this one by more."""
        return self.bound - self.utility


def clear(curves: Curve, budget: float, *, max_tokens: ArrayLike | None = None) -> Clearing:
    """Divide `budget` tokens among the queries of `curves` so that total utility is highest.

    `max_tokens`, one number or one per query, limits every grant. `iterations` of the result
    counts evaluations of total demand; the shared-shape solver needs none.
    """
    supply = checked_scalar("budget", budget)
    if max_tokens is not None:
        curves = curves.capped(max_tokens)
    if len(curves) == 0:
        return Clearing(0.0, np.zeros(0), np.zeros(0, dtype=bool), 0.0, 0.0, "ample", 0)
    if supply == 0:
        nobody = np.zeros(len(curves), dtype=bool)
        return Clearing(float(curves.reservation().max()), np.zeros(len(curves)), nobody, 0.0, 0.0, "starved", 0)
    if isinstance(curves, ThresholdCurve) and curves.shares_shape():
        return _clear_shared(curves, supply)
    return _clear_mixed(curves, supply)


def _within(tokens: Array, budget: float) -> Array:
    """`tokens`, shrunk by the rounding error by which their float sum may pass the budget."""
    total = tokens.sum()
    return tokens if total <= budget else tokens * (budget / total * (1 - 4e-15))


# --- one shape for all -------------------------------------------------------------------------
#
# With u_i(t) = g(t - tau_i) a smaller threshold is never worse, so the best set of size k is the
# k smallest thresholds, and by concavity of g they share one extension d (cut at the cap):
#
#     V(k) = sum_{i<=k} g(min(d_k, cap - tau_i)),   sum_{i<=k} tau_i + min(d_k, cap - tau_i) = budget
#
# V is concave in k: a fractional k is the convex relaxation, which the exchange argument above
# makes exact at every integer. Its slope at k is the surplus of the k-th query at the price
# g'(d_k), so the sign of that surplus finds the best k by bisection over the sorted thresholds.


def _clear_shared(curves: ThresholdCurve, budget: float) -> Clearing:
    cap = float(curves.cap.flat[0])
    tau = np.sort(curves.threshold)
    tau = tau[: np.searchsorted(tau, cap)]  # a threshold at the cap or above it never pays
    spent = np.zeros(tau.size + 1)
    np.cumsum(tau, out=spent[1:])
    market = _SharedMarket(curves.with_threshold(0.0), budget, cap, tau, spent)

    low, high = 0, int(np.searchsorted(spent, budget, side="right")) - 1
    while low < high:  # the largest k whose k-th query pays for itself
        middle = (low + high + 1) // 2
        low, high = (middle, high) if market.surplus(middle, middle - 1) >= 0 else (low, middle - 1)
    k, price = low, market.price(low)
    utility = bound = market.utility(k)
    status: Status = "cleared" if price > 0 else "ample"

    if k < tau.size and market.surplus(k, k) > 0:  # a part of the next query would pay: a jump
        price = float(curves.with_threshold(tau[k]).reservation()[0])
        bound = market.dual(price, int(np.searchsorted(tau, tau[k])))
        status = "jump"
        if spent[k + 1] <= budget and market.utility(k + 1) > utility:
            k, utility = k + 1, market.utility(k + 1)
    if k == 0:
        status = "starved"

    admitted = _smallest(curves.threshold, tau, k)
    tokens = curves.threshold + market.extension(k)
    np.minimum(tokens, cap, out=tokens)  # in place: at ten million queries memory is the time
    tokens *= admitted
    return Clearing(price, _within(tokens, budget), admitted, utility, max(bound, utility), status, 0)


@dataclass(frozen=True)
class _SharedMarket:
    """The sorted market; `k` is always the number of queries admitted, smallest threshold first."""

    shape: ThresholdCurve
    budget: float
    cap: float
    tau: Array
    spent: Array  # spent[k]: the sum of the k smallest thresholds

    def value(self, past: float) -> float:
        return float(self.shape.shape(past))

    def extension(self, k: int) -> float:
        """d_k: how far beyond its threshold each of the k goes, where the cap lets it."""
        reach = float(self.shape.extent())
        free, at_cap = k, 0.0  # the first `free` stay below the cap; the rest, with larger thresholds, sit at it
        if k and self.tau[k - 1] + min(reach, (self.budget - self.spent[k]) / k) > self.cap:
            low, high = 0, k
            while low < high:  # the largest m such that raising the first m up to the m-th's room overspends
                m = (low + high + 1) // 2
                total = self.spent[m] + m * (self.cap - self.tau[m - 1]) + (k - m) * self.cap
                low, high = (m, high) if total >= self.budget else (low, m - 1)
            free, at_cap = low, (k - low) * self.cap
        return min(reach, float(self.budget - self.spent[free] - at_cap) / free) if free else reach

    def price(self, k: int) -> float:
        past = self.extension(k)
        return float(self.shape.slope(past)) if past < float(self.shape.extent()) else 0.0

    def surplus(self, k: int, query: int) -> float:
        """What `query` (by rank) would gain beyond its cost at the price of the market of k."""
        threshold = float(self.tau[query])
        past = min(self.extension(k), self.cap - threshold)
        return self.value(past) - self.price(k) * (threshold + past)

    def utility(self, k: int) -> float:
        return self._total(k, self.extension(k), 0.0)

    def dual(self, price: float, k: int) -> float:
        """g(price), where the k smallest are those that can pay it."""
        return price * self.budget + self._total(k, float(self.shape.extension(np.asarray(price))), price)

    def _total(self, k: int, past: float, price: float) -> float:
        """Surplus at `price` of the k smallest, each `past` its threshold or at the cap."""
        free = int(np.searchsorted(self.tau[:k], self.cap - past, side="right"))
        below = free * (self.value(past) - price * past) - price * float(self.spent[free])
        return below + float((self.shape.shape(self.cap - self.tau[free:k]) - price * self.cap).sum())


def _smallest(values: Array, ranked: Array, k: int) -> Mask:
    """Marks the k smallest values, given them sorted; ties go to the earlier position."""
    if k == 0:
        return np.zeros(values.size, dtype=bool)
    mask: Mask = values <= ranked[k - 1]
    extra = np.count_nonzero(mask) - k
    if extra:
        mask[np.flatnonzero(values == ranked[k - 1])[-extra:]] = False
    return mask


# --- any mix of curves -------------------------------------------------------------------------
#
# Ranked by reservation price, those who can pay a price are a prefix of the ranking. Let
# G(k) = what the first k demand at the k-th's own reservation price; G rises with k, and the
# largest k with G(k) <= budget brackets the clearing price between two reservation prices. Inside
# the bracket demand is continuous, and the price is found for that fixed set (`_fill`).
# If even at the next query's reservation price the first k leave tokens over, the budget falls
# into that query's jump, and the subsets around it are tried (`_best_around`).


def _clear_mixed(curves: Curve, budget: float) -> Clearing:
    everybody, curves = curves, curves.capped(budget)  # who needs more than there is must not set the price
    reservation = curves.reservation()
    order = np.argsort(-reservation)[: np.count_nonzero(reservation > 0)]
    ranked, reservation = curves.take(order), reservation[order]

    def answer(
        price: float, tokens: Array, chosen: Mask, status: Status, iterations: int, demand: Array | None = None
    ) -> Clearing:
        utility = float((ranked.value(tokens) * chosen).sum())
        paying = ranked.take(slice(0, int(np.searchsorted(-reservation, -price))))
        bought = paying.follow(price) if demand is None else demand[: len(paying)]
        bound = price * budget + float((paying.value(bought) - price * bought).sum())
        grants, admitted = np.zeros(len(curves)), np.zeros(len(curves), dtype=bool)
        grants[order], admitted[order] = tokens * chosen, chosen
        return Clearing(price, _within(grants, budget), admitted, utility, max(bound, utility), status, iterations)

    everyone = np.ones(order.size, dtype=bool)
    if order.size == 0:
        return answer(float(everybody.reservation().max()), np.zeros(0), everyone, "starved", 0)
    if ranked.peak().sum() <= budget:
        return answer(0.0, ranked.peak(), everyone, "ample", 0)

    k, probes = _admit(ranked, reservation, budget)
    first = ranked.take(slice(0, k))
    demand = first.follow(reservation[k]) if k < order.size else np.full(k, np.inf)
    if demand.sum() >= budget:  # between the reservation prices of the k-th and the next query demand is continuous
        tokens, price, steps = _fill(first, budget, np.ones((1, k), dtype=bool), float(reservation[k - 1]))
        grants = np.zeros(order.size)
        grants[:k] = tokens[0]
        # Where caps hold everyone, any price in the bracket clears; outside it others would want in or out.
        lowest = reservation[k] if k < order.size else 0.0
        clearing_price = float(np.clip(price[0], lowest, reservation[k - 1]))
        return answer(clearing_price, grants, np.arange(order.size) < k, "cleared", probes + steps)

    price_there = float(reservation[k])
    tokens, chosen, steps = _best_around(ranked, budget, k, price_there)
    return answer(price_there, tokens, chosen, "jump" if chosen.any() else "starved", probes + steps, demand)


def _admit(ranked: Curve, reservation: Array, budget: float) -> tuple[int, int]:
    """The largest k with G(k) <= budget, and how often demand was evaluated.

    Above 2^15 it may be short of it by one part in 2^15.
    """
    n = len(ranked)
    low, high = 0, n + 1
    below, above = budget, -budget  # budget - G at either end; beyond the last query, a guess
    probes, moved_low, seeds = 0, False, []
    if (stride := n // _FINE) > 1:  # every so many-th query makes a small market that tells where to look
        every = slice(stride // 2, None, stride)
        found, _ = _admit(ranked.take(every), reservation[every], budget / stride)
        seeds = [int(0.995 * found * stride), int(1.005 * found * stride)]
    while high - low > max(1, low // _FINE):
        # Regula falsi; an end that stays twice is given half its weight (Illinois), and every
        # sixth step halves the bracket, so that the worst case stays logarithmic.
        share = 0.5 if probes % 6 == 5 else below / (below - above)
        k = seeds.pop() if seeds else low + round(share * (high - low))
        k = min(max(k, low + 1), high - 1)
        room = budget - float(ranked.take(slice(0, k)).follow(reservation[k - 1]).sum())
        probes += 1
        if room >= 0:
            low, below, above = k, room, above / 2 if moved_low else above
        else:
            high, above, below = k, room, below if moved_low else below / 2
        moved_low = room >= 0
    return low, probes


def _best_around(ranked: Curve, budget: float, k: int, price: float) -> tuple[Array, Mask, int]:
    """The best division found where the budget falls into the jump of rank k (0-based).

    Tried are all subsets of a window of ranks around the jump, everyone before it admitted; the
    window shrinks as the market grows and one query matters less, down to the first k alone.
    """
    n = len(ranked)
    width = min(8, n, max(0, (_WINDOW // (k + 1)).bit_length() - 1))
    first = max(0, min(k - width // 2, n - width))
    end = max(k, first + width)
    sets = np.ones((1 << width, end), dtype=bool)
    sets[:, first : first + width] = np.arange(1 << width)[:, None] >> np.arange(width) & 1
    window = ranked.take(slice(0, end))
    tokens, _, steps = _fill(window, budget, sets, price)
    utility = np.where(sets, window.value(tokens), 0.0).sum(-1)
    best = int(np.argmax(np.where(np.isnan(utility), -1.0, utility)))

    candidates = [(tokens[best], sets[best])]
    if width:  # everyone at the price of the jump, and what is left over for one more
        candidates.append((window.follow(price), np.arange(end) < k))
    found = [_spend_rest(ranked, budget, *candidate) for candidate in candidates]
    if width:  # whoever was let in for the rest changes what is best for the others
        for _, chosen in found.copy():
            refilled, _, more = _fill(ranked, budget, chosen[None, :], price)
            steps += more
            if not np.isnan(refilled).any():
                found.append((refilled[0], chosen))
    grants, chosen = max(found, key=lambda each: float((ranked.value(each[0]) * each[1]).sum()))
    return grants, chosen, steps


def _spend_rest(ranked: Curve, budget: float, tokens: Array, chosen: Mask) -> tuple[Array, Mask]:
    """Offer what is left over to whoever gains most from it, while anyone gains."""
    grants, admitted = np.zeros(len(ranked)), np.zeros(len(ranked), dtype=bool)
    grants[: tokens.size], admitted[: tokens.size] = tokens * chosen, chosen
    for _ in range(8):
        offer = np.minimum(budget - grants.sum(), ranked.peak())
        gain = np.where(admitted | (offer <= 0), 0.0, ranked.value(np.maximum(offer, 0.0)))
        winner = int(np.argmax(gain))
        if gain[winner] <= 0:
            break
        grants[winner], admitted[winner] = offer[winner], True
    return grants, admitted


def _fill(curves: Curve, budget: float, sets: Mask, near: float) -> tuple[Array, Array, int]:
    """Divide the budget within fixed sets: one common marginal utility in each, nobody leaves.

    Every row of `sets` is a set; `near` is a guess of the price. Returns tokens and price by
    set, and how often demand was evaluated. The tokens of a set are NaN if the budget does not
    reach to the start of all its curves.
    """
    least, most = (curves.start() * sets).sum(-1), (curves.peak() * sets).sum(-1)
    tokens = np.where((least <= budget)[:, None], curves.peak() * sets, np.nan)
    price, evaluations = np.zeros(len(sets)), 0
    scarce = (least <= budget) & (most > budget)
    if scarce.any():
        chosen = sets[scarce]

        def buy(log_price: Array) -> Array:
            nonlocal evaluations
            evaluations += 1
            bought: Array = curves.follow(np.exp(log_price)[:, None]) * chosen
            return bought

        # One query more or less moves the price by about its share in the market.
        tolerance = 1e-11 * budget
        low, high, above, below = _falling_root(
            lambda log_price: buy(log_price).sum(-1) - budget,
            np.full(len(chosen), np.log(near)),
            reach=16 / min(1 + len(curves), _FINE),
            tolerance=tolerance,
        )
        # Both ends of the bracket are best at almost the same price; between them utility is
        # concave, so the point on the line that spends the budget exactly is best as well. Where
        # demand itself jumps (a tent's slope is the price) this divides the jump.
        share = np.where(above <= tolerance, 0.0, np.where(-below <= tolerance, 1.0, above / (above - below)))
        tokens[scarce] = buy(np.where(share < 1, low, high))
        if np.any(divided := (share > 0) & (share < 1)):
            between = tokens[scarce] + share[:, None] * (buy(high) - tokens[scarce])
            tokens[scarce] = np.where(divided[:, None], between, tokens[scarce])
        price[scarce] = np.exp(low + share * (high - low))
    return tokens, price, evaluations


def _falling_root(
    function: Callable[[Array], Array], guess: Array, *, reach: float, tolerance: float
) -> tuple[Array, Array, Array, Array]:
    """Brackets [low, high] around the roots of a falling function that may jump, elementwise.

    They end narrow, or with a value within `tolerance` at one end; the values come with them.
    """
    low, high = guess - reach, guess + reach
    above, below = function(low), function(high)
    for _ in range(50):  # walk towards the root in growing steps
        missed = (above <= 0) | (below > 0)
        if not missed.any():
            break
        left, step = above <= 0, 8 * (high - low)
        at = np.clip(np.where(left, low - step, high + step), -800.0, 700.0)  # exp: from 0 to 1e304
        value = function(at)
        right = missed & ~left
        low, high, above, below = (
            np.where(left, at, np.where(right, high, low)),
            np.where(left, low, np.where(right, at, high)),
            np.where(left, value, np.where(right, below, above)),
            np.where(left, above, np.where(right, value, below)),
        )
    lift, drop = above, below  # the weights of the ends: halved when an end stays twice (Illinois)
    moved_low = np.zeros(low.shape, dtype=bool)
    for probe in range(200):
        if np.all((high - low <= 1e-12) | (above <= tolerance) | (-below <= tolerance)):
            break
        share = 0.5 if probe % 6 == 5 else lift / (lift - drop)
        at = low + share * (high - low)
        value = function(at)
        rises = value > 0
        low, above = np.where(rises, at, low), np.where(rises, value, above)
        high, below = np.where(rises, high, at), np.where(rises, below, value)
        lift, drop = (
            np.where(rises, value, np.where(moved_low | (probe == 0), lift, lift / 2)),
            np.where(rises, np.where(moved_low, drop / 2, drop), value),
        )
        moved_low = rises
    return low, high, above, below


# --- the paper's algorithm, to measure against -------------------------------------------------


def algorithm1(
    threshold: ArrayLike,
    budget: float,
    *,
    alpha: float = 2.0,
    max_tokens: float = np.inf,
    epsilon: float = 1e-6,
    iterations: int = 40,
) -> tuple[NDArray[np.int64], float]:
    """The paper's Algorithm 1 as printed, vectorised: integer grants, and the last price tried.

    A reference, not a solver: in a scarce market beta is 1/epsilon, every price worth having lies
    below the interval at which the search stops, and all queries are abandoned (docs/paper.md).
    """
    tau = np.atleast_1d(checked("threshold", threshold))
    beta = 1 / max(epsilon, checked_scalar("budget", budget) / tau.size - tau.mean())
    best, low, high, price = np.zeros(tau.size), 0.0, alpha - 1e-6, 0.0
    for _ in range(iterations):
        if high - low <= epsilon:
            break
        price = (low + high) / 2
        past = (1 - lambertw(price * np.e / alpha * np.ones(tau.size)).real) / beta
        tokens = np.where(alpha * past * np.exp(-beta * past) > price * (tau + past), tau + past, 0.0)
        tokens = np.minimum(np.where(past > 0, tokens, 0.0), max_tokens)
        if tokens.sum() > budget:
            low = price
        else:
            high, best = price, tokens
    return np.floor(best).astype(np.int64), price
