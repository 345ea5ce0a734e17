"""Numbers from a caller are checked, and what is wrong with them is named."""

import numpy as np
import pytest

from shadowprice.arrays import checked, checked_scalar, common_length
from shadowprice.errors import MarketError


def test_valid_numbers_become_floats():
    assert checked("x", [1, 2]).dtype == np.float64
    assert checked("x", 3).ndim == 0
    assert checked("x", []).size == 0
    assert checked("x", [np.inf], finite=False).tolist() == [np.inf]


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ([1, -1], {}, "x must be finite and >= 0 at position 1"),
        ([1, np.nan], {"finite": False}, "x must be >= 0 at position 1"),
        ([1, np.inf], {}, "at position 1"),
        (0.0, {"open_low": True}, "x must be finite and > 0$"),
        ([0.5, 2.0], {"high": 1.0}, ">= 0 and <= 1 at position 1"),
        ("many", {}, "x must be numbers, got 'many'"),
        ([[1.0]], {}, "one number or one per query, got shape"),
        ([10**400], {}, "x must be numbers"),
    ],
)
def test_invalid_numbers(values, options, message):
    with pytest.raises(MarketError, match=message):
        checked("x", values, **options)


def test_a_scalar_is_one_number():
    assert checked_scalar("x", np.array(2)) == 2.0
    for wrong in ([1.0], [1.0, 2.0], np.inf):
        with pytest.raises(MarketError, match="x must be"):
            checked_scalar("x", wrong)


def test_a_common_length():
    assert common_length(a=np.array(1.0), b=np.array([1.0, 2.0])) == 2
    assert common_length(a=np.array(1.0)) is None
    with pytest.raises(MarketError, match="a has 1, b has 2"):
        common_length(a=np.array([1.0]), b=np.array([1.0, 2.0]))
