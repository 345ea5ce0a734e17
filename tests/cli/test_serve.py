import sys
from types import SimpleNamespace

import pytest

from shadowprice.cli import main
from shadowprice.cli.serve import _event_loop


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--upstream", "nowhere", "--budget", "10"], "not an address"),
        (["--upstream", "http:///v1", "--budget", "10"], "not an address"),
        (["--upstream", "http://x:99999/v1", "--budget", "10"], "not an address"),
        (["--upstream", "http://x/v1?key=1", "--budget", "10"], "not an address"),
        (["--upstream", "http://x/v1", "--budget", "10", "--host", "::2"], "give another --host or --port"),
        (["--upstream", "http://x/v1", "--budget", "1M/week"], "unknown window"),
        (["--upstream", "http://x/v1", "--budget", "1/day", "--budget", "2/day"], "same window"),
        (["--upstream", "http://x/v1", "--budget", "10", "--port", "70000"], "--port 70000"),
        (["--upstream", "http://x/v1", "--budget", "10", "--price", "-1"], "--price -1"),
        (["--upstream", "http://x/v1", "--budget", "10", "--max-tokens", "0"], "--max-tokens 0"),
    ],
)
def test_a_bad_option_is_one_line(options, problem, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["serve", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("option", ["--ledger", "--forecaster"])
def test_a_place_that_cannot_be_is_one_line_whatever_the_number_of_workers(option, workers, capfd, tmp_path):
    (tmp_path / "file").touch()
    options = ["--upstream", "http://x/v1", "--budget", "10", "--port", "0", "--ledger", str(tmp_path / "ledger")]
    assert main(["serve", *options, "--workers", workers, option, str(tmp_path / "file")]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert str(tmp_path / "file") in line
    assert line.endswith(")")


def test_uvloop_is_used_where_it_is_installed_and_not_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", SimpleNamespace(new_event_loop="uvloop's"))
    assert _event_loop() == "uvloop's"
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert _event_loop() is None
