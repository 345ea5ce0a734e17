"""Training a forecaster and evaluating it on questions it was not trained on."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from shadowprice import Forecast, InputError
from shadowprice.forecast import load
from shadowprice.forecast.evaluation import evaluate
from shadowprice.forecast.report import as_files, figure_files
from shadowprice.forecast.splits import question_key
from shadowprice.forecast.text import TextForecaster
from shadowprice.forecast.training import (
    Trainer,
    adapted_forecaster,
    evaluate_held_out,
    new_forecaster,
    read_training_traces,
    sizes,
    train,
)
from shadowprice.formats.traces import write_traces

from .stories import queries, stories


class Recorder:
    """A forecaster that only records what it was trained on."""

    def __init__(self):
        self.fitted = []

    def trainer(self, base=None):
        return Trainer("recorder", self._fit, base)

    def _fit(self, traces, name):
        self.fitted.append((name, list(traces)))
        return self

    def predict(self, requests):
        return Forecast([float(len(request.text)) for request in requests], 0.5, 0.5)


@pytest.fixture
def recorder():
    return Recorder()


class TestTrain:
    def test_evaluates_on_questions_held_out_and_then_trains_on_all(self, recorder):
        traces = stories(200)
        trained = train(recorder.trainer(), traces, validation=0.3, seed=5)
        (first, some), (second, all_of_them) = recorder.fitted
        assert (first, second) == ("held-out", "all")
        assert all_of_them == traces
        assert trained.forecaster is recorder
        assert trained.evaluation.training == some
        assert len(some) + len(trained.evaluation.test) == len(traces)
        assert 30 < len(trained.evaluation.test) < 90

    def test_all_answers_to_a_question_are_on_the_same_side(self, recorder):
        traces = [replace(trace, sample=k, model=f"m{k}") for trace in stories(60) for k in range(3)]
        evaluation = evaluate_held_out(recorder.trainer(), traces, 0.3)
        training, test = ({question_key(t.prompt) for t in side} for side in (evaluation.training, evaluation.test))
        assert training
        assert test
        assert not training & test

    def test_validation_zero_trains_once(self, recorder):
        trained = train(recorder.trainer(), stories(30), validation=0)
        assert trained.evaluation is None
        assert [name for name, _ in recorder.fitted] == ["all"]

    def test_the_seed_chooses_the_questions(self, recorder):
        tests = [evaluate_held_out(recorder.trainer(), stories(100), 0.3, seed).test for seed in (0, 0, 1)]
        assert tests[0] == tests[1] != tests[2]

    def test_the_report_is_that_of_the_forecast(self, recorder):
        evaluation = evaluate_held_out(recorder.trainer(), stories(100), 0.3)
        assert np.array_equal(evaluation.forecast.tokens, [len(trace.prompt) for trace in evaluation.test])
        assert asdict(evaluation.report) == asdict(evaluate(evaluation.forecast, evaluation.test))
        assert evaluation.base is None

    def test_the_adapted_forecaster_is_evaluated_on_the_same_traces(self, recorder):
        base = TextForecaster().fit(stories(100, seed=1))
        evaluation = evaluate_held_out(recorder.trainer(base), stories(100), 0.3)
        assert asdict(evaluation.base) == asdict(base.evaluate(evaluation.test))

    def test_says_what_takes_time(self, recorder):
        lines = []
        train(recorder.trainer(), stories(100), progress=lines.append)
        assert len(lines) == 3
        assert "held out" in lines[0]
        assert lines[2] == "training on all 100 traces of 100 questions"

    @pytest.mark.parametrize(
        ("traces", "validation", "message"),
        [
            ([], 0, "0 questions to train on, 20 are needed"),
            (stories(19), 0, "19 questions to train on"),
            (stories(1) * 50, 0, "1 question to train on"),
            (stories(24), 0.5, "questions left to train on, 20 are needed"),
            (stories(24), 1e-9, "no question was held out"),
        ],
    )
    def test_too_few_questions(self, recorder, traces, validation, message):
        with pytest.raises(InputError, match=message):
            train(recorder.trainer(), traces, validation=validation)
        assert recorder.fitted == []


class TestTrainers:
    def test_a_new_text_forecaster(self):
        traces = stories(60)
        forecaster = new_forecaster("text", penalty=7.0).fit(traces, "all")
        expected = TextForecaster(penalty=7.0).fit(traces)
        asked = queries(traces)
        assert np.array_equal(forecaster.predict(asked).tokens, expected.predict(asked).tokens)

    def test_invalid_settings_are_refused_at_once(self):
        pytest.importorskip("torch", reason="the extra `encoder` is not installed")
        with pytest.raises(InputError, match="unknown head 'tails'"):
            new_forecaster("encoder", heads=("tails",))

    def test_each_training_has_its_own_checkpoints(self, monkeypatch, tmp_path):
        made = []

        class Remembers:
            def __init__(self, **settings):
                made.append(settings)

            def fit(self, traces):
                return self

        monkeypatch.setitem(new_forecaster.__globals__["KINDS"], "text", lambda: Remembers)
        trainer = new_forecaster("text", checkpoints=tmp_path, epochs=3)
        trainer.fit([], "held-out")
        trainer.fit([], "all")
        assert [settings["checkpoints"] for settings in made[1:]] == [tmp_path / "held-out", tmp_path / "all"]
        assert all(settings["epochs"] == 3 for settings in made)

    def test_adapting_a_saved_forecaster(self, tmp_path):
        TextForecaster().fit(stories(100)).save(tmp_path / "f")
        trainer = adapted_forecaster(tmp_path / "f")
        assert trainer.kind == "text"
        wordier = stories(100, seed=1, factor=4)
        asked = queries(wordier)
        before, after = trainer.base.predict(asked).tokens, trainer.fit(wordier, "all").predict(asked).tokens
        assert 2.5 < np.median(after / before) < 6

    def test_adapting_the_one_in_the_package(self):
        assert adapted_forecaster("default").kind == "text"


class TestReadTrainingTraces:
    def test_all_files_without_empty_answers(self, tmp_path):
        traces = stories(10)
        write_traces(tmp_path / "a.jsonl", [replace(traces[0], tokens=0), *traces[1:4]])
        write_traces(tmp_path / "b.jsonl.gz", traces[4:])
        found = read_training_traces([tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"])
        assert [trace.id for trace in found] == [trace.id for trace in traces[1:]]

    def test_an_empty_prompt_is_an_error_with_its_place(self, tmp_path):
        path = tmp_path / "t.jsonl"
        write_traces(path, [*stories(2), replace(stories(1)[0], prompt=" \n")])
        with pytest.raises(InputError, match=r"t\.jsonl:3: an empty prompt \(remove the line\)"):
            read_training_traces([path])


def test_sizes():
    one = stories(1)
    assert sizes(one) == "1 trace of 1 question"
    assert sizes(one * 1200) == "1,200 traces of 1 question"
    assert sizes([]) == "0 traces of 0 questions"


class TestReportFiles:
    def test_what_was_trained_on_what_and_how_good_it_is(self, recorder):
        evaluation = evaluate_held_out(recorder.trainer(), stories(100), 0.3, 4)
        files = as_files(evaluation, about={"version": "9"})
        assert set(files) == {"report.json", "report.md"}
        record = json.loads(files["report.json"])
        assert record["version"] == "9"
        assert record["kind"] == "recorder"
        assert record["held_out"] == {"share": 0.3, "seed": 4}
        assert record["trained_on"] == len(evaluation.training)
        assert record["before_adapting"] is None
        assert record["overall"] == json.loads(json.dumps(asdict(evaluation.report.overall)))
        text = files["report.md"].decode()
        assert f"trained on {sizes(evaluation.training)}; evaluated on {sizes(evaluation.test)}" in text
        assert "30% of the questions, seed 4" in text
        assert "Before it was adapted" not in text

    def test_before_and_after_adapting(self, recorder):
        base = TextForecaster().fit(stories(100, seed=1))
        evaluation = evaluate_held_out(recorder.trainer(base), stories(100), 0.3)
        files = as_files(evaluation)
        before = json.loads(files["report.json"])["before_adapting"]
        assert before["spearman"] == evaluation.base.overall.spearman
        assert f"Before it was adapted: Spearman {before['spearman']:.2f}" in files["report.md"].decode()

    def test_the_figure(self, recorder):
        files = figure_files(evaluate_held_out(recorder.trainer(), stories(100), 0.3))
        assert set(files) == {"report.png", "report.svg"}


def test_a_trained_forecaster_can_be_saved_and_loaded(tmp_path):
    trained = train(new_forecaster(), stories(120))
    assert trained.evaluation.report.overall.spearman > 0.6
    trained.forecaster.save(tmp_path / "f")
    asked = queries(stories(20, seed=3))
    assert np.allclose(load(tmp_path / "f").predict(asked).tokens, trained.forecaster.predict(asked).tokens, rtol=1e-3)
