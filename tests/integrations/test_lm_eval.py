"""lm-eval, where it is installed: a whole task on the embedded model."""

import re


def test_a_task_keeps_to_its_budget_and_scores_every_request(run_example):
    printed = run_example("lm_eval_budget.py", "lm_eval", 400)
    requests, declined, samples = map(
        int, re.search(r"(\d+) requests, (\d+) declined, (\d+) samples", printed).groups()
    )
    charged, budget = map(int, re.search(r"charged (\d+) of (\d+)", printed).groups())
    assert requests == samples == 20
    assert 0 < declined < 20
    assert 0 < charged <= budget == 400
