"""How often a stopped answer is correct once it is asked for: the curve R of `market.anytime`, from probed traces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shadowprice.formats.probes import latest_probe, probes_of
from shadowprice.market.anytime import Anytime
from shadowprice.types import Forecast, Trace

_FEWEST = 50  # probed answers
_FEWEST_TO_COME = 20  # correct answers to come, for a point of the curve: fewer would claim too much by chance
_AGES = (0.0, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0)  # in units of the forecast length


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
    return Anytime(_AGES[: len(to_come)], tuple(np.minimum(1.0, shares).tolist()), max(1.0, float(tokens)))
