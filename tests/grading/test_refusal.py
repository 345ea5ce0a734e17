"""Commands that grade programs: refused without a sandbox, before anything is paid for; the level is reported."""

import json

import pytest

from shadowprice.cli import main
from shadowprice.grading import sandbox
from shadowprice.report.run_data import read_run

from ..backends import hostile
from ..conftest import request_line
from ..talking import talks

NOWHERE = "http://127.0.0.1:9/v1"
needs_a_sandbox = pytest.mark.skipif(sandbox() == "none", reason="no sandbox here")


@pytest.fixture(params=["run", "collect"])
def command(request, tmp_path, batch):
    """Answers and grades one question, whose answer is `word`."""
    tests = "word = 1\nassert word"
    if request.param == "run":
        gold = batch([{"custom_id": "a", "gold": tests, "grader": "code"}], "gold.jsonl")
        start = ["run", batch([request_line("a")]), "--budget", "100", "--policy", "uniform", "--gold", gold]
        start += ["--errors", tmp_path / "errors"]
    else:
        questions = [{"id": "a", "problem": "Say it", "gold": tests, "grader": "code"}]
        start = ["collect", batch(questions, "questions.jsonl"), "--max-tokens", "9"]
    start += ["--out", tmp_path / "out", "--run-folder", tmp_path / "run", "--quiet", "--model", "m"]
    return lambda url, *more: main([str(argument) for argument in [*start, "--base-url", url, *more]])


def test_programs_are_refused_before_anything_is_sent(command, without_a_sandbox, tmp_path, capsys):
    assert command(NOWHERE) == 2
    printed = capsys.readouterr().err
    assert "no sandbox for the programs in answers" in printed
    assert "install bubblewrap, or give --unsafe-code" in printed
    assert not (tmp_path / "run").exists()


def test_they_are_run_without_a_sandbox_where_that_is_allowed(command, without_a_sandbox, tmp_path, capsys):
    if sandbox(unsafe=True) == "none":
        pytest.skip("root's interpreter is closed to the program")
    with hostile.Server(talks(1)) as server:
        assert command(server.url, "--unsafe-code") == 0
    assert "programs ran without a sandbox" in capsys.readouterr().out
    assert read_run(tmp_path / "run").sandboxes == ["process"]


@needs_a_sandbox
def test_the_level_is_reported(command, tmp_path, capsys):
    with hostile.Server(talks(1)) as server:
        assert command(server.url) == 0
    assert f"programs ran in the sandbox {sandbox()}" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert f"were run in the sandbox {sandbox()}." in page


@needs_a_sandbox
def test_the_level_is_in_the_summary(command, capsys):
    with hostile.Server(talks(1)) as server:
        assert command(server.url, "--json") == 0
    assert json.loads(capsys.readouterr().out)["sandbox"] == sandbox()
