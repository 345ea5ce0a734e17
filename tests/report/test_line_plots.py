"""Plots with lines."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from shadowprice.report.figures import drawn
from shadowprice.report.line_plots import token_axis
from shadowprice.report.plot import combine
from shadowprice.report.style import drawing


def test_the_phase_transition_shows_who_is_declined():
    row = {"table": "phase_transition", "stream": "s", "accounting": "reserved"}
    rows = [{**row, "policy": "clear", "budget": b, "solved": b / 10, "abandoned": 90 - b / 10} for b in (100, 200)]
    ((plot,),) = drawn(rows).values()
    with drawing():
        (axes,) = combine([plot], "title").axes
        lines = {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}
    assert lines == {"correct, CLEAR": [10, 20], "declined by CLEAR": [80, 70]}


def line_of(values):
    axes = Figure().subplots()
    token_axis(axes.xaxis, values, "tokens")
    return axes


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([256, 512, 1024], ["256", "512", "1,024"]),
        ([512, 256, 512, None, 0, -4], ["256", "512"]),
    ],
)
def test_a_few_budgets_are_the_ticks_of_their_axis(values, ticks):
    axes = line_of(values)
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "tokens"
    assert [label.get_text() for label in axes.get_xticklabels()] == ticks


@pytest.mark.parametrize("values", [[], [256], [None, 256, 256]])
def test_one_budget_needs_no_scale(values):
    assert line_of(values).get_xscale() == "linear"
