"""Plots of single answers."""

from __future__ import annotations

from shadowprice.report.figures import drawn
from shadowprice.report.plot import page_figure


def test_rollouts_show_their_fitted_curve():
    fit = {"table": "rollouts", "id": "q", "threshold": 10.0, "alpha": 1.0, "beta": 0.1}
    rows = [{**fit, "bin_low": 5.0 * i, "bin_high": 5.0 * i + 5, "correct": i % 3, "total": 4} for i in range(8)]
    legend = [entry["label"] for entry in page_figure(drawn(rows)["rollouts"], "rollouts", "title").legend]
    assert sorted(legend) == ["answers", "correct answers", "fitted latent utility (height is free)"]
