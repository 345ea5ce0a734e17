"""Divides a budget among requests: a token limit for each.

    plan = shadowprice.plan("requests.jsonl", budget="200k")
    plan.write("planned.jsonl", errors="declined.jsonl")

A file is read twice, one line at a time: `plan` forecasts every request and divides the budget, `Plan.write` puts the
limits into the lines. In between only a few numbers per request are kept, so the file may be larger than memory.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array
from shadowprice.cost import LARGEST, TOKENS, Rates, parse_budget, prompt_bound
from shadowprice.errors import InputError, MissingExtra
from shadowprice.forecast import CHUNK, Predictor, default
from shadowprice.forecast.shared import SharedText
from shadowprice.formats.batch import BatchLine, as_batch, parse_batch, read_batch, with_limit
from shadowprice.formats.declined import declined
from shadowprice.formats.files import Target, replacing
from shadowprice.formats.jsonl import located, read_lines, too_deep
from shadowprice.formats.requests import refuse_unbounded_prompt
from shadowprice.formats.results import result_line
from shadowprice.market import check_policy
from shadowprice.market.policies import serve_rest
from shadowprice.market.priced import allocate_units
from shadowprice.types import Allocation, Forecast, Request

if TYPE_CHECKING:
    import pandas

# A batch file; or questions, OpenAI request bodies or batch lines, in a list.
Requests: TypeAlias = "str | os.PathLike[str] | Iterable[str | Mapping[str, Any]]"
Progress: TypeAlias = "Callable[[Iterator[BatchLine], str], Iterator[BatchLine]]"


def plan(
    requests: Requests,
    budget: int | float | str,
    *,
    policy: str = "expected",
    forecaster: Predictor | None = None,
    max_tokens: int | None = None,
    limit_field: str | None = None,
    options: Mapping[str, Any] | None = None,
    label: str | None = None,
    rates: Rates = TOKENS,
    prices: Rates | None = None,
    progress: Progress = lambda lines, stage: lines,
) -> Plan:
    """Divides `budget` among `requests`.

    requests     the path of an OpenAI Batch file, or a list of questions, request bodies or batch lines
    budget       tokens for all answers together: 200000, "200k", "1.5M", "256/query"; with `rates`, "$5"
    policy       a name in `POLICIES`
    forecaster   default: the one in the package
    max_tokens   the most tokens that an answer may get
    limit_field  the field with the limit of a chat, "max_completion_tokens" or "max_tokens"; if given, other limits
                 in the body are lowered as well
    options      of the policy
    label        what error messages call the requests
    rates        units per token in the budget; `cost.ALL_TOKENS`: prompts count, too
    prices       in dollars, to show the cost of a budget in tokens
    """
    chosen = dict(options or {})
    # Invalid arguments are reported before a long file is read.
    check_policy(policy, chosen)
    parse_budget(budget, 1, rates)
    if limit_field not in (None, "max_completion_tokens", "max_tokens"):
        raise InputError(f"limit field {limit_field!r}", fix="choose max_completion_tokens or max_tokens")
    if max_tokens is not None and not 1 <= max_tokens <= LARGEST:
        raise InputError(f"max_tokens is {max_tokens}", fix=f"give 1 to {LARGEST}")

    source = _Source(requests, label)
    demand = Demand.of(progress(source.read(), "forecasting"), forecaster or default(), max_tokens, rates, prices)
    source.check_unchanged()
    count = len(demand.forecast)
    if count == 0:
        raise InputError("has no requests", path=source.name, fix="write one JSON object per line")
    supply = parse_budget(budget, count, rates)
    allocation, grants = demand.allocate(supply, policy, chosen)
    _, more = demand.allocate(min(supply + supply // 10, LARGEST), policy, chosen)

    limits = grants // demand.answers
    admitted = int(np.count_nonzero(limits))
    older = 0 if limit_field == "max_tokens" else int(np.count_nonzero(demand.older_limit[limits > 0]))
    return Plan(
        requests=count,
        budget=supply,
        granted=int((limits * demand.answers).sum()),
        cost=demand.cost(limits * demand.answers),
        admitted=admitted,
        declined=count - admitted,
        policy=policy,
        price=allocation.price,
        utility=allocation.utility,
        bound=allocation.bound,
        status=allocation.status,
        more_budget=supply // 10,
        more_admitted=int(np.count_nonzero(more // demand.answers)) - admitted,
        more_utility=None if allocation.price is None else allocation.price * (supply // 10) * 10**6 / rates.output,
        older_limits=older,
        forecast=demand.forecast,
        limits=limits,
        grants=limits * demand.answers,
        rates=rates,
        dollars=demand.dollars(limits * demand.answers),
        _source=source,
        _limit_field=limit_field,
        _progress=progress,
    )


@dataclass(frozen=True, eq=False)
class Plan:
    """What each request may use, and what that is expected to buy.

    requests       the number of requests
    budget         in units of `rates`: output tokens, unless others were given
    granted        the sum of the limits, in tokens
    cost           the most units that the planned requests can cost, never more than `budget`
    admitted       the number of requests with a grant
    declined       the number of requests without one
    price          utility per token at which demand meets the budget. `price`, `utility`, `bound` and `status` are None
                   for policies that set no price (see `Allocation`)
    more_budget    10% of the budget
    more_admitted  how many more requests would be admitted with 10% more
    more_utility   what 10% more is worth at the price
    older_limits   admitted chats that carry `max_tokens` beside `max_completion_tokens`, which OpenAI rejects
    dollars        the most that the planned requests can cost; None if prices are unknown
    forecast       of all answers of each request together
    limits         tokens per answer, for each request; 0: declined
    grants         tokens for all answers of each request together
    """

    requests: int
    budget: int
    granted: int
    cost: int
    admitted: int
    declined: int
    policy: str
    price: float | None
    utility: float | None
    bound: float | None
    status: str | None
    more_budget: int
    more_admitted: int
    more_utility: float | None
    older_limits: int
    dollars: float | None
    forecast: Forecast = field(repr=False)
    limits: NDArray[np.int64] = field(repr=False)
    grants: NDArray[np.int64] = field(repr=False)
    rates: Rates = field(repr=False)
    _source: _Source = field(repr=False)
    _limit_field: str | None = field(repr=False)
    _progress: Progress = field(repr=False)

    def write(self, out: Target, errors: Target) -> None:
        """Writes the admitted requests with their limits to `out` and the declined ones to `errors`, in order.

        Both files appear complete or not at all.
        """
        with replacing([errors, out]) as (error_file, out_file):
            self.write_to(out_file, error_file)

    def write_to(self, out: IO[bytes], errors: IO[bytes]) -> None:
        """Does the same for open files."""
        lines = self._progress(self._source.read(), "writing")
        try:
            for position, (line, limit) in enumerate(zip(lines, self.limits.tolist(), strict=True)):
                if limit:
                    out.write(self._limited(line, limit) + b"\n")
                else:
                    result = declined(line.request.id, self.forecast, position, self.price)
                    errors.write(result_line(result) + b"\n")
        finally:
            self._source.check_unchanged()

    def _limited(self, line: BatchLine, limit: int) -> bytes:
        chat = line.limit_field == "max_completion_tokens"
        limit_field = self._limit_field if chat and self._limit_field else line.limit_field
        try:
            return with_limit(line.raw, limit_field, limit, lower_others=self._limit_field is not None)
        except RecursionError:
            raise located(too_deep(), self._source.name, line.number) from None

    def summary(self) -> dict[str, Any]:
        """The totals of the plan, for JSON."""
        return {column.name: getattr(self, column.name) for column in fields(self) if column.repr}

    def to_pandas(self) -> pandas.DataFrame:
        """One row per request: id, forecast, grant, admitted."""
        try:
            import pandas
        except ImportError:
            raise MissingExtra("pandas", "a data frame") from None
        columns: dict[str, Any] = {"id": [line.request.id for line in self._source.read()]}
        self._source.check_unchanged()
        for column in fields(self.forecast):
            if (values := getattr(self.forecast, column.name)) is not None:
                columns[column.name] = np.broadcast_to(values, self.requests)
        return pandas.DataFrame({**columns, "grant": self.grants, "admitted": self.grants > 0})


def batch_lines(requests: Requests, label: str | None = None) -> list[BatchLine]:
    """All lines of a batch."""
    source = _Source(requests, label)
    if not (lines := list(source.read())):
        raise InputError("has no requests", path=source.name, fix="write one JSON object per line")
    return lines


class _Source:
    """Requests that are read twice: from a file that must not change in between, or from memory."""

    def __init__(self, requests: Requests, label: str | None) -> None:
        self._path: str | os.PathLike[str] | None = None
        self._lines: list[tuple[int, bytes]] = []
        if not isinstance(requests, str | os.PathLike):
            self.name = label or "requests"
            self._lines = list(as_batch(requests, self.name))
        else:
            self.name = label or os.fspath(requests)
            if os.path.isfile(requests):
                self._path = requests
                self._version = _version(requests)
            else:  # a pipe can be read only once
                self._lines = list(read_lines(requests, label))

    def read(self) -> Iterator[BatchLine]:
        return parse_batch(self._lines, self.name) if self._path is None else read_batch(self._path, self.name)

    def check_unchanged(self) -> None:
        if self._path is not None and _version(self._path) != self._version:
            raise InputError("changed while it was being planned", path=self.name, fix="plan it again")


def _version(path: str | os.PathLike[str]) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class Demand:
    """What `plan` keeps of every request. Forecast and cap are for all answers to it together."""

    forecast: Forecast
    cap: Array
    answers: NDArray[np.int64]
    older_limit: NDArray[np.bool_]
    prompts: Array  # bounds, in tokens; 0 if prompts cost nothing
    rates: Rates
    prices: Rates | None

    @classmethod
    def of(
        cls,
        lines: Iterator[BatchLine],
        forecaster: Predictor,
        max_tokens: int | None,
        rates: Rates,
        prices: Rates | None,
    ) -> Demand:
        parts: list[Forecast] = []
        shared = SharedText()
        caps, answers, prompts, older_limit = array("d"), array("d"), array("d"), bytearray()
        most = np.inf if max_tokens is None else float(max_tokens)
        while chunk := list(islice(lines, CHUNK)):
            parts.append(forecaster.predict(shared.strip_requests([line.request for line in chunk])))
            caps.extend(min(most, line.request.max_tokens or np.inf) for line in chunk)
            answers.extend(line.request.answers for line in chunk)
            older_limit.extend(line.older_limit for line in chunk)
            counted = rates.priced or prices is not None
            prompts.extend(_prompt(line.request, rates) if counted else 0 for line in chunk)
        count = np.frombuffer(answers)
        forecast = Forecast.joined(parts)

        def of_all_answers(tokens: Array) -> Array:
            return np.where(count > 1, np.ceil(tokens) * count, tokens)  # limits are whole tokens per answer

        together = replace(
            forecast, tokens=of_all_answers(forecast.tokens), solved_tokens=of_all_answers(forecast.solved_tokens)
        )
        older = np.frombuffer(older_limit, dtype=np.bool_)
        cap, whole = np.frombuffer(caps) * count, count.astype(np.int64)
        return cls(together, cap, whole, older, np.frombuffer(prompts), rates, rates if rates.money else prices)

    def allocate(self, budget: int, policy: str, options: Mapping[str, Any]) -> tuple[Allocation, NDArray[np.int64]]:
        """The policy's allocation, and the tokens for all answers of each request."""
        rates = self.rates
        reading = self.prompts * max(rates.input, rates.cached)
        decided, grants = allocate_units(
            self.forecast, budget, policy, self.cap, reading / rates.output, rates, **options
        )
        costs = np.ceil((reading + self.cap * rates.output) / 10**6)
        return decided, serve_rest(grants, self.cap, costs, budget - self.cost(grants))

    def cost(self, grants: NDArray[np.int64], rates: Rates | None = None) -> int:
        """The most units that these grants can cost, with their prompts."""
        rates = rates or self.rates
        if not rates.priced:
            return int(grants.sum())
        sent = np.flatnonzero(grants)
        pairs = zip(self.prompts[sent].tolist(), grants[sent].tolist(), strict=True)
        return sum(rates.bound(int(prompt), grant) for prompt, grant in pairs)

    def dollars(self, grants: NDArray[np.int64]) -> float | None:
        return None if self.prices is None else self.cost(grants, self.prices) / 10**9


def _prompt(request: Request, rates: Rates) -> int:
    if rates.priced:
        refuse_unbounded_prompt(request)
    return prompt_bound(request.body)
