"""The nouns of the package, as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shadowprice.arrays import Array, checked, common_length
from shadowprice.shape import Shape


@dataclass(frozen=True, slots=True)
class Request:
    """One thing to answer.

    text        what a forecast is made from
    max_tokens  the caller's own limit, per answer
    answers     how many answers it asks for (`n`); they share the grant
    body        the request in OpenAI form, `messages` or `prompt`; empty if nothing is sent
    """

    id: str
    text: str
    max_tokens: int | None = None
    answers: int = 1
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Forecast:
    """The expected length and correctness of answers. Every field but `tokens` may be one number for all requests.

    tokens         median length of the answer (the paper's threshold tau), from 0.001 to 2^53
    spread         standard deviation of the log length, above 0
    solve          probability that the full answer is correct
    tail           degrees of freedom of the upper tail of the log length; None: log-normal
    solved_tokens  median length of correct answers: wrong ones are often longer; None: `tokens`
    solved_spread  spread of correct answers; None: `spread`
    shape          the distribution of the lengths as tables, the same for all; None: the one that the other fields say
    """

    tokens: Array
    spread: Array
    solve: Array
    tail: Array | None
    solved_tokens: Array
    solved_spread: Array
    shape: Shape | None

    def __init__(
        self,
        tokens: ArrayLike,
        spread: ArrayLike = 0.5,
        solve: ArrayLike = 1.0,
        tail: ArrayLike | None = None,
        solved_tokens: ArrayLike | None = None,
        solved_spread: ArrayLike | None = None,
        shape: Shape | None = None,
    ) -> None:
        if solved_tokens is None:
            solved_tokens = tokens
        if solved_spread is None:
            solved_spread = spread
        given = {
            "tokens": np.atleast_1d(checked("forecast tokens", tokens, low=1e-3, high=2.0**53)),
            "spread": checked("forecast spread", spread, open_low=True, high=10.0),
            "solve": checked("forecast solve", solve, high=1.0),
            "solved_tokens": checked("forecast solved_tokens", solved_tokens, low=1e-3, high=2.0**53),
            "solved_spread": checked("forecast solved_spread", solved_spread, open_low=True, high=10.0),
        }
        if tail is not None:
            given["tail"] = checked("forecast tail", tail, open_low=True, finite=False)
        common_length(**given)
        for name, values in {"tail": None, **given, "shape": shape}.items():
            object.__setattr__(self, name, values)

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[float | None]], shape: Shape | None) -> Forecast:
        """From numbers that are known to be valid, in the order of the fields. Skips the checks, to save time.

        The tail is None in all rows or in none.
        """
        forecast = object.__new__(cls)
        table = np.array(rows, float)
        columns = [table[:, i] for i in range(len(_COLUMNS))] if len(rows) > 1 else table.reshape(-1, 1)
        forecast.__dict__.update(zip(_COLUMNS, columns, strict=True), shape=shape)
        if rows[0][_TAIL] is None:
            forecast.__dict__["tail"] = None
        return forecast

    def take(self, who: Sequence[int] | NDArray[np.intp] | NDArray[np.bool_]) -> Forecast:
        """The forecast of some of the requests, by index or mask."""
        part, n = object.__new__(Forecast), len(self)  # the numbers are valid: checking them again would take longer
        for name in _COLUMNS:
            values = getattr(self, name)
            if values is not None:
                values = (values if values.shape == (n,) else np.broadcast_to(values, n))[who]
            object.__setattr__(part, name, values)
        object.__setattr__(part, "shape", self.shape)
        return part

    def shifted(self, more: Array) -> Forecast:
        """The forecast if every answer took `more` additional tokens, for instance to read its prompt.

        Medians are shifted; the spread is rescaled to the longer answer, to first order.
        """
        tokens, solved = self.tokens + more, self.solved_tokens + more
        spread = np.maximum(1e-3, self.spread * self.tokens / tokens)
        solved_spread = np.maximum(1e-3, self.solved_spread * self.solved_tokens / solved)
        return Forecast(tokens, spread, self.solve, self.tail, solved, solved_spread, self.shape)

    @classmethod
    def joined(cls, parts: Sequence[Forecast]) -> Forecast:
        """The forecast of all requests of `parts`, in order; it has a shape if all parts have the same."""
        joined: dict[str, Array] = {}
        for name in _COLUMNS:
            columns = [(getattr(part, name), len(part)) for part in parts]
            if any(values is not None for values, _ in columns):  # no tail: infinitely many degrees
                joined[name] = np.concatenate([_column(values, size) for values, size in columns])
        shapes = {part.shape for part in parts if len(part)}
        return cls(**joined, shape=shapes.pop() if len(shapes) == 1 else None) if parts else cls([])

    def __len__(self) -> int:
        return self.tokens.size


def _column(values: Array | None, size: int) -> Array:
    """A field as an array of `size` numbers. Most already are one: skips `broadcast_to`, which is slow."""
    if values is not None and values.shape == (size,):
        return values
    return np.broadcast_to(np.inf if values is None else values, size)


_COLUMNS = ("tokens", "spread", "solve", "tail", "solved_tokens", "solved_spread")  # of a forecast
_TAIL = _COLUMNS.index("tail")


@dataclass(frozen=True, eq=False)
class Allocation:
    """Whole tokens per request; 0 means declined. Their sum never exceeds `budget`.

    `price`, `utility`, `bound` and `status` describe the clearing before its tokens were rounded (see
    `market.Clearing`); they are None for policies that set no price. `beta` is the decay rate that `clear` used.
    """

    tokens: NDArray[np.int64]
    budget: int
    policy: str
    price: float | None = None
    utility: float | None = None
    bound: float | None = None
    status: str | None = None
    beta: float | None = None

    @property
    def admitted(self) -> NDArray[np.bool_]:
        return self.tokens > 0

    @property
    def total(self) -> int:
        return int(self.tokens.sum())


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens by kind: generated, read, and read from a cache."""

    output: int = 0
    input: int = 0
    cached: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.output + other.output, self.input + other.input, self.cached + other.cached)


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer, or one part of it, as it came back.

    tokens         generated tokens that are charged: never fewer than arrived
    finish         stop: the model ended its answer; length: it was cut at the limit
    usage_source   server: its own count, if plausible; counted: our count of the pieces of the stream;
                   assumed: there is no count, so the whole limit is charged
    flags          what the backend found wrong with the server, e.g. limit_ignored
    body           the response in OpenAI form, for the output file
    ids            token ids, if the backend continues from these and not from the text
    input_tokens   prompt tokens that were read; `cached_tokens`: prompt tokens that came from a cache
    least          tokens that were certainly generated, if `tokens` is estimated or assumed; None: `tokens`
    """

    text: str
    tokens: int
    finish: Literal["stop", "length"]
    usage_source: Literal["server", "counted", "assumed"]
    flags: tuple[str, ...] = ()
    body: Mapping[str, Any] = field(default_factory=dict)
    ids: tuple[int, ...] = ()
    input_tokens: int = 0
    cached_tokens: int = 0
    least: int | None = None

    @property
    def usage(self) -> Usage:
        return Usage(self.tokens, self.input_tokens, self.cached_tokens)

    @property
    def certain(self) -> int:
        """Tokens that were certainly generated."""
        return self.tokens if self.least is None else self.least


Outcome: TypeAlias = Literal["finished", "landed", "truncated", "declined", "failed", "not_sent"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request has no answer: a code for programs, a message for people, details for both."""

    code: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a request.

    outcome     finished: answered to the end; landed: asked for the final answer before the tokens ended;
                truncated: cut at its limit; declined: the market would not pay for it; failed: no answer,
                see `failure`; not_sent: the run stopped before it was sent
    cost        units charged to the budget
    completion  the answer, None without one
    correct     whether the answer is correct; None if unknown
    extra       what a scheduler adds for the output file
    """

    id: str
    outcome: Outcome
    usage: Usage = Usage()
    cost: int = 0
    completion: Completion | None = None
    failure: Failure | None = None
    correct: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return self.completion.text if self.completion else ""


@dataclass(frozen=True)
class Trace:
    """One recorded generation. Unknown fields are kept in `extra` and written back."""

    id: str
    prompt: str
    tokens: int
    correct: bool | None = None
    truncated: bool = False
    dataset: str = ""
    gold: str = ""
    model: str = ""
    sample: int = 0
    temperature: float = 0.0
    max_tokens: int | None = None
    response: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
