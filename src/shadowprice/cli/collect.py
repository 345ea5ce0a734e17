"""`shadowprice collect`: answer and grade questions under a large cap."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from shadowprice.cli.common import (
    DONE,
    EXHAUSTED,
    count,
    lost_in_words,
    open_input,
    refuse_existing,
    refuse_run,
    refuse_same_file,
    run_folder,
    where_programs_ran,
)
from shadowprice.cli.live import make_backend, resumable, run_to_end, show_progress
from shadowprice.cli.options import (
    EXIT,
    INPUTS,
    Commands,
    add_command,
    add_force,
    add_input,
    add_model,
    add_unsafe_code,
)
from shadowprice.cli.tolerance import add_tolerance, tolerance
from shadowprice.errors import InputError

if TYPE_CHECKING:
    from shadowprice.formats.questions import Question
    from shadowprice.types import Trace

PROBE_AGES = "0,16,32,64,128,192,256,384,512,768,1024,1536,25%,50%,75%"
_LARGEST = 2**31 - 1  # for samples, tokens and requests: more is a mistake
_DESCRIPTION = """\
Answers every question under a large cap, grades the answers, and writes traces: the data for training
forecasters and for simulations. Greedy unless --temperature is given.

  shadowprice collect questions.csv --out traces.jsonl.gz --local --max-tokens 512
  shadowprice collect math500 --out traces.jsonl.gz --base-url http://127.0.0.1:8000/v1 --model NAME

The paper's benchmarks come from the Hugging Face hub by name: gsm8k-train, gsm8k-test, math-train,
math500, olympiadbench, amc23, aime24, aime25, minerva, humaneval, mbpp, humaneval+, mbpp+,
bigcodebench. If a file has that name, it is read instead; hf:NAME always means the benchmark.
"""


def add(commands: Commands) -> None:
    command = add_command(
        commands, "collect", "answer and grade questions under a large cap: traces", _DESCRIPTION, f"{INPUTS}\n{EXIT}"
    )
    add_input(command, graded=True)
    command.add_argument("--out", required=True, metavar="FILE", help="traces; .gz is compressed")
    command.add_argument("--samples", type=int, default=1, metavar="K", help="answers to each question (default: 1)")
    command.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    command.add_argument("--max-tokens", type=int, default=4096, metavar="N", help="the cap (default: 4096)")
    command.add_argument("--limit", type=int, metavar="N", help="only the first N questions")
    command.add_argument("--mirror", metavar="DIR", help="local copies of the hub's datasets, as DIR/openai/gsm8k")
    command.add_argument(
        "--probe",
        nargs="?",
        const=PROBE_AGES,
        metavar="AGES",
        help=f"also ask for the final answer at these ages of each answer (default: {PROBE_AGES})".replace("%", "%%"),
    )
    command.add_argument(
        "--so-far",
        action="store_true",
        help="write the traces of the answers so far and send nothing; works during a run and after Ctrl-C",
    )
    add_unsafe_code(command)
    add_force(command)
    command.add_argument("--json", action="store_true", help="print the summary as JSON")
    command.add_argument("--quiet", action="store_true", help="no progress")
    add_model(command)
    add_tolerance(command)
    command.set_defaults(command=collect)


def collect(options: argparse.Namespace) -> int:
    from shadowprice import collect as collecting
    from shadowprice.cli.verdict import stopped_in_words
    from shadowprice.cost import TOKENS
    from shadowprice.engine.executor import Progress
    from shadowprice.engine.fixed import Ages
    from shadowprice.formats.files import check_writable
    from shadowprice.formats.fixes import fix_for
    from shadowprice.formats.flags import flag_in_words
    from shadowprice.formats.results import parse_result
    from shadowprice.formats.templates import read_template
    from shadowprice.formats.traces import write_traces
    from shadowprice.run_folder import RunFolder, lost_to_crashes
    from shadowprice.summary import causes_of

    for name in ("samples", "max_tokens", "concurrency"):
        if not 1 <= (value := getattr(options, name)) <= _LARGEST:
            raise InputError(f"--{name.replace('_', '-')} {value}", fix=f"give 1 to {_LARGEST}")
    if not 0 <= options.temperature < math.inf:
        raise InputError(f"--temperature {options.temperature:g}", fix="give 0 or more")
    tolerated = tolerance(options)
    refuse_same_file(input=options.file, out=options.out)
    place = run_folder(options, options.out)
    if not options.so_far:
        refuse_run(options, place)
    refuse_existing(options, options.out)
    check_writable(options.out)
    questions, identity = _questions(options)
    sandbox = collecting.check_programs(questions, unsafe_code=options.unsafe_code)
    template = read_template(options.prompt_template)
    probe = Ages.parse(options.probe) if options.probe else None
    if probe and options.local is None:
        raise InputError("--probe with --base-url", fix="probes need the tokens themselves: use --local")
    requests = collecting.requests_for(
        questions,
        samples=options.samples,
        temperature=options.temperature,
        template=template,
        system=options.system,
    )
    budget = collecting.budget_for(requests, options.max_tokens, probe)
    if options.so_far:
        traces = _so_far(place, questions, identity, options, template)
        write_traces(options.out, traces)
        _print_summary(options, traces, len(requests), sandbox)
        return DONE
    backend = make_backend(options)
    asked = {
        "input": identity,
        "model": backend.model,
        "samples": options.samples,
        "temperature": options.temperature,
        "max_tokens": options.max_tokens,
        "template": template,
        **({"system": options.system} if options.system else {}),
        "probe": options.probe,
    }
    folder = RunFolder.open(place, budget, asked, options.resume, accept_loss=options.accept_loss)
    progress = Progress(budget)
    with resumable(place), folder.ledger, show_progress(len(requests), TOKENS, quiet=options.quiet) as on_event:
        run_to_end(
            lambda: collecting.collect(
                requests,
                folder.ledger,
                backend,
                max_tokens=options.max_tokens,
                probe=probe,
                concurrency=options.concurrency,
                tolerance=tolerated,
                progress=progress,
                on_event=on_event,
            ),
            progress,
            [backend],
            place,
        )
        traces = _graded(questions, dict(folder.ledger.results()), options, backend.model, template)
        write_traces(options.out, traces)
        folder.save(done=not progress.stopped, sandboxes=[sandbox] if sandbox else [])
        failures = [parse_result(line) for _, line in folder.ledger.notes()]
        lost = lost_to_crashes(folder.ledger)
    failed = sum(result.outcome == "failed" for result in failures)
    _print_summary(options, traces, len(requests), sandbox, failed=failed)
    if lost and not options.json:
        print(f"lost: {lost_in_words(lost, TOKENS)}")
    for flag, times in Counter(flag for trace in traces for flag in trace.extra.get("flags", ())).items():
        print(f"warning: {flag_in_words(flag, times)}", file=sys.stderr)
    for cause, times in causes_of(failures).items():
        print(f"warning: {times:,} failed: {cause} ({fix_for('', cause)})", file=sys.stderr)
    if progress.stopped:
        print(f"warning: {stopped_in_words(progress.stopped)}", file=sys.stderr)
    return EXHAUSTED if len(traces) < len(requests) else DONE


def _graded(
    questions: list[Question], results: Mapping[str, bytes], options: argparse.Namespace, model: str, template: str
) -> list[Trace]:
    from shadowprice import collect as collecting

    return list(
        collecting.graded(
            questions,
            results,
            samples=options.samples,
            temperature=options.temperature,
            max_tokens=options.max_tokens,
            model=model,
            template=template,
            unsafe_code=options.unsafe_code,
        )
    )


def _so_far(
    place: str, questions: list[Question], identity: str, options: argparse.Namespace, template: str
) -> list[Trace]:
    """The traces so far of a collection that is running or was interrupted."""
    from shadowprice.accounts.manifest import read_manifest
    from shadowprice.accounts.view import result_lines

    try:
        asked = read_manifest(Path(place))["asked"]
    except (FileNotFoundError, NotADirectoryError):
        raise InputError("no such run folder", path=place, fix="leave out --so-far to start one") from None
    now = {"input": identity, "template": template}
    now |= {name: getattr(options, name) for name in ("samples", "temperature", "max_tokens")}
    if changed := next((name for name, value in now.items() if asked.get(name) != value), None):
        raise InputError(f"was started with another {changed}", path=place, fix="give the same")
    return _graded(questions, result_lines(Path(place)), options, str(asked.get("model", "")), template)


def _print_summary(
    options: argparse.Namespace, traces: list[Trace], asked: int, sandbox: str, *, failed: int = 0
) -> None:
    correct, cut = sum(bool(t.correct) for t in traces), sum(t.truncated for t in traces)
    tokens, missing = sum(t.tokens for t in traces), asked - len(traces)
    if options.json:
        name = "not_answered" if options.so_far else "failed"
        summary = {"traces": len(traces), name: missing, "correct": correct, "truncated": cut, "tokens": tokens}
        print(json.dumps({**summary, "sandbox": sandbox} if sandbox else summary, indent=2))
        return
    graded = sum(t.correct is not None for t in traces)
    share = f"{100 * correct / graded:.1f}% correct" if graded else "none graded" if traces else "none correct"
    print(f"{count(len(traces), 'trace')} -> {options.out}: {share}, {cut:,} cut at the cap", end="")
    left = f"{missing:,} not answered yet" if options.so_far else f"{failed:,} failed"
    if missing > failed and not options.so_far:
        left += f", {missing - failed:,} not sent"
    print(f", {tokens:,} tokens; {left}{where_programs_ran(sandbox)}")


def _questions(options: argparse.Namespace) -> tuple[list[Question], str]:
    """The questions of a file or a benchmark, and the hash that identifies them when a run is resumed."""
    from shadowprice.formats.questions import sha256_of_questions

    if options.limit is not None and options.limit < 1:
        raise InputError(f"--limit {options.limit}", fix="give 1 or more")
    if options.file == "-" or (os.path.exists(options.file) and not os.path.isdir(options.file)):
        with open_input(options) as source:
            questions = source.as_questions()[: options.limit]
        return questions, sha256_of_questions(questions)
    from shadowprice.datasets.hub import BENCHMARKS, load

    name = options.file.removeprefix("hf:")
    if name not in BENCHMARKS:
        known = ", ".join(BENCHMARKS)
        raise InputError("no such file, and no such benchmark", path=options.file, fix=f"benchmarks are {known}")
    if options.grader:
        raise InputError(f"--grader {options.grader}: {name} has its own", fix="leave out --grader")
    if not options.quiet:
        print(f"loading {name} from {options.mirror or 'the Hugging Face hub'}", file=sys.stderr)
    questions = load(name, limit=options.limit, mirror=options.mirror)
    return questions, sha256_of_questions(questions)
