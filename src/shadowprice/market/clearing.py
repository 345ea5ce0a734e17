"""Clearing the market: the one price at which what the queries demand is what the budget supplies.

    maximise  sum_i u_i(t_i)   subject to  sum_i t_i <= budget,  0 <= t_i <= cap_i         (eq. 2)

At a price p every query takes its demand (`curve`). For any p >= 0 the Lagrangian dual

    g(p) = p budget + sum_i max(0, max_t u_i(t) - p t)

is at least the utility of every allocation the budget allows. `Clearing.bound` is g at the
clearing price, so `bound - utility` is a certificate: no allocation is better by more than that.

Total demand falls with the price, but not continuously: when a query's reservation price is
passed, all its tokens leave at once. If the budget falls into such a jump, no price clears it
exactly (the paper's eq. 14 has no solution). Then the price is the one at the jump, the best
division of the budget found around it is returned, and the gap is at most the utility of the one
query at the jump: at that price it would pay for exactly the tokens that are left over.

Two solvers: `_clear_shared`, exact, for queries that differ by their thresholds alone, and
`_clear_mixed` for everything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shadowprice.arrays import Array, checked_scalar
from shadowprice.market.curve import Curve, ThresholdCurve
from shadowprice.market.roots import Bracket, falling_root

Status: TypeAlias = Literal["cleared", "jump", "ample", "starved"]
Mask: TypeAlias = NDArray[np.bool_]

# In a market of this many queries one of them moves the price hardly at all: a sample of as many of a larger market
# shows where to look.
FINE = 1 << 15
# Limits of the search at a jump: subsets times queries, queries in a subset, and rounds of offering
# the tokens that are left over.
WINDOW, WIDEST, OFFERS = 1 << 10, 8, 8
EXACT = 1e-11  # share of the budget within which it counts as spent exactly


@dataclass(frozen=True, eq=False)
class Clearing:
    """A solved market, in real-valued tokens.

    status  cleared  demand meets the budget at `price`: optimal
            jump     the budget falls where one query's demand jumps; within `gap` of optimal
            ample    everyone has all the tokens that help, the price is 0: optimal
            starved  no query can be served: the budget or the caps are below every threshold

    `price` is the dual price that `bound` is taken at. At a jump, the marginal utilities of the
    admitted are equal to each other, but only close to the price.
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
    """The exact optimum, found by a sort, a prefix sum and a bisection over the number of admitted queries."""
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
        """d_k: how far beyond its threshold each of the k goes, where the cap allows it."""
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
# At a price p the admitted are those with a reservation price above p (definition 4.1), and they share
# one marginal utility, u_i'(t_i) = p (eq. 3). Ranked by reservation price r_1 >= r_2 >= ..., those who
# can pay p are a prefix of the ranking. So the clearing price (eq. 14) is found in two steps:
#
#     G(k) = sum_{i<=k} demand_i(r_k)         what the first k demand at the k-th's reservation price
#
# 1. G rises with k. The largest k with G(k) <= budget puts the price between r_{k+1} and r_k.
# 2. Between these two the set of the admitted is fixed and its demand continuous in the price, which
#    is found by a root search (`_spend_within_sets`).
#
# If the first k leave tokens over even at r_{k+1}, the budget falls into the jump of query k + 1, and
# sets of admitted queries around it are compared (`best_at_jump`).


def _clear_mixed(curves: Curve, budget: float) -> Clearing:
    everyone, curves = curves, curves.capped(budget)  # a query that needs more than the budget must not set the price
    reservation = curves.reservation()
    order = np.argsort(-reservation)[: np.count_nonzero(reservation > 0)]
    ranked, reservation = curves.take(order), reservation[order]

    def clearing(
        price: float, tokens: Array, admitted: Mask, status: Status, evaluations: int, demand: Array | None = None
    ) -> Clearing:
        """The result in the caller's order, with its bound; `demand` at `price` is computed unless it is given."""
        utility = float((ranked.value(tokens) * admitted).sum())
        paying = ranked.take(slice(0, int(np.searchsorted(-reservation, -price))))
        bought = paying.follow(price) if demand is None else demand[: len(paying)]
        bound = price * budget + float((paying.value(bought) - price * bought).sum())
        all_tokens, all_admitted = np.zeros(len(curves)), np.zeros(len(curves), dtype=bool)
        all_tokens[order], all_admitted[order] = tokens * admitted, admitted
        return Clearing(
            price, _within(all_tokens, budget), all_admitted, utility, max(bound, utility), status, evaluations
        )

    whole = np.ones(order.size, dtype=bool)
    if order.size == 0:
        return clearing(float(everyone.reservation().max()), np.zeros(0), whole, "starved", 0)
    if ranked.peak().sum() <= budget:
        return clearing(0.0, ranked.peak(), whole, "ample", 0)

    k, probes = count_admitted(ranked, reservation, budget)
    first = ranked.take(slice(0, k))
    next_price = float(reservation[k]) if k < order.size else 0.0
    demand = first.follow(next_price) if k < order.size else np.full(k, np.inf)
    if demand.sum() < budget:
        tokens, admitted, steps = best_at_jump(ranked, budget, k, next_price)
        status: Status = "jump" if admitted.any() else "starved"
        return clearing(next_price, tokens, admitted, status, probes + steps, demand)

    some, prices, steps = _spend_within_sets(first, budget, np.ones((1, k), dtype=bool), float(reservation[k - 1]))
    tokens = np.zeros(order.size)
    tokens[:k] = some[0]
    # If caps bind everyone, any price in the bracket clears; outside it other queries would enter or leave.
    price = float(np.clip(prices[0], next_price, reservation[k - 1]))
    return clearing(price, tokens, np.arange(order.size) < k, "cleared", probes + steps)


def count_admitted(ranked: Curve, reservation: Array, budget: float) -> tuple[int, int]:
    """The largest k with G(k) <= budget, and how often demand was evaluated."""
    n = len(ranked)
    low, high = 0, n + 1
    room_low, room_high = budget, -budget  # budget - G(k) at both ends; beyond the last query it is a guess
    probes, low_moved, starts = 0, False, []
    if (stride := n // FINE) > 1:  # a small market of every stride-th query shows where to look
        every = slice(stride // 2, None, stride)
        small, _ = count_admitted(ranked.take(every), reservation[every], budget / stride)
        starts = [int(0.995 * small * stride), int(1.005 * small * stride)]
    while high - low > 1:
        # Regula falsi with the Illinois rule, as in `roots.falling_root`, over whole numbers.
        share = 0.5 if probes % 6 == 5 else room_low / (room_low - room_high)
        k = starts.pop() if starts else low + round(share * (high - low))
        k = min(max(k, low + 1), high - 1)
        room = budget - float(ranked.take(slice(0, k)).follow(reservation[k - 1]).sum())
        probes += 1
        if room >= 0:
            low, room_low, room_high = k, room, room_high / 2 if low_moved else room_high
        else:
            high, room_high, room_low = k, room, room_low if low_moved else room_low / 2
        low_moved = room >= 0
    return low, probes


def best_at_jump(ranked: Curve, budget: float, k: int, price: float) -> tuple[Array, Mask, int]:
    """The best division found where the budget falls into the jump of rank k (0-based), whose price is `price`.

    Which queries to admit at a jump is a knapsack problem. All subsets of a window of ranks around the
    jump are compared, with everyone before the window admitted. The window shrinks as the market grows and
    one query matters less, down to the first k alone.
    """
    n = len(ranked)
    width = min(WIDEST, n, max(0, (WINDOW // (k + 1)).bit_length() - 1))
    first = max(0, min(k - width // 2, n - width))
    end = max(k, first + width)
    subsets = np.arange(1 << width)[:, None] >> np.arange(width) & 1  # row j: the binary digits of j
    sets = np.ones((1 << width, end), dtype=bool)
    sets[:, first : first + width] = subsets
    window = ranked.take(slice(0, end))
    tokens, _, evaluations = _spend_within_sets(window, budget, sets, price)
    utility = np.where(sets, window.value(tokens), 0.0).sum(-1)
    best = int(np.argmax(np.where(np.isnan(utility), -1.0, utility)))

    starts = [(tokens[best], sets[best])]
    if width:  # serve the first k at the price of the jump, and offer what is left over to others
        starts.append((window.follow(price), np.arange(end) < k))
    candidates = [_offer_rest(ranked, budget, *start) for start in starts]
    if width:  # once another query is admitted, another division may be best for the rest
        seen = {np.flatnonzero(sets[best]).tobytes()}
        for _, admitted in candidates.copy():
            if (members := np.flatnonzero(admitted).tobytes()) in seen:
                continue
            seen.add(members)
            refilled, _, more = _spend_within_sets(ranked, budget, admitted[None, :], price)
            evaluations += more
            if not np.isnan(refilled).any():
                candidates.append((refilled[0], admitted))
    grants, admitted = max(candidates, key=lambda each: float((ranked.value(each[0]) * each[1]).sum()))
    return grants, admitted, evaluations


def _offer_rest(ranked: Curve, budget: float, tokens: Array, chosen: Mask) -> tuple[Array, Mask]:
    """Offer what is left over to the query that gains most from it, while any gains."""
    grants, admitted = np.zeros(len(ranked)), np.zeros(len(ranked), dtype=bool)
    grants[: tokens.size], admitted[: tokens.size] = tokens * chosen, chosen
    for _ in range(OFFERS):
        rest = budget - grants.sum()
        if rest <= EXACT * budget:
            break
        offer = np.minimum(rest, ranked.peak())
        gain = np.where(admitted | (offer <= 0), 0.0, ranked.value(np.maximum(offer, 0.0)))
        winner = int(np.argmax(gain))
        if gain[winner] <= 0:
            break
        grants[winner], admitted[winner] = offer[winner], True
    return grants, admitted


def _spend_within_sets(curves: Curve, budget: float, sets: Mask, price_guess: float) -> tuple[Array, Array, int]:
    """Spend the budget within fixed sets of queries: in each the price p with sum_i t_i(p) = budget.

    Every row of `sets` is one set; its members share one marginal utility (eq. 3), and all of them stay
    in it, whether they can pay or not. Returns tokens and price by set, and how often demand was
    evaluated. The tokens of a set are NaN if the budget does not reach the start of all its curves. If
    the budget reaches all peaks, every member gets its peak and the price is 0.
    """
    least, most = (curves.start() * sets).sum(-1), (curves.peak() * sets).sum(-1)
    tokens = np.where((least <= budget)[:, None], curves.peak() * sets, np.nan)
    prices, evaluations = np.zeros(len(sets)), 0
    scarce = (least <= budget) & (most > budget)
    if not scarce.any():
        return tokens, prices, evaluations
    members = sets[scarce]

    def demand(log_price: Array) -> Array:
        nonlocal evaluations
        evaluations += 1
        bought: Array = curves.follow(np.exp(log_price)[:, None]) * members
        return bought

    tolerance = EXACT * budget
    bracket = falling_root(
        lambda log_price: demand(log_price).sum(-1) - budget,
        np.full(len(members), np.log(price_guess)),
        reach=16 / min(1 + len(curves), FINE),  # one query moves the price by about its share in the market
        tolerance=tolerance,
    )
    share = share_of_high(bracket, tolerance)
    spent = demand(np.where(share < 1, bracket.low, bracket.high))
    if np.any(divided := (share > 0) & (share < 1)):
        between = spent + share[:, None] * (demand(bracket.high) - spent)
        spent = np.where(divided[:, None], between, spent)
    tokens[scarce] = spent
    prices[scarce] = np.exp(bracket.low + share * (bracket.high - bracket.low))
    return tokens, prices, evaluations


def share_of_high(found: Bracket, tolerance: float) -> Array:
    """How far to go from what is bought at the low end of a bracket to what is bought at the high end.

    Both ends are optimal at almost the same price, one above the budget and one below. Between them utility is
    concave, so the point on the line between them that spends the budget exactly is optimal too. Where demand itself
    jumps (a tent's slope is the price) this divides the jump.
    """
    over, under = found.at_low, -found.at_high
    return np.where(over <= tolerance, 0.0, np.where(under <= tolerance, 1.0, over / (over + under)))
