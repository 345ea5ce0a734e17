"""The paper's predictor: a transformer encoder, fine-tuned on the log length of recorded answers."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_ndtr

from shadowprice.arrays import Array
from shadowprice.errors import InputError
from shadowprice.forecast.base import Forecaster
from shadowprice.forecast.calibration import Calibration
from shadowprice.forecast.encoder.network import Network
from shadowprice.forecast.encoder.training import HEADS, Epoch, Example, Recipe, examples, per_question, seeded, train
from shadowprice.forecast.folder import description, written
from shadowprice.forecast.huggingface import quiet
from shadowprice.forecast.shared import without_shared_text
from shadowprice.forecast.splits import folds, questions_of
from shadowprice.types import Forecast, Trace

_FEWEST = 10
_FOLDS = 10  # of the questions; one is held out
_SPREADS = (0.05, 3.0)
_EARLIER_NAMES = {"success": "correct"}  # of heads, in folders of version 0.1


@dataclass(frozen=True)
class _Fitted:
    """A trained network, and the numbers that turn its outputs into a forecast."""

    network: Network
    mean: float  # the first output is (log length - mean) / scale
    scale: float
    spread: float  # found on held-out questions: with a spread head, a factor that corrects its overconfidence;
    # without one, the spread itself
    solve: float  # the share of correct answers, for a network without that head

    def log_lengths(self, outputs: Array) -> Array:
        return outputs[:, 0] * self.scale + self.mean


class EncoderForecaster(Forecaster):
    """A fine-tuned encoder. The defaults are the paper's.

    base          a name on the Hugging Face hub, or a folder with an encoder and its tokenizer
    heads         what to forecast for each request besides its length: any of `spread`, `correct`. Without its head,
                  each is one number for all requests: the spread on held-out questions, the share of correct answers
    max_length    how many tokens of a question are read, from its end
    patience      stop after this many epochs in which the loss on held-out questions did not fall, and use the best
                  epoch; None: run all epochs and use the last
    per_question  train on the mean of the answers to each question: faster where there are many
    checkpoints   a folder for the state after each epoch; `resume` continues from the last one there
    progress      called with a line about each step that takes time, and about each epoch

    Truncated traces are censored: their error counts only where a forecast is below the recorded length.
    With a spread head the loss is the likelihood of a log-normal length, otherwise the squared error of the log.

    After `fit`, `history` has the loss of each epoch, on the training questions and on held-out ones.
    """

    def __init__(
        self,
        base: str | os.PathLike[str] = "microsoft/deberta-v3-base",
        *,
        heads: Sequence[str] = (),
        max_length: int = 512,
        epochs: int = 10,
        batch: int = 32,
        learning_rate: float = 2e-5,
        weight_decay: float = 0.01,
        patience: int | None = None,
        per_question: bool = False,
        seed: int = 0,
        checkpoints: str | os.PathLike[str] | None = None,
        resume: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        if unknown := set(heads) - set(HEADS):
            raise InputError(f"unknown head {min(unknown)!r}", fix=f"give any of {', '.join(HEADS)}")
        if per_question and "spread" in heads:
            raise InputError("a mean over answers does not show their spread", fix="leave out the head or per_question")
        if min(epochs, batch, max_length - 7, patience or 1) < 1 or not learning_rate > 0 or not weight_decay >= 0:
            raise InputError("epochs, batch and patience must be >= 1, max_length >= 8, learning_rate > 0")
        if not 0 <= seed < 2**32:
            raise InputError(f"invalid seed {seed}", fix="give one from 0 to 4,294,967,295")
        self.base, self.max_length, self.per_question = os.fspath(base), max_length, per_question
        self.heads = tuple(head for head in HEADS if head in heads)
        self.recipe = Recipe(epochs, batch, learning_rate, weight_decay, patience, seed)
        self.checkpoints, self.resume, self.progress = checkpoints, resume, progress
        self.history: list[Epoch] = []
        self.calibration: Calibration | None = None
        self._fitted: _Fitted | None = None

    def fit(self, traces: Sequence[Trace], validation: Sequence[Trace] | None = None) -> Self:
        """`validation` are the held-out traces; None: those of a tenth of the questions."""
        if validation is None:
            held = folds(questions_of(traces), _FOLDS, self.recipe.seed) == 0
            validation = [trace for trace, out in zip(traces, held, strict=True) if out]
            traces = [trace for trace, out in zip(traces, held, strict=True) if not out]
        training, held_out = examples(traces), examples(validation)
        if len(training) < _FEWEST or not held_out:
            raise InputError(
                f"{len(training)} traces to train on and {len(held_out)} held out are too few",
                fix="give a dozen or more, of several questions",
            )
        graded = [example.correct for example in training if not math.isnan(example.correct)]
        if "correct" in self.heads and not graded:
            raise InputError("no trace is graded", fix="grade the traces, or leave out the head correct")
        lengths = [example.length for example in training]
        mean, scale = float(np.mean(lengths)), float(np.std(lengths)) or 1.0

        def prepared(each: Sequence[Example]) -> list[Example]:
            merged = per_question(each) if self.per_question else each
            return [replace(example, length=(example.length - mean) / scale) for example in merged]

        if self.progress is not None:
            self.progress(f"loading {self.base}")
        with seeded(self.recipe.seed), quiet():
            network = Network.from_base(self.base, 1 + len(self.heads), self.max_length)
            history = train(
                network,
                self.heads,
                prepared(training),
                prepared(held_out),
                self.recipe,
                checkpoints=self.checkpoints,
                resume=self.resume,
                progress=self.progress,
            )
        self._fitted = _Fitted(network, mean, scale, spread=1.0, solve=float(np.mean(graded)) if graded else 1.0)
        raw = self._uncalibrated([example.text for example in held_out])
        errors = (np.array([example.length for example in held_out]) - np.log(raw.tokens)) / raw.spread
        spread = _spread(errors, np.array([example.truncated for example in held_out]))
        self._fitted, self.history, self.calibration = replace(self._fitted, spread=spread), history, None
        return self

    def adapt(self, traces: Sequence[Trace]) -> Self:
        used = [trace for trace in traces if trace.tokens > 0]
        adapted = copy.copy(self)
        adapted.calibration = Calibration.fit(
            self._uncalibrated(without_shared_text([trace.prompt for trace in used])), used
        )
        return adapted

    def _predict(self, texts: Sequence[str]) -> Forecast:
        forecast = self._uncalibrated(texts)
        return forecast if self.calibration is None else self.calibration.apply(forecast)

    def save(self, folder: str | os.PathLike[str]) -> None:
        fitted = self._trained()
        settings = {"base": self.base, "heads": self.heads, "max_length": self.max_length}
        about = {
            "settings": {**settings, "per_question": self.per_question, **asdict(self.recipe)},
            "network": {"padding": fitted.network.padding, "max_length": fitted.network.max_length},
            "fitted": {name: getattr(fitted, name) for name in ("mean", "scale", "spread", "solve")},
            "history": [asdict(epoch) for epoch in self.history],
            "calibration": self.calibration and self.calibration.to_dict(),
        }
        with written(folder, "encoder", about) as fresh:
            fitted.network.save(fresh)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        kind, about = description(folder)
        if kind != "encoder":
            raise InputError(f"a forecaster of kind {kind!r}", path=folder, fix="use shadowprice.forecast.load")
        try:
            settings = about["settings"]
            heads = tuple(_EARLIER_NAMES.get(head, head) for head in settings["heads"])
            forecaster = cls(**{**settings, "heads": heads})
            forecaster.history = [Epoch(**epoch) for epoch in about["history"]]
            calibration = about["calibration"]
            forecaster.calibration = None if calibration is None else Calibration.from_dict(calibration)
            shape = {name: int(about["network"][name]) for name in ("padding", "max_length")}
            fitted = about["fitted"] if "fitted" in about else about["learnt"]
            numbers = {name: float(fitted[name]) for name in ("mean", "scale", "spread", "solve")}
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"damaged: {error}", path=folder, fix="train it again") from None
        with quiet():
            forecaster._fitted = _Fitted(Network.load(folder, **shape), **numbers)
        return forecaster

    def _trained(self) -> _Fitted:
        if self._fitted is None:
            raise InputError("the forecaster is not trained", fix="call fit, or load one that is")
        return self._fitted

    def _uncalibrated(self, texts: Sequence[str]) -> Forecast:
        fitted = self._trained()
        outputs = fitted.network.outputs(texts, self.recipe.batch)
        if not np.isfinite(outputs).all():
            raise InputError("the training diverged", fix="lower the learning rate")
        column = {head: outputs[:, i] for i, head in enumerate(self.heads, start=1)}
        spread: Array | float = fitted.spread
        solve: Array | float = fitted.solve
        if "spread" in column:
            spread = np.clip(np.exp(np.clip(column["spread"], -10.0, 10.0)) * fitted.scale * spread, *_SPREADS)
        if "correct" in column:
            solve = np.clip(expit(column["correct"]), 0.01, 0.99)
        return Forecast(np.exp(np.clip(fitted.log_lengths(outputs), 0.0, 15.0)), spread, solve)


def _spread(errors: Array, truncated: NDArray[np.bool_]) -> float:
    """The spread under which these errors of the log length are likeliest; those of truncated answers are bounds."""

    def negative_log_likelihood(log_spread: float) -> float:
        z = errors / np.exp(log_spread)
        return float(np.where(truncated, -log_ndtr(-z), z**2 / 2 + log_spread).sum())

    return float(np.exp(minimize_scalar(negative_log_likelihood, bounds=np.log(_SPREADS), method="bounded").x))
