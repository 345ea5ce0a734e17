"""The table and the figure."""

import re
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from shadowprice import Forecast
from shadowprice.errors import MissingExtra
from shadowprice.forecast.evaluation import evaluate
from shadowprice.forecast.report import as_figure, as_markdown
from shadowprice.types import Trace


@pytest.fixture(scope="module")
def measured():
    """Some truncated at the cap of 400, some of no dataset."""
    random = np.random.default_rng(0)
    median = random.lognormal(4, 1, 90)
    lengths = np.maximum(1, median * random.lognormal(0, 0.5, 90)).astype(int)
    traces = [
        Trace(str(i), f"q{i}", min(400, int(n)), bool(i % 3), bool(n > 400), dataset=("sums", "")[i % 2])
        for i, n in enumerate(lengths)
    ]
    forecast = Forecast(median, 0.5, 0.6)
    return evaluate(forecast, traces, resamples=50), forecast, traces


def test_the_table_has_a_row_for_everything_each_dataset_and_each_tier(measured):
    report, _, traces = measured
    rows = [line.split("|")[1:-1] for line in as_markdown(report).splitlines() if line.startswith("|")]
    assert {len(row) for row in rows} == {16}
    assert [row[0].strip() for row in rows[2:]] == [
        "all", "no dataset", "sums", "tier: easy", "tier: moderate", "tier: hard", "tier: very hard",
    ]  # fmt: skip
    assert int(rows[2][1]) == len(traces)
    assert int(rows[2][2]) == sum(t.truncated for t in traces) > 0
    assert rows[2][5].strip().startswith(f"{report.overall.spearman:.2f} (")


def test_what_is_unknown_is_a_dash():
    found = evaluate(Forecast([10, 10]), [Trace("a", "a", 5), Trace("b", "b", 7)])
    assert "nan" not in as_markdown(found).lower()
    assert "| - |" in as_markdown(found)


class TestFigure:
    def test_it_is_drawn_as_svg_and_png(self, measured):
        drawn = as_figure(*measured, title="a title")
        assert drawn["png"].startswith(b"\x89PNG")
        assert ET.fromstring(drawn["svg"]).tag.endswith("svg")

    def test_the_same_report_is_the_same_drawing(self, measured):
        assert as_figure(*measured) == as_figure(*measured)

    def test_every_trace_of_known_tier_is_a_point(self, measured):
        svg = as_figure(*measured)["svg"].decode()
        points = len(re.findall(r"<use ", re.sub(r"(?s)<g id=\"(matplotlib|xtick|ytick|legend).*?</g>", "", svg)))
        assert points >= 90

    def test_without_matplotlib_it_says_what_to_install(self, measured, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(MissingExtra, match=r"pip install 'shadowprice\[report\]'"):
            as_figure(*measured)

    def test_lengths_that_are_all_equal(self):
        traces = [Trace(str(i), f"q{i}", 7) for i in range(5)]
        forecast = Forecast(np.full(5, 9.0))
        assert as_figure(evaluate(forecast, traces), forecast, traces)["png"]
