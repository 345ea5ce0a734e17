"""When a run corrects its forecasts: by how many answers have ended, and by how many tokens were generated.

The first lesson comes when 8 answers have ended, and another each time four times as many have. But a run serves the
answers that seem short first. If the others are longer than they seem, few of them end, and a distribution that was
learned from the short ones would stop each of them too early. So a lesson also comes whenever the run has generated
twice as many tokens as at the one before: answers that still run show that they are longer.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

FIRST = 8  # answers that have ended
_TIMES_ENDED, _TIMES_TOKENS = 4, 2.0


class Lessons:
    """The next lesson comes at `ended` answers that have ended, or at `tokens` generated."""

    def __init__(self) -> None:
        self.ended = FIRST
        self.tokens = math.inf  # before the first lesson only answers that ended count
        self.taken = 0

    def due(self, age: NDArray[np.int64], stopped: NDArray[np.bool_]) -> bool:
        """Whether a lesson is due, by the tokens of each answer and by which answers ended; if so, sets the next."""
        ended, tokens = int(np.count_nonzero(stopped)), int(age.sum())
        if ended < self.ended and tokens < self.tokens:
            return False
        while self.ended <= ended:
            self.ended *= _TIMES_ENDED
        self.tokens = _TIMES_TOKENS * tokens
        self.taken += 1
        return True
