"""The folder of a run appears as a whole, and only the same run is resumed in it."""

import json
import os
import shutil

import pytest

from shadowprice.accounts.sqlite import Ledger
from shadowprice.accounts.view import read_account
from shadowprice.engine.scheduler import Round
from shadowprice.errors import InputError, LedgerError
from shadowprice.formats.asked import Asked, read_asked
from shadowprice.formats.forecasts import ForecastTable
from shadowprice.run_folder import RunFolder, charged_before, lost_to_crashes, place_of
from shadowprice.types import Forecast, Request, Usage

from .conftest import read_jsonl

ASKED = {"policy": "clear", "options": {"beta": 0.1}, "kinds": ("a", "b")}


@pytest.fixture
def folder(tmp_path):
    made = RunFolder.create(tmp_path / "run", 100, ASKED)
    yield made
    made.ledger.close()


def resumed(path, budget=100, **changes):
    return RunFolder.resume(path, budget, {**ASKED, **changes})


class TestCreating:
    def test_it_has_a_manifest_and_a_ledger(self, folder):
        names = {path.name for path in folder.path.iterdir()}
        assert {"manifest.json", "ledger.sqlite"} <= names
        manifest = json.loads((folder.path / "manifest.json").read_text())
        assert (manifest["budget"], manifest["rounds"], manifest["done"]) == (100, [], False)
        assert manifest["asked"] == {**ASKED, "kinds": ["a", "b"]}
        assert folder.ledger.budget == 100

    def test_folders_above_it_are_made(self, tmp_path):
        RunFolder.create(tmp_path / "a" / "b" / "run", 1, {}).ledger.close()
        assert (tmp_path / "a" / "b" / "run" / "manifest.json").exists()

    @pytest.mark.parametrize("what", ["folder", "file", "link to nothing"])
    def test_what_exists_is_left_alone(self, tmp_path, what):
        place = tmp_path / "run"
        if what == "folder":
            place.mkdir()
            (place / "precious").touch()
        elif what == "file":
            place.write_text("precious")
        else:
            place.symlink_to(tmp_path / "nowhere")
        with pytest.raises(InputError, match=r"run: exists \(--resume continues its run; to start a new one, "):
            RunFolder.create(place, 1, {})
        assert os.listdir(tmp_path) == ["run"]
        assert what != "file" or place.read_text() == "precious"

    def test_a_crash_leaves_no_half_of_it(self, tmp_path, monkeypatch):
        def crash(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(Ledger, "create", crash)
        with pytest.raises(KeyboardInterrupt):
            RunFolder.create(tmp_path / "run", 1, {})
        assert list(tmp_path.iterdir()) == []


class TestResuming:
    def test_the_same_run_is_resumed_where_it_was(self, folder):
        folder.ledger.settle(folder.ledger.reserve("a", 20), 15)
        folder.save(done=True, files={"out": "answers.jsonl"})
        folder.ledger.close()
        again = resumed(folder.path)
        assert again.manifest == json.loads((folder.path / "manifest.json").read_text())
        assert (again.manifest["done"], again.ledger.spent) == (True, 15)
        again.ledger.close()

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            ({"policy": "uniform"}, r"another policy \('clear', now 'uniform'\)"),
            ({"options": {}}, r"another options \(\{'beta': 0.1\}, now \{\}\)"),
            ({"model": "m"}, r"another model \(None, now 'm'\)"),
            ({"budget": 99}, r"another budget \(100, now 99\)"),
        ],
    )
    def test_another_run_is_refused_once_something_was_paid_for(self, folder, change, problem):
        folder.ledger.settle(folder.ledger.reserve("a", 20), 15)
        folder.ledger.close()
        with pytest.raises(
            InputError, match=rf"was started with {problem} \(resume with the same, or start a new run\)"
        ):
            resumed(folder.path, **change)
        resumed(folder.path).ledger.close()  # and the refusal keeps no lock

    def test_a_run_that_has_cost_nothing_starts_anew_with_other_settings(self, folder):
        folder.ledger.close()
        again = resumed(folder.path, policy="uniform")
        assert (again.manifest["asked"]["policy"], again.ledger.spent) == ("uniform", 0)
        again.ledger.close()

    def test_the_ledger_of_another_run_is_refused_and_not_kept_open(self, folder, tmp_path):
        folder.ledger.close()
        for path in folder.path.glob("ledger.sqlite*"):
            path.unlink()
        Ledger.create(folder.path / "ledger.sqlite", 7).close()
        for _ in range(2):
            with pytest.raises(InputError, match=r"ledger\.sqlite: is of another run: its budget is 7, not 100"):
                resumed(folder.path)

    @pytest.mark.parametrize("what", ["nothing", "file", "empty folder"])
    def test_what_is_no_run_is_refused(self, tmp_path, what):
        place = tmp_path / "run"
        if what == "file":
            place.touch()
        elif what == "empty folder":
            place.mkdir()
        with pytest.raises(InputError, match=r"run: is not a run to resume \(leave out --resume to start one\)$"):
            resumed(place)

    def test_open_resumes_what_exists_unless_it_is_asked_not_to(self, tmp_path):
        place = tmp_path / "run"
        with pytest.raises(InputError, match="not a run to resume"):
            RunFolder.open(place, 100, ASKED, resume=True)
        with RunFolder.open(place, 100, ASKED).ledger as ledger:
            ledger.settle(ledger.reserve("a", 20), 15)
        for resume in (None, True):
            with RunFolder.open(place, 100, ASKED, resume).ledger as ledger:
                assert ledger.spent == 15
        with pytest.raises(InputError, match="exists"):
            RunFolder.open(place, 100, ASKED, resume=False)


class TestADamagedLedger:
    @pytest.fixture
    def folder(self, tmp_path):
        """A run that was killed and has lost its log."""
        with RunFolder.create(tmp_path / "run", 100, {}).ledger as ledger:
            ledger.settle(ledger.reserve("a", 20), 15)
            ledger.reserve("b", 30)
            shutil.copytree(tmp_path / "run", tmp_path / "killed")
        (tmp_path / "killed" / "ledger.sqlite-wal").unlink()
        return tmp_path / "killed"

    def test_is_resumed_only_if_its_loss_is_accepted(self, folder):
        with pytest.raises(LedgerError, match=r"ledger\.sqlite: the journal ends at entry 1, but 4 had been confirmed"):
            RunFolder.open(folder, 100, {}, resume=True)
        with RunFolder.open(folder, 100, {}, resume=True, accept_loss=True).ledger as ledger:
            assert (ledger.available, ledger.lost) == (55, 45)
            account = read_account(folder)
            assert (account.spent, account.lost) == (45, 45)
        RunFolder.open(folder, 100, {}, resume=True).ledger.close()

    def test_is_not_shown_as_if_it_were_whole(self, folder):
        with pytest.raises(InputError, match=r"ends at entry 1, but 4 had .* \(--resume --accept-loss continues"):
            read_account(folder)

    def test_that_is_new_has_no_loss_to_accept(self, tmp_path):
        with pytest.raises(InputError, match="add --resume"):
            RunFolder.open(tmp_path / "new", 100, {}, resume=False, accept_loss=True)
        assert not (tmp_path / "new").exists()

    def test_without_its_ledger_is_not_started_over(self, folder):
        (folder / "ledger.sqlite").unlink()
        with pytest.raises(LedgerError, match="no such ledger"):
            RunFolder.open(folder, 100, {}, resume=True, accept_loss=True)


class TestWhatIsKept:
    def test_questions_and_forecasts_are_written_once(self, folder):
        requests, forecast = [Request("a", "Why?"), Request("b", "How?")], Forecast([10, 20], 0.5, 0.8)
        folder.keep_requests(requests, {"b": ("42", "numeric")})
        folder.keep_forecast(["a", "b"], forecast)
        folder.keep_requests([Request("c", "No")], None)
        folder.keep_forecast(["c"], Forecast([1]))
        assert dict(read_asked(folder.path / "requests.jsonl")) == {"a": Asked("Why?"), "b": Asked("How?", "42")}
        assert [line["custom_id"] for line in read_jsonl(folder.path / "forecast.jsonl")] == ["a", "b"]
        assert list(ForecastTable(folder.path / "forecast.jsonl").predict(requests).tokens) == [10, 20]

    @pytest.mark.parametrize(
        ("done", "summary", "finished"),
        [
            (False, None, False),
            (True, {"requests": 1, "outcomes": {"finished": 1}}, True),
            (True, {"requests": 1, "outcomes": {"declined": 1}}, True),
            (True, {"requests": 1, "outcomes": {"failed": 1}}, False),
            (True, {"requests": 1, "outcomes": {"not_sent": 1}, "stopped": "interrupted"}, False),
        ],
    )
    def test_nothing_is_left_to_do_if_no_request_failed_and_it_was_not_stopped(self, folder, done, summary, finished):
        folder.save(done=done, summary=summary)
        assert folder.finished is finished

    def test_a_clearing_that_nothing_was_sent_after_is_repeated(self, folder):
        rounds = [Round(100, 2, 1, 30, 0.5, "cleared"), Round(85, 1, 1, 30, 0.4, "cleared")]
        folder.save(rounds=[vars(each) for each in rounds])
        folder.ledger.settle(folder.ledger.reserve("a", 30), 15)
        assert folder.rounds() == rounds[:1]
        folder.ledger.reserve("b", 30)
        assert folder.rounds() == rounds


# --- what a ledger says to a run that is resumed -------------------------------------------------

PLACE = {"a": 0, "b": 1, "c": 2}


def test_requests_without_a_result_keep_what_they_were_charged(folder):
    ledger = folder.ledger
    ledger.settle(ledger.reserve("a", 20), 15, Usage(15))
    ledger.settle_chunk(ledger.reserve("a", 20), 5, Usage(5), b"Once ")
    ledger.settle(ledger.reserve("b", 20), 7, Usage(7), b"answer")
    ledger.settle(ledger.reserve("another", 10), 3)
    ledger.void(ledger.reserve("c", 10))
    assert charged_before(ledger, PLACE) == {0: 20, 2: 0}
    assert lost_to_crashes(ledger) == 0


def test_what_was_under_way_in_a_crash_is_lost(folder):
    folder.ledger.settle(folder.ledger.reserve("a", 20), 15)
    folder.ledger.reserve_many([("a", 20), ("b", 30)])
    folder.ledger.close()
    with resumed(folder.path).ledger as ledger:
        assert lost_to_crashes(ledger) == 50
        assert charged_before(ledger, PLACE) == {0: 35, 1: 30}


def test_a_request_of_another_run_is_refused():
    assert place_of("b", PLACE) == 1
    with pytest.raises(InputError, match=r"the ledger is of another run: it has a request 'x' \(start a new run\)"):
        place_of("x", PLACE)
