"""Budgets per query, in tokens or in median lengths."""

import pytest

from shadowprice.errors import InputError
from shadowprice.lab.config import budgets_of, selected


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("256", 256), ("1k", 1000), ("256/query", 256), ("0.5x", 50), ("2x", 200), (".25x", 25), ("0.001x", 1)],
)
def test_are_read(text, tokens):
    assert budgets_of(100.0, [text]) == [tokens]


def test_come_sorted_and_once():
    assert budgets_of(100.0, ["2x", "50", "0.5x"]) == [50, 200]


@pytest.mark.parametrize("text", ["0", "0x", "-1", "-1x", "x", "1xx", "nan", "infx", "", "9" * 400 + "x", "1e9x", "2G"])
def test_invalid_budgets_are_refused(text):
    with pytest.raises(InputError, match="budget"):
        budgets_of(100.0, [text])


def test_are_the_papers_where_its_smallest_is_scarce():
    assert budgets_of(600.0) == [256, 512, 1024, 2048, 4096]
    assert budgets_of(400.0) == [100, 200, 400, 800, 1600]
    assert budgets_of(1.0)[0] == 1


def test_names_come_in_the_order_of_the_list():
    assert selected("stream", ["b", "a"], ["a", "b", "c"]) == ["a", "b"]
    assert selected("stream", [], ["a", "b"]) == ["a", "b"]
    with pytest.raises(InputError, match="unknown stream 'x'"):
        selected("stream", ["a", "x"], ["a"])
