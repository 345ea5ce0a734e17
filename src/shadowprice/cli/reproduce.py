"""`shadowprice reproduce`: the paper's tables and figures on recorded answers."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shadowprice.cli.common import DONE, count
from shadowprice.cli.options import EXIT, Commands, add_command
from shadowprice.cli.terminal import raw
from shadowprice.errors import InputError

if TYPE_CHECKING:
    from shadowprice.forecast import Forecaster
    from shadowprice.lab.compare import Row
    from shadowprice.lab.results import Results
    from shadowprice.types import Trace

_SHOWN = 20  # broken lines that are listed one by one
_OTHER_SPLITS = ("train", "summary", "greedy-code")  # of a set in the package: not evaluated on
_DESCRIPTION = """\
Makes the paper's tables and figures from recorded answers: those in the package, or traces of your own
model. The package has qwen2.5-coder-1.5b (mathematics) and smollm2 (a tiny model on small tasks). Greedy
answers are the same at every limit, so replaying them is exact and costs nothing. Forecasts are never
learned from the questions they are evaluated on: they are learned from --train, without the evaluated
questions, or cross-fitted by question. A --forecaster is used unchanged: train it on other questions.

  shadowprice reproduce --out build/lab
  shadowprice reproduce --traces smollm2 --out build/small
  shadowprice reproduce --traces mine.jsonl.gz --train others.jsonl.gz --cap 4096 --out build/mine

Several models, in dollars: --routes FILE gives the rates of models in the traces (as for run), and compares
each model alone, mixes, a router, a cascade and ours. --outcomes FILE has a reward and a cost for every model
and prompt; forecasts are fitted on --train FILE in the same format. --budgets are in dollars per question.

  shadowprice reproduce --routes routes.toml --traces many-models.jsonl.gz --out build/routes
  shadowprice reproduce --outcomes test.jsonl --train val.jsonl --budgets 0.0002 0.002 --out build/rewards

Writes report.html, results.json, a CSV file per table, and figures as SVG and PNG. The report opens with
a summary; "what held and what did not" checks the paper's claims one by one.
"""


def add(commands: Commands) -> None:
    command = add_command(
        commands, "reproduce", "the paper's tables and figures on recorded answers", _DESCRIPTION, EXIT
    )
    command.add_argument(
        "--traces",
        nargs="+",
        default=[],
        metavar="FILE",
        help="trace files, or the name of a set in the package (default: qwen2.5-coder-1.5b)",
    )
    command.add_argument("--train", nargs="+", default=[], metavar="FILE", help="traces to learn forecasts from")
    command.add_argument(
        "--forecaster", metavar="DIR", help="a forecaster made by train; `default` is the one in the package"
    )
    command.add_argument(
        "--calibrate",
        type=int,
        default=0,
        metavar="N",
        help="adapt the forecaster to N questions, which are not evaluated",
    )
    command.add_argument(
        "--model", default="", metavar="NAME", help="the model, if the traces have several (default: the largest)"
    )
    command.add_argument("--cap", type=int, metavar="N", help="cut longer answers here (default: as recorded)")
    command.add_argument("--routes", metavar="FILE", help="rates of several models: the frontier in dollars")
    command.add_argument("--outcomes", metavar="FILE", help="rewards and costs of several models on the same prompts")
    command.add_argument(
        "--streams", nargs="+", default=[], metavar="NAME", help="mixes of queries (default: all four)"
    )
    command.add_argument(
        "--budgets", nargs="+", default=[], metavar="B", help="tokens per query: 256, or in median lengths: 0.5x"
    )
    command.add_argument("--policies", nargs="+", default=[], metavar="NAME", help="policies to compare (default: all)")
    command.add_argument("--seeds", type=int, metavar="N", help="how many streams of each kind are drawn (default: 5)")
    command.add_argument("--quick", action="store_true", help="two seeds and coarser curves: two minutes at most")
    command.add_argument("--skip-bad", action="store_true", help="list broken lines and continue without them")
    command.add_argument("--out", required=True, metavar="DIR", help="where the results go")
    command.add_argument("--no-report", action="store_true", help="no report and no figures: results.json and CSV only")
    command.add_argument("--quiet", action="store_true", help="no progress")
    command.set_defaults(command=reproduce)


def reproduce(options: argparse.Namespace) -> int:
    # Before NumPy is imported. Vectors are short here, and threads that wait for each other are slow on a busy machine.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from shadowprice.lab import reproduction

    if options.routes or options.outcomes:
        from shadowprice.cli.dollars import reproduce_dollars

        return reproduce_dollars(options)
    _check(options)
    broken: list[InputError] = []
    traces, train, files = _read(options, broken.append if options.skip_bad else None)
    _list_broken(broken)
    config = reproduction.Config(
        model=options.model,
        cap=options.cap,
        streams=options.streams,
        budgets=options.budgets,
        policies=options.policies,
        seeds=options.seeds,
        calibrate=options.calibrate,
        quick=options.quick,
    )
    about = {"command": shlex.join(["shadowprice", *options.arguments]), "files": files, "bad_lines": len(broken)}
    with _show_progress(quiet=options.quiet) as progress:
        results = reproduction.reproduce(
            traces, train, _forecaster(options.forecaster), config, progress=progress, about=about
        )
    results.write(options.out)
    written = [*([] if options.no_report else _draw(Path(options.out))), "results.json", "tables/*.csv"]
    _print_summary(results)
    print(f"\nresults -> {options.out}: {', '.join(written)}")
    return DONE


# --- reading -----------------------------------------------------------------------------------


def _check(options: argparse.Namespace) -> None:
    """Refuses invalid options before anything is read."""
    from shadowprice.lab.results import refuse_other_content

    if options.train and options.forecaster:
        raise InputError("--train and --forecaster: forecasts come from one of them", fix="leave out one of them")
    if options.seeds is not None and not 1 <= options.seeds <= 1000:
        raise InputError(f"--seeds {options.seeds} is not a number of streams", fix="give 1 to 1000")
    seen: set[str] = set()
    for path in options.traces:
        if os.path.realpath(path) in seen:
            raise InputError("is given twice in --traces", path=path, fix="give it once")
        seen.add(os.path.realpath(path))
    refuse_other_content(options.out)


def _read(
    options: argparse.Namespace, skip: Callable[[InputError], None] | None
) -> tuple[list[Trace], list[Trace], list[dict[str, Any]]]:
    """Traces to evaluate on, traces to train on, and a record of every file."""
    from shadowprice.datasets.shipped import DEFAULT_SET, SMALL, known_set

    name = options.traces[0] if len(options.traces) == 1 and not os.path.exists(options.traces[0]) else ""
    chosen = known_set(name) if name else DEFAULT_SET if not options.traces else None
    if chosen is None:
        traces, files = _read_files(options.traces, "traces", skip)
        train, train_files = _read_files(options.train, "train", skip)
        return traces, train, files + train_files
    traces, files = _read_shipped("traces", chosen, lambda split: split not in _OTHER_SPLITS)
    options.model = options.model or traces[0].model
    if chosen != SMALL:  # for the second model
        more, more_files = _read_shipped("traces", SMALL, lambda split: split == "eval")
        traces, files = traces + more, files + more_files
    if options.train or options.forecaster:
        train, train_files = _read_files(options.train, "train", skip)
    else:
        train, train_files = _read_shipped("train", chosen, lambda split: split == "train")
        if chosen != SMALL:
            more, more_files = _read_shipped("train", SMALL, lambda split: split == "train")
            train, train_files = train + more, train_files + more_files
    return traces, train, files + train_files


def _read_shipped(role: str, name: str, wanted: Callable[[str], bool]) -> tuple[list[Trace], list[dict[str, Any]]]:
    """The traces of the wanted splits of a set in the package."""
    from shadowprice.datasets.shipped import shipped_sets, shipped_traces

    traces: list[Trace] = []
    files = []
    for split, about in shipped_sets()[name].items():
        if wanted(split):
            traces += shipped_traces(split, name)
            files.append({"role": role, "path": f"in the package: {about['file']}", "sha256": about["sha256"]})
    return traces, files


def _read_files(
    paths: Sequence[str], role: str, skip: Callable[[InputError], None] | None
) -> tuple[list[Trace], list[dict[str, Any]]]:
    from shadowprice.formats.files import sha256_of
    from shadowprice.formats.traces import read_traces

    traces: list[Trace] = []
    files = []
    for path in paths:
        if os.path.isdir(path):
            raise InputError("is a folder", path=path, fix="give a trace file")
        try:
            of_file = list(read_traces(path, skip=skip))
        except InputError as error:
            if error.line is None or skip is not None:
                raise
            fix = f"{error.fix}, or continue without such lines with --skip-bad"
            raise InputError(error.problem, path=path, line=error.line, fix=fix) from None
        files.append({"role": role, "path": path, "sha256": sha256_of(path), "traces": len(of_file)})
        traces += of_file
    return traces, files


def _list_broken(errors: Sequence[InputError]) -> None:
    for error in errors[:_SHOWN]:
        print(f"{error.path}:{error.line}: {error.problem}; skipped", file=sys.stderr)
    if len(errors) > _SHOWN:
        print(f"and {len(errors) - _SHOWN:,} more", file=sys.stderr)
    if errors:
        print(f"{count(len(errors), 'broken line')} skipped", file=sys.stderr)


def _forecaster(folder: str | None) -> Forecaster | None:
    from shadowprice.forecast import default, load

    return None if folder is None else default() if folder == "default" else load(folder)


# --- showing -----------------------------------------------------------------------------------


@contextmanager
def _show_progress(*, quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on a terminal, lines elsewhere."""
    if quiet or sys.stderr is None:
        yield lambda done, total, step: None
    elif sys.stderr.isatty():
        from tqdm import tqdm

        with tqdm(bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} {elapsed}", leave=False, file=raw(sys.stderr)) as bar:

            def update(done: int, total: int, step: str) -> None:
                bar.total = total
                bar.set_description(step, refresh=False)
                bar.update(done - bar.n)
                bar.refresh()

            yield update
    else:
        yield lambda done, total, step: print(f"[{done}/{total}] {step}", file=sys.stderr, flush=True)


def _draw(folder: Path) -> list[str]:
    """Writes the report and the figures, if Matplotlib is installed; returns their names."""
    if find_spec("matplotlib") is None or find_spec("jinja2") is None:
        print("note: no report and no figures (pip install 'shadowprice[report]')", file=sys.stderr)
        return []
    from shadowprice.lab.results import Results
    from shadowprice.report.figures import write_figures
    from shadowprice.report.reproduction import write_report

    results = Results.read(folder)
    (folder / "figures").mkdir(exist_ok=True)
    write_figures(results.rows, folder / "figures")
    write_report(results, folder / "report.html")
    return ["report.html", "figures/*"]


def _print_summary(results: Results) -> None:
    meta = results.meta
    stream, budget = meta["queries_are_of"]["stream"], meta["queries_are_of"]["budget"]
    print(
        f"{meta['model'] or 'unnamed model'}: {count(meta['questions'], 'question')}, cap {meta['cap']:,}, "
        f"median length {meta['median_tokens']:,.0f}; forecasts {meta['forecasts']}"
    )
    print(f"\n% correct, {stream} stream, {budget:,} tokens per query ({budget / meta['median_tokens']:.2f} medians)")
    rows = [row for row in results.table("main") if row["source"] == "ours"]
    rows = [row for row in rows if row["stream"] == stream and row["budget"] == budget]
    for row in rows:
        print(f"  {row['policy']:<14}{row['accounting']:<10}{_figures(row)}")
    if best := _best_commands(rows):
        print("\nthe best of each accounting, on requests of your own")
        for accounting, command in best.items():
            print(f"  {accounting:<11}{command}")
    print("\nwhat held and what did not")
    for row in results.table("findings"):
        print(f"  {row['held']:<11}{row['claim']}: {row['measured']}")
    for name, reason in meta["left_out"].items():
        print(f"left out: {name} ({reason})")
    for note in meta["notes"]:
        print(f"note: {note}")


def _best_commands(rows: Sequence[Row]) -> dict[str, str]:
    """For each accounting, the command of the best policy that can be run."""
    best: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: float(row["solved"])):
        if row.get("command"):
            best[row["accounting"]] = row["command"]
    return best


def _figures(row: Row) -> str:
    return (
        f"{row['solved']:5.1f}  ({row['ci_low']:.1f} to {row['ci_high']:.1f})  "
        f"{row['tokens_spent']:,.0f} tokens spent per query, {row['abandoned']:.0f}% declined"
    )
