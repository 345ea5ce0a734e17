"""`shadowprice run --policy tale`: who the teacher is, and what it cost."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.base import Backend
from shadowprice.cli.common import some
from shadowprice.errors import InputError
from shadowprice.forecast import Predictor
from shadowprice.formats.batch import BatchLine
from shadowprice.runner import Progress, Settings
from shadowprice.runs import RunFolder
from shadowprice.tale import ASKS, LIMIT, BudgetAware, Taught, ask, estimates_in

_PATIENCE = 120.0  # seconds for an estimate of another server: the run can do without


def teacher_of(options: argparse.Namespace) -> Backend | None:
    """The model to ask for estimates; None: nobody, or the one that answers."""
    if options.policy != "tale" and (options.teacher_url or options.teacher_model):
        raise InputError(
            f"--teacher-url and --teacher-model: policy {options.policy} asks no teacher", fix="use --policy tale"
        )
    if options.teacher_model and not options.teacher_url:
        raise InputError("--teacher-model without --teacher-url", fix="say where that model is")
    same_place = (options.teacher_url or "").rstrip("/") == (options.base_url or "").rstrip("/")
    if not options.teacher_url or (same_place and options.teacher_model in ("", options.model)):
        return None
    from shadowprice.backends.openai import OpenAIBackend

    key = os.environ.get("TEACHER_API_KEY") or "none"  # never the key of the server that answers
    return OpenAIBackend(options.teacher_url, options.teacher_model, api_key=key, timeout=_PATIENCE)


async def taught(
    requests: Sequence[BatchLine],
    folder: RunFolder,
    backend: Backend,
    forecaster: Predictor,
    settings: Settings,
    teacher: Backend | None,
    *,
    quiet: bool,
) -> tuple[Backend, Predictor]:
    """The backend and the forecaster of a TALE-EP run, after asking the teacher; the cost is in the manifest.

    The model that answers is paid from the budget, half of it at most. Another teacher has an account of
    its own beside the ledger.
    """
    waiting = [request for request in requests if not folder.ledger.has_result(request.query.id)]
    tell = _teller(quiet=quiet)
    if teacher is None:
        await ask(waiting, folder.ledger, backend, settings, most=folder.ledger.budget // 2, tell=tell)
        found = estimates_in(folder.ledger, requests)
    else:
        path, most = folder.path / "teacher.sqlite", ASKS * LIMIT * len(requests)
        with Ledger.reopen(path) if path.exists() else Ledger.create(path, most) as account:
            await ask(waiting, account, teacher, settings, most=most, tell=tell)
            found = estimates_in(account, requests)
    told = {name: value for name, value in asdict(found).items() if name != "found"}
    folder.save(teacher={**told, "charged": teacher is None})
    return BudgetAware(backend), Taught(forecaster, found.found)


def _teller(*, quiet: bool) -> Callable[[Progress], None]:
    if quiet or sys.stderr is None:
        return lambda progress: None
    last = time.monotonic()

    def line(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= 10:
            from tqdm import tqdm

            last = time.monotonic()
            tqdm.write(f"asking the teacher, {progress.spent:,} tokens so far", file=sys.stderr)

    return line


def in_words(teacher: dict[str, Any]) -> str:
    """What the manifest keeps of the teacher, for the verdict."""
    whose = "of this budget" if teacher["charged"] else "not of this budget"
    caught = "".join(f"; caught at {flag} {times:,} times" for flag, times in teacher["flags"].items())
    return (
        f"{some(teacher['asked'], 'query')} asked, {teacher['retried']:,} of them twice, {teacher['fell_back']:,} "
        f"fell back on the forecast; {some(teacher['tokens'], 'token')}, {whose}{caught}"
    )
