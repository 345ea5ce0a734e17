"""When a run corrects its forecasts."""

import numpy as np

from shadowprice.engine.lessons import FIRST, Lessons


def due(lessons, ended, tokens, n=1000):
    age = np.zeros(n, dtype=np.int64)
    age[0] = tokens
    return lessons.due(age, np.arange(n) < ended)


def test_the_first_lesson_comes_with_the_first_few_answers():
    lessons = Lessons()
    assert not due(lessons, FIRST - 1, 10**6)
    assert due(lessons, FIRST, 100)
    assert lessons.taken == 1


def test_the_next_comes_with_four_times_as_many_answers_or_with_twice_the_tokens():
    lessons = Lessons()
    due(lessons, FIRST, 100)
    assert not due(lessons, 4 * FIRST - 1, 199)
    assert due(lessons, 4 * FIRST - 1, 200)  # and the next at 400 tokens
    assert not due(lessons, 4 * FIRST - 1, 399)
    assert due(lessons, 4 * FIRST, 399)
    assert lessons.ended == 16 * FIRST


def test_many_answers_at_once_are_one_lesson():
    lessons = Lessons()
    assert due(lessons, 100 * FIRST, 10**6)
    assert not due(lessons, 100 * FIRST, 10**6)
