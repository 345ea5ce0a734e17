r"""Menus: every query has several options, and one price decides which of them it buys, and how much of it.

An option is a way to answer: a route (a model and its rates), with one sample or several. Its curve says what
tokens gain, its rates what they cost:

    cost_io(t) = entry_io + rate_io t          units: entry is reading the prompt, rate an output token

    maximise  sum_i u_io(i)(t_i)   subject to  sum_i cost_io(i)(t_i) <= budget,  one option o(i) or none per query

**The envelope.** At a price p per unit an option leaves its query the surplus

    s_io(p) = max_t  u_io(t) - p (entry_io + rate_io t)

whose maximum is on the concave branch of the curve, where the marginal utility is p rate_io (`Curve.follow`), or the
option is not worth its entry. A query buys the option with the largest surplus, or declines if none is above 0. As in a
market with one option the Lagrangian dual

    g(p) = p budget + sum_i max(0, max_o s_io(p))

is at least what any division of the budget can gain, so `bound - utility` is a certificate.

**Clearing.** Demand falls with the price, because g is convex and the demand is budget - g'(p). It jumps where a
query changes its option. A root search brackets the clearing price. Queries whose options differ between both ends of
the bracket are indifferent: they change one by one while the budget allows; all others divide the rest as their curves
do. What is left over is less than the change of one query costs, which bounds the gap by the utility of one query.
In small markets, where one query matters, sets of changes around the price are compared as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array, checked_scalar
from shadowprice.errors import MarketError
from shadowprice.market.clearing import Clearing, Status, clear
from shadowprice.market.options import DECLINE, Bought, Ints, Menu, Option, at_price, envelope, pick, valued
from shadowprice.market.roots import falling_root

_SAMPLE = 1 << 12  # queries of a large market that are cleared first, to know about where its price is
_WINDOW, _WIDEST, _OFFERS = 1 << 10, 8, 8  # of the search in small markets, as in `clearing`
_EXACT = 1e-11  # share of the budget within which it counts as spent exactly


@dataclass(frozen=True, eq=False)
class MenuClearing:
    """A solved market of menus, in real-valued tokens; `price` is per unit of cost, all else as in `Clearing`."""

    price: float
    option: Ints
    tokens: Array
    cost: Array
    utility: float
    bound: float
    status: Status
    iterations: int

    @property
    def admitted(self) -> NDArray[np.bool_]:
        admitted: NDArray[np.bool_] = self.option != DECLINE
        return admitted

    @property
    def gap(self) -> float:
        """No division of the budget beats this one by more."""
        return self.bound - self.utility


def clear_menu(menu: Menu, budget: float) -> MenuClearing:
    """Divide `budget` units among the queries so that total utility is highest, with one option for each, or none."""
    supply = checked_scalar("budget", budget)
    if not menu:
        raise MarketError("a menu needs at least one option")
    if len({len(option) for option in menu}) > 1:
        raise MarketError(f"options of different markets: {', '.join(str(len(option)) for option in menu)} queries")
    n = len(menu[0])
    if len(menu) == 1 and menu[0].rate.ndim == 0 and not menu[0].entry.any():
        return _of_one(menu[0], clear(menu[0].curves, supply / float(menu[0].rate)))
    if n == 0:
        return MenuClearing(0.0, np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), 0.0, 0.0, "ample", 0)
    # An option that the budget cannot pay must not set the price.
    unlimited, menu = menu, [option.within(supply) for option in menu]
    everything = envelope(menu, 0.0)
    if not np.any(everything.option != DECLINE):
        return _cleared(everything, float(max(_highest_price(option) for option in unlimited)), 0.0, "starved", 1)
    if everything.cost.sum() <= supply:
        return _cleared(everything, 0.0, float(everything.utility.sum()), "ample", 1)
    return _clear_scarce(menu, supply)


def _of_one(option: Option, cleared: Clearing) -> MenuClearing:
    """The market of one option without entry costs, whose prices are per token."""
    choice = np.where(cleared.admitted, 0, DECLINE)
    cost = float(option.rate) * cleared.tokens
    price = cleared.price / float(option.rate)
    return MenuClearing(
        price, choice, cleared.tokens, cost, cleared.utility, cleared.bound, cleared.status, cleared.iterations
    )


def _highest_price(option: Option) -> float:
    """A price per unit from which no query buys this option."""
    return float((option.curves.reservation() / option.rate).max())


def _cleared(bought: Bought, price: float, bound: float, status: Status, iterations: int) -> MenuClearing:
    utility = float(bought.utility.sum())
    return MenuClearing(
        price, bought.option, bought.tokens, bought.cost, utility, max(bound, utility), status, iterations
    )


# --- a price above 0 ----------------------------------------------------------------------------


def _clear_scarce(menu: Menu, budget: float) -> MenuClearing:
    low, high, evaluations = _bracket(menu, budget)
    dear, cheap = envelope(menu, high), envelope(menu, low)  # at a high price less is bought
    price, bound = min(
        ((price, price * budget + float(bought.surplus.sum())) for price, bought in ((high, dear), (low, cheap))),
        key=lambda each: each[1],
    )
    bought = _between(dear, cheap, menu, budget)
    status: Status = "cleared"
    if budget - bought.cost.sum() > _EXACT * budget:
        status = "jump"
        bought, more = _best_at_jump(menu, budget, price, bought)
        evaluations += more
    return _cleared(_within(bought, menu, budget), price, bound, status, evaluations + 2)


def _bracket(menu: Menu, budget: float) -> tuple[float, float, int]:
    """Two prices: at the lower one the demand is above the budget, at the higher one it is not."""
    n, evaluations = len(menu[0]), 0
    guess, reach = _typical_price(menu, budget), 1.0
    if (stride := n // _SAMPLE) > 1:  # a small market of every stride-th query shows where to look
        every = slice(stride // 2, None, stride)
        few = [option.take(every) for option in menu]
        low, high, _ = _bracket(few, budget * len(few[0]) / n)
        guess, reach = (np.log(low) + np.log(high)) / 2, 2 / np.sqrt(_SAMPLE)

    def excess(log_price: Array) -> Array:
        nonlocal evaluations
        evaluations += 1
        return np.array([envelope(menu, np.exp(log_price[0])).cost.sum() - budget])

    precision: dict[str, float] = {"tolerance": _EXACT * budget}
    if n > _SAMPLE:  # half of what a query costs on average is as good as nothing
        precision = {"tolerance": 0.5 / n * budget, "narrow": 1e-6}
    bracket = falling_root(excess, np.array([guess]), reach=reach, **precision)
    return float(np.exp(bracket.low[0])), float(np.exp(bracket.high[0])), evaluations


def _typical_price(menu: Menu, budget: float) -> float:
    """The logarithm of what a unit gains if each query has its share of the budget: about the price."""
    share = budget / len(menu[0])
    gains = [option.curves.value(option.tokens(share)).sum() / budget for option in menu]
    prices = [_highest_price(option) for option in menu]
    return float(np.log(max(*gains, 1e-3 * max(prices))))


def _between(dear: Bought, cheap: Bought, menu: Menu, budget: float) -> Bought:
    """What is bought at the higher of two close prices, and as much as possible of what is bought at the lower one.

    Queries that change their option are indifferent between both, so they change one by one. All others move on the
    line between both points, along which their utility is concave.
    """
    left = budget - float(dear.cost.sum())
    changed = np.flatnonzero(dear.option != cheap.option)
    more = cheap.cost[changed] - dear.cost[changed]
    changed, more = changed[more > 0], more[more > 0]
    order = np.argsort(more)
    fitting = int(np.searchsorted(np.cumsum(more[order]), left, side="right"))
    dear.put(changed[order[:fitting]], cheap)
    left -= float(more[order[:fitting]].sum())
    same = dear.option == cheap.option
    step = np.where(same, cheap.tokens - dear.tokens, 0.0)
    rise = float(np.where(same, cheap.cost - dear.cost, 0.0).sum())
    if rise > 0 and left > 0:
        tokens = dear.tokens + min(1.0, left / rise) * step
        return valued(menu, dear.option, tokens)
    return dear


def _within(bought: Bought, menu: Menu, budget: float) -> Bought:
    """Shrinks by the rounding error by which a float sum may pass the budget."""
    total = float(bought.cost.sum())
    if total <= budget:
        return bought
    shrunk = bought.tokens * (1 - (total - budget) / total) * (1 - 4e-15)
    return valued(menu, bought.option, shrunk)


# --- small markets, where one query matters -----------------------------------------------------


def _best_at_jump(menu: Menu, budget: float, price: float, bought: Bought) -> tuple[Bought, int]:
    """The best division found around a price at which the budget falls into the jump of a query.

    Of all changes of one query to another option, those that lose least at this price are tried in all combinations.
    The number of them shrinks as the market grows, down to none.
    """
    n = bought.option.size
    width = min(_WIDEST, n * len(menu), max(0, (_WINDOW // (n + 1)).bit_length() - 1))
    if not width:
        return bought, 0
    surplus = np.zeros((len(menu) + 1, n))  # the last row: to decline
    for number, option in enumerate(menu):
        _, cost, utility = at_price(option, np.asarray(price))
        surplus[number] = utility - price * cost
    loss = surplus.max(0) - surplus
    loss[bought.option, np.arange(n)] = np.inf  # no change; DECLINE is the last row
    changes = np.argsort(loss, axis=None, kind="stable")[:width]
    to, query = np.unravel_index(changes, loss.shape)
    chosen = np.tile(bought.option, (1 << width, 1))
    for bit in range(width):
        with_it = np.arange(1 << width) >> bit & 1 == 1
        chosen[with_it, query[bit]] = to[bit] if to[bit] < len(menu) else DECLINE
    rows, evaluations = _spend(menu, budget, chosen, price)
    best = int(np.argmax(rows.utility.sum(-1)))
    found = [_offer_rest(menu, budget, each) for each in (bought, rows.row(best))]
    again, more = _spend(menu, budget, np.stack([each.option for each in found]), price)
    candidates = [*found, again.row(0), again.row(1)]
    return max(candidates, key=lambda each: float(each.utility.sum())), evaluations + more


def _spend(menu: Menu, budget: float, chosen: Ints, price: float) -> tuple[Bought, int]:
    """Spends the budget within fixed options: every row of `chosen` is one choice for all queries.

    Those who chose share one price, and stay whether they can pay it or not (as `clearing._spend_within_sets`). A row
    that costs more than the budget even where its curves begin to be concave buys nothing.
    """
    least, most = (pick(menu, chosen, [getattr(each.curves, end)() for each in menu]) for end in ("start", "peak"))
    total = [valued(menu, chosen, tokens).cost.sum(-1) for tokens in (least, most)]
    tokens, evaluations = np.where((total[0] <= budget)[:, None], most, 0.0), 0
    scarce = (total[0] <= budget) & (total[1] > budget)
    if scarce.any():
        rows = chosen[scarce]

        def demand(log_price: Array) -> Array:
            nonlocal evaluations
            evaluations += 1
            prices = np.exp(log_price)[:, None]
            return pick(menu, rows, [option.curves.follow(prices * option.rate) for option in menu])

        bracket = falling_root(
            lambda log_price: valued(menu, rows, demand(log_price)).cost.sum(-1) - budget,
            np.full(len(rows), np.log(price)),
            reach=1.0,
            tolerance=_EXACT * budget,
        )
        over, under = bracket.at_low, -bracket.at_high
        share = np.where(over + under > 0, np.clip(under / np.maximum(over + under, 1e-300), 0.0, 1.0), 0.0)[:, None]
        dear = demand(bracket.high)
        tokens[scarce] = dear + share * (demand(bracket.low) - dear)
    bought = valued(menu, np.where((total[0] <= budget)[:, None], chosen, DECLINE), tokens)
    return bought, evaluations


def _offer_rest(menu: Menu, budget: float, bought: Bought) -> Bought:
    """Offers what is left over to the query that gains most from it, with any of its options, while any gains."""
    option, tokens = bought.option.copy(), bought.tokens.copy()
    for _ in range(_OFFERS):
        now = valued(menu, option, tokens)
        left = budget - float(now.cost.sum())
        offers = [each.tokens(left + now.cost) for each in menu]
        gains = np.array([each.curves.value(some) for each, some in zip(menu, offers, strict=True)]) - now.utility
        number, query = np.unravel_index(int(np.argmax(gains)), gains.shape)
        if left <= 0 or gains[number, query] <= 1e-15:
            break
        option[query], tokens[query] = number, offers[number][query]
    return valued(menu, option, tokens)


# --- whole tokens and units ---------------------------------------------------------------------


def whole_grants(menu: Menu, cleared: MenuClearing, budget: int) -> tuple[Ints, Ints]:
    """Whole tokens for every query, and what they cost in whole units, rounded up; together within the budget.

    Tokens are rounded down. What that saves goes first to those who gain most per unit from one token more, and then to
    all of the admitted, in equal amounts as far as their caps allow: forecasts err, and a limit that is not reached
    costs nothing.
    """
    admitted = cleared.admitted
    rate, entry, cap = (pick(menu, cleared.option, each) for each in zip(*map(_terms, menu), strict=True))
    grants = np.where(admitted, np.floor(cleared.tokens), 0.0)

    def cost(tokens: Array) -> Array:
        return np.where(tokens > 0, _rounded_up(entry + rate * tokens), 0.0)

    _hand_out(grants, menu, cleared.option, rate, cap, budget - float(cost(grants).sum()))
    while (rest := budget - cost(grants).sum()) > 0 and cleared.status != "ample":
        able = (grants > 0) & (grants < cap) & (rate <= rest)
        share = rest / max(1, np.count_nonzero(able))
        more = np.minimum(np.floor(share / np.where(able, rate, np.inf)), cap - grants) * able
        if not more.any() or cost(grants + more).sum() > budget:
            break
        grants += more
    over = np.argsort(-cost(grants), kind="stable").tolist() if cost(grants).sum() > budget else []
    for query in over:  # costs were rounded up
        excess = cost(grants).sum() - budget
        if excess <= 0:
            break
        grants[query] = max(0.0, grants[query] - np.ceil(excess / rate[query]))
    return grants.astype(np.int64), cost(grants).astype(np.int64)


def _hand_out(grants: Array, menu: Menu, chosen: Ints, rate: Array, cap: Array, rest: float) -> None:
    """Adds one token each for those who gain most from it per unit, in place, while the rest lasts."""
    able = (grants > 0) & (grants < cap)
    gain = valued(menu, chosen, grants + 1).utility - valued(menu, chosen, grants).utility
    worth = np.where(able & (gain > 0), gain / np.where(able, rate, 1.0), 0.0)
    order = np.argsort(-worth, kind="stable")[: np.count_nonzero(worth)]
    # Costs are rounded up: each token may cost a part of a unit more than its rate.
    grants[order[np.cumsum(np.ceil(rate[order])) <= rest]] += 1


def _terms(option: Option) -> tuple[Array, Array, Array]:
    return option.rate, option.entry, np.floor(option.curves.cap)


def _rounded_up(units: Array) -> Array:
    """Whole units; rates are millionths of a unit, so that smaller fractions are rounding errors."""
    return np.ceil(np.round(units, 6))
