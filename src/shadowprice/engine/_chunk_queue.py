"""The queue of the index: where the chunks of each request stop, what they are worth, and which of them is next."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.market.gittins import Chunks


class Chunk(NamedTuple):
    """The next chunk of a request. Sorts by index, the highest first, then in the order of the requests."""

    minus_index: float
    place: int
    age: int  # of the answer when the chunk was queued; once it differs, the chunk is outdated
    stop: int


class ChunkQueue:
    """Finds the best chunk in O(log n). Decides nothing: `Metered` says which requests wait, and how old they are."""

    def __init__(self, pause: Callable[[int, int], int | None] = lambda place, age: None) -> None:
        """`pause` says at which age after this one a chunk of the request has to end, by place and age; None: any."""
        self._pause = pause
        self._heap: list[Chunk] = []
        # Where chunks stop and their index, by place: in slices of arrays, or for some requests in arrays of their own.
        self._first, self._stops, self._index = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
        self._own: dict[int, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}

    def clear(self) -> None:
        """Frees the arrays, which are large, before new ones are made."""
        self._heap, self._own = [], {}
        self._stops, self._index = self._stops[:0].copy(), self._index[:0].copy()

    def fill(self, requests: int, waiting: NDArray[np.intp], plan: Chunks) -> None:
        """Takes the chunks of the `waiting` requests; there are `requests` in total."""
        count = np.zeros(requests + 1, dtype=np.int64)
        count[waiting + 1] = np.diff(plan.first)
        self._first, self._stops, self._index = np.cumsum(count), plan.stop, plan.index

    def replace(self, places: NDArray[np.intp], plan: Chunks) -> None:
        """Takes new chunks of some requests, for instance of those in flight."""
        bounds = zip(places.tolist(), plan.first[:-1], plan.first[1:], strict=True)
        self._own.update((place, (plan.stop[low:high], plan.index[low:high])) for place, low, high in bounds)

    def start(self, waiting: NDArray[np.intp], age: NDArray[np.int64], least: int) -> None:
        """Queues the next chunk of every `waiting` request."""
        chunks = (self.next_chunk(place, int(age[place]), least) for place in waiting.tolist())
        self._heap = [chunk for chunk in chunks if chunk]
        heapq.heapify(self._heap)

    def next_chunk(self, place: int, age: int, least: int) -> Chunk | None:
        """From this age to where the index falls, but at least `least` tokens; None: the forecast has no more."""
        low, high = self._first[place], self._first[place + 1]
        stops, index = self._own.get(place) or (self._stops[low:high], self._index[low:high])
        at = int(np.searchsorted(stops, age, side="right"))
        if at == stops.size:
            return None
        last = at + int(np.searchsorted(stops[at:], age + least))
        stop, pause = int(stops[min(last, stops.size - 1)]), self._pause(place, age)
        return Chunk(-float(index[at]), place, age, stop if pause is None else min(stop, pause))

    def push(self, chunk: Chunk) -> None:
        heapq.heappush(self._heap, chunk)

    def best(self, waiting: NDArray[np.bool_], age: NDArray[np.int64]) -> Chunk | None:
        """The best chunk of a request that waits, without removing it; drops outdated ones."""
        while self._heap:
            chunk = self._heap[0]
            if waiting[chunk.place] and chunk.age == age[chunk.place]:
                return chunk
            heapq.heappop(self._heap)
        return None
