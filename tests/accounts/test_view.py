"""The view of a run folder: true to its ledger in every state of the run, and without a trace in the folder."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shadowprice.accounts.manifest import FORMAT
from shadowprice.accounts.sqlite import Ledger
from shadowprice.accounts.view import is_estimate, is_run, read_account, whole_answers
from shadowprice.cost import TOKENS, Rates
from shadowprice.errors import InputError, LedgerError
from shadowprice.formats.forecasts import forecast_line
from shadowprice.formats.results import ESTIMATE, ROUTES, chunk_line, routes_line
from shadowprice.types import Failure, Forecast, Usage

from ..run_folders import answer, chunk, killed_run, listing, note, part
from .conftest import tamper
from .test_sqlite import OLD


class Folder:
    """A run folder made by hand."""

    def __init__(self, path, budget=100, forecast=(), **manifest):
        self.path = path
        path.mkdir()
        self.manifest = {
            "shadowprice": "0.2.0",
            "format": FORMAT,
            "created": "2026-01-01T00:00:00Z",
            "budget": budget,
            "asked": {"policy": "clear"},
            "rounds": [],
            "done": False,
        }
        self.save(**manifest)
        if forecast:
            expected = Forecast([float(10 * i + 10) for i in range(len(forecast))], 0.5, 0.8)
            lines = [forecast_line(name, expected, i) + b"\n" for i, name in enumerate(forecast)]
            (path / "forecast.jsonl").write_bytes(b"".join(lines))
        self.ledger = Ledger.create(path / "ledger.sqlite", budget)

    def save(self, **changes):
        self.manifest |= changes
        (self.path / "manifest.json").write_text(json.dumps(self.manifest))


@pytest.fixture
def make(tmp_path):
    made = []

    def make(**options):
        made.append(Folder(tmp_path / "run", **options))
        return made[-1]

    yield make
    for folder in made:
        folder.ledger.close()


def clearing(budget, requests=1):
    return {
        "budget": budget,
        "queries": requests,
        "admitted": 1,
        "granted": budget,
        "price": 0.5,
        "status": "cleared",
    }


class TestRequests:
    def test_everything_about_each(self, make):
        folder = make(forecast=["done", "cut", "landed", "waits", "declined", "failed"])
        ledger = folder.ledger
        ledger.settle(ledger.reserve("done", 20), 7, Usage(7, 30, 2), answer("done", 7, correct=True, price=0.25))
        ledger.settle(ledger.reserve("cut", 10), 10, Usage(10), answer("cut", 10, "truncated", correct=False))
        ledger.settle(ledger.reserve("landed", 9), 9, Usage(9), answer("landed", 9, "landed", flags=("slow",)))
        ledger.settle(ledger.reserve("failed", 10), 3, Usage(3))
        ledger.note("failed", note("failed", "failed", "unavailable", "connection lost"))
        ledger.note("declined", note("declined", "declined", "budget_abandoned", "too expensive", price=0.5))
        found = read_account(folder.path).requests
        assert list(found) == ["done", "cut", "landed", "waits", "declined", "failed"]
        assert {name: view.outcome for name, view in found.items()} == {
            "done": "finished",
            "cut": "truncated",
            "landed": "landed",
            "waits": "not_sent",
            "declined": "declined",
            "failed": "failed",
        }
        done = found["done"]
        assert (done.id, done.answered, done.in_flight) == ("done", True, False)
        assert (done.cost, done.usage, done.grants) == (7, Usage(7, 30, 2), [20])
        assert (done.forecast["tokens"], done.forecast["solve"]) == (10, 0.8)
        assert (done.correct, done.failure, done.flags, done.text) == (True, None, (), "Paris")
        assert done.extra == {"price": 0.25}
        assert [(a.request, a.grant, a.cost, a.usage, a.end) for a in done.attempts] == [
            ("done", 20, 7, Usage(7, 30, 2), "result")
        ]
        assert found["cut"].correct is False
        assert (found["landed"].correct, found["landed"].flags) == (None, ("slow",))
        failed, declined, waits = found["failed"], found["declined"], found["waits"]
        assert failed.failure == Failure("unavailable", "connection lost")
        assert (failed.answered, failed.cost, failed.text) == (False, 3, "")
        assert [attempt.end for attempt in failed.attempts] == ["nothing"]
        assert declined.failure == Failure("budget_abandoned", "too expensive", {"price": 0.5})
        assert (waits.cost, waits.usage, waits.grants, waits.failure) == (0, Usage(), [], None)

    def test_the_latest_note_counts_and_a_result_counts_more(self, make):
        ledger = make().ledger
        for name in ("a", "b"):
            ledger.note(name, note(name, "not_sent", "not_sent", "server is down"))
            ledger.note(name, note(name, "declined", "budget_abandoned", "too expensive"))
        ledger.settle(ledger.reserve("b", 10), 5, Usage(5), answer("b", 5))
        found = read_account(ledger.path.parent).requests
        assert (found["a"].outcome, found["a"].failure.code) == ("declined", "budget_abandoned")
        assert (found["b"].outcome, found["b"].failure, found["b"].answered) == ("finished", None, True)

    def test_an_answer_in_chunks_is_one_answer(self, make):
        ledger = make(asked={"accounting": "metered"}).ledger
        ledger.settle_chunk(ledger.reserve("a", 10), 10, Usage(10, 30), chunk(10, "Once ", ("limit_ignored",)))
        ledger.settle_chunk(ledger.reserve("b", 10), 10, Usage(10, 30), chunk(10, "It "))
        ledger.settle_chunk(ledger.reserve("b", 10), 8, Usage(8, 0, 30), chunk(8, "was "))
        ledger.settle_chunk(ledger.reserve("b", 10), 8, Usage(8, 0, 30), chunk(8, "other", sample=1))
        flags = ("slow", "limit_ignored")
        ledger.settle(ledger.reserve("a", 20), 5, Usage(5), answer("a", 15, text="Once more", flags=flags))
        ledger.reserve("b", 10)
        account = read_account(ledger.path.parent)
        assert account.metered
        finished, waits = account.requests["a"], account.requests["b"]
        assert (finished.outcome, finished.cost, finished.grants) == ("finished", 15, [10, 20])
        assert [attempt.end for attempt in finished.attempts] == ["chunk", "result"]
        assert (finished.text, finished.flags) == ("Once more", ("limit_ignored", "slow"))
        assert (waits.outcome, waits.answered, waits.in_flight) == ("not_sent", False, True)
        assert (waits.cost, waits.usage, waits.text) == (26, Usage(26, 30, 60), "It was ")

    def test_an_answer_that_was_begun_again_has_the_text_of_its_second_beginning(self, make):
        ledger = make(asked={"accounting": "metered"}).ledger
        for text, anew in (("It ", True), ("was ", False), ("Once ", True), ("upon", False)):
            line = chunk_line(part(4, "length", text=text), sample=0, landing=False, anew=anew)
            ledger.settle_chunk(ledger.reserve("a", 10), 4, Usage(4), line)
        assert read_account(ledger.path.parent).requests["a"].text == "Once upon"
        with whole_answers(ledger.path.parent) as text_of:
            assert text_of("a") == "Once upon"

    def test_of_a_long_answer_only_the_beginning_is_kept(self, make):
        ledger = make().ledger
        ledger.settle(ledger.reserve("a", 10), 5, Usage(5), answer("a", 5, text="x" * 10_000))
        for _ in range(3):
            ledger.settle_chunk(ledger.reserve("b", 10), 5, Usage(5), chunk(5, "y" * 100))
        found = read_account(ledger.path.parent).requests
        assert (found["a"].text, found["b"].text) == ("x" * 240, "y" * 240)

    def test_a_lost_attempt_is_charged_in_full_and_a_void_one_is_left_out(self, make):
        folder = make()
        _, void = folder.ledger.reserve_many([("lost", 40), ("never", 30)])
        folder.ledger.void(void)
        folder.ledger.close()
        (attempt,) = read_account(folder.path).attempts
        assert (attempt.request, attempt.cost, attempt.end) == ("lost", 0, None)
        folder.ledger = Ledger.reopen(folder.path / "ledger.sqlite")
        account = read_account(folder.path)
        assert [(a.cost, a.usage, a.end) for a in account.attempts] == [(40, Usage(), "lost")]
        assert (account.spent, account.requests["lost"].cost) == (40, 40)

    def test_notes_on_the_routes_of_reservations_are_not_requests(self, make):
        ledger = make().ledger
        number = ledger.reserve("a", 10)
        ledger.note(ROUTES, routes_line({number: "one"}))
        ledger.settle(number, 5, Usage(5), answer("a", 5))
        assert set(read_account(ledger.path.parent).requests) == {"a"}

    def test_estimates_are_attempts_but_not_requests(self, make):
        ledger = make(asked={"policy": "tale"}).ledger
        name = f"{ESTIMATE}1:a"
        ledger.settle(ledger.reserve(name, 16), 3, Usage(3), b"what a teacher said")
        ledger.settle(ledger.reserve("a", 10), 5, Usage(5), answer("a", 5))
        account = read_account(ledger.path.parent)
        assert list(account.requests) == ["a"]
        assert [is_estimate(attempt.request) for attempt in account.attempts] == [True, False]
        assert account.spent == 8

    def test_without_forecasts_they_are_in_the_order_of_the_ledger(self, make):
        folder = make()
        folder.ledger.record("free", answer("free", 0))
        folder.ledger.note("noted", note("noted", "declined", "budget_abandoned", "too expensive"))
        folder.ledger.reserve("sent", 10)
        (folder.path / "forecast.jsonl").write_text("damaged")
        found = read_account(folder.path).requests
        assert list(found) == ["sent", "free", "noted"]
        assert [view.forecast for view in found.values()] == [{}, {}, {}]


class TestTheAccount:
    def test_of_a_run_that_was_killed_before_it_had_a_ledger(self, make):
        folder = make(forecast=["a"])
        folder.ledger.close()
        for path in folder.path.glob("ledger.sqlite*"):
            path.unlink()
        account = read_account(folder.path)
        assert (account.budget, account.spent, account.attempts, account.course) == (100, 0, [], [])
        assert account.requests["a"].outcome == "not_sent"

    def test_the_manifest_is_read(self, make):
        rates = {"input": 150_000_000, "cached": 75_000_000, "output": 600_000_000}
        folder = make(asked={"policy": "index", "accounting": "metered", "rates": rates})
        account = read_account(folder.path)
        assert (account.done, account.metered, account.summary, account.rounds) == (False, True, {}, [])
        assert account.rates == Rates.dollars(0.15, 0.6, 0.075)
        assert account.path == folder.path
        assert is_run(folder.path)
        folder.save(done=True, summary={"requests": 3}, rounds=[clearing(100)], asked={"policy": "clear"})
        account = read_account(folder.path)
        assert (account.done, account.metered, account.summary) == (True, False, {"requests": 3})
        assert (account.rounds, account.rates) == ([clearing(100)], TOKENS)

    def test_the_course_is_the_ledger_after_every_attempt(self, make):
        ledger = make().ledger
        first, second, third = ledger.reserve_many([("a", 40), ("b", 30), ("c", 30)])
        ledger.settle(second, 5, Usage(5), answer("b", 5))
        ledger.void(third)
        ledger.note("c", note("c", "not_sent", "not_sent", "stopped"))
        ledger.settle(first, 150, Usage(150), answer("a", 150, "truncated"))
        account = read_account(ledger.path.parent)
        assert [(moment.spent, moment.reserved) for moment in account.course] == [(5, 70), (155, 0)]
        assert (account.spent, account.usage, account.beyond_grants) == (155, Usage(155), 110)

    def test_rounds_are_found_in_the_ledger(self, make):
        folder = make(rounds=[clearing(100, 3), clearing(65, 1)])
        ledger = folder.ledger
        first, second = ledger.reserve_many([("a", 60), ("b", 40)])
        ledger.settle(first, 20, Usage(20), answer("a", 20))
        ledger.settle(second, 15, Usage(15), answer("b", 15))
        ledger.reserve("c", 65)
        assert read_account(folder.path).starts == [0, 2]

    def test_metered_a_round_may_begin_with_others_in_flight(self, make):
        folder = make(asked={"accounting": "metered"}, rounds=[clearing(100, 2), clearing(75, 2)])
        ledger = folder.ledger
        first, _ = ledger.reserve_many([("a", 10), ("b", 20)])
        ledger.settle(first, 5, Usage(5), answer("a", 5))
        ledger.reserve("c", 10)
        assert read_account(folder.path).starts == [0, 1]

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        steps=st.lists(
            st.tuples(
                st.sampled_from("abcd"),
                st.integers(1, 50),
                st.integers(0, 80),
                st.sampled_from(["result", "chunk", "nothing", "open", "void", "free", "note"]),
            ),
            max_size=15,
        )
    )
    def test_it_always_agrees_with_the_ledger(self, tmp_path, steps):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        with Folder(tmp_path / "run", budget=400).ledger as ledger:
            for name, grant, units, end in steps:
                if grant > ledger.available or ledger.has_result(name):
                    continue
                if end == "note":
                    ledger.note(name, note(name, "declined", "budget_abandoned", "too expensive"))
                    continue
                reservation = ledger.reserve(name, grant)
                if end == "void":
                    ledger.void(reservation)
                elif end == "free":
                    ledger.free(reservation)
                elif end == "chunk":
                    ledger.settle_chunk(reservation, units, Usage(units, 1), chunk(units, "x"))
                elif end == "nothing":
                    ledger.settle(reservation, units, Usage(units, 1))
                elif end == "result":
                    ledger.settle(reservation, units, Usage(units, 1), answer(name, units))
            account = read_account(tmp_path / "run")
            assert account.spent == ledger.spent + ledger.overspent
            assert (account.usage, account.beyond_grants) == (ledger.usage, ledger.beyond_grants)
            assert account.exposed == ledger.exposed
            assert sum(a.grant for a in account.attempts if a.end is None) == ledger.reserved
            views = account.requests.values()
            assert sum(view.cost for view in views) == account.spent
            assert sum((view.usage for view in views), Usage()) == ledger.usage
            assert {view.id for view in views if view.answered} == {name for name, _ in ledger.results()}
            declined = {view.id for view in views if view.outcome == "declined"}
            assert declined == {name for name, _ in ledger.notes()}


class TestReadingLeavesNoTrace:
    def test_while_the_run_continues(self, make):
        folder = make()
        ledger = folder.ledger
        first, _ = ledger.reserve_many([("a", 40), ("b", 30)])
        ledger.settle(first, 25, Usage(25), answer("a", 25))
        names = sorted(listing(folder.path))
        account = read_account(folder.path)
        assert (account.spent, account.requests["b"].in_flight) == (25, True)
        assert sorted(listing(folder.path)) == names
        with pytest.raises(LedgerError, match="in use"):  # the lock is still the writer's
            Ledger.reopen(folder.path / "ledger.sqlite")
        ledger.reserve("c", 45)
        assert (ledger.available, ledger.reserved, ledger.spent) == (0, 75, 25)

    def test_every_reading_of_a_run_in_another_process_is_consistent(self, tmp_path):
        code = """
import sys
from pathlib import Path
from shadowprice.types import Usage
from tests.accounts.test_view import Folder
from tests.run_folders import answer
ledger = Folder(Path(sys.argv[1]), budget=10**9).ledger
for i in range(10**6):
    first, second = ledger.reserve_many([(f"a{i}", 10), (f"b{i}", 10)])
    ledger.settle(first, 7, Usage(7), answer(f"a{i}", 7))
    ledger.settle(second, 7, Usage(7), answer(f"b{i}", 7))
    if i == 0:
        print("ready", flush=True)
"""
        command = [sys.executable, "-c", code, str(tmp_path / "run")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout.readline() == "ready\n"
                accounts = [read_account(tmp_path / "run") for _ in range(10)]
                assert process.poll() is None
            finally:
                process.kill()
        for account in accounts:
            ends = Counter(attempt.end for attempt in account.attempts)
            assert account.spent == 7 * ends["result"] == 7 * len(account.course)
            assert ends[None] <= 2
        assert all(x.spent <= y.spent for x, y in itertools.pairwise(accounts))

    def test_after_it_ended(self, make):
        folder = make()
        folder.ledger.settle(folder.ledger.reserve("a", 10), 7, Usage(7), answer("a", 7))
        folder.ledger.close()
        before = listing(folder.path)
        assert "ledger.sqlite-wal" not in before
        assert read_account(folder.path).spent == 7
        assert listing(folder.path) == before

    def test_after_kill_9_and_it_can_be_resumed(self, tmp_path):
        folder = killed_run(tmp_path / "run")
        before = listing(folder)
        account = read_account(folder)
        assert [(attempt.cost, attempt.end) for attempt in account.attempts] == [(7, "result"), (0, None)]
        after = listing(folder)
        before.pop("ledger.sqlite-shm"), after.pop("ledger.sqlite-shm")
        assert after == before
        with Ledger.reopen(folder / "ledger.sqlite") as ledger:
            assert ledger.spent == 7 + 20

    def test_of_a_copy_without_shared_memory(self, tmp_path):
        folder = killed_run(tmp_path / "run")
        (folder / "ledger.sqlite-shm").unlink()
        before = listing(folder)
        assert read_account(folder).spent == 7
        assert listing(folder) == before

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_of_a_folder_that_cannot_be_written(self, make):
        folder = make()
        folder.ledger.close()
        folder.path.chmod(0o500)
        try:
            assert read_account(folder.path).spent == 0
        finally:
            folder.path.chmod(0o700)


class TestRefusals:
    def test_a_folder_without_a_manifest(self, tmp_path):
        assert not is_run(tmp_path)
        with pytest.raises(InputError, match=r"not a run folder \(name a folder made by `run`\)$"):
            read_account(tmp_path)

    def test_a_ledger_of_an_older_version(self, make):
        folder = make()
        folder.ledger.close()
        path = folder.path / "ledger.sqlite"
        path.unlink()
        tamper(path, *OLD)
        with pytest.raises(InputError) as caught:
            read_account(folder.path)
        assert str(caught.value) == f"{path}: was written by an older version of shadowprice (start a new run)"

    def test_a_damaged_ledger(self, make):
        folder = make()
        folder.ledger.close()
        (folder.path / "ledger.sqlite").write_bytes(b"not a database" * 100)
        with pytest.raises(InputError, match=r"ledger\.sqlite: not a valid ledger: file is not a database"):
            read_account(folder.path)

    @pytest.mark.parametrize("kind", ["result", "chunk", "note"])
    @pytest.mark.parametrize("line", [b"", b"{}", b"[]", b"\xff", b'{"shadowprice": {}, "error": [1], "part": 3}'])
    def test_a_line_that_cannot_be_parsed(self, make, kind, line):
        folder = make()
        if kind == "result":
            folder.ledger.record("a", line)
        elif kind == "note":
            folder.ledger.note("a", line)
        else:
            folder.ledger.settle_chunk(folder.ledger.reserve("a", 10), 1, Usage(1), line)
        with pytest.raises(InputError, match=r"ledger\.sqlite: not a valid ledger: "):
            read_account(folder.path)
