"""What the same budget would have bought if every request had been given the same share of it.

Simulated from the answers of a run, whose lengths are known if they ended. Where the simulation has to err, it favours
uniform: prompts are charged what they cost, not what would have been reserved for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shadowprice.accounts.view import Account, RequestView
from shadowprice.arrays import Array
from shadowprice.cost import Rates
from shadowprice.formats.asked import Asked
from shadowprice.market.curves import Expected
from shadowprice.types import Usage


@dataclass(frozen=True)
class Uniform:
    """share      units for each request
    good       answers that would have ended within it and, in graded runs, are correct
    cut        answers that take more than it: they count for nothing
    failed     requests that failed in the run: they count for nothing
    unknown    requests whose answer has an unknown length
    likely     how many of these are expected to be good, by their forecasts; None without forecasts
    """

    share: int
    good: int
    cut: int
    failed: int
    unknown: int
    likely: float | None

    @property
    def total(self) -> float:
        return self.good + (self.likely or 0.0)


def uniform(account: Account, asked: Mapping[str, Asked], *, graded: bool) -> Uniform | None:
    """None where there is nothing to compare: no requests, several samples, or a run that is itself uniform."""
    settings = account.manifest.get("asked") or {}
    policy, views = settings.get("policy"), list(account.requests.values())
    same = policy == "uniform" and not account.metered and not settings.get("reclaim", True)
    if not views or not policy or same or (settings.get("samples") or 1) != 1:
        return None
    share, cap = account.budget // len(views), settings.get("max_tokens") or np.inf
    good = cut = failed = 0
    unknown: list[tuple[RequestView, int]] = []  # and the tokens that the answer is known to exceed
    for view in views:
        ended, length = _length(view)
        if view.outcome == "failed":
            failed += 1
        elif not ended and length < cap and _cost(view, account.rates) < share:
            unknown.append((view, length))
        elif not ended or _cost(view, account.rates) > share:
            cut += 1
        else:
            good += view.correct is True if graded else 1
    counted = [pair for pair in unknown if not graded or _has_gold(pair[0].id, asked)]
    limit = min(cap, _limit(account, views, share))
    return Uniform(share, good, cut, failed, len(counted), _likely(counted, limit, graded=graded))


def _length(view: RequestView) -> tuple[bool, int]:
    """Whether the model ended the answer by itself, and the tokens of the answer. A landed answer did not."""
    parts = [attempt.usage.output for attempt in view.attempts if attempt.end in ("chunk", "result")]
    if view.outcome == "landed":
        return False, sum(parts[:-1])
    return view.answered and view.outcome == "finished", sum(parts)


def _cost(view: RequestView, rates: Rates) -> int:
    """What the answer would cost if it were generated in one piece: its prompt is read once."""
    parts = [attempt.usage for attempt in view.attempts if attempt.end in ("chunk", "result")]
    _, length = _length(view)
    return rates.cost(Usage(length, parts[0].input, parts[0].cached)) if parts else 0


def _limit(account: Account, views: Sequence[RequestView], share: int) -> int:
    """The tokens that a share allows; with money, after a prompt of average length."""
    if not account.rates.priced:
        return share
    read = [a.usage.input + a.usage.cached for view in views for a in view.attempts[:1] if a.usage.input]
    return account.rates.limit(round(sum(read) / len(read)) if read else 0, share)


def _has_gold(name: str, asked: Mapping[str, Asked]) -> bool:
    return not asked or bool(asked.get(name, Asked()).gold)


def _likely(unknown: Sequence[tuple[RequestView, int]], limit: float, *, graded: bool) -> float | None:
    """The sum of the chances that an answer ends (in graded runs: correctly) within `limit`, given what is known."""
    if any("tokens" not in view.forecast for view, _ in unknown):
        return None
    if not unknown or limit <= 0:
        return 0.0

    def column(*names: str, default: float = np.inf) -> Array:
        rows = (view.forecast for view, _ in unknown)
        return np.array([next((row[name] for name in names if name in row), default) for row in rows], dtype=float)

    past = np.array([length for _, length in unknown], dtype=float)
    tail = column("tail")
    ends = Expected(column("tokens"), column("spread", default=0.5), tail=tail)
    counts = ends
    if graded:
        solved = column("solved_tokens", "tokens"), column("solved_spread", "spread", default=0.5)
        counts = Expected(*solved, column("solve", default=1.0), tail=tail)
    left = np.maximum(1 - ends.value(past), 1e-12)
    chance = np.clip((counts.value(np.full_like(past, limit)) - counts.value(past)) / left, 0.0, 1.0)
    return float(np.where(past < limit, chance, 0.0).sum())
