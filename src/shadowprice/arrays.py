"""Checks of numbers that a caller gives, as float64 arrays."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shadowprice.errors import MarketError

Array: TypeAlias = NDArray[np.float64]


def checked(
    name: str,
    values: ArrayLike,
    *,
    low: float = 0.0,
    high: float = np.inf,
    open_low: bool = False,
    finite: bool = True,
) -> Array:
    """`values` as a float64 scalar or vector within [low, high], or within (low, high] if `open_low`.

    A scalar stays a scalar: it stands for every request and costs nothing to store.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise MarketError(f"{name} must be numbers, got {values!r:.80}") from error
    if array.ndim > 1:
        raise MarketError(f"{name} must be one number or one per query, got shape {array.shape}")
    if array.size == 0:
        return array
    least, most = array.min(), array.max()  # NaN if any is NaN
    above = least > low if open_low else least >= low
    if not (above and most <= high and (not finite or most < np.inf)):
        bound = f"{'>' if open_low else '>='} {low:g}" + (f" and <= {high:g}" if high < np.inf else "")
        where = "" if array.ndim == 0 else f" at position {_first_invalid(array, low, high, open_low, finite)}"
        raise MarketError(f"{name} must be {'finite and ' if finite else ''}{bound}{where}")
    return array


def checked_scalar(name: str, value: ArrayLike, *, low: float = 0.0, high: float = np.inf) -> float:
    """`value` as one finite number within [low, high]."""
    array = checked(name, value, low=low, high=high)
    if array.ndim:
        raise MarketError(f"{name} must be one number, got {array.size}")
    return float(array)


def _first_invalid(array: Array, low: float, high: float, open_low: bool, finite: bool) -> int:
    valid = ((array > low) if open_low else (array >= low)) & (array <= high)
    if finite:
        valid &= np.isfinite(array)
    return int(np.argmin(valid))


def common_length(**arrays: Array) -> int | None:
    """The length the vectors share; None if all are scalars. Different lengths are an error."""
    lengths = {name: array.size for name, array in arrays.items() if array.ndim == 1}
    if len(set(lengths.values())) > 1:
        sizes = ", ".join(f"{name} has {size}" for name, size in lengths.items())
        raise MarketError(f"one value per query, or one for all, is needed: {sizes}")
    return next(iter(lengths.values()), None)
