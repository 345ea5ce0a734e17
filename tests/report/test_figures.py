"""Figures: one for every table that can be drawn, readable, the same every time."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from shadowprice.report.figures import FIGURES, drawn, write_figures
from shadowprice.report.plot import combine
from shadowprice.report.style import drawing

from .helpers import HOSTILE


@pytest.fixture(scope="module")
def figures(results):
    """Every figure as Matplotlib has it."""
    with drawing():
        yield {name: combine(plots, FIGURES[name].title) for name, plots in drawn(results.rows).items()}


def test_every_table_that_can_be_drawn_is_drawn(results):
    # These traces are of one model, with one answer to each question, and were not probed.
    missing = {"landing", "landing_ages", "rollouts", "second_predictor"}
    assert set(FIGURES) - set(drawn(results.rows)) == missing


def test_landings_are_drawn_with_and_without():
    cell = {"table": "landing", "stream": "balanced", "accounting": "metered", "policy": "index"}
    rows = [
        {**cell, "landing": lands, "budget": budget, "solved": 20.0 + budget / 50 + 5 * lands}
        for lands in (False, True)
        for budget in (100, 200)
    ]
    rows += [
        {"table": "landing_ages", "tokens": age, "stopped": stopped, "solved": age / 50}
        for stopped in ("cut", "landed")
        for age in (0, 64, 256)
    ]
    assert set(drawn(rows)) == {"landing", "landing_ages"}


def test_every_axis_has_a_label(figures):
    for name, figure in figures.items():
        for axes in figure.axes:
            if axes.get_visible():
                assert axes.get_xlabel(), name
                assert axes.get_ylabel() or [t for t in axes.get_yticklabels() if t.get_text()], name


def test_every_legend_fits_into_its_figure(figures):
    legends = 0
    for name, figure in figures.items():
        figure.draw_without_rendering()
        for legend in figure.legends:
            legends += 1
            box = legend.get_window_extent()
            assert box.x0 >= 0, name
            assert box.x1 <= figure.bbox.x1, name
    assert legends >= 10


def test_files_are_the_same_every_time(results, tmp_path):
    rows = results.table("frontier") + results.table("predictor")
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        assert [path.name for path in write_figures(rows, tmp_path / place)] == ["frontier.svg", "predictor.svg"]
    for name in ("frontier.svg", "predictor.svg", "frontier.png", "predictor.png"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert (tmp_path / "a" / "frontier.png").read_bytes().startswith(b"\x89PNG")
    assert "tokens spent per query" in "".join(ET.parse(tmp_path / "a" / "frontier.svg").getroot().itertext())


def test_hostile_names_give_valid_svg(tmp_path):
    rows = [{"table": "s_curve", "dataset": HOSTILE, "budget": b, "solved": 3.0} for b in (1, 2, 4)]
    (svg,) = write_figures(rows, tmp_path)
    assert "alert(1)" in "".join(ET.parse(svg).getroot().itertext())


def test_words_are_in_the_font_of_the_reader(page, results, tmp_path):
    texts = re.findall(r"<text[^>]*>", page)
    assert len(texts) > 100
    assert "font-family" not in "".join(texts)
    (svg,) = write_figures(results.table("noise"), tmp_path)
    families = re.findall(r"'DejaVu Sans'([^;\"]*)", svg.read_text())
    assert set(families) == {", sans-serif"}
