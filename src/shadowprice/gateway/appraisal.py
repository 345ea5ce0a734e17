"""Forecasts and offers of live requests. Those that arrive in the same moment are computed together.

Nearly all of the cost of offers is that of calling NumPy, and not of the numbers in them: of 8 requests together it is
about a third of that of 8 requests one by one (`benchmarks/gateway.py --parts`). So it is with the forecasts of an
encoder. Those of the text forecaster cost as much one by one, so where nobody needs offers, nothing waits for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import NamedTuple, TypeAlias

import numpy as np

from shadowprice.errors import MarketError
from shadowprice.forecast import Forecaster, Predictor
from shadowprice.forecast.text import TextForecaster
from shadowprice.gateway.admission import Terms, offers_of
from shadowprice.market.posted import Offers
from shadowprice.types import Forecast, Request

__all__ = ["Appraisal", "Appraiser", "appraise"]

_LONGEST = 2**14  # characters at each end of a long prompt: the length of its answer is forecast from these
_TOGETHER = 64


class Appraisal(NamedTuple):
    """Of one request; `offers` by whether they are in money, None if all prices are 0 and nobody needs them."""

    forecast: Forecast
    offers: Mapping[bool, Offers] | None


def appraise(
    predictor: Predictor, texts: Sequence[str], terms: Sequence[Terms], wanted: bool = True
) -> list[Appraisal]:
    """The forecasts of requests and, if they are wanted, their offers."""
    cut = [text if len(text) <= 2 * _LONGEST else f"{text[:_LONGEST]}\n{text[-_LONGEST:]}" for text in texts]
    if isinstance(predictor, Forecaster):  # it takes texts as well; a request takes as long as a tenth of a forecast
        forecast = predictor.predict(cut)
    else:
        forecast = predictor.predict([Request("", text) for text in cut])
    rows = _rows(forecast)
    if not wanted:
        return [Appraisal(row, None) for row in rows]
    kinds = (False, True) if any(each.rates for each in terms) else (False,)
    offers = {money: offers_of(forecast, terms, money) for money in kinds}
    return [
        Appraisal(row, {money: some.take(slice(i, i + 1)) for money, some in offers.items()})
        for i, row in enumerate(rows)
    ]


def _rows(forecast: Forecast) -> list[Forecast]:
    """The forecasts of a batch one by one, without checking again what was checked: `take` would take longer."""
    if (n := len(forecast)) == 1:
        return [forecast]
    given = {each.name: getattr(forecast, each.name) for each in fields(forecast)}
    arrays = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    columns = {name: each if each.shape == (n,) else np.broadcast_to(each, n) for name, each in arrays.items()}
    found = [object.__new__(Forecast) for _ in range(n)]
    for i, row in enumerate(found):
        for name, value in given.items():
            object.__setattr__(row, name, columns[name][i : i + 1] if name in columns else value)
    return found


_Waiting: TypeAlias = tuple[str, Terms, bool, asyncio.Future[Appraisal]]


class Appraiser:
    """Collects what arrives until the event loop is done with what it has read."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._gains = not isinstance(predictor, TextForecaster)  # from forecasting several requests together
        self._waiting: list[_Waiting] = []

    async def __call__(self, text: str, terms: Terms, wanted: bool = True, *, alone: bool = False) -> Appraisal:
        """`alone`: nothing else is under way, so there is nothing to wait for."""
        if alone or not (wanted or self._gains):
            return self._one(text, terms, wanted)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Appraisal] = loop.create_future()
        self._waiting.append((text, terms, wanted, future))
        if len(self._waiting) == 1:
            loop.call_soon(self._flush)
        return await future

    def _one(self, text: str, terms: Terms, wanted: bool) -> Appraisal:
        try:
            return appraise(self._predictor, [text], [terms], wanted)[0]
        except Exception as error:  # of a forecaster that is not ours
            raise _no_forecast(error) from None

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for first in range(0, len(waiting), _TOGETHER):
            self._together(waiting[first : first + _TOGETHER])

    def _together(self, waiting: list[_Waiting]) -> None:
        texts, terms = [each[0] for each in waiting], [each[1] for each in waiting]
        try:
            found = appraise(self._predictor, texts, terms, any(each[2] for each in waiting))
        except Exception as error:  # of a forecaster that is not ours: it must not fail the others
            if len(waiting) > 1:
                for each in waiting:
                    self._together([each])
                return
            if not waiting[0][3].cancelled():
                waiting[0][3].set_exception(_no_forecast(error))
            return
        for (*_, future), appraisal in zip(waiting, found, strict=True):
            if not future.cancelled():
                future.set_result(appraisal)


def _no_forecast(error: Exception) -> MarketError:
    return MarketError(f"no forecast: {type(error).__name__}: {error}"[:200])
