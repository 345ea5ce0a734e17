"""The input of every experiment: pools, streams, budgets, policies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from shadowprice.cost import parse_budget
from shadowprice.errors import InputError
from shadowprice.lab.compare import Row
from shadowprice.lab.pools import Pool, Recorded
from shadowprice.lab.simulations import ACCOUNTINGS, Accounting
from shadowprice.lab.streams import QUERIES, STREAMS

PAPER_BUDGETS = ("256", "512", "1024", "2048", "4096")
_MOST = 2**30  # tokens per query: for all queries of a stream it is still a valid budget
MULTIPLES = ("0.25x", "0.5x", "1x", "2x", "4x")  # of the median length


class NotPossible(Exception):
    """A table that these traces do not allow; the message says why."""


@dataclass(frozen=True)
class Lab:
    """The input of every experiment, and the rows so far.

    pools   with forecasts: most tables are about the first, the second is another model
    models  everything that was recorded
    rows    of the experiments that are done
    """

    pools: Sequence[Pool]
    models: Sequence[Recorded]
    streams: Sequence[str] = tuple(STREAMS)
    budgets: Sequence[int] = ()
    policies: Sequence[str] = tuple(ACCOUNTINGS)
    seeds: int = 5
    queries: int = QUERIES
    quick: bool = False
    rows: list[Row] = field(default_factory=list)

    @property
    def pool(self) -> Pool:
        return self.pools[0]

    @property
    def stream(self) -> str:
        """The stream of experiments that use only one."""
        return "balanced" if "balanced" in self.streams else self.streams[0]

    def accountings(self, *only: str) -> dict[str, list[Accounting]]:
        """Every selected policy (of `only`, where given) and the accountings it is simulated in."""
        return {name: list(ACCOUNTINGS[name]) for name in self.policies if not only or name in only}

    def few_if_quick(self, many: int, few: int) -> int:
        return few if self.quick else many


def budgets_of(median: float, texts: Sequence[str] = ()) -> list[int]:
    """Tokens per query, smallest first, from texts: `256`, `1k`, or in median lengths: `0.5x`.

    The default is the paper's budgets if the smallest of them is scarce, else multiples of the median.
    """
    if not texts:
        texts = PAPER_BUDGETS if 2 * int(PAPER_BUDGETS[0]) < median else MULTIPLES
    return sorted({_budget(text, median) for text in texts})


def _budget(text: str, median: float) -> int:
    times = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*x", text.strip(), re.ASCII)
    if times:
        exact = min(float(times[1]) * median, 2.0 * _MOST)
        tokens = max(1, round(exact)) if exact > 0 else 0
    else:
        tokens = parse_budget(text, 1)
    if not 1 <= tokens <= _MOST:
        raise InputError(f"a budget of {text} is {tokens} tokens per query", fix="give 1 to 2^30, as 256 or 0.5x")
    return tokens


def selected(what: str, names: Sequence[str], all_of: Sequence[str]) -> list[str]:
    """The names in the order of `all_of`, or all of them if none are given; an unknown name is an error."""
    if wrong := [name for name in names if name not in all_of]:
        raise InputError(f"unknown {what} {wrong[0]!r}", fix=f"known are {', '.join(all_of)}")
    return [name for name in all_of if not names or name in names]
