"""Reports: pages that need nothing else, say what the rows say, and survive what data may hold."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from shadowprice.cli import main
from shadowprice.errors import MissingExtra
from shadowprice.lab.results import Results
from shadowprice.market import POLICIES as KNOWN
from shadowprice.report.figures import FIGURES, drawn, figure, write_figures
from shadowprice.report.html import number, text
from shadowprice.report.panels import page_figure
from shadowprice.report.reproduction import report
from shadowprice.report.style import BLUE, GREEN, GREY, ORANGE, POLICIES, PURPLE, SKY, VERMILLION, drawing

HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(2)> \"'& $x_1$ \ud800\x00"


class Page(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags, self.ids, self.references, self.handlers, self.sources = [], [], [], [], []
        self.text = ""
        self._hidden = 0
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self._hidden += tag in ("script", "style")
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            elif name.startswith("on"):
                self.handlers.append(name)
            elif name in ("src", "srcset", "data", "action", "poster"):
                self.sources.append(value)
            elif name in ("href", "xlink:href"):
                self.references.append(value)
            self.references += [f"#{each}" for each in re.findall(r"url\(#([^)]+)\)", value or "")]

    def handle_endtag(self, tag):
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data):
        if not self._hidden:
            self.text += data


@pytest.fixture(scope="module")
def found(page):
    return Page(page)


def cell(policy, solved, *, stream="balanced", budget=100, accounting="reserved", **more):
    row = {"table": "main", "model": "m", "stream": stream, "budget": budget, "policy": policy}
    return {**row, "accounting": accounting, "solved": solved, "source": "ours", **more}


class TestThePage:
    def test_it_stands_alone(self, page, found):
        assert found.sources == []
        assert {each for each in found.references if not each.startswith("#")} == set()
        assert not re.search(r"@import|url\((?!#)", page)
        assert "default-src 'none'" in page

    def test_its_only_script_is_ours(self, found):
        assert found.tags.count("script") == 1
        assert found.handlers == []

    def test_every_id_is_there_once_and_every_reference_leads_to_one(self, found):
        assert len(found.ids) == len(set(found.ids))
        assert {each.removeprefix("#") for each in found.references} <= set(found.ids)

    def test_it_is_no_larger_than_a_picture(self, page, results):
        assert len(results.queries) >= 300
        assert len(page.encode()) < 3_000_000

    def test_the_frontier_comes_first_then_what_held(self, page):
        sections = re.findall(r'<section id="([^"]+)"', page)
        assert sections[:3] == ["frontier", "findings", "main"]
        assert sections[-4:] == ["calibration", "waterfall", "queries", "made-from"]

    def test_it_says_how_to_make_it_again(self, found):
        assert "shadowprice reproduce --quick" in found.text
        assert "0123456789abcdef" in found.text
        assert "left out: Best of K: " in found.text
        assert "0, 1" in found.text

    def test_every_query_is_in_the_table_with_its_reason(self, page, results):
        table = page[page.index('id="query-table"') :]
        for row in results.queries:
            assert f"<div>{text(row['id'])}</div>" in table
            assert text(row["why"]) in table

    def test_every_finding_is_told(self, found, results):
        for row in results.table("findings"):
            assert row["claim"] in found.text
            assert " ".join(row["measured"].split()) in found.text


class TestTheVerdict:
    def test_a_gain_is_told_with_its_size(self):
        rows = [
            cell("uniform", 7.5),
            cell("clear", 22.5, gain=15.0, gain_low=11.0, gain_high=19.0),
            cell("oracle", 43.0),
        ]
        told = Page(report(Results(rows))).text
        assert "With 100 tokens per query, CLEAR solves 22.5% of the queries where uniform solves 7.5%." in told
        assert "3.0 times as many (+15.0 points, 95% interval +11.0 to +19.0)" in told
        assert "Knowing every length beforehand would solve 43.0%." in told

    def test_a_loss_is_not_hidden(self):
        rows = [cell("uniform", 20.0), cell("clear", 18.0, gain=-2.0, gain_low=-3.0, gain_high=-1.0)]
        page = report(Results(rows))
        assert '<b class="down">CLEAR solves 18.0%</b>' in page
        assert "A difference of −2.0 points, 95% interval −3.0 to −1.0." in page
        assert "and below in 1 (at 100 tokens per query)" in page

    def test_a_better_policy_is_named(self):
        told = Page(report(Results([cell("uniform", 5.0), cell("clear", 9.0), cell("expected", 11.0)]))).text
        assert "Best of all practical policies is expected, 11.0%." in told

    def test_the_metered_index_is_told_beside_clear_in_the_same_accounting(self):
        rows = [cell("uniform", 5.0), cell("clear", 9.0)]
        rows += [cell(policy, solved, accounting="metered") for policy, solved in (("clear", 12.0), ("metered", 15.0))]
        told = Page(report(Results(rows))).text
        assert "Where only tokens that are generated count, serving by index solves 15.0%, CLEAR 12.0%." in told

    def test_it_is_about_the_cell_of_the_query_table(self):
        rows = [cell(p, s, budget=b) for p, b, s in (("clear", 50, 1.0), ("clear", 100, 2.0))]
        meta = {"queries_are_of": {"stream": "balanced", "budget": 100}}
        assert "With 100 tokens per query, CLEAR solves 2.0%" in Page(report(Results(rows, meta))).text

    @pytest.mark.parametrize("rows", [[], [cell("oracle", 4.0)], [cell("mine", 0.0)], [cell("uniform", 0.0)]])
    def test_few_rows_still_make_a_page(self, rows):
        assert Page(report(Results(rows))).tags.count("section") == 1 + bool(rows) + bool(rows)


class TestTables:
    def test_the_best_practical_policy_is_bold_and_nobody_with_hindsight(self):
        rows = [cell("uniform", 5.0), cell("clear", 9.04), cell("auction", 9.0), cell("oracle", 40.0)]
        page = report(Results([*rows, cell("clairvoyant", 50.0)], {"model": "m"}))
        table = page[page.index('<section id="main"') : page.index('<section id="figures"')]
        assert re.findall(r"<b>(.*?)</b>", table) == ["9.0", "9.0"]  # equal as printed
        assert "40.0" in table
        assert "50.0" in table

    def test_metered_is_compared_with_metered_only(self):
        rows = [cell("uniform", 5.0), cell("clear", 9.0)]
        rows += [cell("uniform", 30.0, accounting="metered"), cell("clear", 20.0, accounting="metered")]
        page = report(Results(rows, {"model": "m"}))
        table = page[page.index('<section id="main"') : page.index('<section id="figures"')]
        assert re.findall(r"<b>(.*?)</b>", table) == ["9.0", "30.0"]
        assert re.findall(r'class="(up|down)">(\S+?)<', table) == [("up", "+4.0"), ("down", "−10.0")]

    def test_a_gain_that_may_be_chance_has_no_colour(self):
        rows = [cell("uniform", 5.0), cell("clear", 6.0, gain=1.0, gain_low=-0.5, gain_high=2.5)]
        page = report(Results(rows, {"model": "m"}))
        assert "<td>+1.0<small>−0.5 to 2.5</small></td>" in page

    def test_the_papers_figures_stand_below_ours_at_the_same_budgets_and_folded_away_at_others(self):
        theirs = [{**cell("clear", 77.7, budget=b), "source": "paper", "model": "Theirs"} for b in (100, 999)]
        page = report(Results([cell("clear", 9.0), *theirs], {"model": "m"}))
        shown, folded = page.split("<details>")[:2]
        assert "the paper&#x27;s, Theirs" in shown
        assert shown.count("77.7") == folded.count("77.7") == 1
        assert "999" in folded

    def test_the_tokens_of_a_waterfall_add_up_to_the_budget(self, results):
        from shadowprice.report.waterfall import waterfall_steps

        rows = results.table("waterfall")
        assert {row["accounting"] for row in rows} == {"reserved", "metered"}
        for row in rows:
            total, *parts = waterfall_steps(row)
            assert sum(step.tokens for step in parts) == pytest.approx(total.tokens, abs=3)


class TestWhatDataMayHold:
    def test_nothing_of_it_becomes_part_of_the_page(self, results):
        meta = {"model": HOSTILE, "notes": [HOSTILE], "left_out": {HOSTILE: HOSTILE}, "command": HOSTILE, HOSTILE: 1}
        kept = ("table", "kind", "source", "accounting")
        rows = [
            {name: HOSTILE if isinstance(value, str) and name not in kept else value for name, value in row.items()}
            for row in results.rows
        ]
        queries = [{n: HOSTILE if isinstance(v, str) else v for n, v in row.items()} for row in results.queries[:20]]
        page = report(Results(rows, meta, queries))
        found = Page(page)
        assert found.tags.count("script") == 1
        assert "img" not in found.tags
        assert found.handlers == []
        assert "<script>alert(1)</script>" in found.text  # as text
        page.encode()

    def test_figures_of_such_names_are_sound_pictures(self, tmp_path):
        rows = [{"table": "s_curve", "dataset": HOSTILE, "budget": b, "solved": 3.0} for b in (1, 2, 4)]
        (svg,) = write_figures(rows, tmp_path)
        assert "alert(1)" in "".join(ET.parse(svg).getroot().itertext())

    def test_numbers_that_are_missing_leave_their_place_empty(self):
        rows = [cell("uniform", None), cell("clear", 3.0, ci_low=None, gain=None), cell("expected", 2.0)]
        assert "CLEAR solves 3.0%" in report(Results(rows))

    def test_a_number_is_told_as_a_reader_would_write_it(self):
        assert [number(each) for each in (1234, 0.00123, 1e-9, 12.0, None, True, 0)] == [
            "1,234", "0.00123", "1e-09", "12", "", "", "0",
        ]  # fmt: skip


class TestFigures:
    def test_there_is_one_for_every_table_that_can_be_drawn(self, results):
        # The shipped traces are of one model, and have one answer to each question.
        assert set(FIGURES) - set(drawn(results.rows)) == {"rollouts", "second_predictor"}

    def test_every_axis_says_what_it_shows(self, results):
        with drawing():
            for name in drawn(results.rows):
                for axes in figure(name, results.table(name)).axes:
                    if axes.get_visible():
                        assert axes.get_xlabel(), name
                        assert axes.get_ylabel() or [t for t in axes.get_yticklabels() if t.get_text()], name

    def test_every_legend_fits_into_its_figure(self, results):
        with drawing():
            for name in drawn(results.rows):
                whole = figure(name, results.table(name))
                whole.draw_without_rendering()
                for legend in whole.legends:
                    box = legend.get_window_extent()
                    assert box.x0 >= 0, name
                    assert box.x1 <= whole.bbox.x1, name

    def test_rollouts_show_their_fitted_curve(self):
        fit = {"table": "rollouts", "id": "q", "threshold": 10.0, "alpha": 1.0, "beta": 0.1}
        rows = [{**fit, "bin_low": 5.0 * i, "bin_high": 5.0 * i + 5, "right": i % 3, "total": 4} for i in range(8)]
        shown = page_figure(drawn(rows)["rollouts"], "rollouts", "about")
        assert "fitted latent utility" in shown
        assert "right answers" in shown

    def test_they_are_written_as_vectors_and_as_dots_and_the_same_every_time(self, results, tmp_path):
        rows = results.table("frontier") + results.table("predictor")
        for place in ("a", "b"):
            (tmp_path / place).mkdir()
            assert [path.name for path in write_figures(rows, tmp_path / place)] == ["frontier.svg", "predictor.svg"]
        for name in ("frontier.svg", "predictor.svg", "frontier.png", "predictor.png"):
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        assert (tmp_path / "a" / "frontier.png").read_bytes().startswith(b"\x89PNG")
        assert "tokens spent per query" in "".join(ET.parse(tmp_path / "a" / "frontier.svg").getroot().itertext())

    def test_words_are_in_the_readers_font(self, page, results, tmp_path):
        assert "font-family" not in "".join(re.findall(r"<text[^>]*>", page))
        (svg,) = write_figures(results.table("noise"), tmp_path)
        families = re.findall(r"'DejaVu Sans'([^;\"]*)", svg.read_text())
        assert set(families) == {", sans-serif"}

    def test_drawing_leaves_the_settings_of_others_alone(self, results):
        import matplotlib as mpl

        before = dict(mpl.rcParams)
        figure("frontier", results.table("frontier"))
        assert dict(mpl.rcParams) == before

    def test_without_matplotlib_they_name_the_extra(self, monkeypatch, results):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(MissingExtra, match=r"shadowprice\[plots\]"):
            report(results)

    def test_every_policy_has_a_look_of_its_own(self):
        assert set(KNOWN) <= set(POLICIES)
        looks = [(each.colour, each.dash, each.marker) for each in POLICIES.values()]
        assert len(set(looks)) == len(looks)


class TestColours:
    """The contrast that WCAG 2 asks for: 4.5 for text, 3 for lines and points."""

    @pytest.fixture(params=["light", "dark"])
    def colours(self, request):
        from importlib.resources import files

        style = (files("shadowprice.lab") / "report.css").read_text()
        blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
        light, dark = (dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block)) for block in blocks)
        return light if request.param == "light" else {**light, **dark}

    @pytest.mark.parametrize("ground", ["ground", "card", "soft"])
    def test_text_can_be_read(self, colours, ground):
        for name in ("ink", "muted"):
            assert contrast(colours[name], colours[ground]) >= 4.5, name

    def test_lines_can_be_seen(self, colours):
        for name in ("blue", "vermillion", "green", "purple", "grey"):
            assert contrast(colours[name], colours["ground"]) >= 3, name

    def test_words_in_colour_can_be_read(self, colours):
        for name in ("blue", "vermillion", "green"):
            assert contrast(colours[name], colours["soft"]) >= 3.5, name

    def test_the_files_have_the_colours_of_okabe_and_ito(self):
        assert {BLUE, VERMILLION, GREEN, SKY, PURPLE, ORANGE} == {
            "#0072b2", "#d55e00", "#009e73", "#56b4e9", "#cc79a7", "#e69f00",
        }  # fmt: skip
        assert GREY != BLUE


def contrast(one, other):
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


class TestTheCommand:
    def test_results_get_their_page_and_always_the_same(self, results, tmp_path, capsys, page):
        results.write(tmp_path / "lab")
        assert main(["report", str(tmp_path / "lab")]) == 0
        assert (tmp_path / "lab" / "report.html").read_text() == page
        assert capsys.readouterr().out == f"report -> {tmp_path / 'lab' / 'report.html'}\n"

    def test_it_goes_where_it_is_told(self, tmp_path, capsysbinary):
        few = Results([cell("uniform", 5.0), cell("clear", 9.0)])
        few.write(tmp_path / "lab")
        assert main(["report", str(tmp_path / "lab"), "--out", "-"]) == 0
        assert capsysbinary.readouterr().out == report(few).encode()
        assert not (tmp_path / "lab" / "report.html").exists()

    @pytest.mark.parametrize(
        ("make", "told"),
        [
            (lambda place: None, "is not a folder"),
            (lambda place: place.write_text(""), "is not a folder"),
            (lambda place: place.mkdir(), "holds neither a run"),
            (lambda place: (place.mkdir(), (place / "results.json").write_text("{")), "damaged"),
            (lambda place: (place.mkdir(), (place / "results.json").write_text('{"rows": 3}')), "damaged"),
            (lambda place: (place.mkdir(), (place / "manifest.json").write_text("[]")), "damaged"),
        ],
    )
    def test_anything_else_is_one_clear_line(self, make, told, tmp_path, capsys):
        make(tmp_path / "it")
        assert main(["report", str(tmp_path / "it")]) == 2
        said = capsys.readouterr().err
        assert told in said
        assert said.count("\n") == 1
