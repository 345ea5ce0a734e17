"""The interfaces of forecasters: `Predictor`, and `Forecaster`, which can be trained and saved."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, Self

from shadowprice.errors import InputError
from shadowprice.forecast.reading import Reader
from shadowprice.forecast.shared import SharedText, without_shared_text
from shadowprice.market.anytime import Anytime
from shadowprice.types import Forecast, Request, Trace

if TYPE_CHECKING:
    from shadowprice.forecast.evaluation import Report

CHUNK = 512  # requests forecast at a time


class Predictor(Protocol):
    """All that planning needs. It is called with at most `CHUNK` requests, so that a batch need not fit in memory."""

    def predict(self, requests: Sequence[Request]) -> Forecast:
        """One forecast per request, in order; each is for one answer, even if the request asks for several."""
        ...


def predict_all(predictor: Predictor, requests: Sequence[Request]) -> Forecast:
    """The forecasts of a batch, without the text that its requests share (`forecast.shared`)."""
    shared = SharedText()
    parts = [predictor.predict(shared.strip_requests(requests[i : i + CHUNK])) for i in range(0, len(requests), CHUNK)]
    return Forecast.joined(parts)


class Forecaster(ABC):
    """Learns from traces, and can be saved in a folder.

    >>> forecaster = TextForecaster().fit(traces)                       # doctest: +SKIP
    >>> forecaster.evaluate(test_traces).overall.spearman               # doctest: +SKIP
    >>> forecaster.predict(["What is 2+2?"]).tokens                     # doctest: +SKIP
    >>> forecaster.save("my-forecaster")                                # doctest: +SKIP

    Truncated traces are censored: their answers are longer than what is recorded.
    """

    reader: Reader | None = None  # reads parts of answers; None: it was not trained on texts of the model that answers
    anytime: Anytime | None = None  # what stopped answers are worth once they are asked for; None: unknown

    @abstractmethod
    def fit(self, traces: Sequence[Trace]) -> Self: ...

    @abstractmethod
    def adapt(self, traces: Sequence[Trace]) -> Self:
        """A new forecaster, corrected to the lengths and the grades of these traces: a hundred are enough."""

    @abstractmethod
    def save(self, folder: str | os.PathLike[str]) -> None: ...

    @classmethod
    @abstractmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """What `save` wrote. Never executes anything from the folder."""

    @abstractmethod
    def _predict(self, texts: Sequence[str]) -> Forecast:
        """One forecast per text, in order."""

    def predict(self, requests: Sequence[Request | str]) -> Forecast:
        """One forecast per request or text, in order; each is for one answer, even if the request asks for several."""
        if isinstance(requests, str):
            raise InputError("one string is not a list of requests", fix="give [text]")
        return self._predict([request if isinstance(request, str) else request.text for request in requests])

    def evaluate(self, traces: Sequence[Trace], *, resamples: int = 1000, seed: int = 0) -> Report:
        """How good its forecasts for `traces` are (`forecast.evaluation`).

        Give traces of questions that it was not trained on (`forecast.splits.held_out`).
        """
        from shadowprice.forecast.evaluation import evaluate  # half a second to import: scipy.stats

        forecast = self._predict(without_shared_text([trace.prompt for trace in traces]))
        return evaluate(forecast, traces, resamples=resamples, seed=seed)
