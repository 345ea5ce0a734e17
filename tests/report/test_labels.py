"""Labels are the same everywhere, and nothing is shown under the label of something else."""

from __future__ import annotations

import re

import pytest

from shadowprice.lab.results import Results
from shadowprice.report.labels import by_variant, outcome_label, row_label
from shadowprice.report.reproduction import report

from .helpers import Page, main_row


@pytest.mark.parametrize(
    ("row", "label"),
    [
        ({"policy": "clear", "accounting": "reserved", "reclaim": False}, "CLEAR"),
        ({"policy": "clear", "accounting": "reserved", "reclaim": True}, "CLEAR, reclaim"),
        ({"policy": "clear", "accounting": "reserved"}, "CLEAR"),
        ({"policy": "clear", "accounting": "reclaimed"}, "CLEAR, reclaim"),
        ({"policy": "uniform", "accounting": "metered"}, "uniform, metered"),
        ({"policy": "uniform", "accounting": "metered", "reclaim": True}, "uniform, metered"),
        ({"policy": "index", "accounting": "metered", "reclaim": None}, "index, metered"),
        ({"policy": "metered", "accounting": "metered"}, "index, metered"),
        ({"policy": "my_own"}, "my_own"),
    ],
)
def test_label_of_a_row(row, label):
    assert row_label(row) == label


def test_variants_are_listed_in_the_order_of_the_names_and_unknown_ones_last():
    rows = [{"policy": name} for name in ("zeta", "oracle", "metered", "clear", "uniform", "alpha")]
    rows.insert(0, {"policy": "clear", "reclaim": True})
    assert [each.label() for each in by_variant(rows)] == [
        "uniform", "CLEAR", "CLEAR, reclaim", "index", "oracle", "alpha", "zeta",
    ]  # fmt: skip


def test_people_read_the_words_of_outcomes_and_not_the_names_of_columns():
    assert [outcome_label(each) for each in ("solved", "cut", "abandoned", "wrong", "declined", None)] == [
        "correct", "truncated", "declined", "wrong", "declined", None,
    ]  # fmt: skip


def test_reclaiming_policies_have_their_own_lines_in_tables_and_figures():
    rows = [
        main_row(policy, solved, accounting=accounting, budget=budget)
        for budget in (100, 200)
        for policy, solved, accounting in (
            ("uniform", 5, "reserved"),
            ("clear", 9, "reserved"),
            ("clear", 11, "reclaimed"),
        )
    ]
    page = report(Results(rows, {"model": "m"}))
    table = page[page.index('<section id="main"') : page.index('<section id="figures"')]
    assert re.findall(r'<th scope="row">(.*?)</th>', table) == [
        "uniform", "CLEAR", "CLEAR, reclaim", "gain of CLEAR", "gain of CLEAR, reclaim",
    ]  # fmt: skip
    assert re.findall(r'class="best">(.*?)<', table) == ["11.0", "11.0"]
    assert re.findall(r'class="up">(.*?)<', table) == ["+4.0", "+4.0", "+6.0", "+6.0"]
    figure = page[page.index('<section id="figures"') :]
    assert re.findall(r"</svg>([^<]+)</li>", figure) == ["uniform", "CLEAR", "CLEAR, reclaim"]
    assert (
        "With 100 tokens per query, CLEAR (reclaim) answers 11.0% of the queries correctly, CLEAR " in Page(page).words
    )


def test_results_of_earlier_versions_show_their_metered_policy_as_index():
    rows = [main_row("uniform", 5.0), main_row("metered", 15.0, accounting="metered")]
    page = report(Results(rows, {"model": "m"}))
    assert "the index reaches 15.0%" in page
    assert '<th scope="row">index</th><td class="best">15.0</td>' in page
