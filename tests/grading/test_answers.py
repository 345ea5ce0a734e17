"""Exact and numeric answers."""

import pytest

from shadowprice.grading import Grade, grade
from shadowprice.grading.answers import boxes

EXACT = [
    ("Paris", "Paris", True),
    ("  paris.\n", "Paris", True),
    ("**Paris**", "Paris", True),
    ("`Paris`!", "Paris", True),
    ("The answer is Paris.", "Paris", True),
    ("The answer is: **Paris**.", "Paris", True),
    ("First I said the answer is Rome. No: the answer is Paris.", "Paris", True),
    ("The answer is Paris. No, the answer is Rome.", "Paris", False),
    ("Let me think.\nFinal answer: Paris", "Paris", True),
    ("**Answer:** Paris\nI am sure.", "Paris", True),
    ("#### 42", "42", True),
    (r"so \boxed{\text{Paris}}", "Paris", True),
    (r"\boxed{Rome}, or rather the answer: \boxed{Paris}", "Paris", True),
    ("the Netherlands", "Netherlands", True),
    ("ＰＡＲＩＳ", "paris", True),
    ("Straße", "STRASSE", True),
    ("New   York\tCity", "new york city", True),
    ("snake_case", "snake_case", True),
    ("_Paris_", "Paris", True),
    ("I think it may be Paris or Rome", "Paris", False),
    ("Parisian", "Paris", False),
    ("**", "Paris", None),
    ("", "Paris", None),
    ("A\n" * 600_000, "A", False),
]

NUMERIC = [
    ("42", "42", True),
    ("The total is 1,234,567.", "1234567", True),
    ("1 234 567 people", "1234567", True),
    ("It costs $1,234.50 in all.", "1234.5", True),
    ("-$5", "-5", True),
    ("€ 30", "30", True),
    ("−7", "-7", True),
    ("the range 3-5", "5", True),
    ("x = -5", "-5", True),
    ("10 - 4 = 6", "6", True),
    ("3/4", "0.75", True),
    (r"\boxed{\frac{3}{4}}", "0.75", True),
    (r"-\frac{1}{2}", "-0.5", True),
    ("2 1/2 cups", "2.5", True),
    ("1½", "1.5", True),
    ("25%", "0.25", True),
    ("25%", "25", True),
    (r"25\%", "25%", True),
    ("0.25", "25%", True),
    ("0.25", "25", False),
    ("12 kg", "12", True),
    ("12km/h", "12", True),
    ("1.5e3", "1500", True),
    ("1.5 × 10^3 m", "1500", True),
    (r"$1.5 \times 10^{-3}$", "0.0015", True),
    ("٤٢", "42", True),
    ("４２", "42", True),
    (r"15{,}000", "15000", True),
    ("#### 42\nNote: 3 steps.", "42", True),
    ("The answer is 42. It took 3 steps.", "3", True),  # the last number of the announced line
    ("5 apples and 7 pears", "5", False),
    (".5", "0.5", True),
    ("3.0000001", "3", True),
    ("3.01", "3", False),
    ("1/0", "1", None),
    ("no idea", "1", None),
    ("9" * 400, "1", False),
    ("1e999", "5", False),
    ("x" * 1_000_000 + " 42", "42", True),
    ("1," * 500_000 + "7", "7", True),
    ("1 " * 500_000 + "7", "7", True),
    ("-" * 1_000_000, "7", None),
    ("7/" * 500_000, "7", True),
]


def ids(table):
    return [f"{row[0][:30]!r} for {row[1]!r}" for row in table]


def agrees(found: Grade, wanted: bool | None) -> bool:
    """None in a table stands for: no answer was found."""
    if wanted is None:
        return found.correct is False and found.reason == "no_answer"
    return found.correct is wanted and found.reason == ("correct" if wanted else "wrong")


@pytest.mark.parametrize(("answer", "gold", "wanted"), EXACT, ids=ids(EXACT))
def test_exact(answer, gold, wanted):
    found = grade("exact", answer, gold)
    assert agrees(found, wanted), found


@pytest.mark.parametrize(("answer", "gold", "wanted"), NUMERIC, ids=ids(NUMERIC))
def test_numeric(answer, gold, wanted):
    found = grade("numeric", answer, gold)
    assert agrees(found, wanted), found


@pytest.mark.parametrize("grader", ["exact", "words"])
def test_an_answer_of_one_endless_line_takes_no_longer_than_reading_it(grader):
    """With the square of its length this would take minutes, while nothing else of a run goes on."""
    assert grade(grader, f"The answer is a{'_' * 200_000}b", "a b").correct is False


def test_the_tolerance_is_an_option():
    assert grade("numeric", "3.1", "3", relative=0.1).correct
    assert not grade("numeric", "3.1", "3", relative=0.01).correct


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"\boxed{1}", "1"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1}, hence \boxed{2}", "2"),
        (r"$\boxed{1}$ and $\boxed{2}$", "1, 2"),
        (r"\boxed{\boxed{3}}", "{3}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{1} and then \boxed{2", "1"),
        (r"}}} \boxed{4}", "4"),
        (r"\boxed{", None),
        ("none", None),
        (r"\boxed{" * 200_000, None),
        ("{" * 300_000 + r"\boxed{5}", "5"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_the_last_box_counts(text, inside):
    assert boxes(text) == inside
