"""What the command prints when it is given what it cannot use: the table in docs/log.md.

python scripts/bad_inputs.py           write the table
python scripts/bad_inputs.py --check   exit 1 if it is not what the command prints
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOG = ROOT / "docs" / "log.md"
_TABLE = re.compile(r"(?<=<!-- bad inputs -->\n).*?(?=<!-- end of bad inputs -->)", re.DOTALL)

GOOD = '{"custom_id": "a", "body": {"messages": [{"role": "user", "content": "Why?"}]}}\n'
QUESTIONS = "question,answer\nWhat is 2 + 2?,4\n"
FILES: dict[str, str | bytes] = {
    "good.jsonl": GOOD,
    "q.csv": QUESTIONS,
    "empty.jsonl": "",
    "photo.txt": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
    "sheet.csv": b"PK\x03\x04\x14\x00\x06\x00",
    "utf16.csv": QUESTIONS.encode("utf-16"),
    "latin1.csv": "question,answer\nWo liegt Köln?,Rhein\n".encode("latin-1"),
    "broken.jsonl": GOOD + GOOD.replace('"a"', '"b"') + '{"custom_id": "c", "body": \n',
    "array.json": '[{"question": "Why?"}]\n',
    "columns.csv": "text,label\nWhy?,1\n",
    "twice.jsonl": GOOD + GOOD,
    "missing.csv": "question,answer\nWhy?,1\n,2\n",
    "commas.csv": "question,answer\nWhat is 2, plus 2?,4\n",
    "mixed.jsonl": '{"question": "Why?"}\n{"prompt": "How?"}\n',
    "gold.jsonl": '{"custom_id": "q1", "gold": "4"}\n',
    "forecast.jsonl": '{"custom_id": "other", "tokens": 100}\n',
    "template.txt": "Answer the question.\n",
    "done.jsonl": "{}\n",
}
# What went wrong, and the arguments.
CASES = [
    ("a file that does not exist", "plan nowhere.csv --budget 1k"),
    ("a folder", "plan . --budget 1k"),
    ("an empty file", "plan empty.jsonl --budget 1k"),
    ("a binary file", "plan photo.txt --budget 1k"),
    ("a spreadsheet with the name of a CSV", "plan sheet.csv --budget 1k"),
    ("UTF-16", "plan utf16.csv --budget 1k"),
    ("Latin-1", "plan latin1.csv --budget 1k"),
    ("broken JSON in line 3", "plan broken.jsonl --budget 1k"),
    ("a JSON array in place of lines", "plan array.json --budget 1k"),
    ("a CSV with no known column", "plan columns.csv --budget 1k"),
    ("a column that does not exist", "plan columns.csv --prompt-field question --budget 1k"),
    ("commas that are not quoted", "plan commas.csv --budget 1k"),
    ("a row without a question", "plan missing.csv --budget 1k"),
    ("two forms in one file", "plan mixed.jsonl --budget 1k"),
    ("the same id twice", "plan twice.jsonl --budget 1k"),
    ("a budget of 0", "plan q.csv --budget 0 --quiet --out - --errors /dev/null"),
    ("a negative budget", "plan q.csv --budget -5"),
    ("a budget that is no number", "plan q.csv --budget abc"),
    ("half a token", "plan q.csv --budget 1.5"),
    ("money without prices", "plan q.csv --budget $5"),
    ("no budget", "plan q.csv"),
    ("a forecast for other requests", "plan good.jsonl --budget 1k --forecast forecast.jsonl"),
    ("a template without a place for the question", "plan q.csv --budget 1k --prompt-template template.txt"),
    ("an output that exists", "plan q.csv --budget 1k --out done.jsonl"),
    ("an output in a folder that does not exist", "plan q.csv --budget 1k --out no/such/out.jsonl"),
    ("a full disk", "plan q.csv --budget 1k --quiet --out /dev/full"),
    ("the input as the output", "plan q.csv --budget 1k --out q.csv"),
    ("a mistyped option", "plan q.csv --bugdet 1k"),
    ("a mistyped command", "pln q.csv --budget 1k"),
    ("an unknown policy", "plan q.csv --budget 1k --policy magic"),
    ("no model named", "run q.csv --budget 1k"),
    ("the input as the model", "run --budget 1k --local q.csv"),
    ("an invalid address", "run q.csv --budget 1k --base-url localhost:8000"),
    ("correct answers of other questions", "run q.csv --budget 1k --gold gold.jsonl --base-url http://127.0.0.1:9/v1"),
    ("an unknown benchmark", "collect gsm9k --out t.jsonl --base-url http://127.0.0.1:9/v1"),
]


def printed(arguments: str, folder: str) -> tuple[int, str]:
    """The exit code, and all that is printed to standard error."""
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "100", "OPENAI_API_KEY": "none"}
    done = subprocess.run(
        [sys.executable, "-m", "shadowprice", *arguments.split()],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode, re.sub(r"\d[\d,]* bytes free", "N bytes free", done.stderr.strip())


def table() -> str:
    rows = ["| what | command | exit | what is printed |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        for name, content in FILES.items():
            Path(folder, name).write_bytes(content if isinstance(content, bytes) else content.encode())
        before = sorted(os.listdir(folder))
        for what, arguments in CASES:
            code, text = printed(arguments, folder)
            lines = "<br>".join(f"`{line}`" for line in text.replace("|", "\\|").splitlines())
            rows.append(f"| {what} | `{arguments}` | {code} | {lines} |")
            if left := [name for name in os.listdir(folder) if name not in before]:
                raise SystemExit(f"{arguments} left {json.dumps(left)} behind")
    return "\n".join(rows) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    log = LOG.read_text()
    if not _TABLE.search(log):
        raise SystemExit(f"{LOG} has no place for the table")
    check, now = parser.parse_args().check, table()
    fresh = _TABLE.sub(lambda _: now, log)
    if not check:
        LOG.write_text(fresh)
    elif fresh != log:
        print("docs/log.md is not what the command prints: run scripts/bad_inputs.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
