"""`reproduce` in dollars: from files to results, a page and a table; mistakes are one line."""

import json

import pytest

from shadowprice.cli import main
from shadowprice.formats.traces import write_traces
from shadowprice.lab.results import Results

from ..lab.several import ROUTES, traces, write_outcomes


def test_outcomes_become_a_frontier(tmp_path, capsys):
    val, test = write_outcomes(tmp_path / "val.jsonl"), write_outcomes(tmp_path / "test.jsonl", seed=7)
    command = ["reproduce", "--outcomes", str(test), "--train", str(val), "--budgets", "0.00002", "$0.00005"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    assert "ours" in capsys.readouterr().out
    results = Results.read(tmp_path / "out")
    assert len(results.table("rewards")) == 10
    assert "Where the dollars went" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.slow
def test_traces_of_several_models_become_a_frontier(tmp_path, capsys):
    (tmp_path / "routes.toml").write_text(ROUTES)
    write_traces(tmp_path / "traces.jsonl", traces(120))
    command = ["reproduce", "--routes", str(tmp_path / "routes.toml"), "--traces", str(tmp_path / "traces.jsonl")]
    assert main([*command, "--budgets", "0.00008", "--quiet", "--no-report", "--out", str(tmp_path / "out")]) == 0
    assert "routes x tokens" in capsys.readouterr().out
    meta = json.loads((tmp_path / "out" / "results.json").read_bytes())["meta"]
    assert meta["dollars per million tokens"]["dear"] == "$1 in, $1.2 out"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--routes", "routes.toml"], "--routes needs --traces"),
        (["--outcomes", "test.jsonl"], "--outcomes needs --train"),
        (["--outcomes", "test.jsonl", "--train", "val.jsonl", "--budgets", "much"], "not dollars per question"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, monkeypatch, capsys, arguments, problem):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "routes.toml").write_text(ROUTES)
    write_outcomes(tmp_path / "val.jsonl", 40)
    write_outcomes(tmp_path / "test.jsonl", 40)
    assert main(["reproduce", *arguments, "--out", "out"]) == 2
    printed = capsys.readouterr().err
    assert problem in printed
    assert len(printed.strip().splitlines()) == 1
