"""`shadowprice train`: a forecaster from traces, and a report on how good it is."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from shadowprice import __version__
from shadowprice.cli.common import DONE, count
from shadowprice.cli.options import EXIT, Commands, add_command
from shadowprice.errors import InputError, MissingExtra

if TYPE_CHECKING:
    from shadowprice.forecast import Forecaster
    from shadowprice.forecast.evaluation import Scores
    from shadowprice.forecast.training import Evaluation, Trainer
    from shadowprice.types import Trace

_DESCRIPTION = """\
Learns from traces (see collect) how long the answer to a question will be and how likely it is to be correct.

  shadowprice train traces.jsonl.gz --out forecaster
  shadowprice train traces.jsonl.gz --out forecaster --from default
  shadowprice plan requests.jsonl --budget 200k --forecaster forecaster

A fifth of the questions is held out, with all their traces, and the report says how good the forecasts
for them are: a table (report.md, report.json) and the paper's figure (report.svg, report.png). Then the
forecaster is trained again on all traces and saved; the report is about the first one.
--validation 0 trains once and writes no report.

--from adapts an existing forecaster to another model; a hundred traces are enough. `default` is the one in
the package. The report then also says how good it was before adapting; this means little if it was trained
on the same questions.

If the traces are of one model and have the texts of its answers (those of collect do), the forecaster also
learns to read: a run by index then revises what it expects by what an answer says so far.

--routes trains a forecaster for each model in the traces, in subfolders of OUT. It also learns how far their
forecasts can be compared, what an answer of one model says about the others and, from several answers to a
question, what further answers are worth. Name the folders in a file of routes (docs/routes.md).

  shadowprice train small.jsonl.gz large.jsonl.gz --routes --out forecasters

--scout: if a cheap model has answered the same questions, the length of its answers and whether they are
correct say more than the questions do. The forecaster then needs the cheap model's answers to the questions
that it forecasts: collect them first.

  shadowprice train large.jsonl.gz --from default --scout small.jsonl.gz --out forecaster
  shadowprice run questions.jsonl --budget 200k --forecaster forecaster --scout small-answers.jsonl.gz ...

--features: a pretrained transformer reads the questions as well, and what its middle layers say is used
beside the words. It is not trained, and is kept in the forecaster's folder; a forecast takes milliseconds
(pip install 'shadowprice[encoder]'; docs/forecaster.md).

  shadowprice train traces.jsonl.gz --features sentence-transformers/all-MiniLM-L6-v2 --out forecaster

kinds:
  text     words and structure of the question; seconds, no further packages (default)
  encoder  the paper's predictor: fine-tunes a transformer (pip install 'shadowprice[encoder]')

Truncated traces can be used: they count as longer than recorded. Traces without a grade are used for the
length only.
"""
# Options that only an encoder has, and the names of its arguments.
_ENCODER = {
    "--base": "base", "--heads": "heads", "--epochs": "epochs", "--batch-size": "batch", "--max-length": "max_length",
    "--learning-rate": "learning_rate", "--patience": "patience", "--per-question": "per_question",
    "--checkpoints": "checkpoints", "--resume": "resume",
}  # fmt: skip


def add(commands: Commands) -> None:
    command = add_command(
        commands, "train", "train a forecaster of length and correctness on traces", _DESCRIPTION, EXIT
    )
    command.add_argument("traces", nargs="+", metavar="TRACES", help="trace files, as collect writes them; .gz or not")
    command.add_argument("--out", required=True, metavar="DIR", help="the forecaster; an existing one is replaced")
    command.add_argument("--routes", action="store_true", help="a forecaster for each model in the traces")
    command.add_argument("--kind", choices=["text", "encoder"], help="(default: text)")
    command.add_argument(
        "--from", dest="start", metavar="DIR", help="adapt this forecaster; `default` is the one in the package"
    )
    command.add_argument(
        "--features", metavar="NAME", help="with --kind text: an encoder on the hub, or a folder, to use beside words"
    )
    command.add_argument("--scout", metavar="FILE", help="traces of another model on the same questions")
    command.add_argument(
        "--validation", type=float, default=0.2, metavar="SHARE", help="share of questions held out (default: 0.2)"
    )
    command.add_argument("--seed", type=int, default=0, help="chooses the questions held out (default: 0)")
    command.add_argument("--report", metavar="DIR", help="where the report goes (default: OUT.report)")
    command.add_argument("--json", action="store_true", help="print the summary as JSON")
    command.add_argument("--quiet", action="store_true", help="no progress")
    _add_encoder(command)
    command.set_defaults(command=train)


def _add_encoder(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("encoder", "with --kind encoder; the defaults are the paper's")

    def add(flag: str, help: str, **settings: Any) -> None:
        group.add_argument(flag, dest=_ENCODER[flag], help=help, **settings)

    add("--base", "a name on the hub, or a folder (default: microsoft/deberta-v3-base)", metavar="NAME")
    add("--heads", "any of spread, correct (default: none)", metavar="A,B", type=lambda text: tuple(text.split(",")))
    add("--epochs", "(default: 10)", metavar="N", type=int)
    add("--batch-size", "(default: 32)", metavar="N", type=int)
    add("--max-length", "read the last N tokens of a question (default: 512)", metavar="N", type=int)
    add("--learning-rate", "(default: 2e-5)", metavar="RATE", type=float)
    add("--patience", "stop after N epochs without improvement (default: never)", metavar="N", type=int)
    add("--per-question", "train on the mean of the answers to a question", action="store_const", const=True)
    add("--checkpoints", "save the state after each epoch here", metavar="DIR")
    add("--resume", "continue from the last checkpoint", action="store_const", const=True)


def train(options: argparse.Namespace) -> int:
    from shadowprice.forecast import training
    from shadowprice.forecast.folder import fingerprint
    from shadowprice.forecast.scout import ScoutAnswers, with_scout

    if options.routes:
        return _train_routes(options)
    report_folder = options.report or f"{options.out.rstrip(os.sep)}.report"
    _check(options, report_folder)
    started, progress = time.monotonic(), _progress(quiet=options.quiet)
    trainer = _trainer(options, progress)
    if options.scout:
        trainer = with_scout(trainer, ScoutAnswers.read(options.scout))
    traces = training.read_training_traces(options.traces)
    trained = training.train(trainer, traces, validation=options.validation, seed=options.seed, progress=progress)
    trained.forecaster.save(options.out)
    evaluation = trained.evaluation
    if evaluation:
        _write_report(evaluation, report_folder)
    if options.json:
        summary = {
            "out": options.out,
            "kind": trainer.kind,
            "fingerprint": fingerprint(options.out),
            "traces": len(traces),
            "seconds": round(time.monotonic() - started, 1),
            "report": {"folder": report_folder, **asdict(evaluation.report)} if evaluation else None,
        }
        print(json.dumps(summary, indent=2))
    else:
        print(f"forecaster -> {options.out}: kind {trainer.kind}, {training.sizes(traces)}")
        if evaluation:
            print(_summary(evaluation.report.overall, report_folder))
        print(f"  reading    {_reading(trained.forecaster, traces)}")
    return DONE


def _train_routes(options: argparse.Namespace) -> int:
    from shadowprice.forecast.routes import train_routes
    from shadowprice.forecast.training import read_training_traces
    from shadowprice.grading.agreement import Ballots

    if options.start or options.report or options.scout or options.features or options.kind == "encoder":
        problem = "--from, --report, --scout, --features and --kind encoder with --routes"
        raise InputError(problem, fix="leave them out")
    traces = read_training_traces(options.traces)
    folders = train_routes(traces, options.out, vote=Ballots().vote, progress=_progress(quiet=options.quiet))
    if options.json:
        print(
            json.dumps({"out": options.out, "traces": len(traces), "models": {m: str(f) for m, f in folders.items()}})
        )
        return DONE
    print(f"{count(len(folders), 'forecaster')} -> {options.out}; in a file of routes:")
    for model, folder in folders.items():
        print(f'  forecaster = "{folder}"  # {model}')
    return DONE


def _check(options: argparse.Namespace, report_folder: str) -> None:
    """Refuse invalid options before the traces are read."""
    from shadowprice.forecast.folder import refuse_others

    refuse_others(options.out)
    if not 0 <= options.validation < 1:
        raise InputError(f"--validation {options.validation:g} is not a share", fix="give 0 to 0.9; 0 writes no report")
    if not options.validation and options.report:
        raise InputError("--report with --validation 0, which writes no report", fix="leave out one of them")
    out, report = os.path.realpath(options.out), os.path.realpath(report_folder)
    if os.path.commonpath([out, report]) == out:
        raise InputError("is inside the forecaster", path=report_folder, fix="put the report beside it")
    if os.path.exists(report_folder) and not os.path.isdir(report_folder):
        raise InputError("is not a folder", path=report_folder, fix="give another with --report")
    if options.features and options.start:
        raise InputError("--features with --from, which keeps the features it has", fix="leave out one of them")
    if options.features and options.kind == "encoder":
        raise InputError("--features with --kind encoder", fix="leave out one of them")
    given = [flag for flag, name in _ENCODER.items() if getattr(options, name) is not None]
    if given and options.start:
        raise InputError(f"{given[0]} with --from: only a new encoder has that option", fix="leave out one of them")
    if given and options.kind != "encoder":
        raise InputError(f"{given[0]}: the kind text has no such option", fix="use --kind encoder")


def _trainer(options: argparse.Namespace, progress: Callable[[str], None]) -> Trainer:
    from shadowprice.forecast.training import adapted_forecaster, new_forecaster

    if options.start:
        trainer = adapted_forecaster(options.start)
        if options.kind not in (None, trainer.kind) and (options.kind, trainer.kind) != ("text", "frozen"):
            raise InputError(
                f"--kind {options.kind} with --from a forecaster of kind {trainer.kind}", fix="leave out --kind"
            )
        return trainer
    if options.features:
        return new_forecaster("frozen", base=options.features)
    if options.kind != "encoder":
        return new_forecaster(options.kind or "text")
    given = {name: value for name in _ENCODER.values() if (value := getattr(options, name)) is not None}
    return new_forecaster("encoder", seed=options.seed, progress=progress, **given)


def _write_report(evaluation: Evaluation, folder: str) -> None:
    from shadowprice.forecast.report import as_files, figure_files
    from shadowprice.formats.files import replacing

    files = as_files(evaluation, about={"shadowprice": __version__})
    try:
        files |= figure_files(evaluation)
    except MissingExtra as error:
        print(f"note: no figure in the report: {error}", file=sys.stderr)
    os.makedirs(folder, exist_ok=True)
    with replacing([os.path.join(folder, name) for name in files]) as opened:
        for file, content in zip(opened, files.values(), strict=True):
            file.write(content)


def _reading(forecaster: Forecaster, traces: Sequence[Trace]) -> str:
    """What the forecaster learned about parts of answers."""
    if forecaster.reader is not None:
        return "a run by index reads answers on the way"
    if not any(trace.response for trace in traces):
        return "answers are not read on the way: the traces have no texts"
    return "answers are not read on the way: that takes 30 questions, answered by one model in more than 64 tokens"


def _progress(*, quiet: bool) -> Callable[[str], None]:
    """Prints a line with the seconds since the start."""
    if quiet or sys.stderr is None:
        return lambda line: None
    started = time.monotonic()
    return lambda line: print(f"{time.monotonic() - started:7.1f} s  {line}", file=sys.stderr, flush=True)


def _summary(scores: Scores, report_folder: str) -> str:
    from shadowprice.forecast.report import describe_correctness, describe_length

    intervals = ", ".join(f"{name} holds {share:.0%}" for name, share in scores.coverage.items())
    return "\n".join(
        [
            f"  held out   {count(scores.traces, 'trace')} of {count(scores.questions, 'question')}",
            f"  length     {describe_length(scores)}",
            f"  intervals  {intervals}",
            f"  correct    {describe_correctness(scores)}",
            f"  report     {os.path.join(report_folder, 'report.md')}",
        ]
    )
