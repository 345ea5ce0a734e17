"""Traces become pools, and no forecast has seen the question it is for."""

from dataclasses import replace

import numpy as np
import pytest

from shadowprice.datasets.shipped import shipped_traces
from shadowprice.errors import InputError
from shadowprice.forecast.splits import question_key
from shadowprice.forecast.text import TextForecaster
from shadowprice.lab.pools import FEWEST, cross_fitted, make_pool, recorded, trained_without
from shadowprice.types import Trace


def trace(i, tokens, correct=True, **fields):
    return Trace(f"q{i}", f"Question number {i}?", tokens, correct, **fields)


class TestArrays:
    def test_an_answer_longer_than_the_cap_is_truncated_and_not_correct(self):
        (pool,) = recorded([trace(0, 100), trace(1, 101), trace(2, 5)], cap=100)
        assert pool.length.tolist() == [100, 100, 5]
        assert pool.correct.tolist() == [True, False, True]
        assert pool.truncated.tolist() == [False, True, False]

    def test_an_answer_truncated_in_the_recording_counts_as_running_to_the_cap(self):
        (pool,) = recorded([trace(0, 512, True, truncated=True, max_tokens=512), trace(1, 900, max_tokens=4096)])
        assert pool.cap == 4096
        assert pool.length.tolist() == [4096, 900]
        assert pool.correct.tolist() == [False, True]

    def test_without_a_cap_it_is_the_largest_recorded(self):
        assert recorded([trace(0, 7), trace(1, 30)])[0].cap == 30
        assert recorded([trace(0, 7, max_tokens=50), trace(1, 30)])[0].cap == 50

    def test_an_empty_answer_needs_a_token(self):
        assert recorded([trace(0, 0)])[0].length.tolist() == [1]

    def test_the_model_with_most_questions_is_first(self):
        traces = [trace(0, 5, model="a"), trace(0, 5, model="b"), trace(1, 5, model="b")]
        assert [pool.model for pool in recorded(traces)] == ["b", "a"]

    def test_several_answers_to_a_question_are_kept_in_order(self):
        traces = [trace(0, 9, sample=2), trace(0, 7, sample=0), trace(0, 8, sample=1)]
        (pool,) = recorded(traces)
        assert len(pool) == 1
        assert pool.length.tolist() == [7]
        assert [each.tokens for each in pool.questions[0]] == [7, 8, 9]

    def test_one_id_may_stand_for_two_questions(self):
        (pool,) = recorded([Trace("0", "What?", 5, True), Trace("0", "Why?", 6, True)])
        assert len(pool) == 2

    def test_ungraded_traces_are_left_out(self):
        assert len(recorded([trace(0, 5, None), trace(1, 5)])[0]) == 1
        assert recorded([trace(0, 5, None)]) == []

    def test_an_invalid_length_is_refused(self):
        with pytest.raises(InputError, match="tokens"):
            recorded([trace(0, 2**60)])


class TestTiers:
    def test_datasets_the_paper_names(self):
        names = ["gsm8k_test", "MATH-500", "OlympiadBench", "amc23", "aime24", "AIME 2025", "minerva_math"]
        (pool,) = recorded([trace(i, 5, dataset=name) for i, name in enumerate(names)])
        assert pool.tier.tolist() == [0, 1, 2, 2, 3, 3, 3]
        assert "dataset" in pool.tiers_by

    @pytest.mark.parametrize("names", [["gsm8k", "mine"], ["gsm8k", "gsm8k"], ["", ""]])
    def test_others_by_quartile_of_the_length(self, names):
        (pool,) = recorded([trace(i, 100 - i, dataset=names[i % 2]) for i in range(8)])
        assert pool.tier.tolist() == [3, 3, 2, 2, 1, 1, 0, 0]
        assert "length" in pool.tiers_by


class TestForecasts:
    def test_training_leaves_out_every_question_that_is_evaluated(self):
        evaluated, train = shipped_traces("eval", "smollm2"), shipped_traces("train", "smollm2")
        (model,) = recorded(evaluated)
        # The evaluated questions are in the training data in other words: another id, case and white space.
        leak = [replace(t, id="x" + t.id, prompt="  " + t.prompt.upper(), tokens=9999) for t in evaluated]
        clean, n = trained_without(train, [model])
        leaky, m = trained_without(train + leak, [model])
        assert n == m == len(train)
        queries = make_pool(model, clean).forecast.tokens
        assert np.array_equal(queries, make_pool(model, leaky).forecast.tokens)

    def test_nothing_left_to_train_on_is_an_error(self):
        (model,) = recorded(shipped_traces("eval", "smollm2"))
        with pytest.raises(InputError, match="every training trace"):
            trained_without(shipped_traces("eval", "smollm2"), [model])

    def test_cross_fitted_forecasts_do_not_depend_on_their_own_answers(self):
        (model,) = recorded(shipped_traces("eval", "smollm2"))
        before, _ = cross_fitted(model.questions, model.cap)
        # One question's answers, in a pool where it is asked twice, change to something absurd.
        first = model.questions[0][0]
        changed = [[replace(t, tokens=model.cap, correct=not t.correct) for t in q] for q in model.questions[:1]]
        after, _ = cross_fitted([*changed, *model.questions[1:]], model.cap)
        assert after.tokens[0] == before.tokens[0]
        assert after.solve[0] == before.solve[0]
        assert question_key(first.prompt) == question_key(changed[0][0].prompt)
        assert not np.array_equal(after.tokens[1:], before.tokens[1:])  # others do learn from it

    def test_cross_fitting_puts_every_forecast_in_its_place(self):
        (model,) = recorded(shipped_traces("eval", "smollm2"))
        forecast, _ = cross_fitted(model.questions, model.cap)
        assert len(forecast) == len(model)
        assert np.corrcoef(np.log(forecast.tokens), np.log(model.length))[0, 1] > 0.4

    def test_calibration_questions_are_not_evaluated(self):
        (model,) = recorded(shipped_traces("eval", "smollm2"))
        forecaster, _ = trained_without(shipped_traces("train", "smollm2"), [model])
        whole, part = make_pool(model, forecaster), make_pool(model, forecaster, calibrate=100)
        assert len(part) == len(whole) - 100
        assert {t.id for t in part.first} < {t.id for t in whole.first}
        assert "100" in part.forecast_from
        again = make_pool(model, forecaster, calibrate=100)
        assert np.array_equal(part.forecast.tokens, again.forecast.tokens)

    def test_calibrating_needs_a_forecaster(self):
        (model,) = recorded(shipped_traces("eval", "smollm2"))
        with pytest.raises(InputError, match="--train or --forecaster"):
            make_pool(model, calibrate=10)

    def test_too_few_questions_are_refused(self):
        (model,) = recorded([trace(i, 5 + i) for i in range(FEWEST - 1)])
        with pytest.raises(InputError, match=f"{FEWEST - 1} graded questions"):
            make_pool(model, TextForecaster().fit(shipped_traces("train", "smollm2")))
