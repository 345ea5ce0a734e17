r"""Pacing: the posted price that makes a window's budget last until the window ends, and not longer.

Requests arrive one by one and buy at the price p that is posted when they arrive (`market.posted`). If R units are left
and the rest of the window brings m requests like those of a sample, the best price minimises the dual of the rest,

    g(p) = p R + m E[max_t value A(t) - p cost(t)],        g'(p) = R - m E[cost at p].

**Without a sample** the gradient is observed, not known: between two updates the requests demand some units where
the target was R times the share of the arrivals that the time between brings. Dual mirror descent with the entropy as
mirror map steps against it: ln p rises by (demanded - target) / scale, at most by `_STEP` at a time, where the scale is
what `_REACT` of the window should spend. The price cannot leave 0 by such steps: it starts at one answer per budget.

**With a sample** of recent requests (`observe`) the dual is minimised exactly, at every update: the edges of the least
concave majorants of all requests, sorted by slope, are the demand at every price (`market.gittins`). So the window
starts at the clearing price of recent traffic, and the price that the sample clears at replaces the one before.

**How many are to come.** F is the share of a window's arrivals that is expected by now: its `shape`, where given, or
learned from the windows before, each equal to one with a constant rate. Past windows predict a total of arrivals; they
have the weight of `_PAST` windows against what has arrived: total = (_PAST past + arrived) / (_PAST + F).
Where no window is past, the first requests may be somebody who tries the gateway, and a few in one second are not the
rate of an hour: up to `_FIRST`, if `_TRIAL` of the budget pays for them, are not counted, and the price stays as it is.

**What answers really cost** corrects R: units spent over units that were expected for them, over this window and,
with falling weight, those before.

**The end.** Units that are left over are worth nothing, and a budget that ends early loses only requests that were
worth about the price. So the price is the highest at which the rest of the requests will almost certainly spend R:

    m E[cost] - _MARGIN sqrt(dispersion m E[cost^2]) = R.

With thousands to come the margin is nothing; with ten to come it is most of the demand, and the price falls to 0 before
the window ends. `dispersion` is the variance of the arrivals in a slot over that of a Poisson process: it is large
where requests come in bursts.

**Requests that are alike** share a reservation price, and no price lets some of them buy and not others. Then the price
moves from one side of theirs to the other, so that as many buy as the window can pay for.

The price is never negative, and never above the highest reservation price in the sample, or without one
`_HIGHEST` answers per budget. Multiplying all units by a factor divides it by the factor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shadowprice.arrays import Array, checked, checked_scalar
from shadowprice.errors import MarketError
from shadowprice.market.gittins import majorant
from shadowprice.market.posted import Offers

_REACT = 0.05  # of the window: how fast mirror descent reacts
_STEP = 0.5  # the most that the logarithm of the price changes at a time
_HIGHEST = 1e12  # answers per budget: no market has a higher price
_PAST = 0.25  # windows
_FIRST, _TRIAL = 20, 0.05  # requests, and the share of the budget that they may take
_MARGIN = 0.75  # standard deviations
_SLOTS = 48  # of a window, in which arrivals are counted
_FORGET = 0.5  # the weight of the window before
_FEW = 16  # requests: a smaller sample does not replace a given price
_TRUST = 0.1  # of the budget: expected costs are corrected once about this much is spent
_FLAT = 0.25  # windows: the weight of a constant rate against what was learned
_KERNEL = np.exp(-(np.arange(-6, 7) ** 2) / 8) / np.exp(-(np.arange(-6, 7) ** 2) / 8).sum()  # two slots wide
_TIE = 1e-9  # of the price: to one side of it requests at the price buy, to the other they do not
_OFTEN = 32  # the sample is sorted again when this share of it is new


class Pacer:
    """The posted price of one budget in one window after another.

    budget  units of the first window
    length  of a window, in seconds
    price   to start from; kept until a few requests have been observed. 0: unknown
    shape   relative arrivals in equal parts of the window, such as 24 for the hours of a day; None: learned
    sample  how many recent requests are kept

    >>> pacer = Pacer(budget=100_000, length=3600)
    >>> pacer.update(now=60, spent=4_000, demanded=4_000)  # more than a sixtieth of the budget
    1e-05
    """

    def __init__(
        self,
        budget: float,
        length: float,
        *,
        price: float = 0.0,
        shape: Sequence[float] | None = None,
        sample: int = 512,
    ) -> None:
        self._length = checked_scalar("length", length, low=1e-9)
        self._price = checked_scalar("price", price)
        self._few = _FEW if price > 0 else 1
        self._sample = _Sample(sample)
        self._arrivals = _Arrivals(None if shape is None else checked("shape", shape))
        self._expected = self._paid = 0.0  # for answers of past windows
        self._start(budget)

    def _start(self, budget: float) -> None:
        self._budget = checked_scalar("budget", budget)
        self._spent = self._demanded = self._settled = self._now = 0.0

    @property
    def price(self) -> float:
        """Utility per unit."""
        return self._price

    def observe(self, offers: Offers, arrivals: int | None = None) -> None:
        """Takes the requests that arrived since the last call, whether they were granted or declined.

        arrivals  how many they stand for, if they are only some of them
        """
        self._sample.add(offers.gain, offers.cost)
        self._arrivals.count += len(offers) if arrivals is None else arrivals

    def update(
        self, now: float, spent: float, demanded: float, *, in_flight: float = 0.0, left: float | None = None
    ) -> float:
        """The new price. The first call should be when the window starts, or the process that paces it.

        now        seconds since the window's start
        spent      units charged since the last call
        demanded   units that requests since the last call are expected to cost at the price: `Purchase.cost`
        in_flight  the part of them that belongs to answers that have not ended
        left       units not charged yet, where others spend from the same budget; else the budget less all `spent`
        """
        time = min(max(checked_scalar("now", now) / self._length, self._now), 1.0)
        self._spent += checked_scalar("spent", spent)
        self._demanded += checked_scalar("demanded", demanded)
        under_way = checked_scalar("in_flight", in_flight)
        bias = self._bias(under_way)
        rest = self._budget - self._spent if left is None else checked_scalar("left", left)
        left = max(0.0, rest / bias - under_way)
        if not (self._arrivals.started or demanded):  # a process starts: what was before is not known
            self._now = time
        past, progress = self._arrivals.progress(self._now), self._arrivals.progress(time)
        self._arrivals.advance(time)
        self._now = time
        if len(self._sample) < self._few:
            self._descend(demanded, left, progress - past, 1 - progress)
        elif self._arrivals.are_first and max(self._spent, self._demanded) <= _TRIAL * (self._spent + rest):
            self._arrivals.ignore()
        else:
            ahead = left * bias >= self._budget * (1 - progress)
            self._price = self._sample.price(left, self._arrivals.to_come(), self._arrivals.dispersion, ahead)
        return self._price

    def roll(self, budget: float) -> float:
        """Starts the next window, with what was learned, and returns its first price."""
        self._paid = _FORGET * (self._paid + self._spent)
        self._expected = _FORGET * (self._expected + self._demanded)
        self._arrivals.roll()
        self._start(budget)
        return self.update(0.0, 0.0, 0.0)

    def _bias(self, in_flight: float) -> float:
        """What ended answers cost over what was expected."""
        trust = _TRUST * self._budget
        expected = self._expected + max(0.0, self._demanded - in_flight) + trust
        return min(max((self._paid + self._spent + trust) / expected, 0.5), 2.0) if expected > 0 else 1.0

    def _descend(self, demanded: float, left: float, share: float, rest: float) -> None:
        """One step of mirror descent; `share` of the arrivals were since the last call, `rest` are to come."""
        if self._budget == 0:
            return
        lowest = 1 / self._budget
        window = max(rest + share, _REACT)
        excess = demanded - left * share / window
        scale = max(left * _REACT / window, _REACT * _REACT * self._budget)
        step = min(max(excess / scale, -1.0), 1.0) * _STEP
        if self._price >= lowest:
            moved = self._price * float(np.exp(step))
            self._price = min(moved, _HIGHEST * lowest) if moved >= lowest else 0.0
        elif step > 0:
            self._price = lowest


class _Sample:
    """Recent requests, and what they together demand at every price."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise MarketError("sample must be at least 1")
        self._size = size
        self._gain: Array = np.zeros((0, 0))
        self._cost: Array = np.zeros((0, 0))
        self._new = 0
        self._index = self._mean = self._square = np.zeros(0)

    def __len__(self) -> int:
        return len(self._gain)

    def add(self, gain: Array, cost: Array) -> None:
        self._gain = np.concatenate([self._gain, gain])[-self._size :] if len(self) else gain[-self._size :]
        self._cost = np.concatenate([self._cost, cost])[-self._size :] if len(self._cost) else cost[-self._size :]
        self._new += len(gain)

    def _sort(self) -> None:
        """At the price index[k] a request of the sample costs mean[k] on average, and its square square[k]."""
        row, first, last, index = majorant(self._gain, self._cost)
        order = np.argsort(-index, kind="stable")
        before, after = self._cost[row, first][order], self._cost[row, last][order]
        self._index = index[order]
        self._mean = np.cumsum(after - before) / len(self)
        self._square = np.cumsum(after**2 - before**2) / len(self)
        self._new = 0

    def price(self, left: float, to_come: float, dispersion: float, ahead: bool) -> float:
        """The highest price at which `to_come` requests almost certainly spend what is left; 0 if there is none.

        Those at the price itself buy if more is left than a constant rate of spending would leave: `ahead`.
        """
        if self._new * _OFTEN >= len(self):
            self._sort()
        if left <= 0 and self._index.size:
            return (1 + _TIE) * float(self._index[0])
        certain = to_come * self._mean - _MARGIN * np.sqrt(dispersion * to_come * self._square)
        k = int(np.searchsorted(np.maximum.accumulate(certain), left))
        side = 1 - _TIE if ahead else 1 + _TIE
        return side * float(self._index[k]) if k < self._index.size else 0.0


class _Arrivals:
    """How many requests are to come in this window. Time is a share of the window."""

    def __init__(self, shape: Array | None) -> None:
        if shape is not None and (shape.ndim != 1 or not shape.sum() > 0):
            raise MarketError("shape must have a number for every part of the window, and not only zeros")
        self._learns = shape is None
        self._cumulate(np.ones(1) if shape is None else shape)
        self._windows: list[Array] = []  # arrivals by slot, the latest window last
        self._past: float | None = None  # arrivals in a window
        self._squares, self._slots = 0.0, 0.0
        self._start(None)

    def _start(self, first: float | None) -> None:
        self.count = self._ignored = 0
        self._first = first  # the time of the first update: a pacer may start in the middle of a window
        self._counts = np.zeros(_SLOTS)
        self._slot, self._counted, self._time = 0, 0, 0.0

    def _cumulate(self, shape: Array) -> None:
        self._share = np.concatenate([[0.0], np.cumsum(shape / shape.sum())])
        self._at = np.linspace(0.0, 1.0, self._share.size)

    def progress(self, time: float) -> float:
        """F: the share of a window's arrivals that is expected by this time."""
        return float(np.interp(time, self._at, self._share))

    def _total(self) -> float:
        """Arrivals expected in a window, judging by those so far."""
        seen = self.progress(self._time) - self.progress(self._first or 0.0)
        if self._past is None:
            return (self.count - self._ignored) / max(seen, 1e-3)
        return (_PAST * self._past + self.count) / (_PAST + seen)

    @property
    def are_first(self) -> bool:
        """No window is past, and only a few have arrived."""
        return self._past is None and self.count <= _FIRST

    def ignore(self) -> None:
        """Those that have arrived say nothing about how many will."""
        self._ignored = self.count

    @property
    def started(self) -> bool:
        return self._first is not None

    def to_come(self) -> float:
        return 1 + self._total() * (1 - self.progress(self._time))

    @property
    def dispersion(self) -> float:
        return max(1.0, (self._squares + _SLOTS / 4) / (self._slots + _SLOTS / 4))

    def advance(self, time: float) -> None:
        if self._first is None:
            self._first = time
        self._time = time
        slot = min(int(time * _SLOTS), _SLOTS)
        total = self._total()
        while self._slot < slot:  # all arrivals since the last update are counted for the first slot that has ended
            arrived = self.count - self._counted
            here, after = self.progress(self._slot / _SLOTS), self.progress((self._slot + 1) / _SLOTS)
            if self._slot >= self._first * _SLOTS:
                expected = max(total * (after - here), 1.0)
                self._squares += (arrived - expected) ** 2 / expected
                self._slots += 1
            self._counts[self._slot] = arrived
            self._counted, self._slot = self.count, self._slot + 1

    def roll(self) -> None:
        self.advance(1.0)
        if self._first == 0.0 or self._past is None:
            total = self._total()
            self._past = total if self._past is None else self._past + _FORGET * (total - self._past)
        if self._learns and self._first == 0.0:
            self._windows = [*self._windows[-6:], self._counts]
            self._cumulate(_smooth(np.sum(self._windows, axis=0)) + _FLAT * self._past / _SLOTS + 1e-9)
        self._squares *= _FORGET
        self._slots *= _FORGET
        self._start(0.0)


def _smooth(counts: Array) -> Array:
    """A moving average over the neighbours of each slot; a window follows another, so the ends are neighbours."""
    wide = np.convolve(np.tile(counts, 3), _KERNEL, mode="same")
    return wide[_SLOTS : 2 * _SLOTS]
