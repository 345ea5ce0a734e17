"""The parsers of `shadowprice train` and `shadowprice forecast`."""

from __future__ import annotations

import argparse

from shadowprice.cli.options import EXIT, Commands, add_command, add_forecaster

_TRAIN = """\
Learns from traces (see collect) how long the answer to a question will be and how likely it is right.

  shadowprice train traces.jsonl.gz --out forecaster
  shadowprice train traces.jsonl.gz --out forecaster --from default
  shadowprice plan requests.jsonl --budget 200k --forecaster forecaster

A fifth of the questions is held out, with all their traces, and the report says how good the forecasts
for those are: a table (report.md, report.json) and the paper's figure (report.svg, report.png). Then
the forecaster is trained once more, on all traces, and saved: the report is about one that has seen
less. --validation 0 trains only once and reports nothing.

--from adapts a forecaster that is there already: a hundred traces of another model will do.
`default` is the one that comes with the package. The report then also says how good it was before;
believe it only if that forecaster has not learnt from the same questions.

kinds:
  text     words and structure of the question; seconds, no further packages (default)
  encoder  the paper's predictor: fine-tunes a transformer (pip install 'shadowprice[encoder]')

Truncated traces are welcome: they count as longer than what was recorded. Traces without a grade
tell of length only.
"""
_FORECAST = """\
Writes what is expected of every request of a batch file: the median length of its answer (tokens), the
standard deviation of the log length (spread), the chance that it is right (solve), and how long right
answers are (solved_tokens, solved_spread). plan and run read it with --forecast: look at it, mend it.

  shadowprice forecast requests.jsonl --forecaster forecaster --out lengths.jsonl
  shadowprice forecast requests.jsonl | jq -s 'sort_by(-.tokens) | .[:10]'
"""


def add_train(commands: Commands) -> None:
    train = add_command(commands, "train", "learn from traces to forecast length and success", _TRAIN, EXIT)
    train.add_argument("traces", nargs="+", metavar="TRACES", help="trace files, as collect writes them; .gz or not")
    train.add_argument("--out", required=True, metavar="DIR", help="the forecaster; one that is there is replaced")
    train.add_argument("--kind", choices=["text", "encoder"], help="(default: text)")
    train.add_argument("--from", dest="start", metavar="DIR", help="adapt this one; `default` is the shipped")
    train.add_argument(
        "--validation", type=float, default=0.2, metavar="SHARE", help="of questions held out (default: 0.2)"
    )
    train.add_argument("--seed", type=int, default=0, help="which are held out (default: 0)")
    train.add_argument("--report", metavar="DIR", help="where the report goes (default: OUT.report)")
    train.add_argument("--json", action="store_true", help="print the verdict as JSON")
    train.add_argument("--quiet", action="store_true", help="no progress")
    _add_encoder(train)
    train.set_defaults(command=_train)


def add_forecast(commands: Commands) -> None:
    forecast = add_command(commands, "forecast", "what is expected of every request, as JSON lines", _FORECAST, EXIT)
    forecast.add_argument("file", metavar="IN.jsonl", help="OpenAI Batch file; - reads standard input")
    add_forecaster(forecast)
    forecast.add_argument("--out", default="-", metavar="FILE", help="(default: standard output)")
    forecast.add_argument("--quiet", action="store_true", help="no progress bar")
    forecast.set_defaults(command=_forecast, forecast=None)


def _add_encoder(command: argparse.ArgumentParser) -> None:
    only = command.add_argument_group("encoder", "with --kind encoder; the defaults are the paper's")
    only.add_argument("--base", metavar="NAME", help="of the hub, or a folder (default: microsoft/deberta-v3-base)")
    only.add_argument(
        "--heads", type=lambda text: tuple(text.split(",")), metavar="A,B", help="of spread, success (default: none)"
    )
    only.add_argument("--epochs", type=int, metavar="N", help="(default: 10)")
    only.add_argument("--batch-size", type=int, metavar="N", help="(default: 32)")
    only.add_argument("--max-length", type=int, metavar="N", help="tokens kept of a question (default: 512)")
    only.add_argument("--learning-rate", type=float, metavar="RATE", help="(default: 2e-5)")
    only.add_argument("--patience", type=int, metavar="N", help="stop after N epochs that do not help (default: never)")
    only.add_argument("--per-question", action="store_const", const=True, help="learn from means over the answers")
    only.add_argument("--checkpoints", metavar="DIR", help="keep the state after each epoch")
    only.add_argument("--resume", action="store_const", const=True, help="go on from there")


def _train(options: argparse.Namespace) -> int:
    from shadowprice.cli.train import train_command

    return train_command(options)


def _forecast(options: argparse.Namespace) -> int:
    from shadowprice.cli.train import forecast_command

    return forecast_command(options)
