"""The page about a reproduction: self-contained, says what the rows say, and survives any data."""

from __future__ import annotations

import re

import pytest

from shadowprice.lab.results import Results
from shadowprice.report.labels import outcome_label
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

    def test_the_headline_is_the_best_policy_that_can_be_run(self):
        rows = [main_row("uniform", 5.0), main_row("clear", 9.0), main_row("expected", 11.0), main_row("oracle", 40.0)]
        text = Page(report(Results(rows))).words
        assert (
            "With 100 tokens per query, expected answers 11.0% of the queries correctly, CLEAR 9.0%, uniform 5.0%."
            in text
        )
        assert "CLEAR has 1.8 times as many as uniform" in text
        rows += [main_row("index", 15.0, accounting="metered"), main_row("clairvoyant", 50.0, accounting="metered")]
        text = Page(report(Results(rows))).words
        assert "query, index (metered) answers 15.0% of the queries correctly, CLEAR 9.0%, uniform 5.0%." in text
        assert "The best of those that reserve what they grant is expected: 11.0%." in text

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

    def test_a_long_table_says_what_it_leaves_out(self):
        queries = [{"id": f"q{number}", "outcome": "solved"} for number in range(5003)]
        text = Page(report(Results([], {}, queries))).words
        assert "The first 5,000 of 5,003 are shown." in text
        assert "q4999" in text
        assert "q5000" not in text
