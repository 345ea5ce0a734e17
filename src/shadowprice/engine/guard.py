"""Whether a run follows the index, or lets all answers grow to one level (`market.level`).

By its own forecasts the index is never worse than a level. But where forecasts hardly tell requests apart, it is better
by the law of all lengths alone, and that is uncertain: the stream differs from the traces that the law was learned
from, and a run that stops each answer too early never sees that the next tokens would have ended it. So the index has
to promise clearly more than a level there, by the forecasts as they were corrected in this run; and more still once all
answers grow to a level, because what was spent on that is lost with another order. Where forecasts do tell requests
apart, their order is worth more than a level even if the law is wrong.

Where landings have a value (`market.anytime`) the index is followed: levels were not tried with them.

Before the second lesson nothing is decided: by then the first answers have shown, in the order of the index, how
long answers of this run are. A level that is wrong about that is reached by all answers, and ends none of them.
"""

from __future__ import annotations

import numpy as np

from shadowprice.arrays import Array
from shadowprice.market.gittins import Chunks
from shadowprice.market.level import Level, level_of
from shadowprice.types import Forecast

_FIRST = 2  # lessons
_ALIKE = 0.9  # of the variance is left by forecasts that hardly tell requests apart
_LEAVE, _RETURN = 0.1, 0.3  # of what the index promises: less than that above a level, and it is left; more, and back
_MOST = 1000  # requests that are looked at


class Guard:
    """`level` is where all answers grow to; None: the index is followed."""

    def __init__(self) -> None:
        self.level: Level | None = None

    def decide(
        self,
        lessons: int,
        everybody: Forecast,
        plan: Chunks,
        known: tuple[Forecast, Array, Array, Array],
        budget: float,
    ) -> None:
        """From the forecasts of all requests, and of those that wait: their chunks and what these were made from."""
        before, self.level = self.level, None
        if lessons < _FIRST or not len(plan) or _alike(everybody) < _ALIKE:
            return
        requests = len(plan.age)
        some = np.arange(0, requests, -(-requests // _MOST))
        forecast, cap, age, entry = known
        budget *= some.size / requests
        level = level_of(forecast.take(some), cap[some], age[some], entry[some], budget)
        promised = plan.take(some).value(budget)
        if 0 < level.value >= (1 - (_RETURN if before else _LEAVE)) * promised:
            self.level = level


def _alike(forecast: Forecast) -> float:
    """The share of the variance that is left, of log lengths times that of correctness: from 0, where either is known,
    to 1, where forecasts are the same for all."""
    known = float(np.var(np.log(forecast.solved_tokens)))
    unknown = float(np.mean(forecast.solved_spread**2))
    mean = float(np.mean(forecast.solve))
    explained = float(np.var(forecast.solve)) / max(1e-9, mean * (1 - mean))
    return unknown / (known + unknown) * max(0.0, 1 - explained)
