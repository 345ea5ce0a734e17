"""Final answers are found and compared as the graders do it; what has none does not vote."""

import importlib.util

import pytest

from shadowprice.grading import agreement
from shadowprice.grading.agreement import Ballots, agree, final_answer


@pytest.mark.parametrize(
    ("text", "final"),
    [
        (r"So \boxed{12}, or no: \boxed{13}.", "13"),
        ("Adding up.\nThe answer is **72**.", "72"),
        ("B", "B"),
        ("Paris.", "Paris"),
        ("It is long.\nAnd it says nothing final.\nOnly words.", None),
        ("word " * 100, None),
        (r"\boxed{}", None),
        ("  \n ", None),
    ],
)
def test_the_final_answer_is_what_is_announced_or_a_short_line(text, final):
    assert final_answer(text) == final


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("72", "72.", True),
        ("1,234", "$1234$", True),
        ("100000", "100001", False),
        ("Paris", "**paris**", True),
        ("Paris", "Rome", False),
        ("Ann, Bob and Carl", "Ann, Bob, Carl", True),
        ("Ann, Bob and Carl", "Bob", False),
        ("Bob", "Ann, Bob and Carl", False),
        ("Yes, since 7 is prime", "yes", True),
        ("Yes", "No, since 7 is prime", False),
        ("B. Rome", "(B)", True),
        ("12 dollars", "12 or 13", False),
        ("(B)", "B", True),
        ("A", "B", False),
        ("12 dollars", "$12", True),
    ],
)
def test_answers_agree_as_graders_see_it(one, other, same):
    assert agree(one, other) is same


@pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="needs math-verify")
def test_formulas_agree_by_value():
    assert agree(r"\frac{1}{2}", "0.5")
    assert agree("x^2+2x", "2x + x^2")
    assert not agree(r"\frac{1}{2}", r"\frac{1}{3}")


def test_without_math_verify_formulas_agree_as_written(monkeypatch):
    monkeypatch.setattr(agreement.importlib.util, "find_spec", lambda name: None)
    assert agree(r"\frac{1}{2}", r"$\frac{1}{2}$")
    assert not agree(r"\frac{1}{2}", "0.5")
    assert agree("1,234", "1234")


def test_equal_answers_get_the_form_of_the_first_and_requests_are_apart():
    ballots = Ballots()
    assert ballots.vote("q", r"\boxed{1,234}") == "1,234"
    assert ballots.vote("q", "The answer is 1234.") == "1,234"
    assert ballots.vote("q", r"\boxed{5}") == "5"
    assert ballots.vote("other", "1234") == "1234"
    assert ballots.vote("q", "No idea.\nReally.") is None
