"""Every row has one outcome: from the ledger, or declined."""

import json

import numpy as np
import pytest

from shadowprice.accounts.sqlite import Ledger
from shadowprice.distributed.jobs import Job
from shadowprice.distributed.outcomes import RayRun
from shadowprice.distributed.worker import Terms
from shadowprice.engine.scheduler import Round
from shadowprice.formats.results import result_line
from shadowprice.run_folder import RunFolder
from shadowprice.types import Completion, Failure, Result, Usage

from .test_prepared import Held


@pytest.fixture
def job(tmp_path):
    folder = RunFolder.create(tmp_path / "run", 100, {})
    ledger = folder.ledger
    a, b = ledger.reserve_many([("a", 30), ("b", 20)])
    body = {"choices": [{"message": {"content": "four"}}]}
    answer = Completion("four", 12, "stop", "server", body=body)
    ledger.settle(a, 12, Usage(12), result_line(Result("a", "finished", Usage(12), 12, answer, correct=True)))
    ledger.settle(b, 20, Usage())
    ledger.note("b", result_line(Result("b", "failed", cost=20, failure=Failure("backend_unavailable", "no"))))
    ledger.close()
    table = Held([["a", "c"], ["b"]], [2, 1])
    return Job(table, None, 100, folder, lambda: None, 2, Terms(100), rounds=[Round(100, 3, 2, 50, 0.01, "cleared")])


def test_rows_are_in_order_and_each_has_an_outcome(job):
    rows = [*RayRun(job).rows()]
    assert [(row["id"], row["outcome"], row["cost"]) for row in rows] == [
        ("a", "finished", 12),
        ("c", "declined", 0),
        ("b", "failed", 20),
    ]
    assert (rows[0]["text"], rows[0]["correct"], rows[2]["error"]) == ("four", True, "no")


def test_the_summary_adds_up(job):
    summary = RayRun(job).summary
    assert (summary.requests, summary.spent, summary.overspent, summary.failed) == (3, 32, 0, 20)
    assert summary.outcomes == {"finished": 1, "declined": 1, "failed": 1}
    assert (summary.correct, summary.graded) == (1, 1)


def test_files_are_those_of_a_run(job, tmp_path):
    RayRun(job).write(tmp_path / "out.jsonl", tmp_path / "err.jsonl")
    out = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    err = [json.loads(line) for line in (tmp_path / "err.jsonl").read_text().splitlines()]
    assert [line["custom_id"] for line in out] == ["a"]
    assert [(line["custom_id"], line["error"]["code"]) for line in err] == [
        ("c", "budget_abandoned"),
        ("b", "backend_unavailable"),
    ]


def test_a_job_that_was_stopped_has_sent_nothing_more(job):
    job.stopped = "interrupted"
    assert [row["outcome"] for row in RayRun(job).rows()] == ["finished", "not_sent", "failed"]


def test_nothing_is_charged_by_reading(job):
    run = RayRun(job)
    assert [*run.lines()] == [*run.lines()]
    with Ledger.reopen(run.folder / "ledger.sqlite") as ledger:
        assert ledger.spent == 32
    assert np.isclose(run.rounds[0].price, 0.01)
