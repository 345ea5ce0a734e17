"""The utility curves: the paper's surge and its two variants, and the chance of a correct answer.

What they have in common, and what peak, tangent and reservation price mean, is in `curve`.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, ndtr, ndtri, stdtr, stdtrit, wrightomega

from shadowprice.arrays import Array, checked
from shadowprice.errors import MarketError
from shadowprice.market.curve import Curve, ThresholdCurve
from shadowprice.market.roots import rising_root

__all__ = ["Expected", "Quadratic", "Surge", "Triangular", "fit_surge"]

_SQRT_2PI = float(np.sqrt(2 * np.pi))
_NORMAL = 1e6  # degrees of freedom at which a Student t is a normal to all digits that matter


class Surge(ThresholdCurve):
    r"""The paper's shifted surge (eq. 1), with d = t - threshold:

        u(t) = alpha d exp(-beta d)                          peak at d = 1/beta
        u'(t) = alpha exp(-beta d) (1 - beta d) = p          (eq. 4)
        d(p) = (1 - W0(p e / alpha)) / beta                  (eq. 5, Lambert W)

    W0(z) is computed as the Wright omega function of ln z, which neither overflows nor underflows.
    The tangent has a closed form too: u(t) = t u'(t) reads x^2 + x theta - theta = 0 for x = beta d
    and theta = beta threshold, so x = 2 / (1 + sqrt(1 + 4/theta)).
    """

    alpha: Array
    beta: Array

    def __init__(
        self, threshold: ArrayLike, alpha: ArrayLike = 2.0, beta: ArrayLike = 1.0, cap: ArrayLike = np.inf
    ) -> None:
        super().__init__(
            threshold=checked("threshold", threshold),
            alpha=checked("alpha", alpha, open_low=True),
            beta=checked("beta", beta, open_low=True),
            cap=checked("cap", cap, finite=False),
        )

    def shape(self, past: Array | float) -> Array:
        return self.alpha * past * np.exp(-self.beta * past)

    def slope(self, past: Array | float) -> Array:
        scaled = self.beta * past
        return self.alpha * np.exp(-scaled) * (1 - scaled)

    def extent(self) -> Array:
        return 1 / self.beta

    def extension(self, price: Array) -> Array:
        with np.errstate(divide="ignore"):  # ln 0: a free token is bought up to the peak
            log_z = np.log(price) - np.log(self.alpha) + 1
        w: Array = wrightomega(log_z)  # W0(p e / alpha)
        return np.maximum(1 - w, 0.0) / self.beta

    def tangent_extension(self) -> Array:
        with np.errstate(divide="ignore", over="ignore"):
            return 2 / (1 + np.sqrt(1 + 4 / (self.beta * self.threshold))) / self.beta


class Triangular(ThresholdCurve):
    """The paper's tent (eq. 17): up to `height` at d = peak, down to nothing at d = width.

    Its marginal utility is one constant up to the peak, so a query that can pay buys its peak.
    """

    rise: Array
    width: Array
    height: Array

    def __init__(
        self,
        threshold: ArrayLike,
        peak: ArrayLike = 1.0,
        width: ArrayLike = 2.0,
        height: ArrayLike = 1.0,
        cap: ArrayLike = np.inf,
    ) -> None:
        super().__init__(
            threshold=checked("threshold", threshold),
            rise=checked("peak", peak, open_low=True),
            width=checked("width", width, open_low=True),
            height=checked("height", height, open_low=True),
            cap=checked("cap", cap, finite=False),
        )
        if not np.all(self.rise < self.width):
            raise MarketError("peak must be below width: the tent comes down after its peak")

    def shape(self, past: Array | float) -> Array:
        up, down = past / self.rise, (self.width - past) / (self.width - self.rise)
        return self.height * np.maximum(np.minimum(up, down), 0.0)

    def slope(self, past: Array | float) -> Array:
        falling = np.where(past < self.width, -self.height / (self.width - self.rise), 0.0)
        return np.where(past < self.rise, self.height / self.rise, falling)

    def extent(self) -> Array:
        return self.rise

    def extension(self, price: Array) -> Array:
        return np.where(price < self.height / self.rise, self.rise, 0.0)

    def tangent_extension(self) -> Array:
        return self.rise

    def reservation(self) -> Array:  # the tangent point is a kink: it has no slope
        tangent = self.threshold + self.rise
        return self._under_cap(tangent, self.height / tangent)


class Quadratic(ThresholdCurve):
    """The paper's parabola (eq. 18): 4 height d (width - d) / width^2, peak at d = width/2.

    The tangent solves d^2 + 2 threshold d - width threshold = 0.
    """

    width: Array
    height: Array

    def __init__(
        self, threshold: ArrayLike, width: ArrayLike = 2.0, height: ArrayLike = 1.0, cap: ArrayLike = np.inf
    ) -> None:
        super().__init__(
            threshold=checked("threshold", threshold),
            width=checked("width", width, open_low=True),
            height=checked("height", height, open_low=True),
            cap=checked("cap", cap, finite=False),
        )

    def shape(self, past: Array | float) -> Array:
        share: Array = np.minimum(past / self.width, 1.0)  # beyond it the product may overflow
        return 4 * self.height * share * (1 - share)

    def slope(self, past: Array | float) -> Array:
        share = past / self.width
        return np.where(share < 1, 4 * self.height / self.width * (1 - 2 * share), 0.0)

    def extent(self) -> Array:
        return self.width / 2

    def extension(self, price: Array) -> Array:
        return np.maximum(self.width / 2 * (1 - price * self.width / (4 * self.height)), 0.0)

    def tangent_extension(self) -> Array:
        # sqrt(threshold^2 + width threshold) - threshold, without the cancellation
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            past = self.width / (1 + np.sqrt(1 + self.width / self.threshold))
        return np.where(self.threshold > 0, past, 0.0)


class Expected(Curve):
    r"""The chance of a correct answer within t tokens: u(t) = solve F(t), F the law of the length.

    With z = (ln t - ln median) / spread the length is log-normal, F = Phi(z), and u' = p reads

        z^2/2 + spread z = K,   K = ln(solve / (p spread median sqrt(2 pi)))
        z(p) = -spread + sqrt(spread^2 + 2K)                 the upper root: the concave side

    `tail` (degrees of freedom) makes long answers more likely: above the median z follows a
    Student t, scaled so that the density stays continuous; z^2/2 becomes
    h(z) = (tail + 1)/2 ln(1 + (c z)^2 / tail) and the root is found by Newton's method. Below the
    median F stays log-normal: a log-t on both sides has F(t)/t -> infinity at t -> 0, so that the
    first token of every query would be the best buy in the market.
    The tangent solves f(z)/F(z) = spread, f the density of z; it depends on spread and tail alone.
    """

    median: Array
    spread: Array
    solve: Array
    tail: Array

    def __init__(
        self,
        median: ArrayLike,
        spread: ArrayLike = 0.5,
        solve: ArrayLike = 1.0,
        tail: ArrayLike | None = None,
        cap: ArrayLike = np.inf,
    ) -> None:
        super().__init__(
            median=checked("median", median, open_low=True),
            spread=checked("spread", spread, open_low=True, high=10.0),
            solve=checked("solve", solve, high=1.0),
            tail=np.minimum(checked("tail", np.inf if tail is None else tail, open_low=True, finite=False), _NORMAL),
            cap=checked("cap", cap, finite=False),
        )

    def value(self, tokens: ArrayLike) -> Array:
        return self.solve * self._cdf(self._z(tokens))

    def marginal(self, tokens: ArrayLike) -> Array:
        tokens = np.asarray(tokens, dtype=np.float64)
        density = np.exp(-self._h(self._z(tokens))) / _SQRT_2PI
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(tokens > 0, self.solve * density / (self.spread * tokens), 0.0)

    def start(self) -> Array:
        return np.minimum(self.median * np.exp(-(self.spread**2)), self.cap)  # the mode: z = -spread

    def peak(self) -> Array:
        return np.broadcast_to(self.cap, (len(self),))

    def reservation(self) -> Array:
        z = self._tangent()
        tangent = self.median * np.exp(self.spread * z)
        return self._under_cap(tangent, self.solve * self._cdf(z) / tangent)

    def follow(self, price: ArrayLike) -> Array:
        price = np.asarray(price, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            k = np.log(self.solve / (self.spread * self.median * _SQRT_2PI)) - np.log(price)
        z = -self.spread + np.sqrt(np.maximum(self.spread**2 + 2 * k, 0.0))
        if self._heavy:
            z = np.where(k > 0, self._tail_root(np.clip(k, 0.0, 1e4)), z)
        with np.errstate(over="ignore"):
            tokens: Array = self.median * np.exp(self.spread * z)
        return np.where(price > 0, np.minimum(tokens, self.cap), self.cap)

    def quantile(self, p: ArrayLike) -> Array:
        """The length that a share p of the answers does not exceed: the inverse of F."""
        p = np.asarray(p, dtype=np.float64)
        z: Array = ndtri(p)
        if self._heavy:
            student: Array = stdtrit(self.tail, np.maximum(p, 0.5))
            z = np.where(p <= 0.5, z, student / self._tail_scale)
        with np.errstate(over="ignore"):
            return self.median * np.exp(self.spread * z)

    def _z(self, tokens: ArrayLike) -> Array:
        with np.errstate(divide="ignore"):
            return (np.log(np.asarray(tokens, dtype=np.float64)) - np.log(self.median)) / self.spread

    @cached_property
    def _heavy(self) -> bool:
        return bool(np.any(self.tail < _NORMAL))

    @cached_property
    def _tail_scale(self) -> Array:
        return _tail_scale(self.tail)

    def _cdf(self, z: Array) -> Array:
        return length_cdf(z, self.tail)

    def _h(self, z: Array) -> Array:
        """-ln of the density of z, without its constant."""
        normal = z**2 / 2
        if not self._heavy:
            return normal
        tail = (self.tail + 1) / 2 * np.log1p((self._tail_scale * z) ** 2 / self.tail)
        return np.where(z <= 0, normal, tail)

    def _h_slope(self, z: Array) -> Array:
        if not self._heavy:
            return z
        squared = self._tail_scale**2
        return np.where(z <= 0, z, (self.tail + 1) * squared * z / (self.tail + squared * z**2))

    def _tail_root(self, k: Array) -> Array:
        """The z > 0 with h(z) + spread z = k, where h(z) = a ln(1 + b z^2) is that of the tail.

        Since ln(1 + x) <= x, the root with h(z) = a b z^2 is below it, and near it where k is small.
        """
        a, b, spread = (self.tail + 1) / 2, self._tail_scale**2 / self.tail, self.spread
        ab = a * b

        def excess(z: Array) -> tuple[Array, Array]:
            x = b * z * z
            return a * np.log1p(x) + spread * z - k, 2 * ab * z / (1 + x) + spread

        start = 2 * k / (spread + np.sqrt(spread**2 + 4 * ab * k))
        return rising_root(excess, start, k / spread, start)

    def _tangent(self) -> Array:
        def excess(z: Array) -> tuple[Array, Array]:  # ln F - ln f + ln spread
            cdf, h = self._cdf(z), self._h(z)
            ratio = np.exp(-h) / _SQRT_2PI / cdf
            return np.log(self.spread / ratio), ratio + self._h_slope(z)

        # f/F > -z puts the root above -spread; below `high`, 2 f(z) >= spread.
        k = np.maximum(np.log(2 / (self.spread * _SQRT_2PI)), 0.0)
        high = np.sqrt(2 * k)
        if self._heavy:
            high = np.sqrt(self.tail * np.expm1(2 * k / (self.tail + 1))) / self._tail_scale
        return rising_root(excess, -self.spread, high)


def length_cdf(z: ArrayLike, tail: ArrayLike | None, *, above: bool = False) -> Array:
    """F of `Expected` at z, or 1 - F with all its digits; `tail` None is log-normal."""
    degrees = np.minimum(np.inf if tail is None else tail, _NORMAL)
    side = -1.0 if above else 1.0
    wide = np.broadcast_to(z, np.broadcast_shapes(np.shape(z), degrees.shape))
    chance: Array = np.empty(wide.shape)
    ndtr(side * wide, out=chance)
    if np.any(degrees < _NORMAL):
        stdtr(degrees, side * _tail_scale(degrees) * wide, out=chance, where=wide > 0)
    return chance


def _tail_scale(tail: Array) -> Array:
    """c: the ratio of the normal density to the Student density at 0."""
    log_peak: Array = gammaln((tail + 1) / 2) - gammaln(tail / 2) - 0.5 * np.log(tail * np.pi)
    return np.exp(-log_peak) / _SQRT_2PI


def fit_surge(lengths: ArrayLike, correct: ArrayLike, *, bins: int = 20) -> Surge:
    """The latent utility behind one query's rollouts (the paper's figure 2).

    Counts the correct rollouts in `bins` bins of length and fits a surge to the counts by least
    squares. For a given threshold and beta the best alpha is linear, so only those two are
    searched, on a grid that closes in on its best point.
    """
    length, is_correct = checked("lengths", lengths, open_low=True), checked("correct", correct, high=1.0) > 0
    if length.shape != is_correct.shape or length.ndim != 1:
        raise MarketError(f"one outcome per rollout is needed: {length.size} lengths, {is_correct.size} outcomes")
    if not isinstance(bins, int) or bins < 3:
        raise MarketError("bins must be a whole number of at least 3: a surge has three parameters")
    if np.unique(length[is_correct]).size < 3 or np.ptp(length[is_correct]) < 1e-9 * length[is_correct].max():
        raise MarketError("a surge needs correct rollouts of at least three different lengths")
    counts, edges = np.histogram(length[is_correct], bins=bins)
    centre, reach = (edges[:-1] + edges[1:]) / 2, edges[-1] - edges[0]

    # The threshold may lie somewhat below the shortest correct rollout, the peak within the range.
    threshold = np.linspace(max(0.0, edges[0] - reach), edges[-1] - reach / bins, 40)
    width = np.geomspace(reach / (4 * bins), 2 * reach, 40)
    for _ in range(6):
        past = np.maximum(centre - threshold[:, None, None], 0.0)
        shape = past * np.exp(-past / width[:, None])
        alpha = (shape @ counts) / np.maximum((shape**2).sum(-1), np.finfo(float).tiny)
        error = ((alpha[..., None] * shape - counts) ** 2).sum(-1)
        i, j = divmod(int(np.argmin(error)), error.shape[1])
        best = (threshold[i], alpha[i, j], 1 / width[j])
        threshold = np.linspace(threshold[max(i - 2, 0)], threshold[min(i + 2, 39)], 40)
        width = np.geomspace(width[max(j - 2, 0)], width[min(j + 2, 39)], 40)
    return Surge(*best)
