import pytest

from shadowprice import InputError, parse_budget


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("200000", 200_000),
        ("200k", 200_000),
        ("200K", 200_000),
        ("1.5M", 1_500_000),
        ("2G", 2_000_000_000),
        ("256/query", 2560),
        ("1.5k / query", 15_000),
        ("0.25/query", 2),
        ("1,000,000", 1_000_000),
        ("1_000", 1000),
        (" 7 ", 7),
        ("0", 0),
        (123, 123),
        (123.9, 123),
    ],
)
def test_what_a_budget_may_look_like(text, tokens):
    assert parse_budget(text, queries=10) == tokens


def test_no_float_rounds_a_budget_up():
    assert parse_budget("1.1k", 1) == 1100
    assert parse_budget("4.35M", 1) == 4_350_000


@pytest.mark.parametrize(
    "text", ["", "abc", "-5", "1e6", "5 apples", "k", "1..5k", "10/hour", "1,00", "nan", "99999999G"]
)
def test_what_it_may_not(text):
    with pytest.raises(InputError, match="budget"):
        parse_budget(text, 10)
