"""`shadowprice report`: a page about a run, or about a reproduction."""

from __future__ import annotations

import argparse
from pathlib import Path

from shadowprice.cli.common import DONE, count, refuse_existing, standard_output
from shadowprice.cli.options import EXIT, Commands, add_command, add_force
from shadowprice.errors import InputError

_DESCRIPTION = """\
Writes one self-contained HTML page. For a run it shows what the budget bought, and what equal shares of it
would have bought; the question, answer, outcome and cost of every request; why requests failed; the price
of every clearing, how the budget was spent, and where the tokens went. The run may be in progress or
crashed; its ledger is never changed. For results of `reproduce` it writes their page again.

--csv writes a table instead: id, question, answer, gold, correct, outcome, reason, tokens, cost. Text that a
spreadsheet would read as a formula gets an apostrophe in front.

  shadowprice report requests.answers.jsonl.run
  shadowprice report requests.answers.jsonl.run --csv answers.csv
  shadowprice report build/lab --out lab.html
"""


def add(commands: Commands) -> None:
    command = add_command(commands, "report", "a page about a run or a reproduction", _DESCRIPTION, EXIT)
    command.add_argument("folder", metavar="FOLDER", help="a run folder, or results of reproduce")
    command.add_argument("--out", metavar="FILE", help="the page (default: FOLDER/report.html; - is standard output)")
    command.add_argument("--csv", metavar="FILE", help="for a run: write all results as a table instead of the page")
    add_force(command)
    command.set_defaults(command=report)


def report(options: argparse.Namespace) -> int:
    from shadowprice.formats.files import replacing

    folder = Path(options.folder)
    if not folder.is_dir():
        raise InputError("is not a folder", path=folder, fix=_folder_of(folder))
    refuse_existing(options, options.out or "-", options.csv or "-")  # the page in the folder is always replaced
    if options.csv:
        return _table(folder, options.csv)
    page = _page(folder).encode()
    out = options.out or folder / "report.html"
    with replacing([standard_output() if out == "-" else out]) as (file,):
        file.write(page)
    if out != "-":
        print(f"report -> {out}")
    return DONE


def _folder_of(path: Path) -> str:
    """What to do about a path that is not a folder: the run may be beside it."""
    beside = (Path(f"{path}.run"), path.with_suffix(".answers.jsonl.run"))
    if folder := next((path for path in beside if path.is_dir()), None):
        return f"did you mean {folder}?"
    return "name a run folder, or results of `reproduce`"


def _table(folder: Path, out: str) -> int:
    from shadowprice.accounts.view import is_run
    from shadowprice.report.csv_results import write_csv

    if not is_run(folder):
        raise InputError("is not a run: --csv is for runs", path=folder, fix="name a folder made by `run`")
    rows = write_csv(folder, standard_output() if out == "-" else out)
    if out != "-":
        print(f"{count(rows, 'request')} -> {out}")
    return DONE


def _page(folder: Path) -> str:
    from shadowprice.accounts.view import is_run

    if is_run(folder):
        from shadowprice.report.run import run_report

        return run_report(folder)
    if (folder / "results.json").exists():
        from shadowprice.lab.results import Results
        from shadowprice.report.reproduction import report

        return report(Results.read(folder))
    raise InputError(
        "holds neither a run (manifest.json) nor results (results.json)",
        path=folder,
        fix="name a folder made by `run` or `reproduce`",
    )
