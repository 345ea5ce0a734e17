"""What the scheduler of routes knows of a route, of a request that waits for it, and of an answer at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array
from shadowprice.formats.routes import Route
from shadowprice.shape import Shape
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
    """An answer at hand, and the chance that it is correct."""

    answer: Completion
    correct: bool | None
    route: str
    chance: float
    sample: int

    @property
    def worth(self) -> tuple[float, bool]:
        """Of two answers the likelier one; a part of an answer is worth less than a wrong one."""
        return self.chance, self.answer.finish == "stop"


@dataclass
class Site:
    """What the scheduler knows of a route. Arrays have one entry per request."""

    route: Route
    forecast: Forecast
    revised: Forecast  # what revisers start from, and what they found
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
        """Tokens of a prompt as a share of their bound; earlier ones count like one of a thousand tokens."""
        return (self.read + _PROMPT * 1000) / (self.read_bound + 1000)


def replace_solve(forecast: Forecast, solve: Array) -> Forecast:
    """The same lengths with other chances."""
    return _shaped(forecast, forecast.shape, solve)


def _shaped(forecast: Forecast, shape: Shape | None, solve: Array | None = None) -> Forecast:
    return Forecast(
        forecast.tokens,
        forecast.spread,
        forecast.solve if solve is None else solve,
        forecast.tail,
        forecast.solved_tokens,
        forecast.solved_spread,
        shape,
    )


def solve_of(forecast: Forecast, place: int) -> float:
    return float(np.broadcast_to(forecast.solve, len(forecast))[place])


def with_one(forecast: Forecast, place: int, one: Forecast) -> Forecast:
    """The forecast with that of one request replaced; all keep the shape, which a forecast has once."""
    parts = [forecast.take(range(place)), _shaped(one, forecast.shape), forecast.take(range(place + 1, len(forecast)))]
    return Forecast.joined([part for part in parts if len(part)])
