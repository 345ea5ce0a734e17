"""`sp.simulate`: a run over recorded answers in one call."""

import pytest

import shadowprice as sp
from shadowprice import Request, Run
from shadowprice.backends.recorded import RecordedBackend
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.errors import InputError

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


@pytest.mark.parametrize("settings", [{"policy": "index"}, {"policy": "expected"}, {"policy": "uniform"}])
def test_landings_are_simulated_as_a_run_on_the_recorded_answers_lands(settings):
    """Every request has the same outcome, cost and grade, one at a time."""
    traces = shipped_traces("eval", "qwen2.5-coder-1.5b")[:40]
    budget = 150 * len(traces)
    simulated = sp.simulate(traces, budget, landing="math", max_tokens=2048, **settings)
    requests = [Request(t.id, t.prompt, body={"messages": [{"role": "user", "content": t.prompt}]}) for t in traces]
    gold = {t.id: (t.gold, "math") for t in traces}
    with Run(
        requests, budget=budget, backend=RecordedBackend(traces), landing="math", max_tokens=2048, concurrency=1,
        gold=gold, **settings,
    ) as run:  # fmt: skip
        done = run.complete()
    assert [(r.id, r.outcome, r.cost) for r in simulated.results] == [(r.id, r.outcome, r.cost) for r in done]
    assert simulated.spent == run.spent <= budget
    assert sum(r.outcome == "landed" for r in done) > 5
    assert [r.correct is True for r in simulated.results] == [r.correct is True for r in done]


def test_landings_need_probes():
    with pytest.raises(InputError, match="probed traces only"):
        sp.simulate(shipped_traces("eval", "smollm2")[:20], 1000, landing="math")
