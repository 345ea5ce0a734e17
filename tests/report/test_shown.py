"""A page of a large run stays usable: which requests are on it, and how much of their texts."""

from __future__ import annotations

import pytest

from shadowprice.formats.asked import Asked
from shadowprice.report.shown import level, shown


def rows(**outcomes):
    return [{"id": f"{name}{i}", "outcome": name} for name, count in outcomes.items() for i in range(count)]


def test_rare_outcomes_are_shown_in_full():
    found = shown(rows(finished=900, declined=90, failed=10), {}, lambda name: "", most_rows=100)
    assert found.counts == [("finished", 45, 900), ("declined", 45, 90), ("failed", 10, 10)]
    assert [row["id"] for row in found.rows[:2]] == ["finished0", "finished1"]


def test_the_longest_texts_are_cut_first():
    texts = {"finished0": "x" * 10, "finished1": "y" * 1000}
    found = shown(rows(finished=2), {"finished0": Asked("q" * 20)}, texts.__getitem__, most_text=100)
    assert [row["answer"] for row in found.rows] == [("x" * 10, 0), ("y" * 70, 930)]
    assert found.rows[0]["question"] == ("q" * 20, 0)
    assert found.partly == 1


def test_nothing_is_cut_where_there_is_room():
    found = shown(rows(finished=3), {}, lambda name: "z" * 50)
    assert (found.counts, found.partly, len(found.rows)) == ([], 0, 3)


@pytest.mark.parametrize(("amounts", "total", "most"), [([], 5, 0), ([3, 3], 6, 3), ([3, 9], 8, 5), ([5, 5], 1, 0)])
def test_the_level_is_the_largest_that_fits(amounts, total, most):
    assert level(amounts, total) == most
