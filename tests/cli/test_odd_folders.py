"""Run folders and files that nobody meant to be there: one clear line, and never a wait without an end."""

import json
import os
import shutil
import sqlite3

import pytest

from shadowprice.accounts.journal import INSERT, NO_DIGEST, SCHEMA, Entry
from shadowprice.accounts.mark import MarkFile, Point
from shadowprice.cli import main
from shadowprice.types import Usage

from ..backends import hostile
from ..conftest import request_line
from ..talking import talks


@pytest.fixture
def run(tmp_path, batch, request):
    """A run that has ended, and the function that resumes it."""
    words = getattr(request, "param", 5)
    path = batch([request_line("a"), request_line("b")])
    with hostile.Server(talks(words)) as server:

        def command(*more):
            names = {"--out": "out", "--errors": "err", "--run-folder": "run"}
            places = [part for option, name in names.items() for part in (option, str(tmp_path / name))]
            given = ["run", str(path), "--budget", "500", "--quiet", "--base-url", server.url, "--model", "m", *places]
            return main([*given, *more])

        assert command() == 0
        yield command


@pytest.fixture
def commands(run, tmp_path):
    """Resuming the run, and both reports about it."""
    folder = str(tmp_path / "run")
    return {
        "resume": lambda: run("--resume"),
        "report": lambda: main(["report", folder]),
        "csv": lambda: main(["report", folder, "--csv", str(tmp_path / "table.csv")]),
    }


def one_line(capsys):
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1, error
    return error


def change(folder, **fields):
    path = folder / "run" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, **fields}))


@pytest.mark.parametrize("name", ["resume", "report", "csv"])
class TestTheManifest:
    @pytest.mark.parametrize("content", ["[]", "[1, 2]", "null", "7", '"text"', "{", "[" * 3000, "\xff"])
    def test_is_not_an_object(self, commands, tmp_path, capsys, name, content):
        capsys.readouterr()
        (tmp_path / "run" / "manifest.json").write_text(content, encoding="latin-1")
        assert commands[name]() == 2
        assert "manifest.json" in one_line(capsys)

    @pytest.mark.parametrize(
        "fields",
        [
            {"budget": "500"}, {"budget": None}, {"budget": True}, {"budget": -1}, {"budget": 1.5}, {"asked": []},
            {"asked": {"rates": {"input": "a"}}}, {"asked": {"rates": {"output": 0}}},
            {"asked": {"rates": {"cached": -1}}}, {"asked": {"samples": "two"}}, {"asked": {"policy": ["x"]}},
            {"rounds": {}}, {"rounds": [1]}, {"rounds": [{"budget": 1}]}, {"rounds": None}, {"done": "yes"},
            {"summary": [1]}, {"summary": {"requests": "2"}}, {"summary": {"requests": 2, "outcomes": [1]}},
            {"summary": {"requests": 2, "rounds": [{"budget": "x"}]}}, {"teacher": "x"}, {"teacher": {"asked": 1}},
            {"files": ["x"]}, {"files": {"answers": 3}}, {"sandboxes": "x"}, {"sandboxes": [1]}, {"created": 5},
        ],
        ids=str,
    )  # fmt: skip
    def test_has_other_types(self, commands, tmp_path, capsys, name, fields):
        capsys.readouterr()
        change(tmp_path, **fields)
        assert commands[name]() == 2
        assert "manifest.json: damaged" in one_line(capsys)

    @pytest.mark.parametrize("run", [20], indirect=True)  # words, which take several attempts
    def test_may_lack_what_a_report_can_do_without(self, commands, tmp_path, capsys, name):
        asked = json.loads((tmp_path / "run" / "manifest.json").read_text())["asked"]
        change(tmp_path, asked={**asked, "samples": None})
        assert commands[name]() in (0, 2)
        assert "Traceback" not in capsys.readouterr().err

    @pytest.mark.parametrize("file", ["manifest.json", "ledger.sqlite", "ledger.sqlite.mark"])
    @pytest.mark.parametrize("kind", ["pipe", "folder"])
    def test_is_a_pipe_or_a_folder_as_other_files_may_be(self, commands, tmp_path, capsys, name, file, kind):
        capsys.readouterr()
        path = tmp_path / "run" / file
        path.unlink()
        os.mkfifo(path) if kind == "pipe" else path.mkdir()
        assert commands[name]() == 2
        assert "run" in one_line(capsys)


@pytest.mark.parametrize("file", ["requests.jsonl", "forecast.jsonl", "ledger.sqlite.lock"])
@pytest.mark.parametrize("name", ["resume", "report", "csv"])
def test_a_pipe_in_place_of_other_files_is_not_waited_for(commands, tmp_path, capsys, name, file):
    path = tmp_path / "run" / file
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert commands[name]() in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


def rewrite(path, change):
    """The same journal with other results, and digests that fit."""
    with sqlite3.connect(path) as db:
        rows = db.execute("SELECT * FROM journal ORDER BY id").fetchall()
    for each in path.parent.glob("ledger.sqlite*"):
        each.unlink()
    db, before, committed = sqlite3.connect(path), NO_DIGEST, 0
    for statement in SCHEMA:
        db.execute(statement)
    for number, kind, request, reservation, units, output, input, cached, _, result in rows:
        usage = None if output is None else Usage(output, input, cached)
        line = change(result) if result is not None else None
        before, values = Entry(number, kind, request, reservation, units, usage).row(before, line)
        db.execute(INSERT, values)
        committed += units if kind == "settle" else 0
    db.commit()
    db.close()
    MarkFile.create(path, Point(rows[-1][0], before, committed))


def edited(**own):
    def change(line):
        record = json.loads(line)
        return json.dumps({**record, "shadowprice": {**record["shadowprice"], **own}}).encode()

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda line: b"[]", lambda line: b"not JSON", lambda line: b"{}", lambda line: b"null",
        lambda line: line.replace(b'"choices":[', b'"choices":[5,'), edited(outcome="won"),
        edited(outcome=["finished"]), edited(cost="5"), edited(usage=[1]), edited(usage={"output": "1"}),
        edited(flags=5), edited(flags=[[1]]), edited(tokens=None), edited(correct="yes"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["resume", "report", "csv"])
def test_a_row_of_the_ledger_that_is_not_a_result(commands, tmp_path, capsys, name, change):
    rewrite(tmp_path / "run" / "ledger.sqlite", change)
    capsys.readouterr()
    assert commands[name]() == 2
    assert "not a result" in one_line(capsys)


def test_the_ledger_of_another_run_is_refused(run, commands, tmp_path, batch, capsys):
    """Its budget may be larger, and its requests others."""
    with hostile.Server(talks(5)) as server:
        other = str(batch([request_line("c")], "other.jsonl"))
        places = ["--out", str(tmp_path / "out2"), "--errors", str(tmp_path / "err2")]
        for budget in ("900", "500"):
            given = ["run", other, "--budget", budget, "--quiet", "--base-url", server.url, "--model", "m", *places]
            assert main([*given, "--run-folder", str(tmp_path / budget), "--force"]) == 0
    capsys.readouterr()
    for budget, printed in (("900", "its budget is 900"), ("500", "a request 'c'")):
        for file in (tmp_path / "run").glob("ledger.sqlite*"):
            file.unlink()
        for file in (tmp_path / budget).glob("ledger.sqlite*"):
            shutil.copy(file, tmp_path / "run")
        change(tmp_path, done=False)
        assert commands["resume"]() == 2
        assert printed in one_line(capsys)
