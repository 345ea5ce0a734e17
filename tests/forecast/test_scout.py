"""Another model's answers to the same questions improve forecasts, and are asked for where they are needed."""

from dataclasses import replace

import numpy as np
import pytest

from shadowprice import InputError
from shadowprice.forecast import load, predict_all
from shadowprice.forecast.evaluation import evaluate
from shadowprice.forecast.scout import ScoutAnswers, ScoutForecaster, with_scout
from shadowprice.forecast.text import TextForecaster
from shadowprice.forecast.training import Trainer, new_forecaster
from shadowprice.types import Request

from .test_revise import world


def requests(traces):
    return [Request(trace.id, trace.prompt) for trace in traces]


@pytest.fixture(scope="module")
def models():
    """Traces of a cheap and of a dear model. They fail on the same questions."""
    cheap, dear = world(900)
    shared = [trace.correct for trace in dear]
    noise = np.random.default_rng(1).random(900) < 0.1
    cheap = [replace(trace, correct=ok ^ bool(n)) for trace, ok, n in zip(cheap, shared, noise, strict=True)]
    return cheap, dear


@pytest.fixture(scope="module")
def trained(models):
    cheap, dear = models
    return with_scout(new_forecaster(), ScoutAnswers(cheap)).fit(dear[:500], "all")


def test_length_and_outcome_of_the_scout_say_what_the_questions_do_not(models, trained):
    later = models[1][500:]
    found = evaluate(trained.predict(requests(later)), later, resamples=2).overall
    assert found.spearman > 0.6
    assert found.auc > 0.85
    assert 0.7 < found.coverage["80%"] < 0.9


def test_an_adapted_forecaster_has_one_too(models):
    cheap, dear = models
    base = TextForecaster().fit(dear[:300])
    trainer = Trainer("text", lambda traces, name: base.adapt(traces), base)
    found = with_scout(trainer, ScoutAnswers(cheap)).fit(dear[300:400], "all")
    assert evaluate(found.predict(requests(dear[400:])), dear[400:], resamples=2).overall.spearman > 0.6


def test_questions_without_an_answer_are_forecast_from_their_text(models, trained):
    cheap, dear = models
    later = dear[500:]
    partly = trained.with_answers(ScoutAnswers(cheap[500::2]))
    found, usual = partly.predict(requests(later)), TextForecaster().fit(dear[:500]).predict(requests(later))
    np.testing.assert_allclose(found.tokens[1::2], usual.tokens[1::2])
    np.testing.assert_allclose(found.tokens[::2], trained.predict(requests(later)).tokens[::2])


def test_it_can_be_saved_and_needs_the_answers_again(models, trained, tmp_path):
    asked = requests(models[1][500:])
    trained.save(tmp_path / "saved")
    again = load(tmp_path / "saved")
    with pytest.raises(InputError, match=r"needs the answers of its scout, 'cheap'.*--scout FILE"):
        again.predict(asked)
    found = again.with_answers(ScoutAnswers(models[0])).predict(asked)
    np.testing.assert_allclose(found.tokens, trained.predict(asked).tokens, rtol=1e-4)
    np.testing.assert_allclose(found.solve, trained.predict(asked).solve, rtol=1e-3)


def test_an_adapted_one_can_be_saved(models, tmp_path):
    cheap, dear = models
    base = TextForecaster().fit(dear[:300])
    trainer = Trainer("text", lambda traces, name: base.adapt(traces), base)
    made = with_scout(trainer, ScoutAnswers(cheap)).fit(dear[300:400], "all")
    made.save(tmp_path / "saved")
    again = ScoutForecaster.load(tmp_path / "saved").with_answers(ScoutAnswers(cheap))
    asked = requests(dear[400:])
    np.testing.assert_allclose(again.predict(asked).tokens, made.predict(asked).tokens, rtol=1e-4)


def test_answers_of_another_scout_or_to_other_questions_are_refused(models, trained):
    cheap, dear = models
    with pytest.raises(InputError, match="answers of 'dear', but the forecaster was trained with 'cheap'"):
        trained.with_answers(ScoutAnswers(dear))
    with pytest.raises(InputError, match="answers of 2 models"):
        ScoutAnswers([*cheap, *dear])
    with pytest.raises(InputError, match="no answers"):
        ScoutAnswers([])
    with pytest.raises(InputError, match="no answer to any of these requests; the first is 'other'"):
        trained.with_answers(ScoutAnswers(cheap)).predict([Request("q0", "other")])
    with pytest.raises(InputError, match="0 questions have answers of both models"):
        with_scout(new_forecaster(), ScoutAnswers([replace(t, prompt=f"other {t.id}") for t in cheap])).fit(dear, "all")


def test_instructions_that_all_questions_share_do_not_matter(models, trained):
    cheap, dear = models
    begin = "Answer the question below with care.\n\n"
    longer = [replace(trace, prompt=begin + trace.prompt) for trace in cheap]
    asked = requests(dear[500:])
    wrapped = [replace(each, text=f"Think about it first. {each.text}") for each in asked]
    found = predict_all(trained.with_answers(ScoutAnswers(longer)), wrapped)
    np.testing.assert_allclose(found.tokens, predict_all(trained, asked).tokens)


def test_an_outcome_counts_where_the_answer_ended_and_was_graded(models):
    cheap = models[0][:4]
    answers = ScoutAnswers(
        [
            replace(cheap[0], correct=True),
            replace(cheap[1], correct=False),
            replace(cheap[2], correct=None),
            replace(cheap[3], correct=False, truncated=True),
        ]
    )
    evidence = answers.evidence([*(trace.prompt for trace in cheap), "unknown"])
    np.testing.assert_array_equal(evidence.agreement, [1, -1, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(evidence.cut, [0, 0, 0, 1, 0])
    np.testing.assert_array_equal(evidence.known, [True] * 4 + [False])


def test_it_is_neither_fitted_nor_adapted(trained, models):
    for learn in (trained.fit, trained.adapt):
        with pytest.raises(InputError, match="scout"):
            learn(models[1])
