"""`shadowprice run --ray`: run on the machines of a Ray cluster."""

from __future__ import annotations

import argparse
import glob
import json
import logging
import os
import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from shadowprice.cli.common import (
    DONE,
    EXHAUSTED,
    Interrupted,
    forecaster,
    option,
    outputs,
    rates_of,
    refuse_same_file,
    run_folder,
    standard_output,
)
from shadowprice.cli.live import show_progress
from shadowprice.cli.terminal import say
from shadowprice.cli.tolerance import tolerance
from shadowprice.errors import InputError

if TYPE_CHECKING:
    import ray.data

_READERS = {
    ".parquet": "read_parquet", ".jsonl": "read_json", ".json": "read_json", ".ndjson": "read_json", ".csv": "read_csv",
}  # fmt: skip


def run_on_ray(options: argparse.Namespace) -> int:
    """Answers the rows of all input files."""
    from shadowprice.backends.openai import OpenAIBackend
    from shadowprice.cli.verdict import verdict, warnings
    from shadowprice.cost import parse_budget
    from shadowprice.distributed import INTERRUPTED, run
    from shadowprice.distributed.cluster import connect, load_data

    _refuse_other_options(options)
    paths = files_of([options.file, *options.more])
    out, errors = outputs(options, "answers")
    refuse_same_file(input=paths[0], out=out, errors=errors)
    folder, rates = run_folder(options, out), rates_of(options)[0]
    parse_budget(options.budget, 1, rates)
    backend = partial(
        OpenAIBackend,
        options.base_url,
        options.model,
        api_key=os.environ.get("OPENAI_API_KEY"),  # the workers need not have it in their environment
        limit_field=options.limit_field or "max_completion_tokens",
    )
    connect(options.ray or None)
    load_data()  # sets its own log level when it is imported
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    dataset = read_files(paths)
    rows = dataset.count()
    if not options.quiet:
        say(f"{rows:,} rows from {len(paths):,} file{'' if len(paths) == 1 else 's'}")
    with show_progress(rows, rates, quiet=options.quiet) as on_event:
        ended = run(
            dataset,
            options.budget,
            backend=backend,
            folder=folder,
            workers=options.workers,
            concurrency=options.concurrency,
            policy=options.policy or "",
            accounting=options.accounting or ("metered" if options.policy == "index" else "reserved"),
            options=dict(map(option, options.option)),
            reclaim=not options.no_reclaim,
            forecaster=forecaster(options)[0] if options.forecast or options.forecaster else None,
            max_tokens=options.max_tokens,
            rates=rates,
            tolerance=tolerance(options),
            resume=options.resume,
            on_event=on_event,
            prompt_field=options.prompt_field,
            gold_field=options.gold_field,
            id_field=options.id_field,
            grader=options.grader,
            template=options.prompt_template,
            system=options.system,
            model=options.model or None,
            temperature=options.temperature,
        )
    if ended.stopped == INTERRUPTED:
        raise Interrupted(f"interrupted; the same command with --resume continues it ({folder})")
    ended.write(standard_output() if out == "-" else out, standard_output() if errors == "-" else errors)
    summary = ended.summary
    printed = verdict(ended, summary, out=out, errors=errors, folder=folder)
    if options.json:
        printed = [json.dumps(asdict(summary), indent=2)]
    print("\n".join(printed), file=sys.stderr if "-" in (out, errors) else sys.stdout)
    for warning in warnings(summary, rates):
        print(f"warning: {warning}", file=sys.stderr)
    return EXHAUSTED if summary.count("declined", "failed", "not_sent") or summary.overspent else DONE


def files_of(given: list[str]) -> list[str]:
    """The files, in order. Expands patterns that the shell did not expand."""
    paths: list[str] = []
    for path in given:
        matches = sorted(glob.glob(path)) if glob.has_magic(path) else [path]
        if path == "-" or not matches or not all(map(os.path.exists, matches)):
            problem = "cannot be read by several machines" if path == "-" else "no such file"
            raise InputError(problem, path=path, fix="name files or folders that all machines can read")
        paths += matches
    return paths


def read_files(paths: list[str]) -> ray.data.Dataset:
    """All rows of files of one kind; a folder holds Parquet files."""
    from shadowprice.distributed.cluster import load_data

    kinds = {".parquet" if os.path.isdir(path) else os.path.splitext(path.removesuffix(".gz"))[1] for path in paths}
    if len(kinds) > 1 or not kinds <= _READERS.keys():
        problem = f"files of kind {' and '.join(sorted(kind or 'without extension' for kind in kinds))}"
        raise InputError(problem, path=paths[0], fix=f"give files of one kind: {', '.join(_READERS)}")
    reader = getattr(load_data(), _READERS[kinds.pop()])
    dataset: ray.data.Dataset = reader([os.path.abspath(path) for path in paths])
    return dataset


def _refuse_other_options(options: argparse.Namespace) -> None:
    """Refuses options that need a single process, and invalid counts."""
    given: dict[str, Any] = {
        "--local": options.local is not None,
        "--policy tale": options.policy == "tale",
        "--landing": options.landing not in (None, "none"),
        "--samples": options.samples != 1,
        "--gold": options.gold,
        "--csv": options.csv,
        "--accept-loss": options.accept_loss,
    }
    if wrong := next((name for name, value in given.items() if value), None):
        raise InputError(f"{wrong} with --ray", fix="leave one of them out")
    if options.workers < 1 or options.concurrency < 1:
        raise InputError("--workers and --concurrency must be at least 1", fix="give 1 or more")
