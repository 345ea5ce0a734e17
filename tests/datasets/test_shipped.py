"""The recorded answers that ship are of the tasks that ship, graded correctly."""

import pytest

from shadowprice.datasets.shipped import shipped_hash, shipped_traces
from shadowprice.datasets.tasks import split_of
from shadowprice.formats.files import sha256_of
from shadowprice.grading import grade


@pytest.mark.parametrize("split", ["train", "eval"])
def test_traces_are_of_their_split(split):
    traces = shipped_traces(split)
    assert len({trace.id for trace in traces}) == len(traces) > 500
    assert {split_of(trace.prompt) for trace in traces} == {split}
    assert {trace.model for trace in traces} == {"SmolLM2-135M-Instruct.Q4_1"}


@pytest.mark.parametrize("split", ["train", "eval"])
def test_grades_are_those_of_the_grader(split):
    """Where the answer was recorded; the grader is known by the form of the gold."""
    recorded = [trace for trace in shipped_traces(split) if trace.response is not None][:300]
    for trace in recorded:
        kind = "numeric" if trace.gold.isdigit() else "exact"
        assert grade(kind, trace.response, trace.gold, truncated=trace.truncated).correct is trace.correct


def test_the_hash_is_that_of_the_file():
    import shadowprice.datasets.shipped as module

    path = module.__file__.replace("shipped.py", "smollm2-135m.eval.jsonl.gz")
    assert shipped_hash("eval") == sha256_of(path)
    assert shipped_hash("train") != shipped_hash("eval")
