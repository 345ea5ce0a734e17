"""Policies: from a forecast and a budget to whole tokens for every query.

    uniform       the same for everyone                                        (paper, eq. 19)
    proportional  in proportion to the forecast, none declined                 (eq. 20)
    tale          the same, on a teacher model's estimates                     (eq. 21 to 23)
    heuristic     when scarce, drop the half with the longer forecasts         (eq. 25)
    auction       the shortest forecasts that fit                              (eq. 26)
    clear         CLEAR: the surge market at its clearing price                (algorithm 1)
    triangular    the same market with tents                                   (eq. 17)
    quadratic     the same market with parabolas                               (eq. 18)
    expected      the market of the chance of a correct answer                 (beyond the paper)
    oracle        knows the true lengths: shortest first                       (eq. 27)
    clairvoyant   also knows which answers are correct: the upper bound       (beyond the paper)

A policy is a function `(forecast, budget, cap, *, options) -> Allocation`; its keyword arguments
are the options a caller may set. `cap` has one limit per query. No allocation exceeds the budget,
not by one token.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shadowprice.arrays import Array, checked, checked_scalar
from shadowprice.cost import parse_budget
from shadowprice.errors import MarketError, PolicyError
from shadowprice.market.clearing import clear as clear_market
from shadowprice.market.curve import Curve, ThresholdCurve
from shadowprice.market.curves import Expected, Quadratic, Surge, Triangular
from shadowprice.types import Allocation, Forecast

_REQUIRED = inspect.Parameter.empty
MINIMUM = 32  # tokens: the paper's floor for policies that decline no query


def allocate(
    forecast: Forecast,
    budget: int | float | str,
    policy: str = "clear",
    max_tokens: ArrayLike | None = None,
    **options: Any,
) -> Allocation:
    """Divide `budget` among the queries of `forecast`.

    `budget` may be written as in the command: 200000, "200k", "1.5M", "256/query". `max_tokens`
    limits every grant, one number or one per query. `options` are those of the policy.
    """
    check_policy(policy, options)
    supply, n = parse_budget(budget, len(forecast)), len(forecast)
    cap = checked("max_tokens", np.inf if max_tokens is None else max_tokens, finite=False)
    if cap.ndim == 1 and cap.size != n:
        raise MarketError(f"one max_tokens per query, or one for all, is needed: got {cap.size} for {n} queries")
    return POLICIES[policy](forecast, supply, np.floor(np.broadcast_to(cap, (n,))), **options)


def check_policy(policy: str, options: Iterable[str]) -> None:
    """Raise unless the policy is known, takes these options and is given those it requires."""
    if policy not in POLICIES:
        raise PolicyError(f"unknown policy {policy!r}; known are {', '.join(POLICIES)}")
    known = options_of(policy)
    if unknown := [name for name in options if name not in known]:
        options_known = ", ".join(known) or "none"
        raise PolicyError(f"policy {policy!r} has no option {', '.join(unknown)}; its options are: {options_known}")
    if missing := [name for name, default in known.items() if default is _REQUIRED and name not in options]:
        raise PolicyError(f"policy {policy!r} needs {', '.join(missing)}, which no forecast has")


@cache
def options_of(policy: str) -> Mapping[str, Any]:
    """The options of a policy with their defaults (`inspect.Parameter.empty`: required)."""
    parameters = inspect.signature(POLICIES[policy]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


# --- the paper's baselines ---------------------------------------------------------------------


def uniform(forecast: Forecast, budget: int, cap: Array) -> Allocation:
    share = budget // max(1, len(forecast))
    return Allocation(np.minimum(share, cap).astype(np.int64), budget, "uniform")


def proportional(forecast: Forecast, budget: int, cap: Array, *, minimum: int = MINIMUM) -> Allocation:
    return Allocation(_in_proportion(forecast.tokens, budget, cap, minimum), budget, "proportional")


def tale(
    forecast: Forecast, budget: int, cap: Array, *, estimates: ArrayLike | None = None, minimum: int = MINIMUM
) -> Allocation:
    """`estimates`: the teacher's token needs, one per query; without them the forecast is used."""
    needs = forecast.tokens if estimates is None else _per_query("estimates", estimates, len(forecast), low=1e-3)
    return Allocation(_in_proportion(needs, budget, cap, minimum), budget, "tale")


def heuristic(forecast: Forecast, budget: int, cap: Array, *, minimum: int = MINIMUM) -> Allocation:
    tau = forecast.tokens
    scarce = tau.size > 0 and budget / tau.size < 0.8 * tau.mean()
    admitted = tau <= np.median(tau) if scarce else np.ones(tau.size, dtype=bool)
    return Allocation(_affine(tau, admitted, budget, cap, minimum), budget, "heuristic")


def auction(forecast: Forecast, budget: int, cap: Array, *, minimum: int = MINIMUM) -> Allocation:
    admitted = _shortest_that_fit(forecast.tokens, budget)
    return Allocation(_affine(forecast.tokens, admitted, budget, cap, minimum), budget, "auction")


def _in_proportion(needs: Array, budget: int, cap: Array, minimum: int) -> NDArray[np.int64]:
    """clip(s * needs, minimum, cap) for the one scale s that spends the budget.

    The paper clips after scaling, which can overspend; here the scale accounts for the clipping,
    and the minimum is lowered where the budget does not suffice for it.
    """
    if needs.size == 0:
        return np.zeros(0, dtype=np.int64)
    floor = np.minimum(min(_minimum(minimum), budget // needs.size), cap)
    low, high = 0.0, budget / needs.min()  # everyone at the minimum, everyone at the cap
    for _ in range(64):
        scale = (low + high) / 2
        fits = np.clip(scale * needs, floor, cap).sum() <= budget
        low, high = (scale, high) if fits else (low, scale)
    return _round_to(np.clip(low * needs, floor, cap), budget, cap)


def _affine(tau: Array, admitted: NDArray[np.bool_], budget: int, cap: Array, minimum: int) -> NDArray[np.int64]:
    """mean + kappa (tau - mean tau) for those admitted, where mean is budget / admitted (eq. 25 and 26).

    The paper writes mean tau in both places, and then the total is the same for every kappa. With
    the affordable mean in its place any kappa spends the budget; kappa is the largest, up to 1,
    that leaves everyone the minimum.
    """
    grants = np.zeros(tau.size)
    if admitted.any():
        mean, centre, least = budget / np.count_nonzero(admitted), tau[admitted].mean(), tau[admitted].min()
        room = max(0.0, mean - _minimum(minimum))
        kappa = min(1.0, room / (centre - least)) if centre > least else 1.0
        grants[admitted] = np.minimum(mean + kappa * (tau[admitted] - centre), cap[admitted])
    return _round_to(grants, budget, cap)


def _round_to(grants: Array, budget: int, cap: Array) -> NDArray[np.int64]:
    """Whole tokens; those lost by rounding down go to the largest fractions (0 stays 0)."""
    whole = np.floor(grants)
    fraction = np.where(whole < cap, grants - whole, 0.0)
    rest = min(round(grants.sum() - whole.sum()), budget - int(whole.sum()))
    if rest > 0:
        whole[np.argpartition(-fraction, rest - 1)[:rest]] += 1
    return np.minimum(whole, cap).astype(np.int64)


# --- markets -----------------------------------------------------------------------------------


def clear(
    forecast: Forecast,
    budget: int,
    cap: Array,
    *,
    alpha: float = 2.0,
    beta: float | None = None,
    epsilon: float = 1e-6,
) -> Allocation:
    """Without `beta` the decay rate adapts to the surplus of the batch (eq. 16)."""
    rate = _decay(forecast, budget, beta, epsilon)
    return _market(Surge(forecast.tokens, _positive("alpha", alpha), rate, cap), budget, "clear", rate)


def triangular(
    forecast: Forecast,
    budget: int,
    cap: Array,
    *,
    alpha: float = 2.0,
    beta: float | None = None,
    epsilon: float = 1e-6,
) -> Allocation:
    """A tent with the peak of `clear`'s surge: at 1/beta, alpha/(e beta) high."""
    rate = _decay(forecast, budget, beta, epsilon)
    curves = Triangular(forecast.tokens, 1 / rate, 2 / rate, _positive("alpha", alpha) / (np.e * rate), cap)
    return _market(curves, budget, "triangular", rate)


def quadratic(
    forecast: Forecast,
    budget: int,
    cap: Array,
    *,
    alpha: float = 2.0,
    beta: float | None = None,
    epsilon: float = 1e-6,
) -> Allocation:
    """A parabola with the peak of `clear`'s surge."""
    rate = _decay(forecast, budget, beta, epsilon)
    curves = Quadratic(forecast.tokens, 2 / rate, _positive("alpha", alpha) / (np.e * rate), cap)
    return _market(curves, budget, "quadratic", rate)


def expected(forecast: Forecast, budget: int, cap: Array) -> Allocation:
    return _market(expected_curves(forecast, cap), budget, "expected", None)


def expected_curves(forecast: Forecast, cap: Array) -> Expected:
    return Expected(forecast.solved_tokens, forecast.solved_spread, forecast.solve, forecast.tail, cap)


def _decay(forecast: Forecast, budget: int, beta: float | None, epsilon: float) -> float:
    """beta = 1 / max(epsilon, mean budget - mean forecast), unless it is given (eq. 16)."""
    if beta is not None:
        return _positive("beta", beta)
    surplus = budget / len(forecast) - float(forecast.tokens.mean()) if len(forecast) else 0.0
    return 1 / max(_positive("epsilon", epsilon), surplus)


def _positive(name: str, number: float) -> float:
    """A number that neither overflows nor underflows when multiplied with tokens."""
    return checked_scalar(name, number, low=1e-30, high=1e30)


def _market(curves: Curve, budget: int, policy: str, beta: float | None) -> Allocation:
    """Clear, round down, and give the tokens that rounding saved, one by one, to the queries that gain most.

    Rounding down must not fall below a threshold: a grant of 412 is worth nothing to a query that
    needs 412.3. Where it would, the market is cleared with thresholds rounded up to whole tokens.
    What is left at the end goes to declined queries that it is enough for, and then to the admitted ones
    in equal shares (algorithm 1, last line): forecasts err, and a limit that is not reached costs nothing.
    """
    cleared = clear_market(curves, budget)
    grants = np.floor(cleared.tokens)
    if isinstance(curves, ThresholdCurve) and np.any(cleared.admitted & (grants < curves.threshold)):
        curves = curves.whole()
        cleared = clear_market(curves, budget)
        grants = np.where(cleared.admitted, np.maximum(np.floor(cleared.tokens), curves.threshold), 0.0)
    _hand_out(grants, cleared.admitted, curves, budget)
    if isinstance(curves, ThresholdCurve):
        _admit_more(grants, np.ceil(curves.threshold), curves.cap, budget)
    if cleared.status != "ample":
        _share_equally(grants, np.flatnonzero(grants), curves.cap, budget)
    return Allocation(
        grants.astype(np.int64),
        budget,
        policy,
        price=cleared.price,
        utility=cleared.utility,
        bound=cleared.bound,
        status=cleared.status,
        beta=beta,
    )


def _hand_out(grants: Array, admitted: NDArray[np.bool_], curves: Curve, budget: int) -> None:
    """Add the tokens that rounding saved, in place: one each to the queries that gain most, while any gains.

    Rounding saves less than one token per admitted query, so one pass is usual, and two or three where
    queries reach their peaks.
    """
    able = np.flatnonzero(admitted)
    for _ in range(8):
        rest = budget - int(grants.sum())
        some, now = curves.take(able), grants[able]
        gain = np.where(now < some.cap, some.value(now + 1) - some.value(now), 0.0)
        able, gain = able[gain > 0], gain[gain > 0]
        if rest <= 0 or able.size == 0:
            break
        best = able if rest >= able.size else able[np.argpartition(-gain, rest - 1)[:rest]]
        grants[best] += 1


def _admit_more(grants: Array, needs: Array, cap: Array, budget: int) -> None:
    """Admit the shortest of the declined queries, in place, with exactly what they need, while the rest lasts."""
    out = np.flatnonzero((grants == 0) & (needs > 0) & (needs <= cap))
    more = out[_shortest_that_fit(needs[out], budget - int(grants.sum()))]
    grants[more] = needs[more]


def _share_equally(grants: Array, able: NDArray[np.intp], cap: Array, budget: int) -> None:
    """Raise the grants of the `able` in place, all by the same amount as far as their caps allow."""
    rest = budget - int(grants.sum())
    while rest > 0 and (able := able[grants[able] < cap[able]]).size:
        raised = able[:rest]  # if there is not one token for each, the first get one
        more = np.minimum(max(1, rest // able.size), cap[raised] - grants[raised])
        grants[raised] += more
        rest -= int(more.sum())


def serve_rest(grants: NDArray[np.int64], cap: Array, costs: Array, rest: float) -> NDArray[np.int64]:
    """The grants, and for queries without one their caps, as long as the `rest` of the budget suffices.

    A market never buys for a query whose cap is below its forecast, and some policies drop others. Where a budget is
    divided once, what remains would stay idle; algorithm 1 grants min(demand, T_max), too. `costs` are those of the
    caps; the lowest are served first.
    """
    out = np.flatnonzero((grants == 0) & (cap >= 1) & np.isfinite(cap))
    more = out[_shortest_that_fit(costs[out], rest)]
    served = grants.copy()
    served[more] = cap[more]
    return served


# --- hindsight ---------------------------------------------------------------------------------


def oracle(forecast: Forecast, budget: int, cap: Array, *, lengths: ArrayLike) -> Allocation:
    """`lengths`: the true length of every answer. Sorts by length only, so it is not an upper bound."""
    true = np.ceil(_per_query("lengths", lengths, len(forecast)))
    return Allocation(_exactly(true, true <= cap, budget), budget, "oracle")


def clairvoyant(forecast: Forecast, budget: int, cap: Array, *, lengths: ArrayLike, correct: ArrayLike) -> Allocation:
    """`lengths` and `correct`: the true length and correctness of every answer. No policy has more correct answers."""
    true = np.ceil(_per_query("lengths", lengths, len(forecast)))
    is_correct = _per_query("correct", correct, len(forecast)) > 0
    return Allocation(_exactly(true, is_correct & (true <= cap), budget), budget, "clairvoyant")


def _exactly(lengths: Array, able: NDArray[np.bool_], budget: int) -> NDArray[np.int64]:
    """Grants the shortest of the `able` their exact length, while the budget lasts."""
    grants = np.zeros(lengths.size, dtype=np.int64)
    some = np.flatnonzero(able)
    some = some[_shortest_that_fit(lengths[some], budget)]
    grants[some] = lengths[some].astype(np.int64)
    return grants


def _shortest_that_fit(lengths: Array, budget: float) -> NDArray[np.bool_]:
    """Marks the shortest lengths, as many as fit into the budget."""
    order = np.argsort(lengths, kind="stable")
    fits = np.zeros(lengths.size, dtype=bool)
    fits[order[: np.searchsorted(np.cumsum(lengths[order]), budget, side="right")]] = True
    return fits


def _per_query(name: str, values: ArrayLike, n: int, low: float = 0.0) -> Array:
    array = checked(name, values, low=low)
    if array.shape != (n,):
        raise MarketError(f"{name} must have one value per query: got {array.size} for {n} queries")
    return array


def _minimum(minimum: int) -> int:
    return int(checked_scalar("minimum", minimum))


POLICIES: dict[str, Callable[..., Allocation]] = {
    "uniform": uniform,
    "proportional": proportional,
    "tale": tale,
    "heuristic": heuristic,
    "auction": auction,
    "clear": clear,
    "triangular": triangular,
    "quadratic": quadratic,
    "expected": expected,
    "oracle": oracle,
    "clairvoyant": clairvoyant,
}
