"""Forecasters of several models that answered the same questions, and what an answer of one says about another.

    OUT/NAME/            a forecaster for each model
    OUT/NAME~half/       one that was trained on half of the questions: revisers were fitted to its forecasts
    OUT/revisers.json    for every pair of models that share enough questions: a `Reviser`; how far the differences
                         between the forecasts can be believed (`Differences`); the correlation between the grades
                         of several answers to a question, if traces have them (`market.samples`); and how often wrong
                         answers to a question agree, if they have texts (`market.votes`)

Revisers and differences are fitted on questions that the forecasters were not trained on: one half of them trains the
forecasters, the other half everything else. Questions are forecast by forecasters that were trained on all. Only what
an answer of another model changes starts from those of the half, as in `scout`: where forecasts are nearly the same for
all questions, those of another forecaster are far from all that the reviser has seen.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from shadowprice.errors import InputError
from shadowprice.forecast.differences import FEWEST as FEWEST_GRADED
from shadowprice.forecast.differences import Differences
from shadowprice.forecast.revise import FEWEST, Reviser, grade, revisers_of
from shadowprice.forecast.splits import held_out, question_key, questions_of
from shadowprice.forecast.text import TextForecaster
from shadowprice.forecast.training import FEWEST_QUESTIONS, sizes
from shadowprice.formats.files import read_regular, replacing
from shadowprice.market.samples import correlation_of
from shadowprice.market.votes import agreement_of
from shadowprice.types import Forecast, Trace

REVISERS = "revisers.json"
_HALF = "~half"  # no folder of a model ends like this


def folder_name(model: str) -> str:
    """The folder of a model's forecaster."""
    return re.sub(r"[^\w.+-]+", "-", model).strip("-.") or "model"


def half_folder(folder: str | os.PathLike[str]) -> Path:
    """By the folder of a model's forecaster: the one whose forecasts are revised."""
    return Path(f"{os.fspath(folder)}{_HALF}")


def train_routes(
    traces: Sequence[Trace],
    out: str | os.PathLike[str],
    *,
    vote: Callable[[str, str], str | None] = lambda question, text: None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Path]:
    """Trains and saves; returns the folder of each model.

    vote  the final answer of a text, in one form for all answers to a question that agree; None: it has none
    """
    by_model: defaultdict[str, list[Trace]] = defaultdict(list)
    for trace in traces:
        by_model[trace.model].append(trace)
    if len(by_model) < 2:
        raise InputError("--routes needs traces of two models or more", fix="give traces of each model")
    names = {model: folder_name(model) for model in by_model}
    if len(set(names.values())) < len(names):
        raise InputError("two models have the same name but for its punctuation", fix="rename one in its traces")
    for model, of_model in by_model.items():
        if (questions := int(questions_of(of_model).max()) + 1) < FEWEST_QUESTIONS:
            problem = f"model {model!r:.60}: {questions} questions, {FEWEST_QUESTIONS} are needed"
            raise InputError(problem, fix="give more traces of it")
    place = Path(out)
    if place.exists() and any(place.iterdir()) and not (place / REVISERS).exists():
        raise InputError("holds something other than forecasters of routes", path=out, fix="name a new folder")
    place.mkdir(parents=True, exist_ok=True)
    for model, of_model in by_model.items():
        progress(f"{model}: training on {sizes(of_model)}")
        TextForecaster().fit(of_model).save(place / names[model])
    progress("what an answer of one model says about another")
    halves = _halves(by_model)
    for model, half in halves.items():
        half.forecaster.save(half_folder(place / names[model]))
    learned = {"correlation": _correlation(by_model), "agreement": _agreement(by_model, vote)}
    content = {"format": 4, **_between(halves, names), **learned}
    with replacing([place / REVISERS]) as (file,):
        file.write(orjson.dumps(content))
    return {model: place / name for model, name in names.items()}


@dataclass(frozen=True, eq=False)
class _Half:
    """A forecaster, and the first answers of its model to questions that it was not trained on."""

    forecaster: TextForecaster
    traces: dict[str, Trace]


def _halves(by_model: Mapping[str, Sequence[Trace]]) -> dict[str, _Half]:
    found = {}
    for model, of_model in by_model.items():
        later = held_out(of_model, 0.5)
        first = [trace for trace, out in zip(of_model, later, strict=True) if not out]
        seen: dict[str, Trace] = {}
        for trace, out in zip(of_model, later, strict=True):
            if out and trace.tokens > 0:
                seen.setdefault(question_key(trace.prompt), trace)
        if int(questions_of(first).max(initial=-1)) + 1 >= FEWEST_QUESTIONS and seen:
            found[model] = _Half(TextForecaster().fit(first), seen)
    return found


def _between(halves: Mapping[str, _Half], names: Mapping[str, str]) -> dict[str, Any]:
    """What is saved of the models together: differences, or None if too few answers are graded, and revisers."""
    prompts = {key: trace.prompt for half in halves.values() for key, trace in half.traces.items()}
    if not prompts:
        return {"differences": None, "pairs": []}
    forecasts = [half.forecaster.predict([*prompts.values()]) for half in halves.values()]
    grades = np.array([[grade(half.traces.get(key)) for half in halves.values()] for key in prompts])
    differences = None
    if len(halves) > 1 and np.isfinite(grades).any(1).sum() >= FEWEST_GRADED:
        differences = Differences.fit(forecasts, grades)
        forecasts = differences.apply(forecasts)
    answers = [[half.traces.get(key) for key in prompts] for half in halves.values()]
    models = [names[model] for model in halves]
    revisers = revisers_of(forecasts, answers)
    pairs = [
        {"from": models[one], "to": models[other], **reviser.to_dict()} for (one, other), reviser in revisers.items()
    ]
    known = differences and {"models": models, **differences.to_dict()}
    return {"differences": known, "pairs": pairs}


def _correlation(by_model: Mapping[str, Sequence[Trace]]) -> float | None:
    """Between the grades of two answers of a model to one question; None: no question has two."""
    answers: defaultdict[tuple[str, str], list[bool]] = defaultdict(list)
    for model, some in by_model.items():
        for trace in some:
            if trace.correct is not None:
                answers[model, question_key(trace.prompt)].append(trace.correct)
    several = [grades for grades in answers.values() if len(grades) > 1]
    return correlation_of(several) if len(several) >= FEWEST else None


def _agreement(by_model: Mapping[str, Sequence[Trace]], vote: Callable[[str, str], str | None]) -> float | None:
    """The chance that two wrong answers of a model to one question agree; None: too few questions have two."""
    answers: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for model, some in by_model.items():
        for trace in some:
            if trace.correct is False and not trace.truncated and trace.response is not None:
                key = question_key(trace.prompt)
                if (said := vote(key, trace.response)) is not None:
                    answers[model, key].append(said)
    several = [each for each in answers.values() if len(each) > 1]
    return agreement_of(several) if len(several) >= FEWEST else None


def load_revisers(folder: str | os.PathLike[str]) -> dict[tuple[str, str], Reviser]:
    """By the folder names of two models: what an answer of the first says about the second; none without a file."""
    try:
        pairs = _record(folder).get("pairs", [])
        return {(str(pair["from"]), str(pair["to"])): Reviser.from_dict(pair) for pair in pairs}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(folder) from None


@dataclass(frozen=True, eq=False)
class Together:
    """Routes whose forecasters were trained together: their numbers, and those of their models in `differences`."""

    routes: Sequence[int]
    models: Sequence[int]
    differences: Differences


def trained_together(folders: Sequence[str | os.PathLike[str] | None]) -> list[Together]:
    """By the folders of the forecasters of all routes; None: a route has none of its own."""
    by_parent: defaultdict[Path, list[int]] = defaultdict(list)
    for number, folder in enumerate(folders):
        if folder is not None:
            by_parent[Path(folder).parent].append(number)
    found = []
    for parent, numbers in by_parent.items():
        try:
            if not (record := _record(parent).get("differences")):
                continue
            at = {name: model for model, name in enumerate(record["models"])}
            differences = Differences.from_dict({name: record[name] for name in record if name != "models"})
            if len(at) != differences.mean.size:
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _damaged(parent) from None
        known = [number for number in numbers if Path(str(folders[number])).name in at]
        if len(known) > 1:
            found.append(Together(known, [at[Path(str(folders[number])).name] for number in known], differences))
    return found


def believed(forecasts: Sequence[Forecast], together: Sequence[Together]) -> list[Forecast]:
    """The forecasts of all routes, with differences between them as far as they can be believed."""
    result = list(forecasts)
    for each in together:
        changed = each.differences.apply([forecasts[number] for number in each.routes], each.models)
        for number, forecast in zip(each.routes, changed, strict=True):
            result[number] = forecast
    return result


def load_correlation(folder: str | os.PathLike[str]) -> float | None:
    """Between the grades of two answers to a question; None if it was not learned."""
    return _load_share(folder, "correlation")


def load_agreement(folder: str | os.PathLike[str]) -> float | None:
    """The chance that two wrong answers to a question agree; None if it was not learned."""
    return _load_share(folder, "agreement")


def _load_share(folder: str | os.PathLike[str], name: str) -> float | None:
    try:
        value = _record(folder).get(name)
        if value is not None and not 0 <= value <= 1:
            raise ValueError
    except (ValueError, TypeError, AttributeError):
        raise _damaged(folder) from None
    return None if value is None else float(value)


def _record(folder: str | os.PathLike[str]) -> Any:
    path = Path(folder) / REVISERS
    return orjson.loads(read_regular(path)) if path.exists() else {}


def _damaged(folder: str | os.PathLike[str]) -> InputError:
    fix = "make it again with `shadowprice train --routes`"
    return InputError("is damaged, or of an earlier version", path=Path(folder) / REVISERS, fix=fix)
