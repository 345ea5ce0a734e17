"""The page about a reproduction: self-contained, says what the rows say, and survives any data."""

from __future__ import annotations

import re
import sys
from importlib.resources import files

import pytest

from shadowprice.cli import main
from shadowprice.errors import MissingExtra
from shadowprice.lab.results import Results
from shadowprice.report import render
from shadowprice.report.labels import outcome_label
from shadowprice.report.render import fixed, number, signed
from shadowprice.report.reproduction import report

from .helpers import HOSTILE, Page, main_row


@pytest.fixture(scope="module")
def found(page):
    return Page(page)


class TestPage:
    def test_it_is_self_contained(self, page, found):
        assert found.sources == []
        assert {each for each in found.references if not each.startswith("#")} == set()
        assert not re.search(r"@import|url\((?!#)", page)
        assert "default-src 'none'" in page

    def test_its_only_script_is_ours(self, found):
        assert found.tags.count("script") == 1
        assert found.handlers == []

    def test_ids_are_unique_and_every_reference_has_a_target(self, found):
        assert len(found.ids) == len(set(found.ids))
        assert {each.removeprefix("#") for each in found.references} <= set(found.ids)

    def test_it_is_small(self, page, results):
        assert len(results.queries) >= 300
        assert len(page.encode()) < 3_000_000

    def test_every_section_is_in_the_navigation_in_the_same_order(self, page):
        sections = re.findall(r'<section id="([^"]+)"><h2>(.*?)</h2>', page)
        navigation = page[page.index("<nav>") : page.index("</nav>")]
        assert re.findall(r'<a href="#([^"]+)">(.*?)</a>', navigation) == sections
        names = [name for name, _ in sections]
        assert names[:3] == ["frontier", "findings", "main"]
        assert names[-4:] == ["calibration", "waterfall", "queries", "made-from"]

    def test_it_says_what_it_was_made_from(self, found):
        assert "shadowprice reproduce --quick" in found.text
        assert "0123456789abcdef" in found.text
        assert "left out: Best of K: " in found.text
        assert "0, 1" in found.text

    def test_every_query_is_in_the_table_with_its_outcome_and_reason(self, page, results):
        table = page[page.index('id="query-table"') :]
        shown = [re.sub(r"<[^>]+>", "|", each) for each in re.findall(r"<tr>(<td.*?)</tr>", table)]
        rows = [Page(each).text for each in shown[: len(results.queries)]]
        for row, query in zip(rows, results.queries, strict=True):
            assert f"|{query['id']}|" in row
            assert f"|{outcome_label(query['outcome'])}|" in row
            assert query["why"] in row

    def test_every_finding_is_shown(self, found, results):
        assert results.table("findings")
        for row in results.table("findings"):
            assert row["claim"] in found.text
            assert " ".join(row["measured"].split()) in found.text


class TestVerdict:
    def test_a_gain_is_given_with_its_size(self):
        rows = [
            main_row("uniform", 7.5),
            main_row("clear", 22.5, gain=15.0, gain_low=11.0, gain_high=19.0),
            main_row("oracle", 43.0),
        ]
        text = Page(report(Results(rows))).words
        assert "With 100 tokens per query, CLEAR answers 22.5% of the queries correctly, uniform 7.5%." in text
        assert "3.0 times as many (+15.0 points, 95% interval +11.0 to +19.0)" in text
        assert "If every length were known in advance, it would be 43.0%." in text
        assert "above uniform, beyond the 95% interval, in 1 and below in 0." in text

    def test_a_loss_is_not_hidden(self):
        page = report(
            Results(
                [main_row("uniform", 20.0), main_row("clear", 18.0, gain=-2.0, gain_low=-3.0, gain_high=-1.0)],
            )
        )
        assert '<b class="down">CLEAR answers 18.0%</b>' in page
        assert "The difference is −2.0 points, 95% interval −3.0 to −1.0." in page
        assert "in 0 and below in 1 (at 100 tokens per query)." in Page(page).words

    def test_a_better_policy_is_named(self):
        rows = [main_row("uniform", 5.0), main_row("clear", 9.0), main_row("expected", 11.0)]
        assert "The best practical policy is expected: 11.0%." in Page(report(Results(rows))).words

    def test_the_index_is_given_beside_clear_in_the_same_accounting(self):
        rows = [main_row("uniform", 5.0), main_row("clear", 9.0)]
        rows += [main_row(p, solved, accounting="metered") for p, solved in (("clear", 12.0), ("index", 15.0))]
        assert "the index reaches 15.0% and CLEAR 12.0%." in Page(report(Results(rows))).words

    def test_it_is_about_the_cell_of_the_query_table(self):
        rows = [main_row("clear", solved, budget=budget) for budget, solved in ((50, 1.0), (100, 2.0))]
        meta = {"queries_are_of": {"stream": "balanced", "budget": 100}}
        assert "With 100 tokens per query, CLEAR answers 2.0%" in Page(report(Results(rows, meta))).words

    @pytest.mark.parametrize(
        ("rows", "sections", "verdict"),
        [
            ([], ["made-from"], "No policies were compared."),
            ([main_row("oracle", 4.0)], ["main", "figures", "made-from"], "oracle answers 4.0% of the queries"),
            ([main_row("mine", 0.0)], ["main", "figures", "made-from"], "mine answers 0.0% of the queries"),
            ([main_row("uniform", 0.0)], ["main", "figures", "made-from"], "uniform answers 0.0% of the queries"),
        ],
    )
    def test_few_rows_still_make_a_page(self, rows, sections, verdict):
        page = report(Results(rows))
        assert re.findall(r'<section id="([^"]+)"', page) == sections
        assert verdict in Page(page).words


class TestAnyData:
    def test_no_data_becomes_markup(self, results):
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
        assert "{{ 7 * 7 }}" in found.text  # not as a template
        page.encode()

    def test_missing_numbers_leave_their_cell_empty(self):
        rows = [main_row("uniform", None), main_row("clear", 3.0, ci_low=None, gain=None), main_row("expected", 2.0)]
        page = report(Results(rows))
        assert "CLEAR answers 3.0%" in page
        assert '<th scope="row">uniform</th><td class=""></td>' in page

    def test_numbers_are_easy_to_read(self):
        assert [number(each) for each in (1234, 0.00123, 1e-9, 12.0, None, True, 0)] == [
            "1,234", "0.00123", "1e-09", "12", "", "", "0",
        ]  # fmt: skip
        assert [signed(each) for each in (1.26, -1.26, 0.04, -0.04)] == ["+1.3", "−1.3", "±0.0", "±0.0"]
        assert [fixed(each) for each in (2.0, -0.5)] == ["2.0", "−0.5"]

    def test_a_long_table_says_what_it_leaves_out(self):
        queries = [{"id": f"q{number}", "outcome": "solved"} for number in range(5003)]
        text = Page(report(Results([], {}, queries))).words
        assert "The first 5,000 of 5,003 are shown." in text
        assert "q4999" in text
        assert "q5000" not in text


class TestMissingPackages:
    @pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
    def test_the_error_names_the_extra(self, package, monkeypatch):
        render._environment.cache_clear()
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(MissingExtra, match=r"shadowprice\[report\]"):
            report(Results([main_row("clear", 3.0)]))


class TestColours:
    """The contrast that WCAG 2 requires: 4.5 for text, 3 for lines and points."""

    @pytest.fixture(params=["light", "dark"])
    def colours(self, request):
        style = (files("shadowprice.report") / "templates" / "page.css").read_text()
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

    def test_coloured_words_can_be_read(self, colours):
        for name in ("blue", "vermillion", "green"):
            assert contrast(colours[name], colours["soft"]) >= 3.5, name


def contrast(one, other):
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


class TestCommand:
    def test_a_results_folder_gets_a_page_that_is_always_the_same(self, results, tmp_path, capsys, page):
        results.write(tmp_path / "lab")
        assert main(["report", str(tmp_path / "lab")]) == 0
        assert (tmp_path / "lab" / "report.html").read_text() == page
        assert capsys.readouterr().out == f"report -> {tmp_path / 'lab' / 'report.html'}\n"

    def test_it_can_be_written_to_standard_output(self, tmp_path, capsysbinary):
        few = Results([main_row("uniform", 5.0), main_row("clear", 9.0)])
        few.write(tmp_path / "lab")
        assert main(["report", str(tmp_path / "lab"), "--out", "-"]) == 0
        assert capsysbinary.readouterr().out == report(few).encode()
        assert not (tmp_path / "lab" / "report.html").exists()

    @pytest.mark.parametrize(
        ("make", "name"),
        [
            (lambda place: None, "it"),
            (lambda place: place.write_text(""), "it"),
            (lambda place: place.mkdir(), "it"),
            (lambda place: (place.mkdir(), (place / "results.json").write_text("{")), "results.json"),
            (lambda place: (place.mkdir(), (place / "results.json").write_text('{"rows": 3}')), "results.json"),
            (lambda place: (place.mkdir(), (place / "manifest.json").write_text("[]")), "manifest.json"),
        ],
    )
    def test_anything_else_is_a_one_line_error_that_names_the_file(self, make, name, tmp_path, capsys):
        make(tmp_path / "it")
        assert main(["report", str(tmp_path / "it")]) == 2
        error = capsys.readouterr().err
        assert f"{name}: " in error
        assert error.count("\n") == 1
