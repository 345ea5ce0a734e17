"""What the commands share: exit codes, file names, words."""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING, Any

from shadowprice.cli.terminal import raw, say
from shadowprice.errors import InputError, MissingExtra

if TYPE_CHECKING:
    from shadowprice.cost import Rates
    from shadowprice.forecast import Predictor
    from shadowprice.formats.batch import BatchLine
    from shadowprice.formats.inputs import Input
    from shadowprice.formats.questions import Gold
    from shadowprice.types import Request

DONE, BAD_INPUT, EXHAUSTED, INTERRUPTED = 0, 2, 3, 130


class Interrupted(Exception):
    """Ctrl-C in a run that can be resumed."""


@contextmanager
def open_input(
    options: argparse.Namespace, *, model: str | None = None, temperature: float | None = None
) -> Iterator[Input]:
    """Reads the input and prints to standard error how it was understood."""
    from shadowprice.formats.inputs import Fields, read_input
    from shadowprice.formats.questions import GRADERS
    from shadowprice.formats.templates import read_template

    grader = getattr(options, "grader", None)
    if grader is not None and grader not in GRADERS:
        raise InputError(f"--grader {grader!r:.40} is unknown", fix=f"choose one of {', '.join(GRADERS)}")
    fields = Fields(options.prompt_field, options.gold_field, options.id_field)
    template = read_template(options.prompt_template)
    with ExitStack() as stack:
        source = options.file
        if not os.path.isfile(source):  # a pipe: it is read more than once, so it is copied
            source = stack.enter_context(copied(source))
        content = read_input(
            source,
            label="standard input" if options.file == "-" else options.file,
            fields=fields,
            grader=grader,
            template=template,
            system=options.system,
            model=model,
            temperature=temperature,
        )
        if content.understood and not options.quiet:
            say(content.understood)
        yield content


def gold_for(options: argparse.Namespace, source: Input, requests: Sequence[Request]) -> Gold | None:
    """The correct answers of --gold, or else those beside the questions."""
    from shadowprice.formats.questions import read_gold

    can_grade = importlib.util.find_spec("math_verify") is not None
    if not options.gold:
        gold = {id: answer for id, answer in source.gold.items() if can_grade or answer[1] != "math"}
        if len(gold) < len(source.gold):
            missing = MissingExtra("math", "grading mathematics")
            print(
                f"note: {count(len(source.gold) - len(gold), 'answer')} will not be graded: {missing}", file=sys.stderr
            )
        return gold or None
    gold = dict(read_gold(options.gold))
    if not can_grade and any(grader == "math" for _, grader in gold.values()):
        raise MissingExtra("math", "grading mathematics")
    ids = {request.id for request in requests}
    if not (common := ids & gold.keys()):
        problem = (
            f"none of its ids, such as {next(iter(gold))!r:.60}, is in {source.label}, such as {requests[0].id!r:.60}"
        )
        raise InputError(problem, path=options.gold, fix="use the custom_id of the requests")
    if len(common) < len(ids) and not options.quiet:
        print(f"correct answers for {len(common):,} of {count(len(ids), 'request')} in {options.gold}", file=sys.stderr)
    return gold


def check_policy_name(policy: str, *more: str) -> None:
    """Refuses a policy that does not exist, or cannot be run; `more` are names that a command knows besides."""
    from shadowprice.engine import HINDSIGHT
    from shadowprice.market import POLICIES

    known = [*(name for name in POLICIES if name not in HINDSIGHT), *more]
    if policy in HINDSIGHT:
        problem = f"policy {policy} knows every length in advance, so it cannot be run"
        raise InputError(problem, fix="`shadowprice reproduce` simulates it")
    if policy == "index" and policy not in known:
        problem = "policy index decides while answers are generated, so it cannot be planned"
        raise InputError(problem, fix="use expected; `shadowprice run` has the index")
    if policy not in known:
        near = difflib.get_close_matches(policy.casefold(), known, 1)
        fix = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
        raise InputError(f"unknown policy {policy!r:.40}", fix=fix)


def rates_of(options: argparse.Namespace) -> tuple[Rates, Rates | None]:
    """What the budget counts, and the prices to show beside a budget of tokens."""
    from shadowprice.cost import ALL_TOKENS, TOKENS, Rates

    given = {name: rate for name in ("in", "out", "cached") if (rate := getattr(options, f"rate_{name}")) is not None}
    prices = None
    if given:
        if missing := next((name for name in ("in", "out") if name not in given), None):
            raise InputError(f"no --rate-{missing}", fix="give both, as --rate-in 0.15 --rate-out 0.60")
        prices = Rates.dollars(given["in"], given["out"], given.get("cached"))
    if not options.budget.lstrip().startswith("$"):
        return (ALL_TOKENS if options.count == "input+output" else TOKENS), prices
    if options.count:
        raise InputError(f"--count {options.count} with a budget in money", fix="rates say what counts: leave it out")
    return prices or TOKENS, None  # without prices the budget is refused when it is parsed


def outputs(options: argparse.Namespace, kind: str) -> tuple[str, str]:
    """The files for answers and errors; raises InputError before any work if they cannot be written."""
    from shadowprice.cost import LARGEST
    from shadowprice.formats.files import check_writable

    refuse_folder(options.file)
    if options.max_tokens is not None and not 1 <= options.max_tokens <= LARGEST:
        raise InputError(f"--max-tokens {options.max_tokens} is not a valid limit", fix=f"give 1 to {LARGEST}")
    out = options.out or f"{_name(options)}.{kind}.jsonl"
    errors = options.errors or f"{_name(options) if _is_stream(out) else _stem(out)}.declined.jsonl"
    refuse_same_file(input=options.file, out=out, errors=errors, forecast=options.forecast)
    if os.path.splitext(out)[1].lower() in (".csv", ".tsv"):
        fix = "--csv FILE writes a table as well" if kind == "answers" else "give it a name in .jsonl"
        raise InputError("is the name of a table, and --out writes JSON lines", path=out, fix=fix)
    if kind == "answers":
        refuse_run(options, run_folder(options, out))
    written = [out, errors, getattr(options, "csv", None) or "-"]
    refuse_existing(options, *written)
    for path in written:
        if path != "-":
            check_writable(path)
    return out, errors


def run_folder(options: argparse.Namespace, out: str) -> str:
    """Where a run is kept: beside its output, unless --run-folder is given."""
    return str(options.run_folder or f"{_name(options) if _is_stream(out) else out}.run")


def refuse_run(options: argparse.Namespace, folder: str) -> None:
    """Raises InputError if a run exists and --resume is not given: the run holds what was paid for."""
    from shadowprice.run_folder import EXISTS

    if options.resume or not os.path.lexists(folder) or (os.path.isdir(folder) and not os.listdir(folder)):
        return
    raise InputError("exists", path=folder, fix=EXISTS)


def _name(options: argparse.Namespace) -> str:
    """What files are called after: the input."""
    return "requests" if options.file == "-" or options.file.startswith("/dev/") else _stem(options.file)


def _is_stream(path: str) -> bool:
    """Whether nothing can be put beside it: standard output, a pipe or a device."""
    return path == "-" or (os.path.exists(path) and not os.path.isfile(path))


def _stem(path: str) -> str:
    """`requests.planned` for `requests.planned.jsonl.gz`."""
    return os.path.splitext(path.removesuffix(".gz"))[0]


def refuse_folder(path: str) -> None:
    if os.path.isdir(path) or not path:
        raise InputError("is not a file", path=path or "''", fix="name a file of questions, or - to read one")
    if path.startswith(("http://", "https://")):
        raise InputError("is an address, not a file", path=path, fix="download it first")


def refuse_existing(options: argparse.Namespace, *paths: str) -> None:
    """Raises InputError if a file exists and is not empty, unless --force is given or its run is resumed."""
    if options.force or getattr(options, "resume", False):
        return
    for path in paths:
        if path != "-" and os.path.isfile(path) and os.path.getsize(path):
            resume = "; --resume continues its run" if hasattr(options, "resume") else ""
            raise InputError("exists", path=path, fix=f"--force replaces it; --out names another{resume}")


def forecaster(options: argparse.Namespace) -> tuple[Predictor, str]:
    """The forecaster of --forecast or --forecaster, and the name that a run folder keeps for it."""
    from shadowprice.forecast import DEFAULT, load
    from shadowprice.forecast.folder import fingerprint
    from shadowprice.forecast.shared import WithoutTemplate
    from shadowprice.formats.files import sha256_of
    from shadowprice.formats.forecasts import ForecastTable
    from shadowprice.formats.templates import read_template

    if options.forecast:
        if options.scout:
            raise InputError("--scout with --forecast", fix="leave out one of them")
        return ForecastTable(options.forecast), f"file {sha256_of(options.forecast)}"
    folder = options.forecaster or DEFAULT
    predictor: Predictor = load(folder)
    name = f"forecaster {fingerprint(folder)}"
    if options.scout:
        predictor = _with_scout(predictor, options.scout)
        name += f", scout {sha256_of(options.scout)}"
    if options.system or options.prompt_template != "plain":
        predictor = WithoutTemplate(predictor, read_template(options.prompt_template), options.system)
    return predictor, name


def _with_scout(predictor: Predictor, path: str) -> Predictor:
    from shadowprice.forecast.scout import ScoutAnswers, ScoutForecaster

    if not isinstance(predictor, ScoutForecaster):
        problem = "--scout with a forecaster that was not trained with a scout"
        raise InputError(problem, fix="train one with --scout, and name it with --forecaster")
    return predictor.with_answers(ScoutAnswers.read(path))


def bar(options: argparse.Namespace) -> Callable[[Iterator[BatchLine], str], Iterator[BatchLine]]:
    """Shows how many requests were processed, on a terminal."""
    if options.quiet or sys.stderr is None or not sys.stderr.isatty():
        return lambda requests, label: requests
    from tqdm import tqdm

    return lambda requests, label: iter(
        tqdm(requests, desc=label, unit=" requests", unit_scale=True, leave=False, file=raw(sys.stderr))
    )


@contextmanager
def copied(source: str) -> Iterator[str]:
    """A temporary copy of standard input or a pipe."""
    with tempfile.NamedTemporaryFile(prefix="shadowprice-") as copy:
        if source == "-" and sys.stdin is None:
            raise InputError("standard input is closed", fix="name a file")
        with ExitStack() as opened:
            stream = sys.stdin.buffer if source == "-" else opened.enter_context(open(source, "rb"))
            shutil.copyfileobj(stream, copy)
        copy.flush()
        yield copy.name


def shown(path: str) -> str:
    """The name of an output, as printed."""
    return "standard output" if path == "-" else path


def standard_output() -> IO[bytes]:
    if sys.stdout is None:
        raise InputError("standard output is closed", fix="name a file")
    return sys.stdout.buffer


def refuse_same_file(**paths: str | None) -> None:
    seen: dict[str, str] = {}
    for role, path in paths.items():
        if path is None or (path == "-" and role == "input"):
            continue
        real = path if path == "-" else os.path.realpath(path)
        if real in seen and real != os.devnull:
            raise InputError(f"is both {seen[real]} and {role}", path=path, fix="name another file")
        seen[real] = role


def option(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        raise InputError(f"--option {text!r} is not NAME=NUMBER", fix="write it as beta=0.002") from None


def about(number: float) -> str:
    """A number that is not exact, with two digits, or whole: `about 0.46`."""
    if 0 < number < 0.01:
        return "less than 0.01"
    return f"about {number:,.0f}" if number >= 10 or number <= 0 else f"about {number:.2g}"


def count(number: int, noun: str) -> str:
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{number:,} {noun if number == 1 else plural}"


def lost_in_words(units: int, rates: Rates) -> str:
    """What crashes cost."""
    from shadowprice.cost import show

    return f"{show(units, rates)}, charged in full for what was in flight when the run was cut off"


def where_programs_ran(sandbox: str) -> str:
    """The end of a line about grades: the level of the sandbox; empty if no programs were graded."""
    if not sandbox:
        return ""
    return "; programs ran without a sandbox" if sandbox == "process" else f"; programs ran in the sandbox {sandbox}"
