"""Forecasts from another model's recorded answers to the same questions: a scout.

How long another model's answer is, and whether it was correct, says more about the answer that is forecast than the
question does (docs/forecaster.md has figures). A forecaster that is trained with a scout has

    forecaster  for questions alone, which was not trained on the traces that the reviser is fitted on
    reviser     what the scout's answers change about the forecasts of just this one (`forecast.revise`): where all
                its forecasts are nearly the same, those of another would be far from what the reviser has seen
    usual       for questions without an answer of the scout

and needs the scout's answers when it forecasts: `ScoutForecaster.with_answers`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Self

import numpy as np

from shadowprice.errors import InputError
from shadowprice.forecast import load
from shadowprice.forecast.base import Forecaster
from shadowprice.forecast.folder import description, written
from shadowprice.forecast.revise import Evidence, Reviser
from shadowprice.forecast.shared import without_shared_text
from shadowprice.forecast.splits import held_out, question_key
from shadowprice.forecast.training import Trainer
from shadowprice.formats.traces import read_traces
from shadowprice.types import Forecast, Trace

KIND = "scout"
_USUAL, _FORECASTER = "usual", "forecaster"  # folders


class ScoutAnswers:
    """The first answer of one model to each question."""

    def __init__(self, traces: Sequence[Trace], path: str | os.PathLike[str] | None = None) -> None:
        used = [trace for trace in traces if trace.tokens > 0]
        models = list(dict.fromkeys(trace.model for trace in used))
        if not used:
            raise InputError("no answers", path=path, fix="give traces of another model")
        if len(models) > 1:
            problem = f"answers of {len(models)} models, {models[0]!r:.40} and {models[1]!r:.40} among them"
            raise InputError(problem, path=path, fix="keep those of one: a scout is one model")
        self.model, self.path = models[0], path
        self._first: dict[str, Trace] = {}
        # Requests are forecast without the text that all of them share, so answers are found by either text.
        prompts = [trace.prompt for trace in used]
        for texts in (prompts, without_shared_text(prompts)):
            for text, trace in zip(texts, used, strict=True):
                self._first.setdefault(question_key(text), trace)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        return cls(list(read_traces(path)), path)

    def evidence(self, texts: Sequence[str]) -> Evidence:
        """What the scout's answers say about the answers to these questions.

        Its outcome is in `agreement`: an answer that ended agrees with the correct answer (1) or does not (-1); NaN if
        it was cut, or not graded.
        """
        answers = [self._first.get(question_key(text)) for text in texts]
        outcome = [
            np.nan
            if answer is None or answer.correct is None or answer.truncated
            else (1.0 if answer.correct else -1.0)
            for answer in answers
        ]
        return Evidence(
            [np.nan if answer is None else float(answer.tokens) for answer in answers],
            [float(answer is not None and answer.truncated) for answer in answers],
            agreement=outcome,
        )


class ScoutForecaster(Forecaster):
    """Made by the trainer of `with_scout`; `scout` is the name of the model whose answers it needs."""

    def __init__(self, forecaster: Forecaster, reviser: Reviser, usual: Forecaster, scout: str) -> None:
        self.scout = scout
        self.anytime, self.reader = usual.anytime, usual.reader
        self._forecaster, self._reviser, self._usual = forecaster, reviser, usual
        self._answers: ScoutAnswers | None = None
        self._found = 0  # answers of the scout that were used

    def with_answers(self, answers: ScoutAnswers) -> Self:
        """The same, with the scout's answers to the questions that are forecast."""
        if answers.model != self.scout:
            problem = f"answers of {answers.model!r:.60}, but the forecaster was trained with {self.scout!r:.60}"
            raise InputError(problem, path=answers.path, fix="give answers of that model, or train again with this one")
        copied = copy(self)
        copied._answers, copied._found = answers, 0
        return copied

    def fit(self, traces: Sequence[Trace]) -> Self:
        raise InputError("this forecaster is trained with a scout", fix="use train --scout")

    def adapt(self, traces: Sequence[Trace]) -> Self:
        raise InputError("a forecaster with a scout cannot be adapted", fix="train --from another, with --scout")

    def _predict(self, texts: Sequence[str]) -> Forecast:
        if self._answers is None:
            problem = f"this forecaster needs the answers of its scout, {self.scout!r:.60}, to the same questions"
            raise InputError(problem, fix="give them with --scout FILE")
        evidence = self._answers.evidence(texts)
        known, others = np.flatnonzero(evidence.known), np.flatnonzero(~evidence.known)
        self._found += known.size
        if texts and not self._found:
            problem = f"no answer to any of these requests; the first is {texts[0]!r:.60}"
            raise InputError(problem, path=self._answers.path, fix="the scout has to answer the same questions")
        parts = []
        if known.size:
            plain = self._forecaster.predict([texts[i] for i in known.tolist()])
            parts.append(self._reviser.revise(plain, evidence.take(known)))
        if others.size or not texts:
            parts.append(self._usual.predict([texts[i] for i in others.tolist()]))
        return Forecast.joined(parts).take(np.argsort(np.concatenate([known, others]), kind="stable"))

    def save(self, folder: str | os.PathLike[str]) -> None:
        about = {"scout": self.scout, "reviser": self._reviser.to_dict()}
        with written(folder, KIND, about) as scratch:
            self._usual.save(scratch / _USUAL)
            self._forecaster.save(scratch / _FORECASTER)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        kind, about = description(folder)
        try:
            if kind != KIND:
                raise ValueError(f"its kind is {kind!r}")
            reviser, scout = Reviser.from_dict(about["reviser"]), str(about["scout"])
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"damaged: {error}", path=folder, fix="train it again, or name another folder") from None
        return cls(load(Path(folder, _FORECASTER)), reviser, load(Path(folder, _USUAL)), scout)


def with_scout(trainer: Trainer, answers: ScoutAnswers) -> Trainer:
    """A trainer of forecasters that know the scout's answers.

    The reviser is fitted on forecasts for questions that the forecaster was not trained on: by the forecaster that is
    adapted, or else by one that is trained on the other half of the questions.
    """

    def fit(traces: Sequence[Trace], name: str) -> ScoutForecaster:
        usual, base = trainer.fit(traces, name), trainer.base
        rest = list(traces)
        if base is None:
            half = held_out(traces, 0.5)
            base = trainer.fit([trace for trace, out in zip(traces, half, strict=True) if not out], f"{name}-half")
            rest = [trace for trace, out in zip(traces, half, strict=True) if out]
        texts = without_shared_text([trace.prompt for trace in rest])
        reviser = Reviser.fit(base.predict(texts), answers.evidence(texts), rest)
        return ScoutForecaster(base, reviser, usual, answers.model).with_answers(answers)

    return Trainer(KIND, fit, trainer.base)
