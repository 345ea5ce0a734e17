"""The entry point, and grades."""

import pytest

from shadowprice.errors import InputError
from shadowprice.formats import questions
from shadowprice.grading import GRADERS, Grade, grade


@pytest.mark.parametrize("kind", GRADERS)
def test_a_truncated_answer_is_not_correct(kind):
    assert grade(kind, "42", "42", truncated=True) == Grade(False, "truncated")


@pytest.mark.parametrize("kind", ["exact", "numeric", "math", "words", "choice"])
def test_an_invalid_gold_grades_nothing(kind):
    found = grade(kind, "42", "  ")
    assert (found.correct, found.reason) == (None, "error")


def test_an_unknown_grader_is_an_error_that_lists_the_known():
    with pytest.raises(InputError, match="known are math, exact, numeric, code, words, choice"):
        grade("taste", "sweet", "sour")


def test_the_names_in_question_files_are_the_graders():
    assert tuple(GRADERS) == questions.GRADERS


def test_a_grade_of_an_outcome():
    assert Grade.of(True, "read as 4") == Grade(True, "correct", "read as 4")
    assert Grade.of(False) == Grade(False, "wrong", "")
