"""The processes of a job, as Ray actors: wrappers of `Coordinator`, `serve` and `Shard`, which do not use Ray."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shadowprice.backends.base import Backend
from shadowprice.cost import Rates
from shadowprice.distributed.cluster import load_ray
from shadowprice.distributed.coordinator import Balance, Coordinator, Message, Reply
from shadowprice.distributed.metered import Rounded
from shadowprice.distributed.tables import FORECAST, NUMBERS, forecast_from, gold_in, requests_in
from shadowprice.distributed.worker import Served, Share, Terms, serve
from shadowprice.engine.executor import Grader
from shadowprice.grading import grade
from shadowprice.market.policies import expected_curves
from shadowprice.market.shards import Shard
from shadowprice.types import Completion, Forecast, Request

if TYPE_CHECKING:
    import pyarrow


class CoordinatorActor:
    """Owns the ledger. Messages that arrive while another is written to disk are written together."""

    def __init__(self, path: str, options: dict[str, Any]) -> None:
        self._inner = Coordinator(Path(path), **options)
        self._waiting: list[tuple[Message, asyncio.Future[Reply]]] = []

    async def exchange(self, message: Message) -> Reply:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Reply] = loop.create_future()
        self._waiting.append((message, answer))
        if len(self._waiting) == 1:
            loop.call_soon(self._answer)
        return await answer

    def _answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            replies = self._inner.exchange([message for message, _ in waiting])
        except Exception as error:
            for _, answer in waiting:
                answer.set_exception(error)
            return
        for (_, answer), reply in zip(waiting, replies, strict=True):
            answer.set_result(reply)

    async def stop(self, reason: str) -> None:
        self._inner.stop(reason)

    async def balance(self) -> Balance:
        return self._inner.balance()

    async def parts(self, names: Collection[str]) -> list[tuple[str, bytes, bool]]:
        return self._inner.parts(names)

    async def charge_lost(self) -> Balance:
        return self._inner.charge_lost()

    async def close(self) -> None:
        self._inner.close()

    async def pid(self) -> int:
        return os.getpid()


class WorkerActor:
    def __init__(self, make_backend: Callable[[], Backend], coordinator: Any, terms: Terms) -> None:
        self._make_backend, self._coordinator, self._terms = make_backend, coordinator, terms
        self._backend: Backend | None = None
        self._share: Share | None = None
        self._again = load_ray().get_runtime_context().was_current_actor_reconstructed

    async def serve(self, table: pyarrow.Table, grants: NDArray[np.int64], again: bool) -> Served:
        if self._backend is None:
            self._backend = self._make_backend()
        return await serve(
            requests_in(table),
            grants,
            self._backend,
            self._exchange,
            self._terms,
            grade=_grader(gold_in(table)),
            again=again or self._again,
        )

    async def round(self, allowance: int, last: bool, *tables: pyarrow.Table) -> Rounded:
        """A round of metered accounting on the requests of these tables, which are the same in every round."""
        if self._share is None:
            self._share = await self._begin(tables)
        return await self._share.round(allowance, last=last)

    async def _begin(self, tables: Sequence[pyarrow.Table]) -> Share:
        if self._backend is None:
            self._backend = self._make_backend()
        requests: list[Request] = []
        gold: dict[str, tuple[str, str]] = {}
        for table in tables:
            caps = table.column("cap").to_pylist()
            requests += [
                request if cap == np.inf else replace(request, max_tokens=int(cap))
                for request, cap in zip(requests_in(table), caps, strict=True)
            ]
            gold |= gold_in(table)
        forecast = Forecast.joined([forecast_from(numbers_in(table), self._terms.shape) for table in tables])
        share = Share(
            requests,
            forecast,
            self._backend,
            self._exchange,
            self._terms,
            grade=_grader(gold),
            again=self._again,
        )
        share.restore(await self._coordinator.parts.remote({request.id for request in requests}))
        return share

    async def _exchange(self, message: Message) -> Reply:
        reply: Reply = await self._coordinator.exchange.remote(message)
        return reply

    async def close(self) -> None:
        if self._backend is not None:
            await self._backend.close()

    async def pid(self) -> int:
        return os.getpid()


def _grader(gold: dict[str, tuple[str, str]]) -> Grader | None:
    def correct(name: str, answer: Completion) -> bool | None:
        if name not in gold:
            return None
        right, grader = gold[name]
        return grade(grader, answer.text, right, truncated=answer.finish == "length").correct

    return correct if gold else None


class ShardActor:
    """The numbers of some blocks, and their part of the market."""

    def __init__(self, *blocks: dict[str, NDArray[Any]]) -> None:
        self._blocks = blocks
        self._shard, self._waiting = Shard(expected_curves(Forecast([]), np.zeros(0))), np.zeros(0, dtype=np.intp)

    def pid(self) -> int:
        return os.getpid()

    def names(self) -> NDArray[np.uint64]:
        return np.concatenate([block["name"] for block in self._blocks])

    def build(self, rates: Rates, ended: Sequence[NDArray[np.bool_]]) -> int:
        """Makes the market of the requests that have not ended; returns how many there are."""
        whole = {name: np.concatenate([block[name] for block in self._blocks]) for name in NUMBERS}
        self._waiting = np.flatnonzero(~np.concatenate(ended))
        forecast = forecast_from({name: whole[name][self._waiting] for name in FORECAST})
        self._first = np.ceil(whole["prompt"][self._waiting] * max(rates.input, rates.cached) / rates.output)
        cap = whole["cap"][self._waiting] + self._first
        self._shard = Shard(expected_curves(forecast.shifted(self._first) if rates.priced else forecast, cap))
        return self._waiting.size

    def ask(self, method: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(self._shard, method)(*arguments)

    def grants(self) -> list[NDArray[np.int64]]:
        """Whole tokens for the requests of each block; 0 for those that are declined or have ended."""
        sizes = [len(block["cap"]) for block in self._blocks]
        every = np.zeros(sum(sizes), dtype=np.int64)
        every[self._waiting] = np.maximum(0, self._shard.tokens - self._first).astype(np.int64)
        return np.split(every, np.cumsum(sizes)[:-1])


class RayShards:
    """`market.shards.Shards` in other processes."""

    def __init__(self, actors: Sequence[Any]) -> None:
        self.actors = actors

    def all(self, method: str, *arguments: Any) -> list[Any]:
        return self.each(method, [arguments] * len(self.actors))

    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        asked = [actor.ask.remote(method, own) for actor, own in zip(self.actors, arguments, strict=True)]
        answers: list[Any] = load_ray().get(asked)
        return answers


def numbers_in(table: pyarrow.Table) -> dict[str, NDArray[Any]]:
    """The columns of a table that planning needs."""
    return {name: table.column(name).to_numpy() for name in (*NUMBERS, "name")}


def start_coordinator(path: Path, options: dict[str, Any]) -> Any:
    """Starts it on this machine, which has the ledger. Ray restarts it when it dies, and sends messages again."""
    ray = load_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor_class = ray.remote(CoordinatorActor).options(
        num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=1000, scheduling_strategy=here
    )
    return actor_class.remote(str(path), options)


def start_workers(
    count: int, make_backend: Callable[[], Backend], coordinator: Any, terms: Terms, options: dict[str, Any]
) -> list[Any]:
    """Starts workers on all machines. Ray restarts those that die, with the block that they were serving."""
    ray = load_ray()
    usual = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": "SPREAD"}
    actor_class = ray.remote(WorkerActor).options(**{**usual, **options})
    return [actor_class.remote(make_backend, coordinator, terms) for _ in range(count)]
