"""A run as a table: all of it, as the ledger has it."""

from __future__ import annotations

import csv

import pytest

from shadowprice.report.csv_results import write_csv
from shadowprice.report.run_data import read_run

from .conftest import GOLD, RUNS, TRACES


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", RUNS)
def test_it_agrees_with_the_page(run_of, name, tmp_path):
    run = read_run(run_of(name))
    assert write_csv(run_of(name), tmp_path / "out.csv") == run.total
    rows = read(tmp_path / "out.csv")
    assert [row["id"] for row in rows] == [row["id"] for row in run.requests]
    assert [row["outcome"] for row in rows] == [row["outcome"] for row in run.requests]
    assert [row["question"] for row in rows] == [trace.prompt for trace in TRACES[: run.total]]
    assert all(row["reason"] for row in rows)
    assert sum(row["correct"] == "true" for row in rows) == (run.correct or 0)


def test_answers_are_whole(run_of, tmp_path):
    write_csv(run_of("graded"), tmp_path / "out.csv")
    rows = read(tmp_path / "out.csv")
    recorded = {trace.id: trace.response for trace in TRACES}
    finished = [row for row in rows if row["outcome"] == "finished"]
    assert finished
    assert [row["answer"] for row in finished] == [recorded[row["id"]] for row in finished]
    assert [row["gold"] for row in rows] == [GOLD.get(trace.id, ("",))[0] for trace in TRACES[:60]]


def test_costs_in_money_add_up(run_of, tmp_path):
    write_csv(run_of("money"), tmp_path / "out.csv")
    assert sum(round(float(row["cost"]) * 1e9) for row in read(tmp_path / "out.csv")) == read_run(run_of("money")).spent
