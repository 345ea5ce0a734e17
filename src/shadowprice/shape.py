r"""The distribution of the lengths of a batch, as tables: for models whose answers follow no simple law.

The lengths of real answers may have two humps; some answers get stuck in loops; some models become less and less likely
to end the longer they generate. A shape has a cumulative hazard for correct answers and one for wrong ones, at knots of

    z = (ln t - ln solved_tokens) / solved_spread

Every request uses it with its own median, spread and chance of a correct answer:

    Sc(z) = exp(-Hc(z))               correct answers longer than t
    Sw(z) = exp(-Hw(z))               wrong answers longer than t
    S(t) = solve Sc + (1 - solve) Sw  any answer: competing risks

H is linear between knots and 0 below the first. Above the last it continues with its last slope: a power law.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array

FIRST, STEP, COUNT = -5.0, 0.25, 61
KNOTS: Array = np.linspace(FIRST, FIRST + STEP * (COUNT - 1), COUNT)  # up to z = 10
_ROUNDS, _EXACT = 60, 1e-14  # of Newton's method, at most, and where it ends
_FALLS = 1e-4  # the least hazard per step beyond the knots: an answer may always end


@dataclass(frozen=True)
class Shape:
    """Cumulative hazards at `KNOTS`: from 0, never falling."""

    correct: tuple[float, ...]
    wrong: tuple[float, ...]

    def __post_init__(self) -> None:
        for hazards in (self.correct, self.wrong):
            steps = np.diff(hazards, prepend=0.0)
            if len(hazards) != COUNT or not np.all(np.isfinite(steps)) or np.any(steps < 0) or hazards[0] != 0:
                raise ValueError(f"a shape has {COUNT} cumulative hazards, from 0 on and never falling")

    def survival(self, z: Array) -> tuple[Array, Array]:
        """Sc and Sw."""
        knot, part = places(z)
        return tuple(np.exp(-(start[knot] + part * step[knot])) for start, step in self.tables)  # type: ignore[return-value]

    def longer(self, z: Array, solve: Array) -> Array:
        """S: the chance of an answer longer than z."""
        correct, wrong = self.survival(z)
        return solve * correct + (1 - solve) * wrong

    def quantile(self, p: Array, solve: Array, most: Array) -> Array:
        """The z, at most `most`, that a share p of the answers does not exceed.

        The last knot that more answers exceed, and from there Newton's method for ln S(z) = ln(1 - p): ln S is convex
        between knots, so it never passes the root.
        """
        p, solve, most = np.broadcast_arrays(p, solve, most)
        above = np.log(np.maximum(1 - p, 1e-300))
        (correct, correct_step), (wrong, wrong_step) = self.tables
        at_knots = solve[..., None] * np.exp(-correct) + (1 - solve)[..., None] * np.exp(-wrong)
        knot = np.maximum(np.count_nonzero(at_knots > (1 - p)[..., None], axis=-1) - 1, 0)
        correct, correct_step, wrong, wrong_step = (table[knot] for table in (correct, correct_step, wrong, wrong_step))
        part = np.zeros(knot.shape)
        for _ in range(_ROUNDS):
            those = solve * np.exp(-(correct + part * correct_step))
            others = (1 - solve) * np.exp(-(wrong + part * wrong_step))
            falls = np.maximum(those * correct_step + others * wrong_step, 1e-300)
            more = (np.log(those + others) - above) * (those + others) / falls
            part += more
            if np.all(more <= _EXACT * (1 + part)):
                break
        found: Array = np.clip(FIRST + STEP * (knot + part), FIRST, np.maximum(FIRST, most))
        return found

    @cached_property
    def tables(self) -> list[tuple[Array, Array]]:
        """The hazard at each knot, and its growth until the next."""
        tables = []
        for hazards in (self.correct, self.wrong):
            steps = np.diff(hazards)
            tables.append((np.array(hazards), np.append(steps, max(_FALLS, steps[-1]))))
        return tables

    def to_dict(self) -> dict[str, Any]:
        return {"correct": list(self.correct), "wrong": list(self.wrong)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """A shape from what `to_dict` returns; ValueError for anything else."""
        try:
            return cls(tuple(map(float, record["correct"])), tuple(map(float, record["wrong"])))
        except (KeyError, TypeError):
            raise ValueError("not a shape") from None


def places(z: Array) -> tuple[NDArray[np.int32], Array]:
    """The knot below each z, and how many steps z is beyond it: less than one, except beyond the last knot."""
    place = np.clip((z - FIRST) / STEP, 0.0, 1e6)
    knot = np.minimum(place.astype(np.int32), COUNT - 1)
    place -= knot
    return knot, place


def of_survival(correct: Array, wrong: Array) -> Shape:
    """The shape with these survival functions at `KNOTS`."""
    hazards: list[Sequence[float]] = []
    for survival in (correct, wrong):
        hazard = -np.log(np.clip(survival, 1e-300, 1.0))
        hazards.append(np.maximum.accumulate(np.concatenate([[0.0], hazard[1:]])).tolist())
    return Shape(tuple(hazards[0]), tuple(hazards[1]))
