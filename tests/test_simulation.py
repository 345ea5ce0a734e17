"""`sp.simulate`: a run over recorded answers in one call."""

import pytest

import shadowprice as sp
from shadowprice.datasets.shipped import shipped_traces

TRACES = shipped_traces("eval", "smollm2")[:150]


def test_the_budget_is_kept_and_every_question_has_a_result_in_order():
    found = sp.simulate(TRACES, budget="18/query", policy="expected")
    assert found.spent <= found.budget == 18 * 150
    assert [result.id for result in found.results] == [trace.id for trace in TRACES]
    assert sum(result.cost for result in found.results) == found.spent
    assert found.price == found.rounds[-1].price


def test_an_answer_is_correct_only_if_it_came_to_its_end():
    found = sp.simulate(TRACES, budget=150 * 512, policy="uniform", max_tokens=512)
    for trace, result in zip(TRACES, found.results, strict=True):
        assert result.correct is (bool(trace.correct) if result.outcome == "finished" else None)
    assert found.correct == sum(bool(t.correct) and not t.truncated and t.tokens <= 512 for t in TRACES)


def test_it_names_the_command_that_runs_the_same():
    found = sp.simulate(TRACES, budget="18/query", policy="clear", reclaim=False)
    words = (
        "shadowprice run QUESTIONS --budget 18/query --policy clear --accounting reserved --no-reclaim --base-url URL"
    )
    assert found.command == words


def test_traces_come_from_a_file_too(tmp_path):
    sp.write_traces(tmp_path / "t.jsonl.gz", TRACES)
    assert sp.simulate(tmp_path / "t.jsonl.gz", budget=1000).results == sp.simulate(TRACES, budget=1000).results


def test_of_several_answers_to_a_question_the_first_counts():
    twice = [*TRACES, *TRACES]
    assert sp.simulate(twice, budget=1000).results == sp.simulate(TRACES, budget=1000).results


@pytest.mark.parametrize(
    ("traces", "settings", "problem"),
    [
        ([], {}, "no traces"),
        ([sp.Trace("a", "A?", 5, model="m"), sp.Trace("b", "B?", 5, model="n")], {}, "several models: m, n"),
        (TRACES, {"samples": 2}, "cannot be simulated"),
        (TRACES, {"policy": "index", "accounting": "reserved"}, "use metered"),
        (TRACES, {"policy": "nonsense"}, "nonsense"),
    ],
)
def test_what_cannot_be_simulated_is_refused(traces, settings, problem):
    with pytest.raises(sp.ShadowpriceError, match=problem):
        sp.simulate(traces, budget=1000, **settings)
