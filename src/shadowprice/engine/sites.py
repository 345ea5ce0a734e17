"""What `engine.routed` knows of a route, of a request that waits for it, and of an answer that it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array
from shadowprice.formats.routes import Route
from shadowprice.types import Completion, Forecast

FIRST_LESSON = 24  # answers of a route that have ended, before its forecasts are corrected
_PROMPT = 0.3  # tokens of a prompt, as a share of their bound, before any was counted


class Turn(NamedTuple):
    """A request that bought an option and has not been sent."""

    place: int
    route: int
    limit: int
    expected: float  # units


class Kept(NamedTuple):
    """An answer that a request has, and the chance that it is correct."""

    answer: Completion
    correct: bool | None
    route: str
    chance: float
    sample: int

    @property
    def worth(self) -> tuple[float, bool]:
        """Orders answers by their chance; at the same chance a whole answer comes before a part of one."""
        return self.chance, self.answer.finish == "stop"


@dataclass
class Site:
    """What the scheduler knows of a route. Arrays have one entry per request."""

    route: Route
    forecast: Forecast
    revised: Forecast  # what revisers start from, with their revisions
    cap: Array  # tokens that its context and the caller leave for an answer; 0: not for this request
    age: NDArray[np.int64]  # of answers that ended or were cut here
    ended: NDArray[np.bool_]
    taken: NDArray[np.int64]  # samples
    lesson: int = FIRST_LESSON
    corrected: Forecast | None = None
    reason: str = ""  # why it left the menu
    read: int = 0  # tokens of prompts, as counted
    read_bound: int = 0  # and their bounds
    units: int = 0

    def expected_share(self) -> float:
        """The expected tokens of a prompt as a share of their bound; the prior counts as a bound of 1000 tokens."""
        return (self.read + _PROMPT * 1000) / (self.read_bound + 1000)


def at_their_caps(sites: Sequence[Site], live: Sequence[int], prompt: Mapping[int, int], available: int) -> list[Turn]:
    """Turns for requests that promise nothing at any price, given by place with the bounds of their prompts.

    Each goes to the live route where its cap costs the least, the cheapest requests first, as far as the units go.
    """
    turns = []
    for place, read in prompt.items():
        options = []
        for number in live:
            rates, cap = sites[number].route.rates, float(sites[number].cap[place])
            limit = int(cap) if np.isfinite(cap) else rates.limit(read, available)
            if limit >= 1:
                options.append((rates.bound(read, limit), number, limit))
        if options:
            bound, number, limit = min(options)
            turns.append(Turn(place, number, limit, float(bound)))
    turns.sort(key=lambda turn: turn.expected)
    affordable = np.searchsorted(np.cumsum([turn.expected for turn in turns]), available, side="right")
    return turns[: int(affordable)]


def replace_solve(forecast: Forecast, solve: Array) -> Forecast:
    """The same lengths with other chances."""
    return replace(forecast, solve=solve)


def solve_of(forecast: Forecast, place: int) -> float:
    return float(np.broadcast_to(forecast.solve, len(forecast))[place])


def with_one(forecast: Forecast, place: int, one: Forecast) -> Forecast:
    """The forecast with that of one request replaced. The shape stays: a forecast has one for all requests."""
    parts = [
        forecast.take(range(place)),
        replace(one, shape=forecast.shape),
        forecast.take(range(place + 1, len(forecast))),
    ]
    return Forecast.joined([part for part in parts if len(part)])
