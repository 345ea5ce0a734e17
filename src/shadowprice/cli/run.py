"""`shadowprice run` and `shadowprice collect`: the same machinery, another purpose."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from typing import Any

from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.base import Backend, PausingBackend
from shadowprice.cli.common import (
    DONE,
    EXHAUSTED,
    Interrupted,
    forecaster,
    kept,
    option,
    outputs,
    refuse_same_file,
    some,
    standard_output,
)
from shadowprice.cli.teaching import in_words, taught, teacher_of
from shadowprice.collect import (
    PROBE_TOKENS,
    Ages,
    LargeCap,
    Probing,
    check_programs,
    count_solved,
    graded,
    is_right,
    read_template,
    requests_for,
)
from shadowprice.cost import parse_budget
from shadowprice.errors import InputError
from shadowprice.forecast import Predictor
from shadowprice.formats.batch import BatchLine, read_requests
from shadowprice.formats.files import sha256_of
from shadowprice.formats.questions import Gold, Question, read_gold, read_questions, sha256_of_questions
from shadowprice.formats.traces import write_traces
from shadowprice.market import check_policy
from shadowprice.metered_runner import run_metered
from shadowprice.runner import (
    Progress,
    Round,
    Settings,
    beyond_grants,
    progress_of,
    refuse_several_answers,
    run,
    write_results,
)
from shadowprice.runs import RunFolder
from shadowprice.tale import refuse_reserved_names


def run_command(options: argparse.Namespace) -> int:

    out, errors = outputs(options, "answers")
    policy_options = dict(map(option, options.option))
    _check_accounting(options, policy_options)
    teacher = teacher_of(options)
    if options.samples < 1:
        raise InputError(f"--samples {options.samples}", fix="give 1 or more")
    gold = read_gold(options.gold) if options.gold else None
    with ExitStack() as stack:
        source = options.file if os.path.isfile(options.file) else stack.enter_context(kept(options.file))
        requests = list(read_requests(source, label=options.file))
        if not requests:
            raise InputError("has no requests", path=options.file, fix="write one JSON object a line")
        refuse_reserved_names(requests, options.file)
        refuse_several_answers(requests, options.file)
        predictor, known_by = forecaster(options)
        settings = Settings(
            policy=options.policy,
            options=policy_options,
            max_tokens=options.max_tokens,
            concurrency=options.concurrency,
            reclaim=not options.no_reclaim,
            samples=options.samples,
        )
        asked = {
            "input": sha256_of(source),
            "forecast": known_by,
            "accounting": options.accounting,
            "policy": options.policy,
            "options": policy_options,
            "max_tokens": options.max_tokens,
            "reclaim": settings.reclaim,
            "samples": options.samples,
            "gold": sha256_of(options.gold) if options.gold else None,
            "teacher": None if teacher is None else {"model": teacher.model},
        }
        budget = parse_budget(options.budget, len(requests))
        folder, progress = _execute(options, out, budget, asked, requests, predictor, settings, gold, teacher)
        with folder.ledger:
            summary = write_results(
                requests,
                folder.ledger,
                progress,
                out=standard_output() if out == "-" else out,
                errors=standard_output() if errors == "-" else errors,
            )
            solved = None if gold is None else count_solved(folder.ledger, gold)
            files = {"answers": os.path.abspath(out), "errors": os.path.abspath(errors)}
            folder.save(done=True, summary=asdict(summary), solved=solved, files=files)
            warnings = list(_warnings(summary.flags, folder.ledger, progress))
    talk = sys.stderr if "-" in (out, errors) else sys.stdout
    if options.json:
        told = {"solved": solved, "teacher": folder.manifest.get("teacher")}
        print(json.dumps({**asdict(summary), **told}, indent=2), file=talk)
    else:
        price = f"{progress.price:.4g} per token" if progress.price is not None else "none"
        answered, not_so = (
            summary.finished + summary.truncated,
            f"{summary.abandoned:,} abandoned, {summary.failed:,} failed",
        )
        by = "best index first" if options.accounting == "metered" else f"policy {options.policy}"
        print(
            f"{some(summary.queries, 'query')}, {summary.budget:,} tokens, {by}, "
            f"{some(len(summary.rounds), 'clearing')}, last price {price}\n"
            f"  answered   {some(answered, 'query')}, {summary.truncated:,} of them cut at their limit -> {out}\n"
            f"  unanswered {not_so} -> {errors}\n"
            f"  spent      {summary.spent:,} of {summary.budget:,} tokens; the account is in {folder.path}"
            + (f"\n  teacher    {in_words(folder.manifest['teacher'])}" if options.policy == "tale" else "")
            + (f"\n  solved     {solved:,}" if solved is not None else ""),
            file=talk,
        )
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return EXHAUSTED if summary.abandoned or summary.failed or summary.overspent else DONE


def _check_accounting(options: argparse.Namespace, policy_options: dict[str, float]) -> None:
    if options.accounting == "reserved":
        options.policy = options.policy or "clear"
        check_policy(options.policy, policy_options)
        return
    refused = {
        "--policy": (options.policy, "the index decides who generates next"),
        "--option": (options.option, "there is no policy to have options"),
        "--no-reclaim": (options.no_reclaim, "nothing is granted that could be left unused"),
        "--samples": (options.samples != 1, "an index is for one answer"),
    }
    for name, (given, reason) in refused.items():
        if given:
            raise InputError(f"{name} with --accounting metered: {reason}", fix=f"leave out {name}, or use reserved")
    options.policy = "metered"


def _warnings(flags: Mapping[str, int], ledger: Ledger, progress: Progress) -> Iterator[str]:
    """What was wrong with the server, and what it cost."""
    for flag, times in flags.items():
        yield f"the server was caught at {flag} {times:,} times"
    if flags.get("limit_ignored") or progress.stopped:
        more = f"the budget was exceeded by {ledger.overspent:,}" if ledger.overspent else "the budget still holds"
        yield f"{some(beyond_grants(ledger), 'token')} beyond what was granted; {more}"
    if progress.stopped:
        way_out = "an older server may heed --limit-field max_tokens; --resume goes on"
        yield f"{progress.stopped}; nothing more was sent to it ({way_out})"


def collect_command(options: argparse.Namespace) -> int:

    if min(options.samples, options.max_tokens, options.concurrency) < 1 or options.temperature < 0:
        raise InputError(
            "--samples, --max-tokens and --concurrency start at 1, --temperature at 0", fix="mend the number"
        )
    refuse_same_file(input=options.file, out=options.out)
    questions, identity = _questions(options)
    check_programs(questions)
    template = read_template(options.prompt_template)
    ages = Ages.parse(options.probe) if options.probe else None
    if ages and options.local is None:
        raise InputError("--probe with --base-url", fix="probes need the tokens themselves: use --local")
    requests = requests_for(questions, samples=options.samples, temperature=options.temperature, template=template)
    most = options.max_tokens + (len(ages) * PROBE_TOKENS if ages else 0)
    settings = Settings("uniform", max_tokens=most, concurrency=options.concurrency, reclaim=False)
    asked = {
        "input": identity,
        "samples": options.samples,
        "temperature": options.temperature,
        "max_tokens": options.max_tokens,
        "template": template,
        "probe": options.probe,
    }
    budget = len(requests) * most
    folder, progress = _execute(options, options.out, budget, asked, requests, LargeCap(), settings, ages=ages)
    with folder.ledger:
        traces = graded(
            questions,
            folder.ledger,
            template=template,
            samples=options.samples,
            temperature=options.temperature,
            max_tokens=options.max_tokens,
            model=folder.manifest["asked"]["model"],
        )
        kept = list(traces)
        write_traces(options.out, kept)
        folder.save(done=not progress.stopped)
        flags = Counter(flag for trace in kept for flag in trace.extra.get("flags", ()))
        warnings = list(_warnings(flags, folder.ledger, progress))
    solved, cut = sum(bool(t.correct) for t in kept), sum(t.truncated for t in kept)
    verdict = {"traces": len(kept), "failed": len(requests) - len(kept), "solved": solved, "truncated": cut}
    verdict["tokens"] = sum(t.tokens for t in kept)
    if options.json:
        print(json.dumps(verdict, indent=2))
    else:
        share = f"{100 * solved / len(kept):.1f}%" if kept else "none"
        print(f"{some(len(kept), 'trace')} -> {options.out}: {share} solved, {cut:,} cut at the cap", end="")
        print(f", {verdict['tokens']:,} tokens; {verdict['failed']:,} failed")
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return EXHAUSTED if verdict["failed"] else DONE


def _questions(options: argparse.Namespace) -> tuple[list[Question], str]:
    """The questions of a file or a benchmark, and the hash they are known by when a run is continued."""
    if options.limit is not None and options.limit < 1:
        raise InputError(f"--limit {options.limit}", fix="give 1 or more")
    if os.path.exists(options.file) and not os.path.isdir(options.file):
        return read_questions(options.file, options.grader)[: options.limit], sha256_of(options.file)
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


def _execute(
    options: argparse.Namespace,
    out: str,
    budget: int,
    asked: dict[str, Any],
    requests: Sequence[BatchLine],
    forecaster: Predictor,
    settings: Settings,
    gold: Gold | None = None,
    teacher: Backend | None = None,
    ages: Ages | None = None,
) -> tuple[RunFolder, Progress]:
    """Runs the requests in their run folder, on the model that was asked for."""

    verify = None if gold is None else lambda name, found: is_right(gold, name, found.text, found.finish == "length")
    place = options.run_folder or ("requests.run" if out == "-" else f"{out}.run")
    metered = asked.get("accounting") == "metered"
    backend = _backend(options, cache=_CACHE if metered else 0)
    folder: RunFolder | None = None
    try:
        asked["model"] = backend.model
        folder = (RunFolder.resume if options.resume else RunFolder.create)(place, budget, asked)
        rounds = _cleared(folder)
        with _meter(len(requests), quiet=options.quiet) as show:

            def tell(progress: Progress) -> None:
                seen[:] = [progress]
                if "forecast" in asked:
                    folder.keep_forecast((r.query.id for r in requests), progress.forecast)
                if len(progress.rounds) != told[0]:
                    told[0] = len(progress.rounds)
                    folder.save(rounds=[asdict(each) for each in progress.rounds])
                show(progress)

            told = [len(rounds)]
            seen: list[Progress] = []

            async def answered() -> Progress:
                answering: Backend = Probing(backend, ages) if ages else backend  # type: ignore[arg-type]
                knowing = forecaster
                try:
                    if settings.policy == "tale":
                        answering, knowing = await taught(
                            requests, folder, backend, forecaster, settings, teacher, quiet=options.quiet
                        )
                    if folder.finished:
                        return progress_of(requests, folder.ledger, knowing, rounds)
                    account = folder.ledger
                    if metered:
                        return await run_metered(
                            requests, account, backend, knowing, settings, rounds=rounds, tell=tell
                        )
                    return await run(
                        requests, account, answering, knowing, settings, rounds=rounds, verify=verify, tell=tell
                    )
                finally:
                    await backend.close()
                    if teacher is not None:
                        await teacher.close()

            async def go() -> Progress:
                with _heeding_signals(seen):
                    return await answered()

            progress = asyncio.run(go())
            if progress.stopped == _CTRL_C:
                raise KeyboardInterrupt
            return folder, progress
    except (KeyboardInterrupt, asyncio.CancelledError):
        if folder is not None:
            folder.ledger.close()
            raise Interrupted(f"interrupted; the same command with --resume goes on ({place})") from None
        raise
    except BaseException:
        if folder is not None:
            folder.ledger.close()
        raise


_CTRL_C = "interrupted"


@contextmanager
def _heeding_signals(seen: Sequence[Progress]) -> Iterator[None]:
    """Has the first Ctrl-C send nothing more and wait for what is under way, which would count as spent otherwise.

    `seen` holds the progress once there is one. The second Ctrl-C, like any other signal, cancels the task.
    """
    stop = asyncio.current_task().cancel  # type: ignore[union-attr]

    def leave() -> None:
        if not seen or seen[0].stopped:
            stop()
            return
        seen[0].stopped = _CTRL_C
        told = "finishing what is under way (Ctrl-C again stops at once, and counts it as spent)"
        print(f"\n{told}", file=sys.stderr, flush=True)

    loop, before = asyncio.get_running_loop(), {}
    with suppress(NotImplementedError, ValueError, RuntimeError):  # not on Windows, and only in the main thread
        for number, heed in ((signal.SIGINT, leave), (signal.SIGTERM, stop), (signal.SIGHUP, stop)):
            handler = signal.getsignal(number)
            loop.add_signal_handler(number, heed)
            before[number] = handler
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def _cleared(folder: RunFolder) -> list[Round]:
    """The clearings that a run has had; one that it was killed right after is made again."""
    rounds = [Round(**each) for each in folder.manifest["rounds"]]
    again = rounds and not folder.finished and rounds[-1].budget == folder.ledger.available
    return rounds[:-1] if again else rounds


_CACHE = 1024  # MiB, for a model on this machine: the state of answers that wait to be gone on with


def _backend(options: argparse.Namespace, *, cache: int) -> PausingBackend:
    if options.concurrency < 1:
        raise InputError(f"--concurrency {options.concurrency}", fix="give 1 or more")
    if options.base_url:
        from shadowprice.backends.openai import OpenAIBackend

        return OpenAIBackend(
            options.base_url, options.model, limit_field=options.limit_field or "max_completion_tokens"
        )
    from shadowprice.backends.llamacpp import LocalBackend

    def say(text: str) -> None:
        if not options.quiet:
            print(text, file=sys.stderr)

    return LocalBackend(
        options.local or None, progress=say, slots=min(8, options.concurrency), cache=cache, threads=options.threads
    )


@contextmanager
def _meter(queries: int, *, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Shows how far a run is: a bar on a terminal, otherwise a line now and then."""
    if quiet or sys.stderr is None:
        yield lambda progress: None
        return

    def words(progress: Progress) -> str:
        price = f", price {progress.price:.3g}" if progress.price is not None else ""
        return f"{progress.spent:,} of {progress.budget:,} tokens spent{price}"

    if sys.stderr.isatty():
        from tqdm import tqdm

        with tqdm(total=queries, unit=" queries", leave=False) as bar:

            def draw(progress: Progress) -> None:
                bar.set_postfix_str(words(progress), refresh=False)
                bar.update(progress.answered - bar.n)

            yield draw
        return
    last = time.monotonic()

    def line(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= 10:
            last = time.monotonic()
            print(f"{progress.answered:,} of {queries:,} answered, {words(progress)}", file=sys.stderr, flush=True)

    yield line
