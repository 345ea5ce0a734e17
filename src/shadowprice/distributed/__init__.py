"""Batches on several machines: Ray provides the machines, this package the price, the limits and the ledger.

    import shadowprice as sp

    run = sp.ray.run(ray.data.read_parquet("big/"), budget="50M", backend=backend, folder="run")
    run.to_dataset().write_parquet("answers/")

tables       rows as requests with forecasts
prepared     a dataset of them, in blocks
demand       the price, and the grant of every request
coordinator  the one owner of the ledger
leases       the part of the ledger that a worker holds
worker       serves a block with the executor
metered      rounds of metered accounting
actors       all of these as processes of Ray
jobs         gives blocks to workers, in rounds
outcomes     the results, from the ledger
llm          limits for vLLM's processor in Ray
cluster      Ray itself
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shadowprice.cost import TOKENS, Rates, parse_budget
from shadowprice.distributed import llm
from shadowprice.distributed.cluster import connect, load_data, plain_errors
from shadowprice.distributed.demand import GATHER
from shadowprice.distributed.jobs import INTERRUPTED, Job
from shadowprice.distributed.outcomes import RayRun
from shadowprice.distributed.prepared import Table, market_of, prepare
from shadowprice.distributed.tables import Reading, shape_of
from shadowprice.distributed.worker import Terms
from shadowprice.engine import Settings
from shadowprice.engine.executor import USUAL, Progress, Tolerance
from shadowprice.engine.scheduler import Round
from shadowprice.errors import InputError
from shadowprice.forecast import Predictor
from shadowprice.formats.inputs import Fields
from shadowprice.formats.templates import read_template
from shadowprice.market import check_policy
from shadowprice.run_folder import RunFolder

if TYPE_CHECKING:
    import ray.data

    from shadowprice.backends.base import Backend

__all__ = ["INTERRUPTED", "Plan", "RayRun", "llm", "plan", "run"]


@dataclass(frozen=True, eq=False)
class Plan:
    """The clearing, and a limit for every row: `limits` by block, 0 where a request is declined."""

    requests: int
    budget: int
    policy: str
    cleared: Round
    limits: list[NDArray[np.int64]] = field(repr=False)
    table: Table = field(repr=False)

    @property
    def price(self) -> float | None:
        return self.cleared.price

    @property
    def admitted(self) -> int:
        return self.cleared.admitted

    @property
    def declined(self) -> int:
        return self.requests - self.admitted

    @property
    def granted(self) -> int:
        return sum(int(block.sum()) for block in self.limits)

    def to_dataset(self) -> ray.data.Dataset:
        """The columns id, body, forecast and `max_tokens`, the limit of the answer, in the order of the rows."""
        found = connect()
        limited = found.remote(_with_limits)
        limited_blocks = [limited.remote(*each) for each in zip(self.table.blocks, self.limits, strict=True)]
        dataset: ray.data.Dataset = load_data().from_arrow_refs(limited_blocks)
        return dataset


def _with_limits(table: Any, limits: NDArray[np.int64]) -> Any:
    import pyarrow

    kept = table.drop_columns(["name", "prompt", "cap"])
    return kept.append_column("max_tokens", pyarrow.array(limits))


def plan(
    dataset: ray.data.Dataset,
    budget: int | float | str,
    *,
    policy: str = "expected",
    options: Mapping[str, Any] | None = None,
    forecaster: Predictor | None = None,
    max_tokens: int | None = None,
    rates: Rates = TOKENS,
    gather: int = GATHER,
    processes: int | None = None,
    **reading: Any,
) -> Plan:
    """Divide `budget` among the rows of a dataset.

    dataset     a row for each request, with columns as in the files of `run`: question (or prompt, problem, input,
                messages), id, answer; or custom_id and body
    gather      the most rows for which the market is cleared on this node; with more it is cleared in shards
    processes   for forecasting; None: half of the processors of the cluster
    reading     prompt_field, gold_field, id_field, grader, template, system, model, temperature: as in `run`
    """
    check_policy(policy, dict(options or {}))
    parse_budget(budget, 1, rates)
    table = _prepared(dataset, forecaster, max_tokens, rates, processes, 1, reading)
    supply = parse_budget(budget, table.size, rates)
    nobody = [np.zeros(rows, dtype=bool) for rows in table.rows]
    with plain_errors():
        grants, cleared = market_of(table, rates, gather).divide(supply, policy, dict(options or {}), nobody)
    return Plan(table.size, supply, policy, cleared, grants, table)


def run(
    dataset: ray.data.Dataset,
    budget: int | float | str,
    *,
    backend: Backend | Callable[[], Backend],
    folder: str | os.PathLike[str],
    workers: int = 2,
    concurrency: int = 8,
    attempts: int = 4,
    policy: str = "",
    accounting: str = "reserved",
    options: Mapping[str, Any] | None = None,
    reclaim: bool = True,
    forecaster: Predictor | None = None,
    max_tokens: int | None = None,
    rates: Rates = TOKENS,
    tolerance: Tolerance = USUAL,
    resume: bool | None = None,
    gather: int = GATHER,
    processes: int | None = None,
    actor_options: Mapping[str, Any] | None = None,
    on_event: Callable[[Progress], None] = lambda progress: None,
    **reading: Any,
) -> RayRun:
    """Answer as many rows as possible, correctly, within one budget for all machines that is never exceeded.

    backend        makes the backend of a worker, in its process: `lambda: OpenAIBackend(url, model)`; or a backend
                   that can be pickled
    folder         where the ledger is kept, on this machine; a job whose folder exists is resumed
    workers        processes that send requests, each `concurrency` at the same time
    accounting     reserved; or metered, with the policy index: answers are generated in chunks, in rounds
                   (docs/distributed.md)
    actor_options  of the workers in Ray, such as {"num_gpus": 1}
    on_event       called with the progress about every second
    The rest is as in `plan` and in `shadowprice.Run`. Every row has a result: rows that the budget cannot serve are
    declined, others may fail. Nothing is paid twice, whichever process dies.
    """
    settings = Settings(policy, accounting, dict(options or {}), max_tokens, reclaim, rates=rates, attempts=attempts)
    settings.check()
    if (settings.policy == "index") != (settings.accounting == "metered") or settings.policy in ("tale", "auto"):
        problem = f"policy {settings.policy} with {settings.accounting} accounting on Ray"
        raise InputError(problem, fix="metered accounting is for policy index, reserved for the others")
    if workers < 1 or concurrency < 1:
        raise InputError("workers and concurrency must be at least 1", fix="give 1 or more")
    parse_budget(budget, 1, rates)
    table = _prepared(dataset, forecaster, max_tokens, rates, processes, workers, reading)
    supply = parse_budget(budget, table.size, rates)
    with plain_errors():
        market = market_of(table, rates, gather)
    asked = {
        "input": hashlib.sha256(market.names.tobytes()).hexdigest(),
        "forecast": "default" if forecaster is None else type(forecaster).__name__,
        **{name: value for name, value in asdict(settings).items() if name not in ("concurrency", "attempts")},
    }
    opened = RunFolder.open(folder, supply, asked, resume)
    shape = shape_of(forecaster) if settings.accounting == "metered" else None
    terms = Terms(supply, concurrency, attempts, tolerance, rates, shape)
    job = Job(
        table,
        market,
        supply,
        opened,
        _factory(backend),
        workers,
        terms,
        policy=settings.policy,
        options=settings.options,
        reclaim=reclaim,
        actor_options=dict(actor_options or {}),
        on_event=on_event,
    )
    if opened.finished:
        opened.ledger.close()
        job.rounds = opened.rounds()
        return RayRun(job)
    job.run()
    ended = RayRun(job)
    opened.save(
        done=not job.stopped,
        summary=asdict(ended.summary),
        rounds=[asdict(each) for each in job.rounds],
        served=settings.policy,
    )
    return ended


def _factory(backend: Any) -> Callable[[], Backend]:
    makes: Callable[[], Backend] = _Given(backend) if hasattr(backend, "complete") else backend
    return makes


@dataclass(frozen=True)
class _Given:
    """Makes a copy of a given backend in each process."""

    backend: Any

    def __call__(self) -> Any:
        return self.backend


def _prepared(
    dataset: ray.data.Dataset,
    forecaster: Predictor | None,
    max_tokens: int | None,
    rates: Rates,
    processes: int | None,
    workers: int,
    reading: dict[str, Any],
) -> Table:
    ray = connect()
    fields = Fields(*(reading.pop(f"{name}_field", None) for name in ("prompt", "gold", "id")))
    template = read_template(reading.pop("template", None) or "plain")
    known = Reading(fields=fields, template=template, max_tokens=max_tokens, rates=rates, **reading)
    if processes is None:
        processes = max(1, int(ray.cluster_resources().get("CPU", 2)) // 2)
    return prepare(dataset, known, forecaster, processes, workers)
