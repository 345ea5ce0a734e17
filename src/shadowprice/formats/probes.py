"""Probes of a recorded answer: the final answers that the model stated when it was asked for one at some ages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from shadowprice.errors import InputError
from shadowprice.types import Trace

__all__ = ["Probe", "latest_probe", "probes_of"]


class Probe(NamedTuple):
    """A final answer: whether it is correct, the tokens it took, and its text.

    `stated` is None where it did not end within its tokens, or where traces are shipped without texts.
    """

    correct: bool
    tokens: int
    stated: str | None = None


def probes_of(trace: Trace) -> dict[int, Probe]:
    """By age, ascending, from the field `landed` of a trace; empty if it has none, or another meaning there."""
    landed = trace.extra.get("landed")
    if not isinstance(landed, Mapping):
        return {}
    try:
        probes = {int(age): Probe(bool(probe[0]), int(probe[1]), *probe[2:3]) for age, probe in landed.items()}
    except (IndexError, TypeError, ValueError):
        raise InputError(
            f"trace {trace.id!r:.60}: landed is {landed!r:.60}", fix='write it as {"64": [true, 4, "12"]}, or remove it'
        ) from None
    return dict(sorted(probes.items()))


def latest_probe(probes: dict[int, Probe], age: float) -> Probe | None:
    """The probe at the nearest age that is not above `age`."""
    return next((probes[probed] for probed in reversed(probes) if probed <= age), None)
