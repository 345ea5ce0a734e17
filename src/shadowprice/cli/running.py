"""`shadowprice run` and `shadowprice collect`: the same machinery, another purpose."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

from shadowprice.backends import Backend
from shadowprice.batchfile import Request, read_requests
from shadowprice.budget import parse_budget
from shadowprice.cli.common import (
    DONE,
    EXHAUSTED,
    Interrupted,
    kept,
    option,
    outputs,
    refuse_same_file,
    some,
    standard_output,
)
from shadowprice.collect import (
    Gold,
    LargeCap,
    count_solved,
    graded,
    is_right,
    read_gold,
    read_questions,
    requests_for,
)
from shadowprice.errors import InputError
from shadowprice.forecast import Forecaster, ForecastTable, PromptLength
from shadowprice.market import check_policy
from shadowprice.runfolder import RunFolder, sha256_of
from shadowprice.runner import Progress, Settings, run, write_results
from shadowprice.tracefile import write_traces


def run_command(options: argparse.Namespace) -> int:

    out, errors = outputs(options, "answers")
    policy_options = dict(map(option, options.option))
    check_policy(options.policy, policy_options)
    if options.samples < 1:
        raise InputError(f"--samples {options.samples}", fix="give 1 or more")
    gold = read_gold(options.gold) if options.gold else None
    with ExitStack() as stack:
        source = options.file if os.path.isfile(options.file) else stack.enter_context(kept(options.file))
        requests = list(read_requests(source, label=options.file))
        if not requests:
            raise InputError("has no requests", path=options.file, fix="write one JSON object a line")
        forecaster = ForecastTable(options.forecast) if options.forecast else PromptLength()
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
            "forecast": sha256_of(options.forecast) if options.forecast else "prompt length",
            "policy": options.policy,
            "options": policy_options,
            "max_tokens": options.max_tokens,
            "reclaim": settings.reclaim,
            "samples": options.samples,
            "gold": sha256_of(options.gold) if options.gold else None,
        }
        budget = parse_budget(options.budget, len(requests))
        folder, progress = _execute(options, out, budget, asked, requests, forecaster, settings, gold)
        with folder.ledger:
            summary = write_results(
                requests,
                folder.ledger,
                progress,
                out=standard_output() if out == "-" else out,
                errors=standard_output() if errors == "-" else errors,
            )
            solved = None if gold is None else count_solved(folder.ledger, gold)
            folder.save(done=True, summary=asdict(summary), solved=solved)
    talk = sys.stderr if "-" in (out, errors) else sys.stdout
    if options.json:
        print(json.dumps({**asdict(summary), "solved": solved}, indent=2), file=talk)
    else:
        price = f"{progress.price:.4g} per token" if progress.price is not None else "none"
        answered, not_so = (
            summary.finished + summary.truncated,
            f"{summary.abandoned:,} abandoned, {summary.failed:,} failed",
        )
        print(
            f"{some(summary.queries, 'query')}, {summary.budget:,} tokens, policy {options.policy}, "
            f"{some(len(summary.rounds), 'clearing')}, last price {price}\n"
            f"  answered   {some(answered, 'query')}, {summary.truncated:,} of them cut at their limit -> {out}\n"
            f"  unanswered {not_so} -> {errors}\n"
            f"  spent      {summary.spent:,} of {summary.budget:,} tokens; the account is in {folder.path}"
            + (f"\n  solved     {solved:,}" if solved is not None else ""),
            file=talk,
        )
    for flag, times in summary.flags.items():
        print(f"warning: the server was caught at {flag} {times:,} times", file=sys.stderr)
    return EXHAUSTED if summary.abandoned or summary.failed else DONE


def collect_command(options: argparse.Namespace) -> int:

    if min(options.samples, options.max_tokens, options.concurrency) < 1 or options.temperature < 0:
        raise InputError(
            "--samples, --max-tokens and --concurrency start at 1, --temperature at 0", fix="mend the number"
        )
    refuse_same_file(input=options.file, out=options.out)
    questions = read_questions(options.file, options.grader)
    requests = requests_for(questions, samples=options.samples, temperature=options.temperature)
    settings = Settings("uniform", max_tokens=options.max_tokens, concurrency=options.concurrency, reclaim=False)
    asked = {
        "input": sha256_of(options.file),
        "samples": options.samples,
        "temperature": options.temperature,
        "max_tokens": options.max_tokens,
    }
    budget = len(requests) * options.max_tokens
    folder, _ = _execute(options, options.out, budget, asked, requests, LargeCap(), settings)
    with folder.ledger:
        traces = graded(
            questions,
            folder.ledger,
            samples=options.samples,
            temperature=options.temperature,
            max_tokens=options.max_tokens,
            model=folder.manifest["asked"]["model"],
        )
        kept = list(traces)
        write_traces(options.out, kept)
        folder.save(done=True)
    solved, cut = sum(bool(t.correct) for t in kept), sum(t.truncated for t in kept)
    verdict = {"traces": len(kept), "failed": len(requests) - len(kept), "solved": solved, "truncated": cut}
    verdict["tokens"] = sum(t.tokens for t in kept)
    if options.json:
        print(json.dumps(verdict, indent=2))
    else:
        share = f"{100 * solved / len(kept):.1f}%" if kept else "none"
        print(f"{some(len(kept), 'trace')} -> {options.out}: {share} solved, {cut:,} cut at the cap", end="")
        print(f", {verdict['tokens']:,} tokens; {verdict['failed']:,} failed")
    return EXHAUSTED if verdict["failed"] else DONE


def _execute(
    options: argparse.Namespace,
    out: str,
    budget: int,
    asked: dict[str, Any],
    requests: Sequence[Request],
    forecaster: Forecaster,
    settings: Settings,
    gold: Gold | None = None,
) -> tuple[RunFolder, Progress]:
    """Runs the requests in their run folder, on the model that was asked for."""

    verify = None if gold is None else lambda name, found: is_right(gold, name, found.text, found.finish == "length")
    place = options.run_folder or ("requests.run" if out == "-" else f"{out}.run")
    backend = _backend(options)
    folder: RunFolder | None = None
    try:
        asked["model"] = backend.model
        folder = (RunFolder.resume if options.resume else RunFolder.create)(place, budget, asked)
        with _meter(len(requests), quiet=options.quiet) as show:

            def tell(progress: Progress) -> None:
                if len(progress.rounds) != told[0]:
                    told[0] = len(progress.rounds)
                    folder.save(rounds=[asdict(each) for each in progress.rounds])
                show(progress)

            told = [0]

            async def go() -> Progress:
                try:
                    return await run(requests, folder.ledger, backend, forecaster, settings, verify=verify, tell=tell)
                finally:
                    await backend.close()

            return folder, asyncio.run(go())
    except KeyboardInterrupt:
        if folder is not None:
            folder.ledger.close()
            raise Interrupted(f"interrupted; the same command with --resume goes on ({place})") from None
        raise
    except BaseException:
        if folder is not None:
            folder.ledger.close()
        raise


def _backend(options: argparse.Namespace) -> Backend:
    if options.concurrency < 1:
        raise InputError(f"--concurrency {options.concurrency}", fix="give 1 or more")
    if options.base_url:
        from shadowprice.backends.openai import OpenAIBackend

        return OpenAIBackend(options.base_url, options.model)
    from shadowprice.backends.local import LocalBackend

    def say(text: str) -> None:
        if not options.quiet:
            print(text, file=sys.stderr)

    return LocalBackend(options.local or None, progress=say, slots=min(8, options.concurrency))


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
