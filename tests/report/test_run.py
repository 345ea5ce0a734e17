"""The page about a run: true to the ledger in every state of a run, and without a trace in its folder."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
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
from shadowprice.report.run import run_report
from shadowprice.report.run_data import read_run
from shadowprice.runner import Settings, run, write_results
from shadowprice.runs import RunFolder

from ..backends import hostile
from ..conftest import request_line
from ..test_crash import tells_a_story
from .helpers import HOSTILE, Page

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


class TestFinished:
    def test_the_verdict_is_its_summary(self, finished):
        summary = json.loads((finished / "manifest.json").read_text())["summary"]
        text = Page(run_report(finished)).words
        assert summary["finished"] > 20
        assert summary["truncated"] > 0
        assert summary["abandoned"] > 0
        answered = summary["finished"] + summary["truncated"]
        assert f"{answered} of 60 requests answered, for {summary['spent']:,} of 1,200 tokens." in text
        truncated, declined = summary["truncated"], summary["abandoned"]
        assert f"{truncated} answers were truncated; {declined} requests were declined." in text
        assert "Unfinished" not in text

    def test_every_clearing_is_shown_with_its_price(self, finished):
        rounds = json.loads((finished / "manifest.json").read_text())["summary"]["rounds"]
        assert len(rounds) > 1
        page = run_report(finished)
        section = page[page.index('<section id="price"') : page.index('<section id="waterfall"')]
        shown = re.findall(r"<tr><td.*?</tr>", section)
        assert len(shown) == len(rounds)
        for row, each in zip(shown, rounds, strict=True):
            assert f">{each['price']:.3g}<" in row

    def test_the_number_of_correct_answers_is_shown_where_it_is_known(self, finished):
        assert "correctly" not in run_report(finished)
        manifest = json.loads((finished / "manifest.json").read_text())
        (finished / "manifest.json").write_text(json.dumps({**manifest, "solved": 17}))
        assert "requests answered, 17 correctly, for" in Page(run_report(finished)).words

    def test_every_clearing_is_found_in_the_ledger(self, finished):
        run = read_run(finished)
        assert len(run.clearing_starts) == len(run.clearings)
        assert run.clearing_starts[0] == 0
        assert run.clearing_starts[1] == run.clearings[0]["admitted"]

    def test_every_request_has_a_row_and_a_reason(self, finished):
        rows = read_run(finished).requests
        assert sorted(row["id"] for row in rows) == sorted(trace.id for trace in TRACES)
        assert all(row["why"] for row in rows)
        length = {trace.id: trace.tokens for trace in TRACES}
        for row in rows:
            assert row["forecast"] > 0
            assert 0 <= row["chance"] <= 100
            if row["outcome"] == "finished":
                assert row["used"] == length[row["id"]] <= row["grant"]
            elif row["outcome"] == "declined":
                assert row["price"] > 0

    def test_a_run_without_forecasts_is_shown_without_them(self, finished):
        (finished / "forecast.jsonl").unlink()
        rows = read_run(finished).requests
        assert {row["outcome"] for row in rows if row["forecast"] is not None} == {"declined"}

    def test_the_tokens_add_up(self, finished):
        steps = {step.label: step.tokens for step in read_run(finished).steps}
        summary = json.loads((finished / "manifest.json").read_text())["summary"]
        assert steps["granted"] == sum(each["granted"] for each in summary["rounds"])
        assert steps["finished answers"] + steps["truncated answers"] + steps["failed attempts"] == summary["spent"]
        assert steps["granted"] - steps["returned unused"] == summary["spent"]

    def test_the_folder_is_not_changed(self, finished):
        before = listing(finished)
        run_report(finished)
        assert listing(finished) == before

    def test_the_error_file_of_another_run_is_ignored(self, finished, tmp_path):
        unlisted = json.loads((finished / "manifest.json").read_text())["summary"]["abandoned"]
        (tmp_path / "errors.jsonl").write_bytes(error_line("somebody", "budget_abandoned", "of another run") + b"\n")
        text = Page(run_report(finished)).words
        assert "somebody" not in text
        assert f"Not listed: {unlisted} declined requests" in text

    def test_the_command_writes_the_page(self, finished, capsys):
        assert main(["report", str(finished)]) == 0
        assert (finished / "report.html").read_text() == run_report(finished)
        assert "report.html" in capsys.readouterr().out

    def test_declined_requests_of_a_run_from_the_command_line_are_listed(self, tmp_path, batch, capsys):
        path = batch([request_line(f"q{i}", f"question {i}") for i in range(12)])
        with hostile.Server(tells_a_story) as server:
            arguments = ["run", str(path), "--budget", "60", "--base-url", server.url, "--model", "m", "--quiet"]
            assert main([*arguments, "--run-folder", str(tmp_path / "run")]) == 3
        capsys.readouterr()
        rows = read_run(tmp_path / "run").requests
        assert len(rows) == 12
        assert "declined" in {row["outcome"] for row in rows}


class TestUnfinished:
    def test_it_is_read_while_it_runs(self, tmp_path):
        place = RunFolder.create(tmp_path / "run", 100, {"policy": "clear"})
        with place.ledger as ledger:
            first, _ = ledger.reserve_many([("a", 40), ("b", 30)])
            ledger.settle(first, 25, answer(25))
            before = sorted(path.name for path in (tmp_path / "run").iterdir())
            text = Page(run_report(tmp_path / "run")).words
            assert "Unfinished: 1 request answered so far, 25 of 100 tokens spent." in text
            assert "1 waiting or in flight." in text
            assert "--resume" in text
            assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before
            with pytest.raises(LedgerError, match="in use"):  # the lock is still its own
                Ledger.reopen(tmp_path / "run" / "ledger.sqlite")
            ledger.reserve("c", 45)
            assert (ledger.available, ledger.reserved, ledger.spent) == (0, 75, 25)

    def test_it_is_read_after_kill_9_and_can_still_be_resumed(self, tmp_path):
        folder = self.killed(tmp_path)
        before = listing(folder)
        account = read_account(folder)
        assert account.spent == 7
        assert [(attempt.used, attempt.end) for attempt in account.attempts] == [(7, "answer"), (0, None)]
        assert "Unfinished: 1 request answered so far, 7 of 100 tokens spent." in Page(run_report(folder)).words
        after = listing(folder)
        assert {name: after[name] for name in before if not name.endswith("-shm")} == {
            name: before[name] for name in before if not name.endswith("-shm")
        }
        assert after.keys() == before.keys()
        with Ledger.reopen(folder / "ledger.sqlite") as ledger:
            assert ledger.spent == 7 + 20

    def test_a_copy_without_the_shared_memory_file_is_read_too(self, tmp_path):
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
from tests.report.test_run import answer
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

    def test_a_run_killed_before_it_had_a_ledger_is_read(self, tmp_path):
        RunFolder.create(tmp_path / "run", 100, {}).ledger.close()
        for path in (tmp_path / "run").glob("ledger.sqlite*"):
            path.unlink()
        text = Page(run_report(tmp_path / "run")).words
        assert "Unfinished: 0 requests answered so far, 0 of 100 tokens spent." in text

    def test_a_resumed_run_still_knows_how_many_requests_it_has(self, tmp_path):
        place = RunFolder.create(tmp_path / "run", 100, {})
        with place.ledger as ledger:
            ledger.settle(ledger.reserve("a", 40), 25, answer(25))
            place.save(rounds=[clearing(budget=75, queries=4)])  # of the second start; the first's are gone
            ledger.reserve("b", 30)
            text = Page(run_report(tmp_path / "run")).words
        assert "1 of 5 requests answered" in text


def clearing(budget, queries):
    return {"budget": budget, "queries": queries, "admitted": 1, "granted": 30, "price": 0.5, "status": "cleared"}


class TestOutcomes:
    def test_every_outcome_of_an_attempt_is_shown(self, tmp_path):
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
        run = read_run(tmp_path / "run")
        rows = {row["id"]: row for row in run.requests}
        assert {name: row["outcome"] for name, row in rows.items()} == {
            "ends": "finished", "cut": "truncated", "fails": "failed", "lost": "waiting", "over": "truncated",
            "free": "failed",
        }  # fmt: skip
        assert rows["lost"]["used"] == 40
        assert rows["fails"]["why"] == "request_refused: no <b>such</b> model"
        steps = {step.label: step.tokens for step in run.steps}
        assert steps == {
            "granted": 10 + 20 + 30 + 40 + 25 + 16,  # including the 15 tokens above a limit
            "returned unused": 6 + 25 + 13,
            "the teacher's estimates": 3,
            "failed attempts": 5 + 40,
            "truncated answers": 45,
            "finished answers": 4,
        }
        page = run_report(tmp_path / "run")
        assert "limit_ignored, 1 time." in page
        assert "no &lt;b&gt;such&lt;/b&gt; model" in page

    def test_an_answer_in_chunks_is_one_answer(self, tmp_path):
        place = RunFolder.create(tmp_path / "run", 100, {"accounting": "metered"})
        with place.ledger as ledger:
            ledger.pause(ledger.reserve("a", 10), 10, b"{}")
            ledger.pause(ledger.reserve("b", 10), 10, b"{}")
            ledger.settle(ledger.reserve("a", 20), 5, answer(15))
        run = read_run(tmp_path / "run")
        finished, waiting = run.requests
        assert (finished["outcome"], finished["grant"], finished["used"]) == ("finished", 30, 15)
        assert (waiting["outcome"], waiting["used"]) == ("waiting", 10)
        steps = {step.label: step.tokens for step in run.steps}
        assert steps["finished answers"] == 15
        assert steps["answers not finished yet"] == 10

    def test_the_tokens_of_a_failed_attempt_are_lost_even_if_the_retry_succeeds(self, tmp_path):
        place = RunFolder.create(tmp_path / "run", 100, {})
        with place.ledger as ledger:
            ledger.settle(ledger.reserve("a", 10), 8)
            ledger.settle(ledger.reserve("a", 20), 5, answer(5))
        steps = {step.label: step.tokens for step in read_run(tmp_path / "run").steps}
        assert (steps["failed attempts"], steps["finished answers"]) == (8, 5)

    def test_tokens_above_the_budget_are_reported(self, tmp_path):
        place = RunFolder.create(tmp_path / "run", 10, {})
        with place.ledger as ledger:
            ledger.settle(ledger.reserve("a", 10), 35, answer(35, "length"))
        assert "25 tokens were generated above the budget" in run_report(tmp_path / "run")

    def test_no_answer_of_a_server_becomes_markup(self, tmp_path):
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
    def test_the_page_always_agrees_with_the_ledger(self, tmp_path, ends):
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
            run = read_run(tmp_path / "run")
            assert run.spent == ledger.spent + ledger.overspent
            steps = {step.label: step.tokens for step in run.steps}
            assert steps.get("in flight or lost", 0) == ledger.reserved
            assert sum(steps.values()) == 2 * steps.get("granted", 0)


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


class TestMetered:
    def test_the_waterfall_starts_with_the_budget_and_counts_generated_tokens(self, metered):
        run = read_run(metered)
        (total, *parts) = run.steps
        steps = {step.label: step.tokens for step in parts}
        assert (total.label, total.tokens) == ("budget", BUDGET)
        assert sum(steps.values()) == BUDGET
        used = Counter()
        for row in run.requests:
            used[row["outcome"]] += row.get("used") or 0
        assert steps["finished answers"] == used["finished"] > 0
        assert steps["truncated answers"] == used["truncated"] > 0
        assert steps["never spent"] == BUDGET - run.spent

    def test_every_clearing_is_found_in_the_ledger(self, metered):
        run = read_run(metered)
        assert len(run.clearings) > 1
        assert len(run.clearing_starts) == len(run.clearings)
        assert run.clearing_starts[0] == 0
        assert run.clearing_starts == sorted(run.clearing_starts)

    def test_it_shows_generated_tokens_and_not_grants(self, metered):
        page = run_report(metered)
        assert "the budget was spent" in page
        assert "correct answers per token" in page
        assert "chunks ended" in page
        assert "metered" in Page(page).text
        for words in ("returned unused", "utility per token", "attempts ended"):
            assert words not in page

    def test_the_reason_for_a_truncated_answer_is_given(self, tmp_path):
        place = RunFolder.create(tmp_path / "run", 100, {"accounting": "metered"})
        with place.ledger as ledger:
            ledger.settle(ledger.reserve("own", 10), 10, answer(10, "length"))
            ledger.pause(ledger.reserve("left", 10), 10, b"{}")
            ledger.record("left", answer(10, "length"))
            ledger.pause(ledger.reserve("stuck", 10), 10, b"{}")
            ledger.record("stuck", answer(10, "length", ["not_continued"]))
        rows = {row["id"]: row["why"] for row in read_run(tmp_path / "run").requests}
        assert rows == {
            "own": "reached its limit",
            "left": "more tokens were not worth the price",
            "stuck": "could not be continued (the server: not_continued)",
        }


class TestDamaged:
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
    def test_a_read_only_folder_is_read(self, finished):
        finished.chmod(0o500)
        try:
            assert "requests answered" in run_report(finished)
        finally:
            finished.chmod(0o700)
