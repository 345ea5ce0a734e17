"""Routing on recorded rewards: better than a mix, never above the budget, and bad files are refused."""

import numpy as np
import pytest

from shadowprice.errors import InputError
from shadowprice.lab.rewards import clairvoyant, predict, read_outcomes, reward_rows, serve, static_mix

from .several import write_outcomes


@pytest.fixture
def files(tmp_path):
    return read_outcomes(write_outcomes(tmp_path / "val.jsonl")), read_outcomes(
        write_outcomes(tmp_path / "test.jsonl", seed=7)
    )


def test_it_beats_the_best_static_mix_within_a_hard_budget(files):
    fit, test = files
    expected = predict(fit, test)
    for budget in (2e-5, 4e-5):
        served = serve(expected, test, budget * len(test))
        assert served.spent.sum() <= budget * len(test)
        assert served.reward.mean() > static_mix(test.reward, test.cost, budget)[0] + 0.02
        assert served.reward.mean() <= clairvoyant(test.reward, test.cost, budget) + 1e-9


def test_nothing_is_spent_without_money_and_everybody_gets_the_best_with_enough(files):
    fit, test = files
    expected = predict(fit, test)
    assert serve(expected, test, 0.0).spent.sum() == 0
    rich = serve(expected, test, 1.0)
    assert np.all(rich.model >= 0)


def test_a_static_mix_is_on_the_line_between_two_models():
    value = np.array([[0.5, 0.8]] * 10)
    cost = np.array([[1.0, 3.0]] * 10)
    assert static_mix(value, cost, 2.0)[0] == pytest.approx(0.65)
    assert static_mix(value, cost, 0.5)[0] == pytest.approx(0.25)  # the cheaper one for half of the prompts
    assert static_mix(value, cost, 9.0)[0] == pytest.approx(0.8)


def test_rows_have_every_policy_at_every_budget(files):
    rows = reward_rows(*files, [2e-5, 5e-5])
    assert {row["policy"] for row in rows} == {"cheap alone", "dear alone", "static mix", "ours", "clairvoyant"}
    assert all(row["dollars"] <= row["budget"] * (1 + 1e-9) for row in rows)


BAD = (
    "{}",
    '{"prompt": "x", "arms": {"a": {"reward": 2, "cost": 1}}}',
    '{"prompt": "x", "arms": {"a": {"reward": 1, "cost": 0}}}',
)


@pytest.mark.parametrize("line", BAD)
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "bad.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(InputError, match=r"bad.jsonl:1: is not a prompt with its arms"):
        read_outcomes(path)
