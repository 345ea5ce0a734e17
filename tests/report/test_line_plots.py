"""Plots with lines."""

from __future__ import annotations

from shadowprice.report.figures import drawn
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
