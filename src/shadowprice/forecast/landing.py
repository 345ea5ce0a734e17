"""What probed traces show: how often a stopped answer is correct once it is asked for, the curve R of `market.anytime`,
and what it says that two probes in a row agree (`market.evidence`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shadowprice.arrays import Array
from shadowprice.formats.probes import Probe, latest_probe, probes_of
from shadowprice.market.anytime import Anytime
from shadowprice.market.evidence import Evidence
from shadowprice.types import Forecast, Trace

_FEWEST = 50  # probed answers
_FEWEST_TO_COME = 20  # correct answers to come, for a point of the curve: fewer would claim too much by chance
_AGES = (0.0, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0)  # in units of the forecast length
_STEPS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)  # of probes
_ERRORS = 2.0  # standard errors that a difference loses: what chance alone would show


def fit_landing(forecast: Forecast, traces: Sequence[Trace]) -> Anytime | None:
    """From forecasts for `traces`, one each, by a forecaster that was not trained on them; None: too few were probed.

    R(s) is the number of correct landings at s times the forecast length, as a share of the correct answers that are
    still to come there, of those that have not ended. It is made to rise by isotonic regression. Where only a few
    correct answers are still to come the curve ends.
    """
    from scipy.optimize import isotonic_regression  # predicting does not need it

    probed = [
        (trace, probes, tokens)
        for trace, tokens in zip(traces, forecast.tokens.tolist(), strict=True)
        if trace.correct is not None and 0 in (probes := probes_of(trace))
    ]
    if len(probed) < _FEWEST:
        return None
    landed, to_come = [], []
    for age in _AGES:
        alive = [each for each in probed if age * each[2] < each[0].tokens or each[0].truncated]
        in_full = sum(trace.correct is True for trace, _, _ in alive)
        if in_full < _FEWEST_TO_COME:
            break
        stopped = [latest_probe(probes, age * tokens) for _, probes, tokens in alive]
        landed.append(sum(probe is not None and probe.correct for probe in stopped))
        to_come.append(in_full)
    if not to_come:
        return None
    shares = isotonic_regression(np.array(landed) / np.array(to_come), weights=to_come).x
    tokens = np.mean([probe.tokens for _, probes, _ in probed for probe in probes.values()])
    curve = tuple(np.minimum(1.0, shares).tolist())
    return Anytime(_AGES[: len(to_come)], curve, max(1.0, float(tokens)), _fit_evidence(probed))


def _fit_evidence(probed: Sequence[tuple[Trace, dict[int, Probe], float]]) -> Evidence | None:
    """None: that two probes agree says nothing.

    At each step, of the answers that have not ended: how often the probes of this step and of the one before state the
    same, and the gain from continuing, whole answers that are correct less landings that are, where they agree and
    where they differ. The difference d of the two means, with the standard error e, is reduced to d (1 - (2e / d)^2),
    or to 0 within 2e.
    """
    agree, left = [0.0], [1.0]
    for before, age in pairwise(_STEPS):
        same, gains = [], []
        for trace, probes, tokens in probed:
            first, second = latest_probe(probes, before * tokens), latest_probe(probes, age * tokens)
            ended = age * tokens >= trace.tokens and not trace.truncated
            if ended or first is None or second is None or first is second:
                continue
            same.append(second.stated is not None and second.stated == first.stated)
            gains.append((trace.correct is True) - second.correct)
        share, remains = _left(np.array(same, dtype=bool), np.array(gains, dtype=np.float64))
        agree.append(share)
        left.append(remains)
    return Evidence(_STEPS, tuple(agree), tuple(left)) if min(left) < 1 else None


def _left(same: NDArray[np.bool_], gains: Array) -> tuple[float, float]:
    """How often two probes agree, and the share of the gain that is left if they do."""
    agree = float(same.mean()) if same.size else 0.0
    if not 0 < agree < 1 or gains.mean() <= 0:
        return agree, 1.0
    difference = float(gains[~same].mean() - gains[same].mean())
    error = float(gains.std() * np.sqrt(1 / same.sum() + 1 / (~same).sum()))
    if difference <= _ERRORS * error:
        return agree, 1.0
    difference *= 1 - (_ERRORS * error / difference) ** 2
    return agree, max(0.0, 1 - (1 - agree) * difference / float(gains.mean()))
