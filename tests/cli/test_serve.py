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


def test_uvloop_is_used_where_it_is_installed_and_not_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", SimpleNamespace(new_event_loop="uvloop's"))
    assert _event_loop() == "uvloop's"
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert _event_loop() is None
