"""Roots of monotone functions, many at once: arrays in which every element is a problem of its own.

rising_root   a smooth function with a known slope: Newton's method inside a shrinking bracket
falling_root  a function that may jump, as demand does: brackets, since at a jump there is no root
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shadowprice.arrays import Array

_WALKS = 50  # steps towards a root that the first bracket does not hold; each is 8 times as long as the last
_PROBES = 200  # evaluations inside the bracket
_NARROW = 1e-12  # width of a bracket at which its ends count as the same price
_ENDS = (-800.0, 700.0)  # of the search: exp() of these is 0 and 1e304


def rising_root(
    function: Callable[[Array], tuple[Array, Array]], low: Array, high: Array, start: Array | None = None
) -> Array:
    """The root of a rising function in [low, high], searched from `start`; `function` returns value and slope.

    A Newton step that would leave the bracket is replaced by a step to its middle. The error after a Newton step is
    about the square of the step, so the search ends after a step of 1e-10.
    """
    z = (low + high) / 2 if start is None else start
    for _ in range(100):
        value, slope = function(z)
        below = value < 0
        low, high = np.where(below, z, low), np.where(below, high, z)
        previous, z = z, z - value / slope
        inside, tolerance = (z >= low) & (z <= high), 1e-10
        if not inside.all():
            z, tolerance = np.where(inside, z, (low + high) / 2), 1e-14
        if (np.abs(z - previous) <= tolerance * (1 + np.abs(z))).all():
            break
    return z


@dataclass(frozen=True)
class Bracket:
    """A falling function is `at_low` > 0 at `low` and `at_high` <= 0 at `high`, if such a bracket was found."""

    low: Array
    high: Array
    at_low: Array
    at_high: Array


def falling_root(
    function: Callable[[Array], Array], guess: Array, *, reach: float, tolerance: float, narrow: float = _NARROW
) -> Bracket:
    """Brackets around the roots of a falling function, searched from `guess` - `reach` to `guess` + `reach`.

    Each ends not wider than `narrow`, or with a value within `tolerance` at one of its ends.
    """
    low, high = guess - reach, guess + reach
    return _narrow(function, _enclose(function, Bracket(low, high, function(low), function(high))), tolerance, narrow)


def _enclose(function: Callable[[Array], Array], start: Bracket) -> Bracket:
    """Moves each bracket that holds no root towards the root: its nearer end becomes the opposite end."""
    low, high, at_low, at_high = start.low, start.high, start.at_low, start.at_high
    for _ in range(_WALKS):
        to_left = at_low <= 0
        to_right = ~to_left & (at_high > 0)
        if not np.any(to_left | to_right):
            break
        step = 8 * (high - low)
        probe = np.clip(np.where(to_left, low - step, high + step), *_ENDS)
        value = function(probe)
        low, high, at_low, at_high = (
            np.where(to_left, probe, np.where(to_right, high, low)),
            np.where(to_left, low, np.where(to_right, probe, high)),
            np.where(to_left, value, np.where(to_right, at_high, at_low)),
            np.where(to_left, at_low, np.where(to_right, value, at_high)),
        )
    return Bracket(low, high, at_low, at_high)


def _narrow(function: Callable[[Array], Array], start: Bracket, tolerance: float, narrow: float) -> Bracket:
    """Regula falsi: the next probe is where the line through both ends crosses zero.

    On a curved function one end would never move, so an end that stays twice in a row counts with half its
    value (the Illinois rule). Every sixth probe is in the middle, which bounds the number of probes at a jump.
    """
    low, high, at_low, at_high = start.low, start.high, start.at_low, start.at_high
    weight_low, weight_high = at_low, at_high
    low_moved = np.zeros(low.shape, dtype=bool)
    for count in range(_PROBES):
        if np.all((high - low <= narrow) | (at_low <= tolerance) | (-at_high <= tolerance)):
            break
        share = 0.5 if count % 6 == 5 else weight_low / (weight_low - weight_high)
        probe = low + share * (high - low)
        value = function(probe)
        is_low = value > 0
        low, at_low = np.where(is_low, probe, low), np.where(is_low, value, at_low)
        high, at_high = np.where(is_low, high, probe), np.where(is_low, at_high, value)
        weight_low, weight_high = (
            np.where(is_low, value, np.where(low_moved | (count == 0), weight_low, weight_low / 2)),
            np.where(is_low, np.where(low_moved, weight_high / 2, weight_high), value),
        )
        low_moved = is_low
    return Bracket(low, high, at_low, at_high)
