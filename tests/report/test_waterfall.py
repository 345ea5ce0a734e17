"""Where a budget went: the parts of a waterfall add up to its total."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from shadowprice.report.waterfall import Step, waterfall, waterfall_steps


def test_the_tokens_of_a_waterfall_add_up_to_the_budget(results):
    rows = results.table("waterfall")
    assert {row["accounting"] for row in rows} == {"reserved", "reclaimed", "metered"}
    for row in rows:
        total, *parts = waterfall_steps(row)
        assert sum(step.tokens for step in parts) == pytest.approx(total.tokens, abs=3)
        assert parts[-1].tokens == row["correct"] > 0


@settings(max_examples=20, deadline=None)
@given(*[st.integers(0, 1000)] * 5)
def test_every_bar_starts_where_the_one_before_it_ended(correct, wrong, truncated, idle, never):
    total = correct + wrong + truncated + idle + never
    row = {"tokens": total, "correct": correct, "wrong": wrong, "truncated": truncated, "unused": idle}
    steps = waterfall_steps(row)
    assert [step.tokens for step in steps] == [total, never, idle, truncated, wrong, correct]
    axes = Figure().subplots()
    waterfall(steps, axes)
    ends = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]
    assert ends[0] == (0, total)
    left = total
    for start, end in ends[1:]:
        assert end == pytest.approx(left)
        left = start
    assert left == pytest.approx(0)
    assert [label.get_text() for label in axes.get_yticklabels()] == [step.label for step in steps]


def test_more_tokens_idle_than_unused_are_not_shown_twice():
    """Rounded means of many seeds need not agree to the token."""
    steps = waterfall_steps({"tokens": 100, "correct": 50, "wrong": 30, "truncated": 10, "unused": 15})
    assert [step.tokens for step in steps] == [100, 0, 10, 10, 30, 50]


def test_amounts_are_shown_in_their_unit():
    axes = Figure().subplots()
    waterfall([Step("budget", 5, "total"), Step("lost", 2)], axes, show=lambda value: f"${value:g}", unit="dollars")
    assert [text.get_text() for text in axes.texts] == ["$5", "$2"]
    assert axes.get_xlabel() == "dollars"
