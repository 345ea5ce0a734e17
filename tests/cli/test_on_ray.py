"""`run --ray`: what is refused before any cluster is started. Whole runs: tests/distributed/test_jobs.py."""

import pytest

from shadowprice.cli import main
from shadowprice.cli.on_ray import files_of
from shadowprice.errors import InputError


def refused(capsys, *arguments):
    assert main(["run", *map(str, arguments)]) == 2
    return capsys.readouterr().err


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "a"}\n')
    return path


@pytest.mark.parametrize(
    "more",
    [["--policy", "tale"], ["--samples", "2"], ["--csv", "x"], ["--landing", "math"]],
)
def test_what_many_processes_cannot_do_is_refused(capsys, questions, more):
    printed = refused(capsys, questions, "--budget", "9", "--base-url", "http://127.0.0.1:9/v1", "--ray", *more)
    assert "with --ray (leave one of them out)" in printed


def test_a_model_on_this_machine_is_refused(capsys, questions):
    assert "--local with --ray" in refused(capsys, questions, "--budget", "9", "--ray", "--local")


def test_several_files_need_ray(capsys, questions):
    printed = refused(capsys, questions, questions, "--budget", "9", "--base-url", "http://127.0.0.1:9/v1")
    assert "several files (join them, or add --ray)" in printed


def test_an_input_in_the_place_of_the_address_is_noticed(capsys, questions):
    with pytest.raises(SystemExit):
        main(["run", "a", "--budget", "9", "--base-url", "http://127.0.0.1:9/v1", "--ray", str(questions)])
    assert "give the input before --ray" in capsys.readouterr().err


def test_patterns_are_expanded_and_missing_files_named(tmp_path):
    for name in "ba":
        (tmp_path / f"{name}.parquet").touch()
    assert files_of([str(tmp_path / "*.parquet")]) == [str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")]
    with pytest.raises(InputError, match="no such file"):
        files_of([str(tmp_path / "c.parquet")])
    with pytest.raises(InputError, match="cannot be read by several machines"):
        files_of(["-"])
