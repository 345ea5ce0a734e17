"""Jobs on a real Ray cluster: two workers and more, a server that counts, kill -9 at random moments.

`python scripts/ray_kills.py` does it at many more moments.
"""

import pytest


def assert_kept(found, rows):
    """The promises of a job, whatever died."""
    assert found["rows"] == found["ids"] == rows
    assert found["order kept"]
    assert found["overspent"] == 0
    assert found["generated"] <= found["spent"] <= found["budget"]
    assert not found["stopped"]


def test_a_plan_is_that_of_one_process(cluster):
    found = cluster("plans", rows=200, budget=14_000)
    assert found["limits equal"]
    assert found["limited"]
    assert found["prices"] == pytest.approx([found["prices"][2]] * 3, rel=1e-9)
    assert len(set(found["admitted"])) == 1
    assert found["granted"] == [14_000] * 3


def test_the_command_and_the_example(cluster):
    found = cluster("commands", rows=60, budget=900)
    assert found["code"] == 3  # some rows were declined
    assert "60 requests, 900 tokens, policy expected" in found["printed"]
    assert "60 rows from 2 files" in found["spoken"]
    assert found["sent twice"] == 0
    assert len(found["answers"]) >= 15
    assert {*found["answers"], *found["declined"]} == {f"r{i}" for i in range(60)}
    assert len(found["answers"]) + len(found["declined"]) == 60
    assert found["answers"] == sorted(found["answers"], key=lambda name: int(name[1:]))  # the order is kept
    assert found["resumed"]["spent"] == found["generated"] <= 900
    assert found["resumed for nothing"]
    assert "'outcome': '" in found["example"]
    assert "'finished': " in found["example"]
    assert "of 900 tokens spent at a price of 0." in found["example"]


def test_killed_workers_lose_what_they_had_under_way_and_a_killed_coordinator_nothing(cluster):
    found = cluster("killed", who="both", seed=4, workers=4, kills=4)
    assert_kept(found, 240)
    assert found["sent twice"] == 0
    assert found["killed"] >= 2
    assert found["lost rows"] <= found["most lost"]
    assert found["outcomes"]["finished"] == 240 - found["lost rows"]


def test_metered_rounds_keep_to_the_budget_when_a_worker_is_killed(cluster):
    found = cluster("killed", who="worker", seed=2, workers=2, rows=120, kills=1, policy="index")
    assert_kept(found, 120)
    assert found["outcomes"]["finished"] >= 120 - found["most lost"]
