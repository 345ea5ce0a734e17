"""A page of a large run stays usable: which requests are on it, and how much of their texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    assert found.texts_cut == 1


def test_nothing_is_cut_where_there_is_room():
    found = shown(rows(finished=3), {}, lambda name: "z" * 50)
    assert (found.counts, found.texts_cut, len(found.rows)) == ([], 0, 3)


@pytest.mark.parametrize(("amounts", "total", "most"), [([], 5, 0), ([3, 3], 6, 3), ([3, 9], 8, 5), ([5, 5], 1, 0)])
def test_the_level_is_the_largest_that_fits(amounts, total, most):
    assert level(amounts, total) == most


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(0, 500))
def test_one_more_would_not_fit(amounts, total):
    def cut(limit):
        return sum(min(amount, limit) for amount in amounts)

    limit = level(amounts, total)
    assert cut(limit) <= total
    assert cut(limit + 1) > total or limit == max(amounts, default=0)


@given(
    st.lists(st.tuples(st.sampled_from(["finished", "declined", "failed"]), st.text(max_size=30)), max_size=30),
    st.integers(0, 20),
    st.integers(0, 200),
)
def test_limits_are_kept_order_too_and_what_is_left_out_is_counted(given_rows, most_rows, most_text):
    rows = [{"id": f"q{i}", "outcome": outcome} for i, (outcome, _) in enumerate(given_rows)]
    texts = {f"q{i}": text for i, (_, text) in enumerate(given_rows)}
    found = shown(rows, {}, texts.__getitem__, most_rows=most_rows, most_text=most_text)
    ids = [row["id"] for row in found.rows]
    assert len(ids) <= most_rows
    assert ids == [row["id"] for row in rows if row["id"] in ids]
    assert sum(len(row["answer"][0]) for row in found.rows) <= most_text
    for row in found.rows:
        text, rest = row["answer"]
        assert texts[row["id"]].startswith(text)
        assert len(text) + rest == len(texts[row["id"]])
    assert found.texts_cut == sum(row["answer"][1] > 0 for row in found.rows)
    if found.counts:
        assert sum(part for _, part, _ in found.counts) == len(ids)
        assert sum(whole for _, _, whole in found.counts) == len(rows)
    else:
        assert len(ids) == len(rows)
