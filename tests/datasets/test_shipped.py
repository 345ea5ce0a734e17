"""The recorded answers that come with the package are what their manifest says, and graded correctly."""

from pathlib import Path

import pytest

import shadowprice.datasets
from shadowprice.backends.models import MODELS
from shadowprice.datasets.shipped import known_set, shipped_hash, shipped_sets, shipped_traces
from shadowprice.datasets.tasks import split_of
from shadowprice.errors import InputError
from shadowprice.forecast.splits import question_key
from shadowprice.grading import grade

FOLDER = Path(shadowprice.datasets.__file__).parent
FILES = [(name, split) for name, splits in shipped_sets().items() for split in splits]


@pytest.mark.parametrize(("name", "split"), FILES)
def test_a_file_is_what_the_manifest_says(name, split):
    about, traces = shipped_sets()[name][split], shipped_traces(split, name)
    assert shipped_hash(split, name) == about["sha256"]
    assert (len(traces), sum(t.tokens for t in traces)) == (about["traces"], about["tokens"])
    assert sum(bool(t.correct) for t in traces) == about["correct"]
    assert sum(t.truncated for t in traces) == about["truncated"]
    assert sum("landed" in t.extra for t in traces) == about["probed"]
    assert {t.dataset for t in traces} == set(about["datasets"])
    assert {t.model for t in traces} == {about["model"]}


def test_the_manifest_has_every_file():
    assert {path.name for path in FOLDER.glob("*.jsonl.gz")} == {shipped_sets()[n][s]["file"] for n, s in FILES}


def test_they_stay_small():
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) < 8_000_000


@pytest.mark.parametrize("name", shipped_sets())
def test_no_question_is_in_two_splits(name):
    train, evaluated = ({question_key(t.prompt) for t in shipped_traces(split, name)} for split in ("train", "eval"))
    assert not train & evaluated


def test_names():
    assert known_set("smollm2") == known_set("smollm2-135m") == "smollm2-135m"
    assert known_set("gpt") is None
    with pytest.raises(InputError, match="no recorded answers are called 'gpt'"):
        shipped_traces("eval", "gpt")
    with pytest.raises(InputError, match="choose one of"):
        shipped_traces("nowhere")


class TestSmolLM2:
    @pytest.mark.parametrize("split", ["train", "eval"])
    def test_traces_are_of_their_split(self, split):
        traces = shipped_traces(split, "smollm2")
        assert len({trace.id for trace in traces}) == len(traces) > 500
        assert {split_of(trace.prompt) for trace in traces} == {split}

    @pytest.mark.parametrize("split", ["train", "eval"])
    def test_grades_are_those_of_the_grader(self, split):
        """Where the answer was recorded; the grader is known by the form of the gold."""
        recorded = [trace for trace in shipped_traces(split, "smollm2") if trace.response is not None][:300]
        for trace in recorded:
            kind = "numeric" if trace.gold.isdigit() else "exact"
            assert grade(kind, trace.response, trace.gold, truncated=trace.truncated).correct is trace.correct


class TestQwen:
    @pytest.mark.slow
    @pytest.mark.parametrize("split", ["train", "eval"])
    def test_grades_are_those_of_the_grader(self, split):
        pytest.importorskip("math_verify")
        for trace in shipped_traces(split, "qwen2.5-coder-1.5b")[:60]:
            assert grade("math", trace.response, trace.gold, truncated=trace.truncated).correct is trace.correct

    @pytest.mark.parametrize("split", ["train", "eval", "summary"])
    def test_every_answer_is_greedy_and_probed_within_its_length(self, split):
        for trace in shipped_traces(split, "qwen2.5-coder-1.5b"):
            assert (trace.model, trace.temperature) == (MODELS["qwen2.5-coder-1.5b"].title, 0.0)
            assert trace.tokens <= trace.max_tokens == 2048
            assert {int(age) <= trace.tokens for age in trace.extra["landed"]} <= {True}

    def test_a_few_questions_have_many_sampled_answers(self):
        answers = {}
        for trace in shipped_traces("rollouts", "qwen2.5-coder-1.5b"):
            assert (trace.temperature, trace.max_tokens) == (1.0, 1024)
            answers.setdefault(trace.id, []).append(trace.sample)
        assert len(answers) == 12
        assert all(samples == list(range(16)) for samples in answers.values())

    def test_questions_that_are_not_free_are_not_in_the_package(self):
        for trace in shipped_traces("summary", "qwen2.5-coder-1.5b"):
            assert (trace.prompt, trace.gold, trace.response) == ("", "", None)
            assert all(len(probe) == 2 for probe in trace.extra["landed"].values())
