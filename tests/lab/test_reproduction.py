"""From traces to results, in one call; tests/cli/test_reproduce.py is about the command."""

from dataclasses import replace

import pytest

from shadowprice.datasets.shipped import shipped_traces
from shadowprice.errors import InputError
from shadowprice.lab.experiments import EXPERIMENTS
from shadowprice.lab.reproduction import Config, reproduce

SMALL = Config(quick=True, seeds=1, streams=["balanced"], budgets=["0.5x", "2x"])


def test_the_meta_says_what_it_was_made_from(results):
    meta = results.meta
    assert meta["questions"] == len(shipped_traces("eval", "smollm2"))
    assert meta["seeds"] == [0, 1]
    assert list(meta["streams"]) == ["balanced", "mostly-hard"]
    assert meta["forecasts"].startswith(f"trained on {len(shipped_traces('train', 'smollm2')):,} traces")
    assert {"shadowprice", "numpy", "scipy", "python", "budgets", "cap", "median_tokens"} <= set(meta)


def test_queries_are_those_of_the_cell_named(results):
    cell = results.meta["queries_are_of"]
    assert len(results.queries) == results.meta["queries"]
    assert sum(row["grant"] for row in results.queries) <= cell["budget"] * len(results.queries)


def test_the_same_config_gives_the_same_results(tmp_path):
    for name in ("one", "two"):
        reproduce(shipped_traces("eval", "smollm2"), shipped_traces("train", "smollm2"), config=SMALL).write(
            tmp_path / name
        )
    assert (tmp_path / "one" / "results.json").read_bytes() == (tmp_path / "two" / "results.json").read_bytes()


def test_two_models_the_selected_one_first():
    """With a second model, with several answers, and with traces that need a note."""
    first = shipped_traces("eval", "smollm2")[:150]
    second = [replace(trace, model="other", tokens=2 * trace.tokens) for trace in first[:90]]
    again = [replace(trace, sample=1) for trace in first[:20]]
    ungraded = [replace(trace, id=f"{trace.id} ungraded", correct=None) for trace in first[:7]]
    seen = []
    results = reproduce(
        [*first, *second, *again, *ungraded],
        config=replace(SMALL, model="other", cap=120),
        progress=lambda *step: seen.append(step),
        about={"command": "mine"},
    )
    assert (results.meta["model"], results.meta["second_model"]) == ("other", first[0].model)
    assert results.meta["command"] == "mine"
    assert {"second_model", "second_predictor"} <= set(results.tables)
    notes = " ".join(results.meta["notes"])
    assert "7 traces are not graded" in notes
    assert "longer than the cap of 120" in notes
    steps = len(EXPERIMENTS) + 1
    assert seen == [(i, steps, name) for i, name in enumerate(["forecasts", *EXPERIMENTS, "done"])]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (Config(cap=0), "--cap 0 is not a valid limit"),
        (Config(calibrate=-1), "--calibrate -1 is not a number of questions"),
        (Config(model="other"), "unknown model 'other'"),
        (Config(budgets=["0"]), "a budget of 0"),
    ],
)
def test_an_invalid_config_is_an_error(config, problem):
    with pytest.raises(InputError, match=problem):
        reproduce(shipped_traces("eval", "smollm2"), config=config)


def test_no_traces_are_an_error():
    with pytest.raises(InputError, match="no traces"):
        reproduce([])
