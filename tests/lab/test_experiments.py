"""One reproduction on the shipped answers: which tables there are, and what every row carries."""

import pytest

from shadowprice.lab.config import Lab, NotPossible
from shadowprice.lab.experiments import EXPERIMENTS, Experiment, run_experiments
from shadowprice.lab.simulations import PRACTICAL

from .test_simulations import settings_from

COMPARISONS = ("main", "frontier", "phase_transition", "noise", "beta", "alpha", "variants")


def test_every_table_is_there_or_left_out_with_a_reason(results):
    assert {*results.tables, *results.meta["left_out"]} == set(EXPERIMENTS)
    assert all(results.meta["left_out"].values())
    assert not set(results.tables) & set(results.meta["left_out"])


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_carry_the_contract(results, name):
    contract = {
        "table", "stream", "budget", "policy", "accounting", "solved", "ci_low", "ci_high", "tokens_granted",
        "tokens_spent", "abandoned", "seeds", "source", "command", "model",
    }  # fmt: skip
    ours = [row for row in results.table(name) if row["source"] == "ours"]
    assert ours
    for row in ours:
        assert contract <= set(row)
        assert row["tokens_spent"] <= row["budget"] * (1 + 1e-5)  # as far as digits are written


@pytest.mark.parametrize("name", COMPARISONS)
def test_every_practical_row_has_a_command_that_runs(results, name):
    for row in results.table(name):
        if row["source"] != "ours":
            continue
        if row["policy"] not in PRACTICAL:
            assert row["command"] == ""
            continue
        settings = settings_from(row["command"])
        settings.check()
        assert settings.policy == row["policy"]
        assert (settings.accounting, settings.reclaim) == {
            "reserved": ("reserved", False),
            "reclaimed": ("reserved", True),
            "metered": ("metered", True),
        }[row["accounting"]]
        assert settings.max_tokens == results.meta["cap"]
        options = {name: row[name] for name in ("alpha", "beta") if name in row and not row.get("adaptive")}
        assert settings.options == options


def test_progress_is_reported_and_what_is_not_possible_is_left_out(monkeypatch, pool):
    def impossible(lab):
        raise NotPossible("no such traces")

    experiments = {
        "one": Experiment("One", "", lambda lab: [{"table": "one"}]),
        "none": Experiment("None", "", impossible),
        "two": Experiment("Two", "", lambda lab: [{"table": "two", "rows": len(lab.rows)}]),
    }
    monkeypatch.setattr("shadowprice.lab.experiments.EXPERIMENTS", experiments)
    seen = []
    rows, left_out = run_experiments(Lab([pool], [pool]), lambda *step: seen.append(step))
    assert rows == [{"table": "one"}, {"table": "two", "rows": 1}]  # later ones see the rows of earlier ones
    assert left_out == {"none": "no such traces"}
    assert seen == [(0, 3, "one"), (1, 3, "none"), (2, 3, "two")]
