"""Regenerate what README and docs show, or check that it is still what the code does.

shadowprice reproduce --out build/reproduce
python scripts/docs.py           write, from what that command has left there
python scripts/docs.py --texts   write help texts and outputs of examples; figure and numbers stay as recorded
python scripts/docs.py --check   exit 1 if anything has drifted
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import frontier

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
API = ROOT / "docs" / "api.md"
CLI = ROOT / "docs" / "cli.md"
CLAIMS = ROOT / "docs" / "claims.md"
PAGES = (README, API, CLI, CLAIMS)
RESULTS = ROOT / "build" / "reproduce"
RECORD = ROOT / "docs" / "frontier.json"
FIGURE = ROOT / "docs" / "frontier.svg"

_EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
_HELP = re.compile(r"```console\n\$ (shadowprice [^\n]*--help)\n(.*?)```", re.DOTALL)
# What the record fills in stands behind a mark that names it.
_COLUMNS = 4  # budgets in the table of the README: 0.25, 0.5, 1 and 2 median lengths
_ROWS = {
    ("uniform", "reserved"): "uniform",
    ("clear", "reserved"): "CLEAR, the paper's",
    ("clear", "reclaimed"): "CLEAR",
    ("expected", "reserved"): "expected, one clearing",
    ("expected", "reclaimed"): "expected",
    ("uniform", "metered"): "uniform, metered",
    ("clear", "metered"): "CLEAR, metered",
    ("index", "metered"): "index, metered",
    ("oracle", "reserved"): "oracle",
}
_TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end of table -->)", re.DOTALL)
_SOLVED = re.compile(r"<!-- solved (\w+) (reserved|reclaimed|metered) -->(?:\d+\.\d)?")
_META = re.compile(r"<!-- meta (\w+) -->(?:\d[\d,]*\d|\d)?")
_CLAIMS = re.compile(r"(?<=<!-- claims -->\n).*?(?=<!-- end of claims -->)", re.DOTALL)
_FINDINGS = re.compile(r"(?<=<!-- findings -->\n).*?(?=<!-- end of findings -->)", re.DOTALL)


def output_of(code: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    return printed.getvalue()


def help_of(command: str) -> str:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    arguments = [sys.executable, "-m", *command.split()]
    return subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment).stdout


def regenerated(readme: str, record: frontier.Record) -> str:
    readme = _EXAMPLE.sub(lambda m: f"```python\n{m[1]}```\n\n```text\n{output_of(m[1])}```", readme)
    readme = _HELP.sub(lambda m: f"```console\n$ {m[1]}\n{help_of(m[1])}```", readme)
    return filled_in(readme, record)


def filled_in(readme: str, record: frontier.Record) -> str:
    rows = {(row["policy"], row["accounting"], row["budget"]): row for row in record["rows"]}
    scarce = record["meta"]["budgets"][1]  # half of the median length

    def solved(match: re.Match[str]) -> str:
        row = rows[match[1], match[2], scarce]
        return f"<!-- solved {match[1]} {match[2]} -->{row['solved']:.1f}"

    def meta(match: re.Match[str]) -> str:
        value = scarce if match[1] == "scarce" else record["meta"][match[1]]
        return f"<!-- meta {match[1]} -->{len(value) if isinstance(value, list) else value:,.0f}"

    for pattern, fill in ((_SOLVED, solved), (_META, meta)):
        readme = pattern.sub(fill, readme)
    readme = _TABLE.sub(lambda _: table(record), readme)
    readme = _CLAIMS.sub(lambda _: claims(record), readme)
    return _FINDINGS.sub(lambda _: findings(record), readme)


def table(record: frontier.Record) -> str:
    """Percent correct with intervals, by policy and budget, and the command of each row."""
    rows = {(row["policy"], row["accounting"], row["budget"]): row for row in record["rows"]}
    budgets = record["meta"]["budgets"][:_COLUMNS]
    lines = [f"| policy | {' | '.join(f'{budget:,}' for budget in budgets)} | command |", "|---" * (_COLUMNS + 2) + "|"]
    for (policy, accounting), name in _ROWS.items():
        of_policy = [rows[policy, accounting, budget] for budget in budgets]
        cells = [f"{row['solved']:.1f} ({row['ci_low']:.1f} to {row['ci_high']:.1f})" for row in of_policy]
        lines.append(f"| {name} | {' | '.join(cells)} | {_command(of_policy[0])} |")
    return "\n".join(lines) + "\n"


def _command(row: dict[str, Any]) -> str:
    """Its options, without what every row has, and without defaults."""
    if not row["command"]:
        return "cannot be run: it knows every length"
    options = re.search(r"--policy \w+(?: --accounting metered)?|$", row["command"])
    assert options
    chosen = options[0].replace(" --accounting reserved", "")
    return f"`run {chosen}{' --no-reclaim' if '--no-reclaim' in row['command'] else ''}`"


def findings(record: frontier.Record) -> str:
    """How many of the paper's claims held."""
    tested = [row for row in record["findings"] if row["claimed_by"] == "paper" and row["held"] != "not tested"]
    held = sum(row["held"] == "yes" for row in tested)
    text = (
        f"Of the paper's {len(tested)} claims that these traces can test, {held} hold. "
        "[docs/claims.md](docs/claims.md) has each with its figures and, where it fails, the reason."
    )
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def claims(record: frontier.Record) -> str:
    """A table of every claim, what was measured, and why it failed."""
    lines = ["| claim | where | holds | measured, and why not |", "|---|---|---|---|"]
    for row in record["findings"]:
        why = f"<br>*Why: {row['why']}.*" if row.get("why") else ""
        lines.append(f"| {row['claim']} | {row['where']} | {row['held']} | {row['measured']}{why} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--texts", action="store_true")
    what.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if not (options.texts or options.check):
        record = frontier.record_of(RESULTS)
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
        frontier.draw(record, FIGURE)
    record = json.loads(RECORD.read_text())
    if not options.check:
        for path in PAGES:
            path.write_text(regenerated(path.read_text(), record))
        return 0
    drifted = [f"{RECORD.relative_to(ROOT)}: {what}" for what in frontier.drift(record, FIGURE)]
    for path in PAGES:
        if regenerated(path.read_text(), record) != path.read_text():
            drifted.append(f"{path.relative_to(ROOT)} is not what the code and the record say")
    for what in drifted:
        print(f"{what}: run `make docs`", file=sys.stderr)
    return 1 if drifted else 0


if __name__ == "__main__":
    sys.exit(main())
