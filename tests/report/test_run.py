"""The report of a run: true to its ledger, whatever state the run is in, and without a trace in its folder."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shadowprice.accounts.sqlite import Ledger
from shadowprice.accounts.view import read_account
from shadowprice.backends.recorded import ReplayBackend
from shadowprice.cli import main
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.errors import InputError, LedgerError
from shadowprice.forecast.text import Text
from shadowprice.formats.batch import error_line, read_requests
from shadowprice.metered_runner import run_metered
from shadowprice.report.run import query_rows, run_report, run_steps
from shadowprice.runner import Settings, run, write_results
from shadowprice.runs import RunFolder

from ..backends import hostile
from ..conftest import request_line
from ..test_crash import tells_a_story
from .test_report import HOSTILE, Page

TRACES = shipped_traces("eval")[:60]
METERED_TRACES = shipped_traces("eval")[:120]
BUDGET = 1200
ENDS = ["stop", "length", "error", "open", "void", "pause"]


def answer(tokens, finish="stop", flags=()):
    body = {"choices": [{"message": {"content": "Paris"}}]}
    told = {"finish": finish, "tokens": tokens, "usage_source": "server", "flags": flags}
    return orjson.dumps({"error": None, "response": {"body": body}, "shadowprice": told})


@pytest.fixture
def finished(tmp_path, batch):
    """A run of CLEAR on recorded answers of a real model, to its end."""
    requests = list(read_requests(batch([request_line(t.id, t.prompt) for t in TRACES])))
    place = RunFolder.create(tmp_path / "run", BUDGET, {"policy": "clear", "model": "SmolLM2", "input": "ab12"})
    with place.ledger as ledger:
        forecaster = Text().fit(shipped_traces("train"))
        progress = asyncio.run(run(requests, ledger, ReplayBackend(TRACES), forecaster, Settings(concurrency=4)))
        errors = tmp_path / "errors.jsonl"
        summary = write_results(requests, ledger, progress, out=tmp_path / "out.jsonl", errors=errors)
        place.keep_forecast((trace.id for trace in TRACES), progress.forecast)
        place.save(done=True, summary=asdict(summary), files={"errors": str(errors)})
    return tmp_path / "run"


def listing(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class TestAFinishedRun:
    def test_the_verdict_is_its_summary(self, finished):
        summary = json.loads((finished / "manifest.json").read_text())["summary"]
        told = Page(run_report(finished)).text
        assert summary["finished"] > 20
        assert summary["truncated"] > 0
        assert summary["abandoned"] > 0
        answered = summary["finished"] + summary["truncated"]
        assert f"{answered} of 60 queries answered, for {summary['spent']:,} of 1,200 tokens." in told
        assert f"{summary['truncated']} answers were cut at the limit; {summary['abandoned']} queries were" in told
        assert "nfinished" not in told

    def test_every_clearing_is_there_with_its_price(self, finished):
        rounds = json.loads((finished / "manifest.json").read_text())["summary"]["rounds"]
        assert len(rounds) > 1
        told = Page(run_report(finished)).text
        for each in rounds:
            assert f"{each['price']:.3g}" in told
        assert "Price of every clearing" in told

    def test_every_round_is_found_in_the_ledger(self, finished):
        account = read_account(finished)
        assert len(account.starts) == len(account.rounds)
        assert account.starts[0] == 0
        assert account.starts[1] == account.rounds[0]["admitted"]

    def test_every_query_has_its_row_and_its_reason(self, finished):
        rows = query_rows(read_account(finished))
        assert sorted(row["id"] for row in rows) == sorted(trace.id for trace in TRACES)
        assert all(row["why"] for row in rows)
        length = {trace.id: trace.tokens for trace in TRACES}
        for row in rows:
            assert row["forecast"] > 0
            assert 0 <= row["chance"] <= 100
            if row["outcome"] == "finished":
                assert row["used"] == length[row["id"]] <= row["grant"]
            elif row["outcome"] == "abandoned":
                assert row["price"] > 0

    def test_a_run_that_kept_no_forecasts_is_told_without(self, finished):
        (finished / "forecast.jsonl").unlink()
        rows = query_rows(read_account(finished))
        assert {row["outcome"] for row in rows if row["forecast"] is not None} == {"abandoned"}

    def test_the_tokens_add_up(self, finished):
        steps = {step.label: step.tokens for step in run_steps(read_account(finished))}
        summary = json.loads((finished / "manifest.json").read_text())["summary"]
        assert steps["granted"] == sum(each["granted"] for each in summary["rounds"])
        assert steps["finished answers"] + steps["cut at the limit"] + steps["failed attempts"] == summary["spent"]
        assert steps["granted"] - steps["given back"] == summary["spent"]

    def test_the_folder_is_as_it_was(self, finished):
        before = listing(finished)
        run_report(finished)
        assert listing(finished) == before

    def test_an_error_file_of_another_run_is_not_believed(self, finished, tmp_path):
        unlisted = json.loads((finished / "manifest.json").read_text())["summary"]["abandoned"]
        (tmp_path / "errors.jsonl").write_bytes(error_line("somebody", "budget_abandoned", "of another run") + b"\n")
        told = Page(run_report(finished)).text
        assert "somebody" not in told
        assert f"{unlisted} abandoned queries are not listed" in told

    def test_the_command_makes_the_page(self, finished, capsys):
        assert main(["report", str(finished)]) == 0
        assert (finished / "report.html").read_text() == run_report(finished)
        assert "report.html" in capsys.readouterr().out

    def test_the_command_line_run_says_where_its_error_file_is(self, tmp_path, batch, capsys):
        path = batch([request_line(f"q{i}", f"question {i}") for i in range(12)])
        with hostile.Server(tells_a_story) as server:
            arguments = ["run", str(path), "--budget", "60", "--base-url", server.url, "--model", "m", "--quiet"]
            assert main([*arguments, "--run-folder", str(tmp_path / "run")]) == 3
        capsys.readouterr()
        rows = query_rows(read_account(tmp_path / "run"))
        assert len(rows) == 12
        assert "abandoned" in {row["outcome"] for row in rows}


class TestAnUnfinishedRun:
    def test_it_is_read_while_it_goes_on(self, tmp_path):
        place = RunFolder.create(tmp_path / "run", 100, {"policy": "clear"})
        with place.ledger as ledger:
            first, _ = ledger.reserve_many([("a", 40), ("b", 30)])
            ledger.settle(first, 25, answer(25))
            before = sorted(path.name for path in (tmp_path / "run").iterdir())
            told = Page(run_report(tmp_path / "run")).text
            assert "Unfinished: 1 query answered so far, 25 of 100 tokens spent." in told
            assert "--resume" in told
            assert "in flight" in told
            assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before
            with pytest.raises(LedgerError, match="in use"):  # the lock is still its own
                Ledger.reopen(tmp_path / "run" / "ledger.sqlite")
            ledger.reserve("c", 45)
            assert (ledger.available, ledger.reserved, ledger.spent) == (0, 75, 25)

    def test_it_is_read_after_kill_9_and_can_go_on_afterwards(self, tmp_path):
        folder = self.killed(tmp_path)
        before = listing(folder)
        account = read_account(folder)
        assert account.spent == 7
        assert [(attempt.used, attempt.end) for attempt in account.attempts] == [(7, "answer"), (0, None)]
        assert "Unfinished: 1 query answered so far, 7 of 100 tokens spent." in Page(run_report(folder)).text
        after = listing(folder)
        assert {name: after[name] for name in before if not name.endswith("-shm")} == {
            name: before[name] for name in before if not name.endswith("-shm")
        }
        assert after.keys() == before.keys()
        with Ledger.reopen(folder / "ledger.sqlite") as ledger:
            assert ledger.spent == 7 + 20

    def test_a_copy_of_it_without_its_shared_memory_is_read_too(self, tmp_path):
        folder = self.killed(tmp_path)
        (folder / "ledger.sqlite-shm").unlink()
        before = listing(folder)
        assert read_account(folder).spent == 7
        assert listing(folder) == before

    @staticmethod
    def killed(tmp_path):
        code = """
import sys, time
from shadowprice.runs import RunFolder
from tests.lab.test_runreport import answer
ledger = RunFolder.create(sys.argv[1], 100, {}).ledger
first, second = ledger.reserve_many([("a", 10), ("b", 20)])
ledger.settle(first, 7, answer(7))
print("ready", flush=True)
time.sleep(60)
"""
        command = [sys.executable, "-c", code, str(tmp_path / "run")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGKILL)
        assert (tmp_path / "run" / "ledger.sqlite-wal").exists()
        return tmp_path / "run"

    def test_killed_in_its_first_moments_it_has_no_ledger_yet(self, tmp_path):
        RunFolder.create(tmp_path / "run", 100, {}).ledger.close()
        for path in (tmp_path / "run").glob("ledger.sqlite*"):
            path.unlink()
        assert (
            "Unfinished: 0 queries answered so far, 0 of 100 tokens spent." in Page(run_report(tmp_path / "run")).text
        )

    def test_one_that_was_resumed_still_knows_how_many_queries_it_has(self, tmp_path):
        place = RunFolder.create(tmp_path / "run", 100, {})
        with place.ledger as ledger:
            ledger.settle(ledger.reserve("a", 40), 25, answer(25))
            place.save(rounds=[asdict_round(budget=75, queries=4)])  # of the second start; the first's are gone
            ledger.reserve("b", 30)
            told = Page(run_report(tmp_path / "run")).text
        assert "1 of 5 queries answered" in told


def asdict_round(budget, queries):
    return {"budget": budget, "queries": queries, "admitted": 1, "granted": 30, "price": 0.5, "status": "cleared"}


class TestWhatMayHappenInARun:
    def test_every_end_of_an_attempt_is_told(self, tmp_path):
        place = RunFolder.create(tmp_path / "run", 1000, {"policy": "tale"})
        with place.ledger as ledger:
            grants = [("ends", 10), ("cut", 20), ("fails", 30), ("lost", 40), ("over", 10), ("never", 50)]
            ends, cut, fails, _, over, never = ledger.reserve_many(grants)
            estimate = ledger.reserve("shadowprice.estimate:1:ends", 16)
            ledger.settle(ends, 4, answer(4))
            ledger.settle(cut, 20, answer(20, "length"))
            ledger.settle(fails, 5, error_line("fails", "request_refused", "no <b>such</b> model"))
            ledger.settle(over, 25, answer(25, "length", ["limit_ignored"]))
            ledger.settle(estimate, 3, answer(3))
            ledger.void(never)
            ledger.record("free", error_line("free", "no_trace", "nothing to replay"))
        Ledger.reopen(tmp_path / "run" / "ledger.sqlite").close()  # the crash is noticed: `lost` is charged
        account = read_account(tmp_path / "run")
        rows = {row["id"]: row for row in query_rows(account)}
        assert {name: row["outcome"] for name, row in rows.items()} == {
            "ends": "finished", "cut": "truncated", "fails": "failed", "lost": "waiting", "over": "truncated",
            "free": "failed",
        }  # fmt: skip
        assert rows["lost"]["used"] == 40
        assert rows["fails"]["why"] == "request_refused: no <b>such</b> model"
        steps = {step.label: step.tokens for step in run_steps(account)}
        assert steps == {
            "granted": 10 + 20 + 30 + 40 + 25 + 16,  # and by how much one of them was exceeded
            "given back": 6 + 25 + 13,
            "the teacher's estimates": 3,
            "failed attempts": 5 + 40,
            "cut at the limit": 45,
            "finished answers": 4,
        }
        page = run_report(tmp_path / "run")
        assert "caught at limit_ignored 1 times" in page
        assert "no &lt;b&gt;such&lt;/b&gt; model" in page

    def test_an_answer_in_parts_is_one_answer(self, tmp_path):
        place = RunFolder.create(tmp_path / "run", 100, {"accounting": "metered"})
        with place.ledger as ledger:
            ledger.pause(ledger.reserve("a", 10), 10, b"{}")
            ledger.pause(ledger.reserve("b", 10), 10, b"{}")
            ledger.settle(ledger.reserve("a", 20), 5, answer(15))
        account = read_account(tmp_path / "run")
        finished, waiting = query_rows(account)
        assert (finished["outcome"], finished["grant"], finished["used"]) == ("finished", 30, 15)
        assert (waiting["outcome"], waiting["used"]) == ("waiting", 10)
        steps = {step.label: step.tokens for step in run_steps(account)}
        assert steps["finished answers"] == 15
        assert steps["answers not finished yet"] == 10

    def test_the_tokens_of_an_attempt_that_failed_bought_nothing_even_if_the_next_one_did(self, tmp_path):
        place = RunFolder.create(tmp_path / "run", 100, {})
        with place.ledger as ledger:
            ledger.settle(ledger.reserve("a", 10), 8)
            ledger.settle(ledger.reserve("a", 20), 5, answer(5))
        steps = {step.label: step.tokens for step in run_steps(read_account(tmp_path / "run"))}
        assert (steps["failed attempts"], steps["finished answers"]) == (8, 5)

    def test_a_server_that_exceeded_the_budget_is_named(self, tmp_path):
        place = RunFolder.create(tmp_path / "run", 10, {})
        with place.ledger as ledger:
            ledger.settle(ledger.reserve("a", 10), 35, answer(35, "length"))
        assert "25 tokens were generated above the budget" in run_report(tmp_path / "run")

    def test_nothing_a_server_says_becomes_part_of_the_page(self, tmp_path):
        name = HOSTILE.encode(errors="replace").decode()
        place = RunFolder.create(tmp_path / "run", 100, {"model": name, "policy": name, name: name})
        line = orjson.loads(answer(5))
        line["response"]["body"]["choices"][0]["message"]["content"] = name
        with place.ledger as ledger:
            ledger.settle(ledger.reserve(name, 10), 5, orjson.dumps(line))
            ledger.settle(ledger.reserve("b", 10), 5, error_line("b", name, name))
        found = Page(run_report(tmp_path / "run"))
        assert found.tags.count("script") == 1
        assert "img" not in found.tags
        assert found.handlers == []
        assert len(found.ids) == len(set(found.ids))

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        ends=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 80), st.sampled_from(ENDS)), max_size=12),
    )
    def test_the_account_is_always_that_of_the_ledger(self, tmp_path, ends):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        place = RunFolder.create(tmp_path / "run", 400, {})
        with place.ledger as ledger:
            for number, (grant, used, how) in enumerate(ends):
                if grant > ledger.available:
                    continue
                reservation = ledger.reserve(f"q{number}", grant)
                if how == "void":
                    ledger.void(reservation)
                elif how == "pause":
                    ledger.pause(reservation, used, b"{}")
                elif how == "error":
                    ledger.settle(reservation, used)
                elif how != "open":
                    ledger.settle(reservation, used, answer(used, how))
            account = read_account(tmp_path / "run")
            assert account.spent == ledger.spent + ledger.overspent
            in_flight = sum(attempt.grant for attempt in account.attempts if attempt.end is None)
            assert in_flight == ledger.reserved
            if steps := run_steps(account):
                total, *parts = steps
                assert sum(step.tokens for step in parts) == total.tokens


@pytest.fixture(scope="module")
def metered(tmp_path_factory):
    """Answers of a real model, of which enough end for the forecast to be corrected on the way."""
    place = tmp_path_factory.mktemp("metered")
    batch = place / "requests.jsonl"
    batch.write_bytes(b"\n".join(orjson.dumps(request_line(t.id, t.prompt)) for t in METERED_TRACES))
    requests = list(read_requests(batch))
    run_folder = RunFolder.create(place / "run", BUDGET, {"accounting": "metered", "policy": "metered"})
    with run_folder.ledger as ledger:
        forecaster, backend = Text().fit(shipped_traces("train")), ReplayBackend(METERED_TRACES)
        progress = asyncio.run(run_metered(requests, ledger, backend, forecaster, Settings(concurrency=4)))
        errors = place / "errors.jsonl"
        summary = write_results(requests, ledger, progress, out=place / "out.jsonl", errors=errors)
        run_folder.save(done=True, summary=asdict(summary), files={"errors": str(errors)})
    return place / "run"


class TestAMeteredRun:
    def test_the_waterfall_goes_from_the_budget_to_what_was_generated(self, metered):
        account = read_account(metered)
        (total, *parts) = run_steps(account)
        steps = {step.label: step.tokens for step in parts}
        assert (total.label, total.tokens) == ("budget", BUDGET)
        assert sum(steps.values()) == BUDGET
        lengths = {"finished": 0, "truncated": 0, "abandoned": 0}
        for row in query_rows(account):
            lengths[row["outcome"]] += row.get("used") or 0
        assert steps["finished answers"] == lengths["finished"] > 0
        assert steps["left before the end"] == lengths["truncated"] > 0
        assert steps["never spent"] == BUDGET - account.spent

    def test_every_clearing_is_found_in_the_ledger(self, metered):
        account = read_account(metered)
        assert len(account.rounds) > 1
        assert len(account.starts) == len(account.rounds)
        assert account.starts[0] == 0
        assert account.starts == sorted(account.starts)

    def test_it_speaks_of_generated_tokens_and_not_of_grants(self, metered):
        page = run_report(metered)
        told = Page(page).text
        summary = json.loads((metered / "manifest.json").read_text())["summary"]
        left = summary["truncated"]
        assert f"{left} answers were left before the end" in told or (left == 1 and "1 answer was left" in told)
        assert "the budget was spent before its end" in told
        assert "right answers per token" in page
        assert "stretches ended" in page
        for word in ("given back", "utility per token", "attempts ended", "cut at"):
            assert word not in page

    def test_a_limit_of_its_own_is_told_from_the_end_of_the_budget(self, tmp_path):
        place = RunFolder.create(tmp_path / "run", 100, {"accounting": "metered"})
        with place.ledger as ledger:
            ledger.settle(ledger.reserve("own", 10), 10, answer(10, "length"))
            ledger.pause(ledger.reserve("left", 10), 10, b"{}")
            ledger.record("left", answer(10, "length"))
            ledger.pause(ledger.reserve("stuck", 10), 10, b"{}")
            ledger.record("stuck", answer(10, "length", ["not_continued"]))
        rows = {row["id"]: row["why"] for row in query_rows(read_account(tmp_path / "run"))}
        assert rows == {
            "own": "cut at its limit",
            "left": "more tokens promised nothing",
            "stuck": "left where it was (the server: not_continued)",
        }


class TestWhatIsNoRun:
    def test_a_damaged_ledger_is_named(self, tmp_path):
        RunFolder.create(tmp_path / "run", 100, {}).ledger.close()
        (tmp_path / "run" / "ledger.sqlite").write_bytes(b"no database at all" * 100)
        with pytest.raises(InputError, match=r"ledger\.sqlite: not a sound ledger"):
            run_report(tmp_path / "run")

    @pytest.mark.parametrize("content", ["", "[]", "{}", '{"budget": "x"}', '{"budget": 1, "rounds": [3]}'])
    def test_a_damaged_manifest_is_named(self, content, tmp_path):
        (tmp_path / "manifest.json").write_text(content)
        with pytest.raises(InputError, match=r"manifest\.json: damaged"):
            run_report(tmp_path)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_folder_that_cannot_be_written_is_read_all_the_same(self, finished):
        finished.chmod(0o500)
        try:
            assert "queries answered" in run_report(finished)
        finally:
            finished.chmod(0o700)
