"""Answers in sentences: words and choices."""

import pytest

from shadowprice.grading import Grade, grade

WORDS = [
    ("Paris", "Paris", True),
    ("The capital of France is **Paris**.", "Paris", True),
    ("Paris is the capital of France.", "paris", True),
    ("The answer is Paris, the capital.", "Paris", True),
    ("It may be Rome.\nFinal answer: Paris", "Paris", True),
    ("Paris is a city.\nFinal answer: Rome", "Paris", False),
    ("It is London.", "Paris", False),
    ("It is not Paris.", "Paris", False),
    ("It isn't Paris.", "Paris", False),
    ("It may be Paris or Rome.", "Paris", False),
    ("It may be Rome, or Paris.", "Paris", False),
    ("A Parisian", "Paris", False),
    ("The largest animal is the blue whale.", "The blue whale", True),
    ("It was written by Shakespeare.", "William Shakespeare", False),
    ("The formula is H2O.", "H2O", True),
    ("We meet at 10:30.", "10:30", True),
    (r"so it is \boxed{\text{Evelyn}}", r"\text{Evelyn}", True),
    ("Yes, it is. No doubt about it.", "yes", True),
    ("No. Yes would be wrong.", "yes", False),
    ("Let me see. One could say no, but the answer is yes.", "Yes", True),
    ("Perhaps true at first sight, but the statement is false.", "False", True),
    ("Red, green, and blue.", "red, green, blue", True),
    ("It was J. K. Rowling.", "J.K. Rowling", True),
    ("In the U.S.A.", "USA", True),
    ("It is not Paris but Paris, Texas.", "Paris", True),
    ("C++, of course.", "C++", True),
    ("C, of course.", "C++", False),
    ("北京是中国的首都。", "北京", True),
    ("Who knows.", "yes", None),
    ("**", "Paris", None),
]

CHOICES = [
    ("B", "B", True),
    ("(B)", "B", True),
    ("**B**", "B", True),
    ("B) 4", "B", True),
    ("B. Rome", "(B)", True),
    ("b", "B", None),
    ("The answer is b.", "B", True),
    ("The answer is a bit unclear.", "A", None),
    ("The answer is (B) 4.", "B.", True),
    ("Answer: **B. Mitochondria**", "B", True),
    (r"\boxed{B}", "B", True),
    (r"\boxed{\text{(B)}}", r"\text{(B)}", True),
    ("A is wrong, so the correct option is B.", "B", True),
    ("A good question. The answer is B.", "A", False),
    ("I think that it must be (C), not (B), so I take C.", "B", False),
    ("Of the four, only **D** fits.", "D", True),
    ("I'm not sure: B I would say", "B", True),
    ("A: it has the right sign.", "A", True),
    ("B is correct because A and C are wrong.", "B", True),
    ("A. no\nB. no\nC. yes\nSo C.", "C", True),
    ("A nice question.", "A", None),
    ("none of them", "B", None),
]


def agrees(found: Grade, wanted: bool | None) -> bool:
    """None in a table stands for: no answer was found."""
    if wanted is None:
        return found.correct is False and found.reason == "no_answer"
    return found.correct is wanted and found.reason == ("correct" if wanted else "wrong")


@pytest.mark.parametrize(("answer", "gold", "wanted"), WORDS)
def test_words(answer, gold, wanted):
    assert agrees(grade("words", answer, gold), wanted), grade("words", answer, gold)


@pytest.mark.parametrize(("answer", "gold", "wanted"), CHOICES)
def test_choices(answer, gold, wanted):
    assert agrees(grade("choice", answer, gold), wanted), grade("choice", answer, gold)


def test_long_answers_take_no_long_time():
    for kind in ("words", "choice"):
        assert grade(kind, "A B, " * 400_000, "D").correct is False


@pytest.mark.parametrize(("kind", "gold"), [("words", "**"), ("choice", "Paris"), ("choice", "7")])
def test_an_invalid_gold_grades_nothing(kind, gold):
    assert grade(kind, "B", gold).correct is None
