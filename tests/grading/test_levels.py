"""Which sandbox programs are graded in: the best that works here, and none only where that is allowed."""

import pytest

from shadowprice.errors import InputError
from shadowprice.grading import check_code_grading, grade, sandbox
from shadowprice.grading.levels import LEVELS, problem_of

from .test_programs import GOOD, LIMITS, TESTS, interpreter


def test_the_sandbox_is_the_best_that_works():
    working = [level for level in LEVELS[:2] if not problem_of(level)]
    assert sandbox() == (working or ["none"])[0]
    for level in LEVELS[:2]:
        found = grade("code", GOOD, TESTS, limits=LIMITS, level=level)
        assert found.correct is (True if level in working else None), found


def test_without_a_sandbox_programs_are_refused(without_a_sandbox):
    assert sandbox() == "none"
    for attempt in (check_code_grading, lambda: grade("code", GOOD, TESTS)):
        with pytest.raises(InputError, match=r"Operation not permitted.*install bubblewrap, or give --unsafe-code"):
            attempt()


def test_without_a_sandbox_programs_run_where_that_is_allowed(without_a_sandbox):
    python = interpreter("process")
    if problem := problem_of("process", python):
        pytest.skip(problem)
    assert sandbox(True, python) == check_code_grading(True, python) == "process"
    assert grade("code", GOOD, TESTS, python=python, unsafe=True).correct


def test_the_level_without_a_sandbox_must_be_allowed():
    with pytest.raises(InputError, match="not a sandbox"):
        grade("code", GOOD, TESTS, level="process")


@pytest.mark.skipif(sandbox() == "none", reason="no sandbox here")
def test_a_sandbox_is_used_even_where_none_is_demanded():
    assert sandbox(unsafe=True) == sandbox()
