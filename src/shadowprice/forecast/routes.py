"""Forecasters of several models that answered the same questions, and what an answer of one says about another.

    OUT/NAME/            a forecaster for each model
    OUT/revisers.json    for every pair of models that share enough questions: a `Reviser`; and the correlation between
                         the grades of several answers to a question, if traces have them (`market.samples`)

A reviser is fitted on questions that its forecaster was not trained on: one half of them trains the forecasters, the
other half the revisers. The forecasters that are saved are trained on all.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from shadowprice.errors import InputError
from shadowprice.forecast.revise import FEWEST, Evidence, Reviser
from shadowprice.forecast.splits import held_out, question_key, questions_of
from shadowprice.forecast.text import TextForecaster
from shadowprice.forecast.training import FEWEST_QUESTIONS, sizes
from shadowprice.formats.files import read_regular, replacing
from shadowprice.market.samples import correlation_of
from shadowprice.types import Trace

REVISERS = "revisers.json"


def folder_name(model: str) -> str:
    """The folder of a model's forecaster."""
    return re.sub(r"[^\w.+-]+", "-", model).strip("-.") or "model"


def train_routes(
    traces: Sequence[Trace], out: str | os.PathLike[str], *, progress: Callable[[str], None] = lambda line: None
) -> dict[str, Path]:
    """Trains and saves; returns the folder of each model."""
    by_model: defaultdict[str, list[Trace]] = defaultdict(list)
    for trace in traces:
        by_model[trace.model].append(trace)
    if len(by_model) < 2:
        raise InputError("--routes needs traces of two models or more", fix="give traces of each model")
    names = {model: folder_name(model) for model in by_model}
    if len(set(names.values())) < len(names):
        raise InputError("two models have the same name but for its punctuation", fix="rename one in its traces")
    for model, some in by_model.items():
        if (found := int(questions_of(some).max()) + 1) < FEWEST_QUESTIONS:
            problem = f"model {model!r:.60}: {found} questions, {FEWEST_QUESTIONS} are needed"
            raise InputError(problem, fix="give more traces of it")
    place = Path(out)
    if place.exists() and any(place.iterdir()) and not (place / REVISERS).exists():
        raise InputError("holds something other than forecasters of routes", path=out, fix="name a new folder")
    place.mkdir(parents=True, exist_ok=True)
    for model, some in by_model.items():
        progress(f"{model}: training on {sizes(some)}")
        TextForecaster().fit(some).save(place / names[model])
    progress("what an answer of one model says about another")
    revisers = _revisers(by_model)
    pairs = [{"from": names[one], "to": names[other], **each.to_dict()} for (one, other), each in revisers.items()]
    with replacing([place / REVISERS]) as (file,):
        file.write(orjson.dumps({"format": 2, "pairs": pairs, "correlation": _correlation(by_model)}))
    return {model: place / name for model, name in names.items()}


def _revisers(by_model: Mapping[str, Sequence[Trace]]) -> dict[tuple[str, str], Reviser]:
    halves = {}
    for model, some in by_model.items():
        later = held_out(some, 0.5)
        first = [trace for trace, out in zip(some, later, strict=True) if not out]
        seen: dict[str, Trace] = {}
        for trace, out in zip(some, later, strict=True):
            if out and trace.tokens > 0:
                seen.setdefault(question_key(trace.prompt), trace)
        if int(questions_of(first).max(initial=-1)) + 1 >= FEWEST_QUESTIONS and seen:
            halves[model] = TextForecaster().fit(first), list(seen.values())
    found = {}
    for one, (_, scouts) in halves.items():
        for other, (forecaster, targets) in halves.items():
            prompts = [trace.prompt for trace in targets]
            evidence = Evidence.from_traces(prompts, scouts)
            if evidence.known.sum() >= FEWEST:
                found[one, other] = Reviser.fit(forecaster.predict(prompts), evidence, targets)
    return found


def _correlation(by_model: Mapping[str, Sequence[Trace]]) -> float | None:
    """Between the grades of two answers of a model to one question; None: no question has two."""
    answers: defaultdict[tuple[str, str], list[bool]] = defaultdict(list)
    for model, some in by_model.items():
        for trace in some:
            if trace.correct is not None:
                answers[model, question_key(trace.prompt)].append(trace.correct)
    several = [each for each in answers.values() if len(each) > 1]
    return correlation_of(several) if len(several) >= FEWEST else None


def load_revisers(folder: str | os.PathLike[str]) -> dict[tuple[str, str], Reviser]:
    """By the folder names of two models: what an answer of the first says about the second; none without a file."""
    try:
        pairs = _record(folder).get("pairs", [])
        return {(str(each["from"]), str(each["to"])): Reviser.from_dict(each) for each in pairs}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(folder) from None


def load_correlation(folder: str | os.PathLike[str]) -> float | None:
    """Between the grades of two answers to a question; None if it was not learned."""
    try:
        found = _record(folder).get("correlation")
        if found is not None and not 0 <= found <= 1:
            raise ValueError
    except (ValueError, TypeError, AttributeError):
        raise _damaged(folder) from None
    return None if found is None else float(found)


def _record(folder: str | os.PathLike[str]) -> Any:
    path = Path(folder) / REVISERS
    return orjson.loads(read_regular(path)) if path.exists() else {}


def _damaged(folder: str | os.PathLike[str]) -> InputError:
    fix = "make it again with `shadowprice train --routes`"
    return InputError("is damaged, or of an earlier version", path=Path(folder) / REVISERS, fix=fix)
