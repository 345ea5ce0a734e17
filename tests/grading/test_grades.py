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


@pytest.mark.parametrize("kind", ["exact", "numeric", "math", "words", "choice"])
def test_no_number_is_too_long_for_a_grade(kind):
    nines = "9" * 5000  # more digits than Python converts
    for answer in (rf"\boxed{{1e{nines}}}", nines, f"1/{nines}"):
        assert grade(kind, answer, "B" if kind == "choice" else "5").correct is False


def test_an_answer_that_a_grader_fails_at_is_ungraded(monkeypatch):
    def fails(answer, gold):
        raise OverflowError("too large")

    monkeypatch.setitem(GRADERS, "numeric", fails)
    assert grade("numeric", "5", "5") == Grade(None, "error", "OverflowError: too large")
    with pytest.raises(TypeError):
        grade("exact", "5", "5", colour="red")


def test_an_unknown_grader_is_an_error_that_lists_the_known():
    with pytest.raises(InputError, match="known are math, exact, numeric, code, words, choice"):
        grade("taste", "sweet", "sour")


def test_the_names_in_question_files_are_the_graders():
    assert tuple(GRADERS) == questions.GRADERS


def test_a_grade_of_an_outcome():
    assert Grade.of(True, "read as 4") == Grade(True, "correct", "read as 4")
    assert Grade.of(False) == Grade(False, "wrong", "")
