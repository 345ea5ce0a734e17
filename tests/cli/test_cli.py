"""Errors that reach the top: a line and an exit code, or the whole story of a bug."""

import sqlite3

import pytest

from shadowprice import cli
from shadowprice.errors import InputError


class TestErrorsThatReachTheTop:
    @pytest.fixture
    def fails(self, monkeypatch, tmp_path):
        def main(error):
            def command(options):
                raise error

            monkeypatch.setattr("shadowprice.cli.report.report", command)
            return cli.main(["report", str(tmp_path)])

        return main

    @pytest.mark.parametrize(
        ("error", "printed"),
        [
            (OSError(5, "Input/output error", "answers.jsonl"), "answers.jsonl: Input/output error"),
            (OSError(28, "No space left on device"), "output: No space left on device (make room)"),
            (PermissionError(13, "Permission denied", "x"), "x: Permission denied (check its permissions)"),
            (MemoryError(), "not enough memory (split the input, or lower --concurrency)"),
            (sqlite3.OperationalError("disk I/O error"), "the ledger cannot be used: disk I/O error (check the disk;"),
            (UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "surrogates"), "'a\\udcff' is not text in UTF-8 (check"),
            (ExceptionGroup("tasks", [ExceptionGroup("more", [InputError("no gold")])]), "no gold"),
        ],
    )
    def test_expected_ones_are_reported_in_one_line(self, fails, capsys, error, printed):
        assert fails(error) == 2
        shown = capsys.readouterr().err
        assert shown.startswith(f"shadowprice: {printed}")
        assert len(shown.splitlines()) == 1

    @pytest.mark.parametrize("option", ["--model", "--system"])
    def test_an_argument_that_is_not_utf_8_is_refused_before_anything_is_paid_for(self, tmp_path, capsys, option):
        given = ["collect", "questions.txt", "--out", str(tmp_path / "t"), "--base-url", "http://127.0.0.1:9/v1"]
        assert cli.main([*given, option, "a\udcff"]) == 2
        assert capsys.readouterr().err == "shadowprice: 'a\\udcff' is not text in UTF-8 (check the arguments)\n"

    def test_are_shown_in_full_where_they_are_bugs(self, fails):
        with pytest.raises(ZeroDivisionError) as raised:
            fails(ZeroDivisionError("division by zero"))
        assert "please report it" in raised.value.__notes__[0]
        assert "--resume continues" in raised.value.__notes__[0]
