"""Inspect AI, where it is installed: a whole eval on the embedded model."""

import re


def test_an_eval_keeps_to_its_budget_and_its_log_has_every_sample(run_example):
    printed = run_example("inspect_budget.py", "inspect_ai", 400)
    status, answered, samples, used = re.search(
        r"(\w+): (\d+) of (\d+) samples answered, (\d+) tokens", printed
    ).groups()
    charged, budget, reserved = map(int, re.search(r"charged (\d+) of (\d+), reserved (\d+)", printed).groups())
    assert (status, int(samples)) == ("success", 20)
    assert 0 < int(answered) < 20
    assert int(used) <= charged <= budget == 400
    assert reserved == 0
