"""A figure is one image in a file, and one inline SVG a plot in a page."""

import re
from xml.etree import ElementTree

import pytest

from shadowprice.report.plot import Plot, combine, page_figure, write_figure
from shadowprice.report.style import BLUE, VARIABLES, drawing

from .helpers import HOSTILE


def line(label="first", title="plot", **look):
    return Plot(title, lambda axes: axes.plot([0, 1], [0, 1], label=label, **{"color": BLUE, **look}))


class TestInAFile:
    @pytest.mark.parametrize(("count", "shape"), [(1, (1, 1)), (2, (1, 2)), (4, (2, 2)), (5, (2, 3)), (9, (3, 3))])
    def test_plots_are_laid_out_in_columns(self, count, shape):
        with drawing():
            figure = combine([line(title=f"plot {i}") for i in range(count)], "title")
        grid = figure.axes[0].get_gridspec()
        assert (grid.nrows, grid.ncols) == shape
        assert [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()] == [
            f"plot {i}" for i in range(count)
        ]

    def test_a_label_is_in_the_legend_once(self):
        with drawing():
            (legend,) = combine([line("a"), line("b"), line("a")], "title").legends
        assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]

    def test_without_labels_there_is_no_legend(self):
        with drawing():
            assert combine([Plot("p", lambda axes: axes.plot([0, 1]))], "title").legends == []

    def test_both_formats_are_written_with_the_title(self, tmp_path):
        write_figure([line()], f"a title {HOSTILE[:20]}", tmp_path / "figure")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.png", "figure.svg"]
        words = "".join(ElementTree.parse(tmp_path / "figure.svg").getroot().itertext())
        assert f"a title {HOSTILE[:20]}" in words
        assert "plot" in words


class TestInAPage:
    @pytest.mark.parametrize(
        ("count", "layout", "kinds"), [(1, "alone", ["wide", "narrow"]), (2, "few", ["", ""]), (5, "many", [""] * 5)]
    )
    def test_a_plot_alone_has_a_version_for_narrow_screens(self, count, layout, kinds):
        found = page_figure([line()] * count, "f", "title", "caption")
        assert (found.title, found.caption, found.layout) == ("title", "caption", layout)
        assert [plot["kind"] for plot in found.plots] == kinds
        assert {plot["description"] for plot in found.plots} == {"title: plot"}

    def test_ids_of_two_figures_differ_and_every_reference_has_its_target(self):
        ids = []
        for name in ("one", "two"):
            for plot in page_figure([line(), line()], name, "title").plots:
                here = re.findall(r' id="([^"]+)"', plot["content"])
                used = re.findall(r'(?:href="#|url\(#)([^")]+)', plot["content"])
                assert set(used) == set(here)
                ids += here
        assert ids
        assert len(ids) == len(set(ids))

    def test_colours_are_those_of_the_page(self):
        (plot, *_) = page_figure([line()], "f", "title").plots
        assert BLUE not in plot["content"]
        assert VARIABLES[BLUE] in plot["content"]

    def test_text_is_not_taken_for_a_tag(self):
        """What looks like a colour or an id in a label stays as it is."""
        label = f'{BLUE} id="x" 1.23456'
        (plot, *_) = page_figure([Plot("", lambda axes: axes.set_xlabel(label))], "f", "title").plots
        root = ElementTree.fromstring(f'<svg xmlns:xlink="http://www.w3.org/1999/xlink">{plot["content"]}</svg>')
        assert label in "".join(root.itertext())

    @pytest.mark.parametrize(
        ("look", "swatch"),
        [
            ({"linestyle": "--", "marker": "s"}, {"dash": "5 3", "shape": "M9 3h6v6h-6Z", "filled": True}),
            ({"linestyle": "-", "marker": "x"}, {"dash": "", "shape": "M9 3l6 6M15 3l-6 6", "filled": False}),
            ({"linestyle": ":", "marker": ""}, {"dash": "1.5 2.5", "shape": None, "filled": True}),
        ],
    )
    def test_the_legend_shows_how_a_line_looks(self, look, swatch):
        (entry,) = page_figure([line("mine", **look)], "f", "title").legend
        assert entry == {"label": "mine", "colour": VARIABLES[BLUE], **swatch}

    def test_the_legend_shows_how_an_area_looks(self):
        areas = [
            Plot("p", lambda axes: axes.bar([0], [1], color=BLUE, alpha=0.4, label="bars")),
            Plot("p", lambda axes: axes.fill_between([0, 1], [1, 1], color="#123456", label="band")),
        ]
        assert page_figure(areas, "f", "title").legend == [
            {"label": "bars", "colour": VARIABLES[BLUE], "alpha": 0.4},
            {"label": "band", "colour": "#123456", "alpha": 1.0},
        ]
