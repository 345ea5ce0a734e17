"""Which requests the index probes while they run, and what their probes say (`market.evidence`).

A probe is a landing after which the answer may continue: it is sent, charged, kept and restored like a landing. It is
compared with the landing of an earlier step. The first probe of a request says nothing by itself: it is worth what the
second will be worth, less the tokens of both.
"""

from __future__ import annotations

import numpy as np

from shadowprice.engine.metered import Metered
from shadowprice.market.anytime import Anytime
from shadowprice.market.gittins import paths


class Prober:
    """Decides on probes of the requests that an index serves."""

    def __init__(self, index: Metered, anytime: Anytime) -> None:
        assert anytime.evidence is not None
        self._index, self._anytime, self._evidence = index, anytime, anytime.evidence
        self._latest: dict[int, tuple[int, str | None]] = {}  # by place: the age of the latest landing, and its text

    def is_worth(self, place: int, tokens: float) -> bool:
        """Whether a probe now is worth its `tokens` at the price."""
        index, age = self._index, self._index.batch.age(place)
        step = self._step(place, age)
        price = (index.price or 0.0) * (tokens + float(index.batch.entry([place])[0]))
        if place in self._latest:
            new = step > self._step(place, self._latest[place][0])
            return new and self._worth(place, step, age) > price
        if step + 1 >= len(self._evidence.ages):
            return False
        later = int(np.ceil(self._evidence.ages[step + 1] * index.corrected.tokens[place]))
        cap = index.batch.cap[place]
        if later >= cap:
            return False
        alone = np.array([place])
        ages, _, alive, _ = paths(index.corrected.take(alone), np.array([float(age)]), np.array([cap]), np.zeros(1))
        comes = float(np.interp(later, ages[0], alive[0] / alive[0, 0]))
        return comes * self._worth(place, step + 1, later) > (1 + comes) * price

    def learn(self, place: int, age: int, stated: str | None) -> None:
        """Records what a landing stated; None: it did not end."""
        earlier = self._latest.get(place)
        step = self._step(place, age)
        if earlier is not None and step > self._step(place, earlier[0]):
            agrees = stated is not None and stated == earlier[1]
            self._index.left[place] = self._evidence.left[step] if agrees else 1.0
        self._latest[place] = (age, stated)

    def forget(self, place: int) -> None:
        self._latest.pop(place, None)

    def _step(self, place: int, age: int) -> int:
        return self._evidence.step(age / float(self._index.corrected.tokens[place]))

    def _worth(self, place: int, step: int, age: int) -> float:
        """What it is worth to know, in this step and at this age, whether the probes agree."""
        if self._evidence.left[step] == 1:
            return 0.0
        plan = self._index.prospects(np.array([place]), np.array([age]))
        return self._evidence.worth(step, plan.index, plan.cost, self._index.price or 0.0)
