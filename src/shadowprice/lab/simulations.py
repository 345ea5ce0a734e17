"""What a policy achieves on recorded answers: the schedulers of `run`, driven by the simulator.

Exact for greedy decoding, where a smaller limit truncates the same answer earlier. A row of a table is a `Setup`: the
configuration of a scheduler, with the command that runs it. Policies with hindsight have no command: they need to know
the answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array
from shadowprice.engine import HINDSIGHT, Settings, make_scheduler
from shadowprice.engine.bulk import simulate_lengths
from shadowprice.engine.metered import Metered
from shadowprice.engine.readings import PartReader
from shadowprice.engine.recall import Recall
from shadowprice.engine.reserved import Reserved
from shadowprice.engine.scheduler import Work
from shadowprice.engine.simulate import simulate
from shadowprice.lab.pools import Mask, Pool
from shadowprice.market import allocate
from shadowprice.types import Allocation, Completion, Forecast, Request

Tokens: TypeAlias = NDArray[np.int64]
# reserved   one clearing, as in the paper
# reclaimed  the same, and cleared again for what was not used: the default of `run`
# metered    tokens count when they are generated
Accounting: TypeAlias = Literal["reserved", "reclaimed", "metered"]


@dataclass(frozen=True)
class Setup:
    """A policy in an accounting."""

    policy: str
    accounting: Accounting
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def settings(self, queries: Queries) -> Settings:
        attempts = queries.attempts
        return Settings(
            policy=self.policy,
            accounting="metered" if self.accounting == "metered" else "reserved",
            reclaim=self.accounting != "reserved",
            options=self.options,
            max_tokens=queries.cap if attempts is None else attempts.cap,
            samples=1 if attempts is None else attempts.length.shape[1],
            concurrency=1,
        )

    def command(self, queries: Queries, budget: int) -> str:
        """The command line that does the same with requests like these; empty for hindsight."""
        if self.policy in HINDSIGHT:
            return ""
        gold = "" if queries.attempts is None else " --gold GOLD"  # a correct attempt stops the others
        return f"{self.settings(queries).command(f'{budget}/query')}{gold} --base-url URL"


# The policies that are compared, and the accountings of each. With hindsight every granted token is used, so results
# are the same in all accountings, and an upper bound in each. `tale` is left out: traces have no teacher's estimates.
ACCOUNTINGS: dict[str, tuple[Accounting, ...]] = {
    "uniform": ("reserved", "metered"),  # it declines no query, so no query could use reclaimed tokens
    "proportional": ("reserved", "metered"),
    "heuristic": ("reserved",),
    "auction": ("reserved",),
    "clear": ("reserved", "reclaimed", "metered"),
    "triangular": ("reserved",),
    "quadratic": ("reserved",),
    "expected": ("reserved", "reclaimed"),
    "index": ("metered",),
    "oracle": ("reserved", "metered"),
    "clairvoyant": ("reserved", "metered"),
}
PRACTICAL = tuple(name for name in ACCOUNTINGS if name not in HINDSIGHT)


@dataclass(frozen=True, eq=False)
class Attempts:
    """Several answers to every query, one row per query, in the order in which they are tried; each has at most `cap`
    tokens."""

    length: Tokens
    ended: Mask
    correct: Mask
    cap: int

    @property
    def tokens(self) -> Tokens:
        """What a query needs: the lengths of its attempts up to the first correct one."""
        first = np.where(self.correct.any(axis=1), self.correct.argmax(axis=1), self.length.shape[1] - 1)
        total: Tokens = np.cumsum(self.length, axis=1)[np.arange(first.size), first]
        return total


@dataclass(frozen=True, eq=False)
class Queries:
    """Some queries of a pool: their forecasts, and their true lengths and correctness."""

    forecast: Forecast
    length: Tokens
    correct: Mask
    truncated: Mask
    cap: int
    attempts: Attempts | None = None  # where a query has several
    reader: PartReader | None = None
    texts: Array | None = None  # traits of the answers, for the reader

    @classmethod
    def of(cls, pool: Pool, places: NDArray[np.intp]) -> Queries:
        queries = cls(
            pool.forecast.take(places), pool.length[places], pool.correct[places], pool.truncated[places], pool.cap
        )
        if pool.reader is None or pool.texts is None:
            return queries
        return replace(queries, reader=pool.reader.take(places), texts=pool.texts[places])

    def __len__(self) -> int:
        return self.length.size


@dataclass(frozen=True, eq=False)
class Outcome:
    """The outcome of each query. `granted` is the most it was ever allowed; 0 means declined."""

    granted: Tokens
    spent: Tokens
    finished: Mask
    correct: Mask  # finished, and correct
    price: float | None = None


def outcome_of(setup: Setup, queries: Queries, budget: int) -> Outcome:
    """The outcomes of the queries under a budget of tokens."""
    if setup.policy in HINDSIGHT:
        return _with_hindsight(setup.policy, queries, budget)
    if queries.attempts is not None:
        return _best_of(setup, queries, queries.attempts, budget)
    ends = np.where(queries.truncated, queries.cap + 1, queries.length)
    scheduler = make_scheduler(setup.settings(queries), reader=queries.reader)
    assert isinstance(scheduler, Reserved | Metered)
    scheduler.add([_REQUEST] * len(queries), queries.forecast)
    if isinstance(scheduler, Reserved):  # in every accounting the first clearing of a policy is the same
        scheduler.first_round = _first_round(queries, budget, setup.policy, tuple(setup.options.items()))
    else:
        scheduler.recall = _recall(queries)
    served = simulate_lengths(scheduler, ends, budget, queries.cap, queries.texts)
    return _outcome(queries, served.granted, served.generated, scheduler.price)


@lru_cache(maxsize=1)
def _recall(queries: Queries) -> Recall:
    """What runs by index on these queries share, whatever their budgets."""
    return Recall()


@lru_cache(maxsize=64)
def _first_round(queries: Queries, budget: int, policy: str, options: tuple[tuple[str, Any], ...]) -> Allocation:
    return allocate(queries.forecast, budget, policy, max_tokens=queries.cap, **dict(options))


def _best_of(setup: Setup, queries: Queries, attempts: Attempts, budget: int) -> Outcome:
    """The outcomes if several attempts share a grant, and a correct one stops the others."""
    length, ended, correct = attempts.length.tolist(), attempts.ended.tolist(), attempts.correct.tolist()

    def answer(work: Work) -> Completion:
        tokens = min(work.grant, length[work.place][work.sample])
        whole = ended[work.place][work.sample] and tokens == length[work.place][work.sample]
        return Completion("", tokens, "stop" if whole else "length", "server")

    scheduler = make_scheduler(setup.settings(queries))
    scheduler.add([_REQUEST] * len(queries), queries.forecast)
    done = simulate(scheduler, answer, budget, correct=lambda work, found: correct[work.place][work.sample])
    granted, spent = np.zeros(len(queries), dtype=np.int64), np.zeros(len(queries), dtype=np.int64)
    finished, found_correct = np.zeros(len(queries), dtype=bool), np.zeros(len(queries), dtype=bool)
    for work, found in zip(done.work, done.found, strict=True):
        granted[work.place] = max(granted[work.place], spent[work.place] + work.grant)
        spent[work.place] += found.tokens
        finished[work.place] |= found.finish == "stop"
        found_correct[work.place] |= found.finish == "stop" and correct[work.place][work.sample]
    return Outcome(granted, spent, finished, found_correct, scheduler.price)


_REQUEST = Request("", "")  # its text is not used: queries are identified by their place


def _with_hindsight(policy: str, queries: Queries, budget: int) -> Outcome:
    """Answers that never end are longer than any grant."""
    truth: dict[str, Any] = {"lengths": np.where(queries.truncated, queries.cap + 1, queries.length)}
    if policy == "clairvoyant":
        truth["correct"] = queries.correct
    given = allocate(queries.forecast, budget, policy, max_tokens=queries.cap, **truth)
    return _outcome(queries, given.tokens, np.minimum(queries.length, given.tokens), None)


def _outcome(queries: Queries, granted: Tokens, spent: Tokens, price: float | None) -> Outcome:
    finished = (spent >= queries.length) & (granted > 0) & ~queries.truncated
    return Outcome(granted, spent, finished, finished & queries.correct, price)
