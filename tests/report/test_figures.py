"""Figures: one for every table that can be drawn, readable, the same every time."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from shadowprice.report.figures import FIGURES, drawn, write_figures
from shadowprice.report.plot import combine, page_figure
from shadowprice.report.style import drawing
from shadowprice.report.waterfall import waterfall_steps

from .helpers import HOSTILE


@pytest.fixture(scope="module")
def figures(results):
    """Every figure as Matplotlib has it."""
    with drawing():
        yield {name: combine(plots, FIGURES[name].title) for name, plots in drawn(results.rows).items()}


def test_every_table_that_can_be_drawn_is_drawn(results):
    # The shipped traces are of one model, with one answer to each question.
    assert set(FIGURES) - set(drawn(results.rows)) == {"rollouts", "second_predictor"}


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


def test_rollouts_show_their_fitted_curve():
    fit = {"table": "rollouts", "id": "q", "threshold": 10.0, "alpha": 1.0, "beta": 0.1}
    rows = [{**fit, "bin_low": 5.0 * i, "bin_high": 5.0 * i + 5, "correct": i % 3, "total": 4} for i in range(8)]
    legend = [entry["label"] for entry in page_figure(drawn(rows)["rollouts"], "rollouts", "title").legend]
    assert sorted(legend) == ["answers", "correct answers", "fitted latent utility (height is free)"]


def test_the_phase_transition_shows_who_is_declined():
    row = {"table": "phase_transition", "stream": "s", "accounting": "reserved"}
    rows = [{**row, "policy": "clear", "budget": b, "solved": b / 10, "abandoned": 90 - b / 10} for b in (100, 200)]
    ((plot,),) = drawn(rows).values()
    with drawing():
        (axes,) = combine([plot], "title").axes
        lines = {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}
    assert lines == {"correct, CLEAR": [10, 20], "declined by CLEAR": [80, 70]}


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


def test_drawing_changes_no_global_settings(results, tmp_path):
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    write_figures(results.table("noise"), tmp_path)
    assert dict(mpl.rcParams) == before


def test_the_tokens_of_a_waterfall_add_up_to_the_budget(results):
    rows = results.table("waterfall")
    assert {row["accounting"] for row in rows} == {"reserved", "reclaimed", "metered"}
    for row in rows:
        total, *parts = waterfall_steps(row)
        assert sum(step.tokens for step in parts) == pytest.approx(total.tokens, abs=3)
        assert parts[-1].tokens == row["correct"] > 0
