"""`shadowprice report`: a page about a run, or about a reproduction."""

from __future__ import annotations

import argparse
from pathlib import Path

from shadowprice.cli.common import DONE, standard_output
from shadowprice.cli.options import EXIT, Commands, add_command
from shadowprice.errors import InputError

_DESCRIPTION = """\
Writes one self-contained HTML page. For a run: what its budget bought, the price of every clearing, how
the budget was spent, where the tokens went, and the outcome of every request. The run may be in progress
or crashed; its ledger is never changed. For results of `reproduce`: the page that it wrote, again.

  shadowprice report requests.answers.jsonl.run
  shadowprice report build/lab --out lab.html
"""


def add(commands: Commands) -> None:
    command = add_command(commands, "report", "a page about a run or a reproduction", _DESCRIPTION, EXIT)
    command.add_argument("folder", metavar="FOLDER", help="a run folder, or results of reproduce")
    command.add_argument("--out", metavar="FILE", help="(default: FOLDER/report.html; - is standard output)")
    command.set_defaults(command=report)


def report(options: argparse.Namespace) -> int:
    from shadowprice.formats.files import replacing

    folder = Path(options.folder)
    if not folder.is_dir():
        raise InputError("is not a folder", path=folder, fix="name a run folder, or results of `reproduce`")
    page = _page(folder).encode()
    out = options.out or folder / "report.html"
    with replacing([standard_output() if out == "-" else out]) as (file,):
        file.write(page)
    if out != "-":
        print(f"report -> {out}")
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
