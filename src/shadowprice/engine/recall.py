"""Pure functions that are not computed twice.

With more budget, a simulated run by index begins like one with less: up to where the smaller budget ends, both learn
the same from the same answers, and have the same chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

T = TypeVar("T")


class Call(Protocol):
    """Calls a function, or knows what it would return.

    `given` are further arguments, which are not compared: the others say what they are.
    """

    def __call__(self, function: Callable[..., T], *arguments: Any, given: Sequence[Any] = ()) -> T: ...


def call(function: Callable[..., T], *arguments: Any, given: Sequence[Any] = ()) -> T:
    """Computes it, and remembers nothing."""
    return function(*arguments, *given)


class Recall:
    """Calls functions, and returns what they returned before if they were called with the same arguments.

    Arrays are the same if their numbers are, other objects as they say themselves. What is returned is shared.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def __call__(self, function: Callable[..., T], *arguments: Any, given: Sequence[Any] = ()) -> T:
        key = (function, *(each.tobytes() if isinstance(each, np.ndarray) else each for each in arguments))
        if key not in self._known:
            self._known[key] = function(*arguments, *given)
        found: T = self._known[key]
        return found
