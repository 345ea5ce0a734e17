"""`shadowprice report`, as a user runs it: a page or a table of whatever folder is named."""

from __future__ import annotations

import pytest

from shadowprice.cli import main
from shadowprice.lab.results import Results
from shadowprice.report.reproduction import report
from shadowprice.report.run import run_report

from ..report.conftest import make_run
from ..report.helpers import main_row

FEW = Results([main_row("uniform", 5.0), main_row("clear", 9.0)])


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", 20, policy="clear")


def test_a_run_folder_gets_a_page(run, capsys):
    assert main(["report", str(run)]) == 0
    assert (run / "report.html").read_text() == run_report(run)
    assert capsys.readouterr().out == f"report -> {run / 'report.html'}\n"


def test_a_results_folder_gets_a_page(tmp_path, capsys):
    FEW.write(tmp_path)
    assert main(["report", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").read_text() == report(FEW)
    assert capsys.readouterr().out == f"report -> {tmp_path / 'report.html'}\n"


def test_a_page_can_be_written_to_standard_output(tmp_path, capsysbinary):
    FEW.write(tmp_path)
    assert main(["report", str(tmp_path), "--out", "-"]) == 0
    assert capsysbinary.readouterr().out == report(FEW).encode()
    assert not (tmp_path / "report.html").exists()


def test_a_run_can_be_written_as_a_table(run, tmp_path, capsysbinary):
    assert main(["report", str(run), "--csv", str(tmp_path / "out.csv")]) == 0
    assert capsysbinary.readouterr().out == f"20 requests -> {tmp_path / 'out.csv'}\n".encode()
    assert main(["report", str(run), "--csv", "-"]) == 0
    assert capsysbinary.readouterr().out == (tmp_path / "out.csv").read_bytes()
    assert len((tmp_path / "out.csv").read_text().splitlines()) > 20


@pytest.mark.parametrize("option", ["--csv", "--out"])
def test_a_file_that_exists_is_replaced_only_by_force(run, tmp_path, option, capsys):
    (mine := tmp_path / "questions.csv").write_text("question\nWhy?\n")
    assert main(["report", str(run), option, str(mine)]) == 2
    assert f"{mine}: exists (--force replaces it" in capsys.readouterr().err
    assert mine.read_text() == "question\nWhy?\n"
    assert main(["report", str(run), option, str(mine), "--force"]) == 0
    assert "Why?" not in mine.read_text()[:20]


def test_the_run_beside_a_file_is_suggested(tmp_path, capsys):
    folder = make_run(tmp_path / "q.answers.jsonl.run", 20, policy="clear")
    for name in ("q.csv", "q.answers.jsonl"):
        (tmp_path / name).touch()
        assert main(["report", str(tmp_path / name)]) == 2
        assert f"{name}: is not a folder (did you mean {folder}?)" in capsys.readouterr().err


def test_results_of_a_reproduction_have_no_table(tmp_path, capsys):
    FEW.write(tmp_path)
    assert main(["report", str(tmp_path), "--csv", "-"]) == 2
    assert "--csv is for runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda place: None, "it"),
        (lambda place: place.write_text(""), "it"),
        (lambda place: place.mkdir(), "it"),
        (lambda place: (place.mkdir(), (place / "results.json").write_text("{")), "results.json"),
        (lambda place: (place.mkdir(), (place / "results.json").write_text('{"rows": 3}')), "results.json"),
        (lambda place: (place.mkdir(), (place / "manifest.json").write_text("[]")), "manifest.json"),
    ],
)
def test_anything_else_is_a_one_line_error_that_names_the_file(make, name, tmp_path, capsys):
    make(tmp_path / "it")
    assert main(["report", str(tmp_path / "it")]) == 2
    error = capsys.readouterr().err
    assert f"{name}: " in error
    assert error.count("\n") == 1
