"""What is shown of a run is what its ledger says, in every state of the run."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from dataclasses import asdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shadowprice.accounts.sqlite import Ledger
from shadowprice.formats.asked import Asked, asked_lines
from shadowprice.formats.results import DECLINED
from shadowprice.report.run_data import read_run
from shadowprice.run_folder import RunFolder
from shadowprice.runs import Run
from shadowprice.types import Request, Usage

from ..run_folders import answer, chunk, note
from .conftest import BUDGET, RUNS, TRACES, Recorded, requests
from .helpers import steps_of, summary_of

ENDS = ["finished", "truncated", "nothing", "open", "void", "chunk"]


class TestAnyRun:
    """What holds for all of them: policies, accountings, teachers, samples, money, failures."""

    @pytest.fixture(params=RUNS)
    def place(self, request, run_of):
        return run_of(request.param)

    def test_it_agrees_with_the_summary(self, place):
        run, summary = read_run(place), summary_of(place)
        assert run.done
        outcomes = {name.replace("_", " "): count for name, count in summary["outcomes"].items()}
        assert dict(run.outcomes) == outcomes
        assert (run.total, run.correct) == (summary["requests"], summary["correct"])
        assert (run.budget, run.spent) == (summary["budget"], summary["spent"])
        assert asdict(run.usage) == summary["usage"]
        assert len(run.clearings) == len(summary["rounds"]) == len(run.clearing_starts)

    def test_every_request_has_a_row_and_a_reason(self, place):
        run = read_run(place)
        assert [row["id"] for row in run.requests] == [trace.id for trace in TRACES[: run.total]]
        lengths = {trace.id: trace.tokens for trace in TRACES}
        single = run.policy != "uniform, reclaim"
        for row in run.requests:
            assert row["why"]
            assert row["forecast"] > 0
            assert 0 <= row["chance"] <= 100
            if row["outcome"] == "finished" and single and not run.rates.money:
                assert row["cost"] == lengths[row["id"]] <= row["grant"]
            elif row["outcome"] == "declined":
                assert row["price"] > 0
                assert row["attempts"] == 0

    def test_the_costs_of_the_requests_and_of_the_teacher_are_what_was_spent(self, place):
        run = read_run(place)
        teacher = run.teacher["tokens"] if run.teacher.get("charged") else 0
        assert sum(row["cost"] or 0 for row in run.requests) + teacher == run.spent

    def test_the_waterfall_adds_up(self, place):
        run = read_run(place)
        total, returned, *parts = run.steps
        assert sum(step.tokens for step in parts) == run.spent
        assert total.tokens == returned.tokens + run.spent
        if run.metered:
            assert (total.label, total.tokens) == ("budget", run.budget)
        elif not run.teacher.get("charged"):
            assert total.tokens <= sum(each["granted"] for each in run.clearings)


class TestReserved:
    def test_clearings_start_where_the_one_before_has_ended(self, run_of):
        run = read_run(run_of("reserved"))
        assert run.clearing_starts[0] == 0
        assert run.clearing_starts[1] == run.clearings[0]["admitted"]

    def test_what_is_granted_is_what_the_clearings_granted(self, run_of):
        run = read_run(run_of("reserved"))
        assert steps_of(run)["granted"] == sum(each["granted"] for each in run.clearings)

    def test_samples_share_a_grant(self, run_of):
        run = read_run(run_of("samples"))
        several = [row for row in run.requests if row["attempts"] > 1]
        assert several
        assert all(row["cost"] <= row["grant"] == 100 for row in several)
        finished = [row for row in several if row["outcome"] == "finished"]
        assert all(row["why"].endswith(f"in {row['attempts']} samples") for row in finished)


class TestGraded:
    def test_the_waterfall_ends_with_correct_answers(self, run_of):
        run = read_run(run_of("graded"))
        costs = Counter()
        for row in run.requests:
            costs[row["correct"]] += row["cost"] or 0
        steps = steps_of(run)
        assert list(steps)[-1] == "correct answers"
        assert (steps["correct answers"], steps["wrong answers"]) == (costs["yes"], costs["no"])
        assert steps["answers not graded"] == costs[None]


class TestMetered:
    def test_the_waterfall_counts_generated_tokens(self, run_of):
        run = read_run(run_of("metered"))
        cost = Counter()
        for row in run.requests:
            cost[row["outcome"]] += row["cost"] or 0
        steps = steps_of(run)
        assert steps["finished answers"] == cost["finished"] > 0
        assert steps["truncated answers"] == cost["truncated"]
        assert steps["never spent"] == BUDGET - run.spent

    def test_clearings_are_in_order(self, run_of):
        run = read_run(run_of("metered"))
        assert len(run.clearings) > 1
        assert run.clearing_starts[0] == 0
        assert run.clearing_starts == sorted(run.clearing_starts)

    def test_an_answer_in_chunks_is_one_answer(self, folder):
        ledger = folder(accounting="metered").ledger
        for name in ("a", "b"):
            ledger.settle_chunk(ledger.reserve(name, 10), 10, Usage(10), chunk(10))
        ledger.settle(ledger.reserve("a", 20), 5, Usage(5), answer("a", 15))
        run = read_run(ledger.path.parent)
        finished, waiting = run.requests
        assert (finished["outcome"], finished["grant"], finished["cost"]) == ("finished", 30, 15)
        assert (waiting["outcome"], waiting["cost"]) == ("waiting", 10)
        assert waiting["why"] == "paused until its next turn"
        steps = steps_of(run)
        assert (steps["finished answers"], steps["answers not finished"]) == (15, 10)

    def test_the_reason_for_a_truncated_answer_is_given(self, folder):
        ledger = folder(accounting="metered").ledger
        ledger.settle(ledger.reserve("own", 10), 10, Usage(10), answer("own", 10, "truncated"))
        for name, flags in (("left", ()), ("stuck", ["not_continued"])):
            ledger.settle_chunk(ledger.reserve(name, 10), 10, Usage(10), chunk(10))
            ledger.record(name, answer(name, 10, "truncated", flags))
        assert {row["id"]: row["why"] for row in read_run(ledger.path.parent).requests} == {
            "own": "reached its limit",
            "left": "more tokens were not worth the price",
            "stuck": "could not be continued (the server: not_continued)",
        }


class TestTeacher:
    def test_the_forecast_is_the_estimate(self, run_of):
        assert {row["forecast"] for row in read_run(run_of("tale")).requests} == {40}


class TestFailures:
    def test_each_request_has_its_own_cause(self, run_of):
        rows = [row for row in read_run(run_of("failing")).requests if row["outcome"] == "failed"]
        assert {row["attempts"] for row in rows} == {0}
        assert rows[0]["why"] == "model_not_found: no model '3' on this server, for 3 tokens"

    def test_attempts_that_were_lost_are_paid_for(self, run_of):
        run = read_run(run_of("failing"))
        lost = [TRACES[place].id for place in range(7, 60, 10)]
        again = [row for row in run.requests if row["id"] in lost]
        assert all(row["attempts"] == 2 and row["outcome"] in ("finished", "truncated") for row in again)
        assert steps_of(run)["failed attempts"] == 6 * run.clearings[0]["granted"] // 60

    def test_rare_causes_are_counted_together(self, folder):
        ledger = folder().ledger
        for number in range(30):
            name = f"q{number}"
            ledger.note(name, note(name, "failed", "request_refused", "x" * (number % 25 + 1)))
        *listed, others = read_run(ledger.path.parent).failures
        assert [each["count"] for each in listed] == [2] * 5 + [1] * 15
        assert (others["count"], others["message"]) == (5, "5 other causes")

    def test_a_cause_that_the_backend_names_groups_failures(self, folder):
        place = folder()
        for name, message in (("a", "503: node x17 is busy"), ("b", "503: node abc is busy")):
            place.ledger.note(name, note(name, "failed", "backend_unavailable", message, cause="503"))
        (cause,) = read_run(place.path).failures
        assert (cause["count"], cause["requests"]) == (2, "a, b")


class TestUnderWay:
    def test_a_real_run_is_read_at_every_moment(self, tmp_path):
        place = tmp_path / "run"
        seen = []

        def look(progress):
            if progress.running and len(seen) < 40:
                seen.append((progress.running, read_run(place)))

        with Run(requests(60), budget=BUDGET, backend=Recorded(TRACES), folder=place, policy="clear") as run:
            asyncio.run(run.execute(on_event=look))
        assert len(seen) > 3
        for running, found in seen:
            assert not found.done
            assert found.total == 60
            assert sum(found.outcomes.values()) == 60
            assert found.outcomes["waiting"] == running
            assert found.outcomes["not sent"] > 0
        assert read_run(place).done

    def test_a_run_that_is_resumed_is_under_way_again(self, own):
        folder = own("failing")
        failed = next(row["id"] for row in read_run(folder).requests if row["outcome"] == "failed")
        with Ledger.reopen(folder / "ledger.sqlite") as ledger:
            ledger.reserve(failed, 10)
            run = read_run(folder)
        assert not run.done
        assert {row["id"]: row["outcome"] for row in run.requests}[failed] == "waiting"
        assert (run.outcomes["failed"], sum(each["count"] for each in run.failures)) == (11, 11)


class TestOutcomes:
    def test_what_a_declined_request_has_cost_is_shown(self, folder):
        ledger = folder().ledger
        ledger.settle(ledger.reserve("a", 10), 8, Usage())
        ledger.note("a", note("a", "declined", DECLINED, "declined", price=None))
        (row,) = read_run(ledger.path.parent).requests
        assert row["why"] == "its tokens were worth more elsewhere; earlier attempts cost 8 tokens"

    def test_the_tokens_of_a_failed_attempt_are_lost_even_if_the_retry_succeeds(self, folder):
        ledger = folder().ledger
        ledger.settle(ledger.reserve("a", 10), 8, Usage())
        ledger.settle(ledger.reserve("a", 20), 5, Usage(5), answer("a", 5))
        steps = steps_of(read_run(ledger.path.parent))
        assert (steps["failed attempts"], steps["finished answers"]) == (8, 5)

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        ends=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 80), st.sampled_from(ENDS)), max_size=12),
        accounting=st.sampled_from(["reserved", "metered"]),
    )
    def test_it_always_agrees_with_the_ledger(self, tmp_path, ends, accounting):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        place = RunFolder.create(tmp_path / "run", 400, {"accounting": accounting})
        with place.ledger as ledger:
            for number, (grant, used, how) in enumerate(ends):
                if grant > ledger.available:
                    continue
                name = f"q{number}"
                reservation = ledger.reserve(name, grant)
                if how == "void":
                    ledger.void(reservation)
                elif how == "chunk":
                    ledger.settle_chunk(reservation, used, Usage(used), chunk(used))
                elif how == "nothing":
                    ledger.settle(reservation, used, Usage())
                elif how != "open":
                    ledger.settle(reservation, used, Usage(used), answer(name, used, how))
            run = read_run(tmp_path / "run")
            assert run.spent == ledger.spent + ledger.overspent
            steps = steps_of(run)
            assert steps.get("in flight or lost", 0) == ledger.reserved
            if run.steps:
                assert sum(steps.values()) == 2 * run.steps[0].tokens


def test_questions_are_read_by_id(folder):
    place = folder()
    (place.path / "requests.jsonl").write_bytes(b"".join(asked_lines([Request("a", "Why?")], {"a": ("42", "exact")})))
    assert read_run(place.path).asked == {"a": Asked("Why?", "42")}
