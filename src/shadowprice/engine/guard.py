"""Whether a run follows the index, or lets all answers grow to one level (`market.level`).

By its own forecasts the index is never worse than a level. But if forecasts hardly tell requests apart, its advantage
rests on the distribution of all lengths alone, which is uncertain: it was learned from other traces, and a run that
stops each answer too early never sees that the next tokens would have ended it. In this case the run follows the index
only if that promises clearly more than a level, by the forecasts as corrected in this run. Once all answers grow to a
level, it has to promise even more, because a change of order wastes what was spent. If forecasts do tell requests
apart, their order is worth more than a level even if the distribution is wrong.

If landings have a value (`market.anytime`), the index is always followed: levels were not tried with them.

Nothing is decided before the second lesson. By then the first answers have shown how long answers of this run are. With
a level that is too low all answers reach it and none ends.
"""

from __future__ import annotations

import numpy as np

from shadowprice.arrays import Array
from shadowprice.market.gittins import Chunks
from shadowprice.market.level import Level, level_of
from shadowprice.types import Forecast

_FIRST = 2  # lessons before a decision
_ALIKE = 0.9  # if forecasts leave this share of the variance, they hardly tell requests apart
# The index is left if it promises less than the first share more than a level; it is followed again above the second.
_LEAVE, _RETURN = 0.1, 0.3
_MOST = 1000  # requests that are looked at


class Guard:
    """`level` is what all answers grow to; None: the index is followed."""

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
        """Decides from the forecasts of all requests (`everybody`), and from the chunks of those that wait (`plan`).

        `known` has the forecasts, caps, ages and entry costs that the chunks were made from.
        """
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
    """The share of the variance that forecasts leave: that of log lengths times that of correctness.

    It is 0 if either is known, and 1 if forecasts are the same for all requests.
    """
    known = float(np.var(np.log(forecast.solved_tokens)))
    unknown = float(np.mean(forecast.solved_spread**2))
    mean = float(np.mean(forecast.solve))
    explained = float(np.var(forecast.solve)) / max(1e-9, mean * (1 - mean))
    return unknown / (known + unknown) * max(0.0, 1 - explained)
