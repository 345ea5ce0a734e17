"""`shadowprice report`: a page about a run, or about a reproduction."""

from __future__ import annotations

import argparse
from pathlib import Path

from shadowprice.accounts.view import is_run
from shadowprice.cli.common import DONE, standard_output
from shadowprice.errors import InputError
from shadowprice.formats.files import replacing
from shadowprice.lab.results import Results


def report_command(options: argparse.Namespace) -> int:
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
    if is_run(folder):
        from shadowprice.report.run import run_report

        return run_report(folder)
    if (folder / "results.json").exists():
        from shadowprice.report.reproduction import report

        return report(Results.read(folder))
    raise InputError(
        "holds neither a run (manifest.json) nor results (results.json)",
        path=folder,
        fix="name a folder made by `run` or `reproduce`",
    )
