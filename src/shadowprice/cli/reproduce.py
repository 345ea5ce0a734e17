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
from typing import Any

from shadowprice.cli.common import DONE, some
from shadowprice.datasets.shipped import shipped_hash, shipped_traces
from shadowprice.errors import InputError
from shadowprice.forecast import Forecaster, default, load
from shadowprice.formats.files import sha256_of
from shadowprice.formats.traces import read_traces
from shadowprice.lab.compare import Row
from shadowprice.lab.reproduction import Wishes, reproduce
from shadowprice.lab.results import Results, refuse_other_content
from shadowprice.types import Trace

_SHOWN = 20  # broken lines that are named one by one


def reproduce_command(options: argparse.Namespace) -> int:
    _check(options)
    bad: list[InputError] = []
    skip = bad.append if options.skip_bad else None
    traces, train, files = _read(options, skip)
    _tell_bad(bad)
    wishes = Wishes(
        options.model,
        options.cap,
        options.streams,
        options.budgets,
        options.policies,
        options.seeds,
        options.calibrate,
        options.quick,
    )
    about = {"command": shlex.join(["shadowprice", *options.arguments]), "files": files, "bad_lines": len(bad)}
    with _progress(quiet=options.quiet) as tell:
        results = reproduce(traces, train, _forecaster(options.forecaster), wishes, tell=tell, about=about)
    results.write(options.out)
    pictures = "" if options.no_report else _draw(Path(options.out))
    _print_verdict(results)
    print(f"\neverything is in {options.out}: {pictures}results.json, tables/*.csv")
    return DONE


def _draw(folder: Path) -> str:
    """The report and the figures, where Matplotlib is installed; says what there is."""
    if find_spec("matplotlib") is None:
        print("no report and no figures (pip install 'shadowprice[plots]')", file=sys.stderr)
        return ""
    from shadowprice.report.figures import write_figures
    from shadowprice.report.reproduction import write_report

    results = Results.read(folder)
    (folder / "figures").mkdir(exist_ok=True)
    write_figures(results.rows, folder / "figures")
    write_report(results, folder / "report.html")
    return "report.html, figures/*, "


def _check(options: argparse.Namespace) -> None:
    """What can be refused before anything is read."""
    if options.train and options.forecaster:
        raise InputError("--train and --forecaster: forecasts come from one of them", fix="leave one out")
    if options.seeds is not None and not 1 <= options.seeds <= 1000:
        raise InputError(f"--seeds {options.seeds} is no number of streams", fix="give 1 to 1000")
    seen: set[str] = set()
    for path in options.traces:
        if os.path.realpath(path) in seen:
            raise InputError("is given twice in --traces", path=path, fix="give it once")
        seen.add(os.path.realpath(path))
    refuse_other_content(options.out)


def _read(
    options: argparse.Namespace, skip: Callable[[InputError], None] | None
) -> tuple[list[Trace], list[Trace], list[dict[str, Any]]]:
    """Traces to evaluate on, traces to train on, and what is known of the files."""
    if not options.traces:
        train = [] if options.forecaster or options.train else shipped_traces("train")
        files = [_shipped("traces", "eval")] + ([_shipped("train", "train")] if train else [])
        more, known = _read_all(options.train, "train", skip)
        return shipped_traces("eval"), train + more, files + known
    traces, known = _read_all(options.traces, "traces", skip)
    train, more_known = _read_all(options.train, "train", skip)
    return traces, train, known + more_known


def _shipped(role: str, split: str) -> dict[str, Any]:
    return {"role": role, "path": f"shipped with the package: {split}", "sha256": shipped_hash(split)}


def _read_all(
    paths: Sequence[str], role: str, skip: Callable[[InputError], None] | None
) -> tuple[list[Trace], list[dict[str, Any]]]:
    traces: list[Trace] = []
    known = []
    for path in paths:
        if os.path.isdir(path):
            raise InputError("is a folder", path=path, fix="name a trace file")
        try:
            found = list(read_traces(path, skip=skip))
        except InputError as error:
            if error.line is None or skip is not None:
                raise
            fix = f"{error.fix}, or leave out such lines with --skip-bad"
            raise InputError(error.problem, path=path, line=error.line, fix=fix) from None
        known.append({"role": role, "path": path, "sha256": sha256_of(path), "traces": len(found)})
        traces += found
    return traces, known


def _tell_bad(bad: Sequence[InputError]) -> None:
    for error in bad[:_SHOWN]:
        print(f"{error.path}:{error.line}: {error.problem}; skipped", file=sys.stderr)
    if len(bad) > _SHOWN:
        print(f"and {len(bad) - _SHOWN:,} more", file=sys.stderr)
    if bad:
        print(f"{some(len(bad), 'broken line')} skipped", file=sys.stderr)


def _forecaster(folder: str | None) -> Forecaster | None:
    return None if folder is None else default() if folder == "default" else load(folder)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on a terminal, lines elsewhere."""
    if quiet or sys.stderr is None:
        yield lambda done, of, what: None
    elif sys.stderr.isatty():
        from tqdm import tqdm

        with tqdm(bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} {elapsed}", leave=False) as bar:

            def show(done: int, of: int, what: str) -> None:
                bar.total = of
                bar.set_description(what, refresh=False)
                bar.update(done - bar.n)
                bar.refresh()

            yield show
    else:
        yield lambda done, of, what: print(f"[{done}/{of}] {what}", file=sys.stderr, flush=True)


# --- what is said at the end -------------------------------------------------------------------


def _print_verdict(results: Results) -> None:
    meta = results.meta
    stream, budget = meta["queries_are_of"]["stream"], meta["queries_are_of"]["budget"]
    print(
        f"{meta['model'] or 'unnamed model'}: {some(meta['questions'], 'question')}, cap {meta['cap']:,}, "
        f"median length {meta['median_tokens']:,.0f}; forecasts {meta['forecasts']}"
    )
    print(f"\n% solved, {stream} stream, {budget:,} tokens per query ({budget / meta['median_tokens']:.2f} medians)")
    cell = [row for row in results.table("main") if row["source"] == "ours"]
    for row in [row for row in cell if row["stream"] == stream and row["budget"] == budget]:
        print(f"  {row['policy']:<14}{row['accounting']:<10}{_figures(row)}")
    print("\nwhat held and what did not")
    for row in results.table("findings"):
        print(f"  {row['held']:<11}{row['claim']}: {row['measured']}")
    for name, reason in meta["left_out"].items():
        print(f"left out: {name} ({reason})")
    for note in meta["notes"]:
        print(f"note: {note}")


def _figures(row: Row) -> str:
    return (
        f"{row['solved']:5.1f}  ({row['ci_low']:.1f} to {row['ci_high']:.1f})  "
        f"{row['tokens_spent']:,.0f} tokens spent per query, {row['abandoned']:.0f}% abandoned"
    )
