"""The results of a run as a table, from its folder: what the page about it shows, for all requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from shadowprice.accounts.view import whole_answers
from shadowprice.formats.asked import Asked
from shadowprice.formats.files import Target, replacing
from shadowprice.formats.spreadsheet import ResultRow, csv_lines
from shadowprice.report.run_data import RunData, read_run


def write_csv(folder: Path, target: Target) -> int:
    """Writes a row per request of a run in any state, in order; returns how many.

    The file appears complete or not at all; see `formats.spreadsheet` for its form.
    """
    run = read_run(folder)
    with whole_answers(folder) as answer, replacing([target]) as (file,):
        file.writelines(csv_lines(_rows(run, answer), run.rates))
    return len(run.requests)


def _rows(run: RunData, answer: Callable[[str], str]) -> Iterator[ResultRow]:
    for row in run.requests:
        question, gold = run.asked.get(row["id"], Asked())
        correct = None if row["correct"] is None else row["correct"] == "yes"
        texts = row["id"], question, answer(row["id"]), gold
        yield ResultRow(*texts, correct, row["outcome"], row["why"], row["tokens"], row["cost"] or 0)
