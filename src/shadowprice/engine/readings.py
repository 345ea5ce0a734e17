"""What a run has read in its answers so far (`forecast.reading`), by request. It decides nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shadowprice.arrays import Array
from shadowprice.forecast.reading import AGES, can_read, next_age, traits
from shadowprice.market.anytime import Anytime
from shadowprice.market.gittins import BLOCK, Chunks, Readings, chunks
from shadowprice.types import Completion, Forecast


class PartReader(Protocol):
    """What a scheduler needs of `forecast.reading.Reader`."""

    def revise(self, places: Sequence[int], forecast: Forecast, age: Array, observed: Array) -> Readings: ...


class AnswersRead:
    """Keeps the traits of each answer at the latest age at which it was read. Without a reader nothing is read."""

    def __init__(self, reader: PartReader | None) -> None:
        self.reader = reader
        self._parts: dict[int, tuple[int, NDArray[np.float32]]] = {}  # by place: age and traits

    def take(self, place: int, answer: Completion) -> bool:
        """Reads an answer if it has come to another of the ages at which answers are read; returns whether it did."""
        later = next_age(self._parts[place][0] if place in self._parts else 0)
        if self.reader is None or later is None or answer.tokens < later or not can_read(answer):
            return False
        self.keep(place, answer.tokens, traits(answer.text))
        return True

    def take_ended(self, place: int, answer: Completion) -> None:
        """Reads an answer of an earlier execution, as it was before it ended."""
        at = bisect_left(AGES, answer.tokens)
        if self.reader is not None and at and can_read(answer):
            age = AGES[at - 1]
            self.keep(place, age, traits(answer.text[: len(answer.text) * age // answer.tokens]))

    def keep(self, place: int, age: int, observed: ArrayLike) -> None:
        """Keeps the traits of an answer at an age: they revise its forecast from now on."""
        self._parts[place] = (age, np.asarray(observed, dtype=np.float32))

    def since(self, active: NDArray[np.intp]) -> NDArray[np.int64]:
        """The ages at which the answers to these requests were read last; 0: not at all."""
        return np.array(
            [self._parts[place][0] if place in self._parts else 0 for place in active.tolist()], dtype=np.int64
        )

    def readings(self, active: NDArray[np.intp], everybody: Forecast) -> Readings | None:
        """What was read in the answers of these requests, with the forecasts of all; None: nothing."""
        rows = [row for row, place in enumerate(active.tolist()) if place in self._parts]
        if not rows:
            return None
        ages, observed = zip(*(self._parts[place] for place in active[rows].tolist()), strict=True)
        return self.revised(active, np.array(rows), np.array(ages, float), np.stack(observed), everybody)

    def revised(
        self, active: NDArray[np.intp], rows: NDArray[np.intp], age: Array, observed: NDArray[Any], everybody: Forecast
    ) -> Readings:
        """What traits say: those of the answers in some of the rows, at their ages, as precise as they are kept."""
        assert self.reader is not None
        found = Readings(np.zeros(active.size), np.ones(active.size), np.zeros(active.size))
        for first in range(0, rows.size, BLOCK):  # all at once would take much memory
            part = slice(first, first + BLOCK)
            places, seen = active[rows[part]], observed[part].astype(np.float32).astype(np.float64)
            revised = self.reader.revise(places.tolist(), everybody.take(places), age[part], seen)
            for values, new in zip(found, revised, strict=True):
                values[rows[part]] = new
        return found

    def as_forecast(self, age: NDArray[np.int64], everybody: Forecast) -> NDArray[np.int64]:
        """The ages that answers would have reached if nothing had been read in them.

        Those that seem long are stopped, which would make all answers look shorter. So what came after the reading
        counts by how much of it was expected.
        """
        if (read := self.readings(np.arange(age.size), everybody)) is None:
            return age
        since = np.minimum(read.since, age)
        return np.maximum(np.minimum(age, 1), np.rint(since + (age - since) / read.stretch).astype(np.int64))


def chunks_after(
    everybody: Forecast,
    active: NDArray[np.intp],
    cap: Array,
    age: Array,
    entry: Array,
    anytime: Anytime | None,
    since: NDArray[np.int64],
    answers_read: AnswersRead,
) -> Chunks:
    """The chunks of some requests after what was read in their answers, at the ages in `since`.

    The ages say what was read where simulations of the same answers share what they compute (`engine.recall`).
    """
    read = answers_read.readings(active, everybody) if since.any() else None
    return chunks(everybody.take(active), cap, age, entry, anytime, read)
