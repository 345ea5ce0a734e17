"""The report on a forecaster."""

import re
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from shadowprice import Forecast
from shadowprice.errors import MissingExtra
from shadowprice.forecast.evaluation import evaluate
from shadowprice.forecast.report import as_figure, as_markdown, describe_correctness, describe_length
from shadowprice.types import Trace


@pytest.fixture(scope="module")
def measured():
    """Some truncated at the cap of 400, some without a dataset."""
    random = np.random.default_rng(0)
    median = random.lognormal(4, 1, 90)
    lengths = np.maximum(1, median * random.lognormal(0, 0.5, 90)).astype(int)
    traces = [
        Trace(str(i), f"q{i}", min(400, int(n)), bool(i % 3), bool(n > 400), dataset=("sums", "")[i % 2])
        for i, n in enumerate(lengths)
    ]
    forecast = Forecast(median, 0.5, 0.6)
    return evaluate(forecast, traces, resamples=50), forecast, traces


def test_the_table_has_a_row_for_all_traces_each_dataset_and_each_tier(measured):
    report, _, traces = measured
    rows = [line.split("|")[1:-1] for line in as_markdown(report).splitlines() if line.startswith("|")]
    assert {len(row) for row in rows} == {16}
    assert [row[0].strip() for row in rows[2:]] == [
        "all", "no dataset", "sums", "tier: easy", "tier: moderate", "tier: hard", "tier: very hard",
    ]  # fmt: skip
    assert int(rows[2][1]) == len(traces)
    assert int(rows[2][2]) == sum(t.truncated for t in traces) > 0
    assert rows[2][5].strip().startswith(f"{report.overall.spearman:.2f} (")


def test_unknown_values_are_dashes():
    found = evaluate(Forecast([10, 10]), [Trace("a", "a", 5), Trace("b", "b", 7)])
    assert "nan" not in as_markdown(found).lower()
    assert "| - |" in as_markdown(found)


class TestOneLine:
    def test_length(self, measured):
        scores = measured[0].overall
        low, high = scores.spearman_range
        assert describe_length(scores) == (
            f"Spearman {scores.spearman:.2f} ({low:.2f} to {high:.2f}), Kendall {scores.kendall:.2f}, "
            f"error of the log {scores.log_error:.2f}"
        )

    def test_correctness(self, measured):
        scores = measured[0].overall
        assert f"Brier {scores.brier:.2f}, calibration error {scores.calibration_error:.2f}" in describe_correctness(
            scores
        )

    def test_without_grades(self):
        found = evaluate(Forecast([10, 10]), [Trace("a", "a", 5), Trace("b", "b", 7)])
        assert describe_correctness(found.overall) == "no trace is graded"


class TestFigure:
    def test_svg_and_png(self, measured):
        images = as_figure(*measured, title="a title")
        assert images["png"].startswith(b"\x89PNG")
        assert ET.fromstring(images["svg"]).tag.endswith("svg")

    def test_the_same_report_gives_the_same_figure(self, measured):
        assert as_figure(*measured) == as_figure(*measured)

    def test_every_trace_of_known_tier_is_a_point(self, measured):
        svg = as_figure(*measured)["svg"].decode()
        points = len(re.findall(r"<use ", re.sub(r"(?s)<g id=\"(matplotlib|xtick|ytick|legend).*?</g>", "", svg)))
        assert points >= 90

    def test_without_matplotlib_it_says_what_to_install(self, measured, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(MissingExtra, match=r"pip install 'shadowprice\[plots\]'"):
            as_figure(*measured)

    def test_all_lengths_equal(self):
        traces = [Trace(str(i), f"q{i}", 7) for i in range(5)]
        forecast = Forecast(np.full(5, 9.0))
        assert as_figure(evaluate(forecast, traces), forecast, traces)["png"]
