"""`shadowprice train` and `shadowprice forecast`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from typing import IO, Any

from shadowprice import __version__
from shadowprice.cli.common import DONE, bar, forecaster, kept, refuse_same_file, some, standard_output
from shadowprice.errors import InputError, MissingExtra
from shadowprice.forecast import CHUNK, DEFAULT, KINDS, Forecaster, Predictor, load, predict_all
from shadowprice.forecast.evaluation import Report, evaluate
from shadowprice.forecast.folder import description, fingerprint, refuse_others
from shadowprice.forecast.report import as_figure, as_markdown, in_digits
from shadowprice.forecast.splits import held_out, questions_of
from shadowprice.formats.batch import read_batch
from shadowprice.formats.files import replacing
from shadowprice.formats.forecasts import forecast_line
from shadowprice.formats.traces import numbered_traces
from shadowprice.types import Forecast, Request, Trace

_FEWEST = 20  # questions to learn from
# Options of the command that only an encoder has, and what its constructor calls them.
_ENCODER = {
    "base": "base", "heads": "heads", "epochs": "epochs", "batch_size": "batch", "max_length": "max_length",
    "learning_rate": "learning_rate", "patience": "patience", "per_question": "per_question",
    "checkpoints": "checkpoints", "resume": "resume",
}  # fmt: skip


# --- train -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _School:
    """How a forecaster is made of traces; `stage` tells the checkpoints of two trainings apart."""

    kind: str
    learn: Callable[[Sequence[Trace], str], Forecaster]
    before: Predictor | None = None  # what is adapted


@dataclass(frozen=True)
class _Judgement:
    report: Report
    files: dict[str, bytes]


def train_command(options: argparse.Namespace) -> int:
    place = options.report or f"{options.out.rstrip(os.sep)}.report"
    _check(options, place)
    started, say = time.monotonic(), _teller(quiet=options.quiet)
    school = _school(options, say)
    traces = _read(options.traces)
    _refuse_few(traces, "to learn from", "give more traces")
    say(f"read {_sizes(traces)}")
    judged = _judge(traces, school, options.validation, options.seed, say) if options.validation else None
    say(f"learning from all {_sizes(traces)}")
    school.learn(traces, "all").save(options.out)
    if judged is not None:
        os.makedirs(place, exist_ok=True)
        with replacing([os.path.join(place, name) for name in judged.files]) as opened:
            for file, content in zip(opened, judged.files.values(), strict=True):
                file.write(content)
    verdict = {
        "out": options.out,
        "kind": school.kind,
        "fingerprint": fingerprint(options.out),
        "traces": len(traces),
        "seconds": round(time.monotonic() - started, 1),
        "report": None if judged is None else {"folder": place, **asdict(judged.report)},
    }
    told = _verdict(options.out, school.kind, _sizes(traces), place, None if judged is None else judged.report)
    print(json.dumps(verdict, indent=2) if options.json else told)
    return DONE


def _check(options: argparse.Namespace, place: str) -> None:
    """Everything that can be refused before the traces are read."""
    refuse_others(options.out)
    if not 0 <= options.validation < 1:
        raise InputError(f"--validation {options.validation:g} is no share", fix="give 0 to 0.9; 0 is no report")
    if not options.validation and options.report:
        raise InputError("--validation 0 leaves nothing to report on", fix="leave out --report")
    out, report = os.path.realpath(options.out), os.path.realpath(place)
    if os.path.commonpath([out, report]) == out:
        raise InputError("is inside the forecaster", path=place, fix="put the report beside it")
    if os.path.exists(place) and not os.path.isdir(place):
        raise InputError("is not a folder", path=place, fix="name another with --report")
    kind = options.kind or "text"
    if given := list(_chosen(options)):
        flag = f"--{given[0].replace('_', '-')}"
        if options.start:
            raise InputError(f"{flag}: nothing to set where a forecaster is adapted", fix="leave it out, or --from")
        if kind != "encoder":
            raise InputError(f"{flag}: the forecaster {kind} has no such option", fix="use --kind encoder")


def _chosen(options: argparse.Namespace) -> dict[str, Any]:
    """The options of the encoder that were given."""
    return {name: value for name in _ENCODER if (value := getattr(options, name)) is not None}


def _school(options: argparse.Namespace, say: Callable[[str], None]) -> _School:
    if options.start:
        known, kind = _known(options.start)
        if options.kind not in (None, kind):
            raise InputError(f"--kind {options.kind}: what is adapted is of kind {kind}", fix="leave out --kind")
        return _School(kind, lambda traces, stage: known.adapt(traces), known)
    kind = options.kind or "text"
    make: Any = KINDS[kind]()
    if kind != "encoder":
        return _School(kind, lambda traces, stage: make().fit(traces))
    chosen = {_ENCODER[name]: value for name, value in _chosen(options).items()}
    make(**chosen)  # refuses what it cannot be asked for, before anything is read

    def learn(traces: Sequence[Trace], stage: str) -> Forecaster:
        if options.checkpoints:
            chosen["checkpoints"] = os.path.join(options.checkpoints, stage)
        found: Forecaster = make(**chosen, seed=options.seed, progress=say).fit(traces)
        return found

    return _School(kind, learn)


def _known(start: str) -> tuple[Forecaster, str]:
    folder = DEFAULT if start == "default" else start
    return load(folder), description(folder)[0]


def _read(paths: Sequence[str]) -> list[Trace]:
    traces: list[Trace] = []
    for path in paths:
        for line, trace in numbered_traces(path):
            if not trace.prompt.strip():
                raise InputError("an empty prompt", path=path, line=line, fix="nothing can be learnt: remove the line")
            traces.append(trace)
    return [trace for trace in traces if trace.tokens > 0]


def _judge(traces: Sequence[Trace], school: _School, share: float, seed: int, say: Callable[[str], None]) -> _Judgement:
    """A report on a forecaster that has not seen the questions it is asked."""
    held = held_out(traces, share, seed)
    judging = [trace for trace, out in zip(traces, held, strict=True) if out]
    learning = [trace for trace, out in zip(traces, held, strict=True) if not out]
    _refuse_few(learning, "left to learn from", "give more traces, or --validation 0 for no report")
    if not judging:
        raise InputError("no question was held out", fix="raise --validation, or give more traces")
    say(f"learning from {_sizes(learning)}, {_sizes(judging)} held out")
    forecast = _forecast(school.learn(learning, "held-out"), judging)
    say("measuring what it says of those held out")
    report = evaluate(forecast, judging)
    before = None if school.before is None else evaluate(_forecast(school.before, judging), judging)
    record = {
        "shadowprice": __version__,
        "kind": school.kind,
        "learnt_from": len(learning),
        "held_out": {"share": share, "seed": seed},
        "before_adapting": None if before is None else asdict(before.overall),
        **asdict(report),
    }
    about = (
        f"# Quality of a forecaster\n\nKind {school.kind}, learnt from {_sizes(learning)}; measured on "
        f"{_sizes(judging)} that it has not seen: {share:.0%} of the questions, seed {seed}. "
        "The forecaster that was saved has learnt from all of them.\n"
    )
    if before is not None:
        about += f"\nBefore it was adapted: {_length(before)}; {_success(before)}.\n"
    files = {"report.json": json.dumps(record, indent=2) + "\n", "report.md": f"{about}\n{as_markdown(report)}"}
    encoded = {name: text.encode() for name, text in files.items()}
    try:
        title = f"{school.kind}: {_sizes(judging)} held out"
        drawn = as_figure(report, forecast, judging, title)
        encoded |= {f"report.{kind}": image for kind, image in drawn.items()}
    except MissingExtra as error:
        print(f"note: {error}; the report goes without", file=sys.stderr)
    return _Judgement(report, encoded)


def _forecast(predictor: Predictor, traces: Sequence[Trace]) -> Forecast:
    return predict_all(predictor, [Request(trace.id, trace.prompt) for trace in traces])


def _refuse_few(traces: Sequence[Trace], role: str, fix: str) -> None:
    if (found := len(set(questions_of(traces).tolist()))) < _FEWEST:
        raise InputError(f"{some(found, 'question')} {role}, {_FEWEST} are needed", fix=fix)


def _sizes(traces: Sequence[Trace]) -> str:
    return f"{some(len(traces), 'trace')} of {some(len(set(questions_of(traces).tolist())), 'question')}"


def _teller(*, quiet: bool) -> Callable[[str], None]:
    if quiet or sys.stderr is None:
        return lambda text: None
    started = time.monotonic()
    return lambda text: print(f"{time.monotonic() - started:7.1f} s  {text}", file=sys.stderr, flush=True)


def _verdict(out: str, kind: str, sizes: str, place: str, report: Report | None) -> str:
    rows = [f"forecaster -> {out}: kind {kind}, {sizes}"]
    if report is not None:
        covered = ", ".join(f"{name} holds {share:.0%}" for name, share in report.overall.coverage.items())
        rows += [
            f"  held out   {some(report.overall.traces, 'trace')} of {some(report.overall.questions, 'question')}",
            f"  length     {_length(report)}",
            f"  intervals  {covered}",
            f"  success    {_success(report)}",
            f"  report     {os.path.join(place, 'report.md')}",
        ]
    return "\n".join(rows)


def _length(report: Report) -> str:
    found = report.overall
    ranks = f"Spearman {in_digits(found.spearman, found.spearman_range)}, Kendall {in_digits(found.kendall)}"
    return f"{ranks}, error of the log {in_digits(found.log_error)}"


def _success(report: Report) -> str:
    found = report.overall
    if not found.graded:
        return "no trace is graded"
    area = f"AUC {in_digits(found.auc, found.auc_range)}, Brier {in_digits(found.brier)}"
    return f"{area}, calibration error {in_digits(found.calibration_error)}"


# --- forecast ----------------------------------------------------------------------------------


def forecast_command(options: argparse.Namespace) -> int:
    refuse_same_file(input=options.file, out=options.out)
    predictor, _ = forecaster(options)
    with ExitStack() as stack:
        source = stack.enter_context(kept("-")) if options.file == "-" else options.file
        label = "standard input" if options.file == "-" else options.file
        requests = bar(options)(read_batch(source, label), "forecasting")
        if options.out == "-":  # as they come: whoever reads them need not wait
            out: IO[bytes] = standard_output()
        else:
            (out,) = stack.enter_context(replacing([options.out]))
        any_request = False
        while chunk := [line.request for line in islice(requests, CHUNK)]:
            found = predictor.predict(chunk)
            out.writelines(forecast_line(query.id, found, i) + b"\n" for i, query in enumerate(chunk))
            out.flush()
            any_request = True
        if not any_request:
            raise InputError("has no requests", path=label, fix="write one JSON object a line")
    return DONE
