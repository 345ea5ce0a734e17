"""`train --routes`: a forecaster per model, and what an answer of one says about another."""

from dataclasses import replace

import numpy as np
import pytest

from shadowprice.errors import InputError
from shadowprice.forecast import load
from shadowprice.forecast.revise import Evidence
from shadowprice.forecast.routes import (
    believed,
    folder_name,
    load_agreement,
    load_correlation,
    load_revisers,
    train_routes,
    trained_together,
)

from .test_revise import world


def traces(n=160):
    cheap, dear = world(n)
    return [*cheap, *dear]


def test_every_model_has_a_forecaster_and_every_pair_a_reviser(tmp_path):
    folders = train_routes(traces(), tmp_path / "out")
    assert set(folders) == {"cheap", "dear"}
    assert load(folders["cheap"]).predict(["question 3"]).tokens.shape == (1,)
    revisers = load_revisers(tmp_path / "out")
    assert set(revisers) == {("cheap", "cheap"), ("cheap", "dear"), ("dear", "cheap"), ("dear", "dear")}
    forecast = load(folders["dear"]).predict(["question 3", "question 4"])
    longer = revisers["cheap", "dear"].revise(forecast, Evidence([50, 500]))
    assert longer.tokens[1] > longer.tokens[0]
    assert longer.solve[1] < longer.solve[0]
    assert np.isfinite(longer.spread).all()
    train_routes(traces(), tmp_path / "out")  # replaces what it made


def test_differences_between_models_are_believed_as_far_as_they_were_shown(tmp_path):
    folders = train_routes(traces(), tmp_path / "out")
    (together,) = trained_together([None, folders["dear"], folders["cheap"]])
    assert (together.routes, together.models) == ([1, 2], [1, 0])
    prompts = [f"question {i}" for i in range(200)]
    dear, cheap = (load(folders[name]).predict(prompts) for name in ("dear", "cheap"))
    other = cheap.take(range(200))
    first, *found = believed([other, dear, cheap], [together])
    assert first is other
    gap_before, gap = (one.solve - two.solve for one, two in ((dear, cheap), found))
    # Numbers of questions say nothing about them: what is left of the differences is that of the means.
    assert gap.std() < gap_before.std() / 3
    graded = [np.mean([t.correct for t in traces() if t.model == name]) for name in ("dear", "cheap")]
    assert gap.mean() == pytest.approx(graded[0] - graded[1], abs=0.1)
    assert trained_together([folders["dear"], None]) == []


def test_models_without_grades_keep_their_forecasts(tmp_path):
    folders = train_routes([replace(trace, correct=None) for trace in traces()], tmp_path / "out")
    assert trained_together([*folders.values()]) == []


def test_one_model_or_too_few_questions_are_refused(tmp_path):
    with pytest.raises(InputError, match="two models or more"):
        train_routes([trace for trace in traces() if trace.model == "cheap"], tmp_path / "out")
    with pytest.raises(InputError, match="12 questions, 20 are needed"):
        train_routes(traces(12), tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear reader")
    with pytest.raises(InputError, match="something other than forecasters"):
        train_routes(traces(), tmp_path / "mine")


def test_several_answers_to_a_question_show_how_alike_they_are(tmp_path):
    train_routes(traces(), tmp_path / "once")
    assert load_correlation(tmp_path / "once") is None
    train_routes([*traces(), *traces()], tmp_path / "twice")  # the same answers again
    assert load_correlation(tmp_path / "twice") == pytest.approx(1.0)


def test_wrong_answers_to_a_question_show_how_often_they_agree(tmp_path):
    """Every question has four wrong answers of each model: two that agree, and two others."""
    several = [
        replace(trace, correct=False, response=said) for trace in traces() for said in ("one", "one", "two", "three")
    ]
    train_routes(several, tmp_path / "silent")
    assert load_agreement(tmp_path / "silent") is None, "nobody said what the answers are"
    train_routes(several, tmp_path / "out", vote=lambda question, text: text)
    assert load_agreement(tmp_path / "out") == pytest.approx(1 / 6)


@pytest.mark.parametrize("content", ['{"correlation": 2}', '{"correlation": "x"}', "[]"])
def test_a_damaged_correlation_is_named(tmp_path, content):
    (tmp_path / "revisers.json").write_text(content)
    with pytest.raises(InputError, match=r"revisers.json: is damaged"):
        load_correlation(tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    assert load_revisers(tmp_path) == {}
    (tmp_path / "revisers.json").write_text("{")
    with pytest.raises(InputError, match=r"revisers.json: is damaged"):
        load_revisers(tmp_path)
    (tmp_path / "revisers.json").write_text('{"differences": {"models": ["a", "b"], "mean": [0.0]}}')
    with pytest.raises(InputError, match=r"revisers.json: is damaged"):
        trained_together([tmp_path / "a", tmp_path / "b"])


def test_names_become_folders():
    assert folder_name("meta-llama/Llama-3.1 8B") == "meta-llama-Llama-3.1-8B"
    assert folder_name("../..") == "model"
