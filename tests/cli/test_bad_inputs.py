"""The table of bad inputs in docs/log.md, and what every row of it must be like."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rows():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import bad_inputs
    finally:
        sys.path.pop(0)
    return bad_inputs.table(), bad_inputs.LOG.read_text()


def test_the_table_is_what_the_command_prints(rows):
    table, log = rows
    assert table in log, "run scripts/bad_inputs.py"


def test_every_mistake_gives_one_line_with_a_fix_and_no_traceback(rows):
    table, _ = rows
    cells = [row.split(" | ") for row in table.splitlines()[2:]]
    assert len(cells) >= 25
    for what, command, code, printed in cells:
        if "budget of 0" in what:
            continue  # a budget like any other: everything is declined
        assert code == "2", command
        last = printed.removesuffix(" |").split("<br>")[-1]
        assert re.match(r"`shadowprice[a-z ]*: ", last), command
        assert re.search(r"[)?]`$|known are", last), command
        assert "Traceback" not in printed
        assert printed.count("<br>") <= 1, command  # at most how the input was understood comes before it
