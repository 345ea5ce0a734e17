"""Streams: mixes of easy and hard queries, drawn from a pool.

The paper names four streams of 500 queries but does not say how they are mixed. Here:

                 easy   moderate   hard   very hard
    balanced      25%        25%    25%         25%
    mostly-easy   60%        25%    10%          5%
    mostly-hard    5%        10%    25%         60%
    u-shaped      40%        10%    10%         40%

The share of a tier that a pool does not have goes to the nearest tier it has, the easier one of two. (The paper's own
evaluation pool has no easy tier either: GSM8K is used for training.) No question is drawn twice unless a tier has
fewer questions than its share: then every question is drawn once before any is drawn again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shadowprice.lab.pools import TIERS, Pool

STREAMS: dict[str, tuple[float, ...]] = {
    "balanced": (0.25, 0.25, 0.25, 0.25),
    "mostly-easy": (0.60, 0.25, 0.10, 0.05),
    "mostly-hard": (0.05, 0.10, 0.25, 0.60),
    "u-shaped": (0.40, 0.10, 0.10, 0.40),
}
QUERIES = 500


def draw(pool: Pool, stream: str, n: int, seed: int) -> NDArray[np.intp]:
    """n places in the pool, in random order; the same for the same seed."""
    random = np.random.default_rng([seed, *stream.encode()])
    chosen = []
    for tier, count in enumerate(counts(pool, stream, n)):
        members = np.flatnonzero(pool.tier == tier)
        whole, part = divmod(count, members.size) if members.size else (0, 0)
        chosen += [members] * whole + [random.permutation(members)[:part]]
    return random.permutation(np.concatenate(chosen))


def counts(pool: Pool, stream: str, n: int) -> list[int]:
    """The number of queries of each tier; they add up to n."""
    present = np.unique(pool.tier)
    share = np.zeros(len(TIERS))
    for tier, part in enumerate(STREAMS[stream]):
        share[present[np.argmin(np.abs(present - tier))]] += part
    edges = np.round(np.cumsum(share) * n).astype(int)
    return [int(count) for count in np.diff(edges, prepend=0)]
