"""Comparison tables: what is bold, what is coloured, what the paper reports, and how to run a policy."""

from __future__ import annotations

import re

from shadowprice.lab.results import Results
from shadowprice.report.reproduction import report

from .helpers import HOSTILE, main_row


def main_table(rows):
    page = report(Results(rows, {"model": "m"}))
    return page[page.index('<section id="main"') : page.index('<section id="figures"')]


def bold(table):
    return re.findall(r'class="best">(.*?)<', table)


def commands(table):
    return [re.sub(r"<[^>]+>", "", each) for each in re.findall(r'<tr class="command">(.*?)</tr>', table, re.DOTALL)]


def test_the_best_practical_policy_is_bold_and_none_with_hindsight():
    rows = [main_row("uniform", 5.0), main_row("clear", 9.04), main_row("auction", 9.0)]
    table = main_table([*rows, main_row("oracle", 40.0), main_row("clairvoyant", 50.0)])
    assert bold(table) == ["9.0", "9.0"]  # equal as printed
    assert "40.0" in table
    assert "50.0" in table


def test_metered_is_compared_with_metered_only():
    rows = [main_row("uniform", 5.0), main_row("clear", 9.0)]
    rows += [main_row("uniform", 30.0, accounting="metered"), main_row("clear", 20.0, accounting="metered")]
    table = main_table(rows)
    assert bold(table) == ["9.0", "30.0"]
    assert re.findall(r'class="(up|down)">(\S+?)<', table) == [("up", "+4.0"), ("down", "−10.0")]


def test_reclaimed_is_compared_with_reserved():
    rows = [main_row("uniform", 5.0), main_row("clear", 9.0), main_row("clear", 12.0, accounting="reclaimed")]
    rows += [main_row("uniform", 30.0, accounting="metered")]
    table = main_table(rows)
    assert re.findall(r'scope="rowgroup"[^>]*>(.*?)<', table) == ["reserved accounting", "metered accounting"]
    assert bold(table) == ["12.0", "30.0"]
    assert re.findall(r'class="(up|down)">(\S+?)<', table) == [("up", "+4.0"), ("up", "+7.0")]


def test_a_gain_whose_interval_contains_zero_has_no_colour():
    table = main_table([main_row("uniform", 5.0), main_row("clear", 6.0, gain=1.0, gain_low=-0.5, gain_high=2.5)])
    assert '<td class="">+1.0<small>−0.5 to 2.5</small></td>' in table


def test_the_numbers_of_the_paper_are_below_ours_at_the_same_budgets_and_folded_away_at_others():
    theirs = [{**main_row("clear", 77.7, budget=b), "source": "paper", "model": "Theirs"} for b in (100, 999)]
    shown, folded = main_table([main_row("clear", 9.0), *theirs]).split("<details>")
    assert "the paper&#39;s, Theirs" in shown
    assert shown.count("77.7") == folded.count("77.7") == 1
    assert "999" in folded


class TestCommands:
    RUN = "shadowprice run QUESTIONS --policy {} --no-reclaim --budget {}/query"

    def test_every_policy_shows_the_command_of_its_first_budget(self):
        rows = [
            main_row(policy, 5.0, budget=budget, command=self.RUN.format(policy, budget))
            for policy in ("uniform", "clear")
            for budget in (200, 100)
        ]
        table = main_table(rows)
        assert commands(table) == [self.RUN.format("uniform", 100), self.RUN.format("clear", 100)]
        assert "change <code>--budget</code>" in table

    def test_policies_with_hindsight_say_that_they_cannot_be_run(self):
        rows = [main_row("clear", 5.0, command="shadowprice run q"), main_row("oracle", 9.0, command="")]
        rows.append(main_row("clairvoyant", 9.0))
        hindsight = "cannot be run: needs hindsight"
        assert commands(main_table(rows)) == ["shadowprice run q", hindsight, hindsight]

    def test_rows_of_the_paper_and_results_without_the_column_show_none(self):
        theirs = {**main_row("oracle", 77.7), "source": "paper", "model": "Theirs"}
        table = main_table([main_row("uniform", 3.0), main_row("clear", 5.0, command=None), theirs])
        assert commands(table) == []
        assert "--budget" not in table

    def test_a_command_is_escaped(self):
        assert "<script>" not in main_table([main_row("clear", 5.0, command=HOSTILE)])
