"""Whether a run follows the index, or lets all answers grow to one level (`market.level`).

By its own forecasts the index is never worse than a level. But what it gains by the law of all lengths, and not by what
forecasts say of one request and not of another, is uncertain: the stream differs from the traces that the law was
learned from, and a run that stops each answer too early never sees that the next tokens would have ended it. So the
index has to promise more than a level, by the forecasts as they were corrected in this run: the more, the less they
tell requests apart, and clearly more once all answers grow to a level, because what was spent on that is lost with
another order.

Before the second lesson nothing is decided: by then the first answers have shown, in the order of the index, how
long answers of this run are. A level that is wrong about that is reached by all answers, and ends none of them.
"""

from __future__ import annotations

import numpy as np

from shadowprice.arrays import Array
from shadowprice.market.anytime import Anytime
from shadowprice.market.gittins import Chunks
from shadowprice.market.level import Level, level_of
from shadowprice.types import Forecast

_FIRST = 2  # lessons
# The share of what the index promises that has to be more than a level gives, where forecasts are alike: to leave the
# index, and to return to it.
_LEAVE, _RETURN = 0.1, 0.3
_MOST = 1000  # requests that are looked at


class Guard:
    """`level` is where all answers grow to; None: the index is followed."""

    def __init__(self) -> None:
        self.level: Level | None = None

    def decide(
        self,
        plan: Chunks,
        forecast: Forecast,
        cap: Array,
        age: Array,
        entry: Array,
        budget: float,
        anytime: Anytime | None,
        lessons: int,
    ) -> None:
        """From the chunks of the requests that wait, and what they were computed from; `lessons` taken so far."""
        before, self.level = self.level, None
        if lessons < _FIRST or not len(plan):
            return
        step = -(-age.size // _MOST)
        some = np.arange(0, age.size, step)
        budget *= some.size / age.size
        theirs = forecast.take(some)
        level = level_of(theirs, cap[some], age[some], entry[some], budget, anytime)
        promised = (plan if step == 1 else plan.take(some)).value(budget)
        more = _alike(theirs) * (_LEAVE if before is None else _RETURN)
        if level.value > 0 and level.value >= (1 - more) * promised:
            self.level = level


def _alike(forecast: Forecast) -> float:
    """From 0, where lengths or correctness are known, to 1, where forecasts are the same for all: the share of the
    variance that is left, of log lengths times of correctness."""
    known = float(np.var(np.log(forecast.solved_tokens)))
    unknown = float(np.mean(forecast.solved_spread**2))
    mean = float(np.mean(forecast.solve))
    told = float(np.var(forecast.solve)) / max(1e-9, mean * (1 - mean))
    return unknown / (known + unknown) * max(0.0, 1 - told)
