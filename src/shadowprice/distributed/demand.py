"""The price of a job, and the grant of every request: on this node, or in shards if this node is too small.

Up to `GATHER` rows, about 70 bytes a row are gathered here. With more rows the numbers stay in actors that answer
queries about their part of the market (`market.sharded`): the price and the admitted requests are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shadowprice.cost import Rates
from shadowprice.distributed.actors import RayShards, ShardActor, numbers_in
from shadowprice.distributed.cluster import load_ray
from shadowprice.distributed.tables import FORECAST, forecast_from
from shadowprice.engine.scheduler import Round
from shadowprice.errors import InputError
from shadowprice.market.sharded import allocate_shards
from shadowprice.planning import Demand

GATHER = 20_000_000  # rows
_SHARD = 2_000_000  # rows of one actor
_AT_ONCE = 64  # blocks

Grants = list[NDArray[np.int64]]  # by block
Ended = Sequence[NDArray[np.bool_]]


class Gathered:
    """The numbers of all requests, in this process."""

    def __init__(self, blocks: Sequence[Any], rates: Rates) -> None:
        ray = load_ray()
        read = ray.remote(numbers_in)
        parts: list[dict[str, NDArray[Any]]] = []
        for first in range(0, len(blocks), _AT_ONCE):
            parts += ray.get([read.remote(block) for block in blocks[first : first + _AT_ONCE]])
        self.sizes = [len(part["cap"]) for part in parts]
        whole = {name: np.concatenate([part.pop(name) for part in parts]) for name in [*parts[0]]}
        self.names: NDArray[np.uint64] = whole["name"]
        self._rates = rates
        self._numbers = {name: whole[name] for name in (*FORECAST, "cap", "prompt")}

    def divide(self, budget: int, policy: str, options: Mapping[str, Any], ended: Ended) -> tuple[Grants, Round]:
        """Divides what is left among the requests that have not ended."""
        waiting = np.flatnonzero(~np.concatenate(ended))
        chosen = {
            name: values if waiting.size == values.size else values[waiting] for name, values in self._numbers.items()
        }
        size = waiting.size
        demand = Demand(
            forecast_from(chosen),
            chosen["cap"],
            np.ones(size, dtype=np.int64),
            np.zeros(size, dtype=bool),
            chosen["prompt"],
            self._rates,
            None,
        )
        decided, grants = demand.allocate(budget, policy, options)
        every = np.zeros(sum(self.sizes), dtype=np.int64)
        every[waiting] = grants
        admitted = int(np.count_nonzero(grants))
        cleared = Round(budget, size, admitted, demand.cost(grants), decided.price, decided.status)
        return np.split(every, np.cumsum(self.sizes)[:-1]), cleared


class Sharded:
    """The numbers of all requests in actors, each with those of some blocks."""

    def __init__(self, blocks: Sequence[Any], rows: Sequence[int], rates: Rates) -> None:
        ray = load_ray()
        self.sizes, self._rates = [*rows], rates
        ends, size = [0], 0
        for at, count in enumerate(rows, start=1):
            size += count
            if size >= _SHARD or at == len(rows):
                ends.append(at)
                size = 0
        self._parts = [slice(low, high) for low, high in pairwise(ends)]
        actor_class = ray.remote(ShardActor).options(num_cpus=0, scheduling_strategy="SPREAD")
        read = ray.remote(numbers_in)  # without the texts, which stay where they are
        numbers = [read.remote(block) for block in blocks]
        self._actors = [actor_class.remote(*numbers[part]) for part in self._parts]

    @property
    def names(self) -> NDArray[np.uint64]:
        return np.concatenate(load_ray().get([actor.names.remote() for actor in self._actors]))

    def divide(self, budget: int, policy: str, options: Mapping[str, Any], ended: Ended) -> tuple[Grants, Round]:
        if policy != "expected" or options:
            problem = f"policy {policy} on {sum(self.sizes):,} rows, which do not fit on one node"
            raise InputError(problem, fix="use policy expected, or a larger gather=")
        ray, rates = load_ray(), self._rates
        built = [actor.build.remote(rates, ended[part]) for actor, part in zip(self._actors, self._parts, strict=True)]
        waiting = sum(ray.get(built))
        tokens = budget
        if rates.priced:  # as in `market.priced.allocate_units`; every cost is rounded up by less than 1
            tokens = max(0, budget - waiting) * 10**6 // rates.output
        cleared = allocate_shards(RayShards(self._actors), tokens)
        parts = ray.get([actor.grants.remote() for actor in self._actors])
        grants = [block for part in parts for block in part]
        cost = int(cleared.granted) if not rates.priced else budget
        return grants, Round(budget, waiting, cleared.admitted, cost, cleared.price, cleared.status)


def find_twice(names: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The digests of ids that seem to be used more than once."""
    ordered = np.sort(names)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
