"""`shadowprice run --csv`: the results as a table, beside the answers."""

import csv
import json
import subprocess
import sys

import pytest

from shadowprice.cli import main

from ..backends import hostile
from ..conftest import request_line
from ..talking import talks


@pytest.fixture
def arguments(tmp_path, batch):
    path = batch([request_line("a", "=HYPERLINK(1)"), request_line("b", "Why?")])
    return ["run", str(path), "--budget", "6k", "--policy", "uniform", "--quiet", "--model", "m"]


def test_all_results_with_their_questions_and_grades(arguments, tmp_path):
    (tmp_path / "gold").write_text(json.dumps({"custom_id": "b", "gold": "no", "grader": "exact"}) + "\n")
    with hostile.Server(talks(3)) as server:
        more = ["--csv", str(tmp_path / "out.csv"), "--gold", str(tmp_path / "gold")]
        assert main([*arguments, "--base-url", server.url, *more]) == 0
    with open(tmp_path / "out.csv", newline="", encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    assert (first["id"], first["question"], first["correct"], first["outcome"]) == (
        "a",
        "'=HYPERLINK(1)",
        "",
        "finished",
    )
    assert (second["gold"], second["correct"], second["tokens"], second["cost"]) == ("no", "false", "3", "3")
    assert first["answer"]


def test_a_file_cannot_be_two_things(arguments, tmp_path, capsys):
    same = str(tmp_path / "same")
    assert main([*arguments, "--base-url", "http://127.0.0.1:9/v1", "--out", same, "--csv", same]) == 2
    assert "is both out and csv" in capsys.readouterr().err


def test_a_table_needs_no_plotting():
    code = "import sys, shadowprice.report.csv_results; assert not {'matplotlib', 'jinja2'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
