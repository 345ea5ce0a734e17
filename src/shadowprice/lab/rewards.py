"""Routing where only marks and costs are recorded: one line a prompt, with a reward and a cost for every model.

Rewards and costs are predicted from the prompt by `KernelRegression`, fitted on other prompts. Then the prompts are
served under a hard budget as `engine.routed` serves them: cleared by `market.menu`, the surest first, and cleared again
as real costs become known.
An answer is limited to what is left, less what the others need for their cheapest; one that costs more is cut there and
worth nothing, so what it promises is weighted by the chance that it fits.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array
from shadowprice.errors import InputError
from shadowprice.formats.jsonl import read_objects
from shadowprice.lab.compare import Row
from shadowprice.lab.kernel import KernelRegression
from shadowprice.market.menu import clear_menu
from shadowprice.market.options import DECLINE, Option, Step, at_price

_ROUNDS = 60
_NANO = 1e9
_LAST = 30  # a round serves at most this part of those who wait: the last ones adapt to what the others cost
_MARGIN = 1.5  # times the largest cost that was ever seen, of what was expected: the limit of an answer
_RESERVE = 1.1  # times what the cheapest answers of those who wait are expected to cost


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Rewards (0 to 1) and costs (dollars) of every model (columns) on every prompt (rows)."""

    models: Sequence[str]
    prompts: Sequence[str]
    reward: Array
    cost: Array

    def __len__(self) -> int:
        return len(self.prompts)


def read_outcomes(path: str | os.PathLike[str]) -> Outcomes:
    """One line a prompt: `prompt`, and `arms`: model -> `reward`, `cost`."""
    prompts, rewards, costs, models = [], [], [], list[str]()
    for number, record in read_objects(path):
        try:
            arms = record["arms"]
            models = models or list(arms)
            row = [(float(arms[model]["reward"]), float(arms[model]["cost"])) for model in models]
            prompts.append(str(record["prompt"]))
            if len(arms) != len(models) or not all(0 <= r <= 1 and 0 < c < np.inf for r, c in row):
                raise ValueError
        except (KeyError, TypeError, ValueError):
            fix = "give each line a prompt, and for the same models a reward of 0 to 1 and a cost above 0"
            raise InputError("is not a prompt with its arms", path=path, line=number, fix=fix) from None
        rewards.append([r for r, _ in row])
        costs.append([c for _, c in row])
    if not prompts:
        raise InputError("has no prompts", path=path, fix="give one line a prompt")
    return Outcomes(models, prompts, np.array(rewards), np.array(costs))


@dataclass(frozen=True, eq=False)
class Predicted:
    """What is expected of every model on every prompt.

    ratio  by model, sorted: real costs of other prompts as multiples of what was expected of them
    """

    reward: Array
    cost: Array
    ratio: Array

    def fits(self, place: int, limit: float) -> Array:
        """The chance that an answer costs at most `limit`, by model."""
        multiple = limit / self.cost[place]
        return np.array(
            [np.searchsorted(r, m, side="right") for r, m in zip(self.ratio.T, multiple, strict=True)]
        ) / len(self.ratio)


def predict(fit: Outcomes, test: Outcomes) -> Predicted:
    """Rewards as a common level and the differences of the models from it, each shrunk by its own penalty."""
    if list(fit.models) != list(test.models):
        raise InputError(f"models differ: {', '.join(fit.models)} and {', '.join(test.models)}")
    level = fit.reward.mean(1, keepdims=True)
    model = KernelRegression.fit(fit.prompts, np.hstack([level, fit.reward - level, np.log(fit.cost)]))
    known, found = model.left_out, model.predict(test.prompts)
    arms = len(fit.models)
    # The mean of a cost is above what the mean of its logarithm says, by one factor per model.
    factor = fit.cost.sum(0) / np.exp(known[:, 1 + arms :]).sum(0)
    ratio = np.sort(fit.cost / (np.exp(known[:, 1 + arms :]) * factor), axis=0)
    reward = np.clip(found[:, :1] + found[:, 1 : 1 + arms], 0.0, 1.0)
    return Predicted(reward, np.exp(found[:, 1 + arms :]) * factor, ratio)


@dataclass(frozen=True, eq=False)
class Served:
    """By prompt: the model that answered, or DECLINE, the reward, and the dollars spent."""

    model: NDArray[np.int64]
    reward: Array
    spent: Array


def serve(expected: Predicted, test: Outcomes, budget: float) -> Served:
    """Serves all prompts for `budget` dollars, which are never exceeded."""
    n = len(test)
    served = Served(np.full(n, DECLINE), np.zeros(n), np.zeros(n))
    waiting, left = np.arange(n), budget
    least = _RESERVE * expected.cost.min(1)
    while waiting.size:
        order, chosen, price = _plan(expected, waiting, left)
        step = max(1, min(n // _ROUNDS, waiting.size // _LAST))
        # Others must still be able to buy their cheapest answer, as far as the market serves them at all.
        reserved = np.where(chosen != DECLINE, least[waiting], 0.0)
        later = float(reserved.sum())
        for at in order[:step].tolist():
            place = int(waiting[at])
            later -= float(reserved[at])
            limit = max(left - later, min(left, float(reserved[at])))
            arm = _best(expected, place, int(chosen[at]), price, limit)
            if arm == DECLINE:
                continue
            most = min(limit, _MARGIN * float(expected.ratio[-1, arm] * expected.cost[place, arm]))
            cost = float(test.cost[place, arm])
            served.model[place], served.spent[place] = arm, min(cost, most)
            served.reward[place] = test.reward[place, arm] if cost <= most else 0.0
            left -= min(cost, most)
        waiting = np.delete(waiting, order[:step])
    assert served.spent.sum() <= budget * (1 + 1e-12)
    return served


def _plan(
    expected: Predicted, waiting: NDArray[np.intp], left: float
) -> tuple[NDArray[np.intp], NDArray[np.int64], float]:
    """The order in which the prompts that wait are served, the model of each, and the price of a dollar."""
    reward, cost = expected.reward[waiting], expected.cost[waiting]
    menu = [Option(Step(cost[:, arm] * _NANO, reward[:, arm])) for arm in range(reward.shape[1])]
    cleared = clear_menu(menu, max(0.0, left) * _NANO)
    surplus = np.zeros((len(menu) + 1, waiting.size))  # the last: to decline
    for arm, option in enumerate(menu):
        _, units, value = at_price(option, np.asarray(cleared.price))
        surplus[arm] = value - cleared.price * units
    sure = np.diff(np.sort(surplus, axis=0)[-2:], axis=0)[0]
    return np.argsort(-sure, kind="stable"), cleared.option, cleared.price * _NANO


def _best(expected: Predicted, place: int, chosen: int, price: float, limit: float) -> int:
    """The model that the market chose, or a better one if its answer might not fit in what is left."""
    fits = expected.fits(place, limit)
    if chosen != DECLINE and fits[chosen] == 1.0:
        return chosen
    surplus = expected.reward[place] * fits - price * expected.cost[place]
    best = int(surplus.argmax())
    return best if surplus[best] > 0 else DECLINE


# --- what it is compared with -------------------------------------------------------------------


def static_mix(value: Array, cost: Array, budget: float) -> tuple[float, Array]:
    """The best mix of at most two models at a mean cost, by their means in hindsight; and the share of each."""
    means, costs = value.mean(0), cost.mean(0)
    points = [(0.0, 0.0, np.zeros(means.size))]
    points += [(float(c), float(v), np.eye(means.size)[i]) for i, (v, c) in enumerate(zip(means, costs, strict=True))]
    best, shares = 0.0, np.zeros(means.size)
    for low_cost, low, low_share in points:
        for high_cost, high, high_share in points:
            if low_cost <= budget:
                part = min(1.0, (budget - low_cost) / (high_cost - low_cost)) if high_cost > low_cost else 0.0
                found = low + part * (high - low)
                if found > best:
                    best, shares = found, (1 - part) * low_share + part * high_share
    return best, shares


def clairvoyant(value: Array, cost: Array, budget: float) -> float:
    """The mean value if everything were known, at a mean cost."""
    menu = [Option(Step(np.maximum(c * _NANO, 1e-6), v)) for c, v in zip(cost.T, value.T, strict=True)]
    return clear_menu(menu, budget * len(value) * _NANO).utility / len(value)


def interval(values: Array, *, seed: int = 0, resamples: int = 1000) -> tuple[float, float]:
    """The 95% interval of the mean, by resampling prompts."""
    rng = np.random.default_rng(seed)
    n = values.size
    means = [values[rng.integers(n, size=n)].mean() for _ in range(resamples)]
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def reward_rows(fit: Outcomes, test: Outcomes, budgets: Sequence[float]) -> list[Row]:
    """The frontier: at every budget each model alone, the best static mix, ours and the clairvoyant."""
    expected, rows = predict(fit, test), list[Row]()

    def row(policy: str, budget: float, reward: Array | float, spent: float, shares: Array) -> None:
        values = np.asarray(reward)
        low, high = interval(values) if values.size > 1 else (float(values), float(values))
        share = {f"share_{model}": float(s) for model, s in zip(test.models, shares, strict=True)}
        rows.append(
            {
                "table": "rewards",
                "policy": policy,
                "budget": budget,
                "solved": 100 * float(values.mean()),
                "ci_low": 100 * low,
                "ci_high": 100 * high,
                "dollars": spent,
                "queries": len(test),
                "source": "ours",
                **share,
            }
        )

    for budget in budgets:
        for arm, model in enumerate(test.models):
            part = min(1.0, budget / float(test.cost[:, arm].mean()))
            alone = part * test.reward[:, arm]
            row(
                f"{model} alone",
                budget,
                alone,
                part * float(test.cost[:, arm].mean()),
                part * np.eye(len(test.models))[arm],
            )
        value, shares = static_mix(test.reward, test.cost, budget)
        row("static mix", budget, value, float(shares @ test.cost.mean(0)), shares)
        served = serve(expected, test, budget * len(test))
        counts = np.bincount(served.model[served.model >= 0], minlength=len(test.models)) / len(test)
        row("ours", budget, served.reward, float(served.spent.mean()), counts)
        row("clairvoyant", budget, clairvoyant(test.reward, test.cost, budget), budget, np.zeros(len(test.models)))
    return rows
