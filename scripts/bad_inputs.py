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
    "photo": b"\x89PNG\r\n\x1a\n",
    "photo.txt": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
    "sheet.csv": b"PK\x03\x04\x14\x00\x06\x00",
    "utf16.csv": QUESTIONS.encode("utf-16"),
    "latin1.csv": "question,answer\nWo liegt Köln?,Rhein\n".encode("latin-1"),
    "broken.jsonl": GOOD + GOOD.replace('"a"', '"b"') + '{"custom_id": "c", "body": \n',
    "array.json": '[{"question": "Why?"}]\n',
    "columns.csv": "text,label\nWhy?,1\n",
    "columns-twice.csv": "question,answer,answer\nWhy?,1,2\n",
    "twice.jsonl": GOOD + GOOD,
    "missing.csv": "question,answer\nWhy?,1\n,2\n",
    "commas.csv": "question,answer\nWhat is 2, plus 2?,4\n",
    "mixed.jsonl": '{"question": "Why?"}\n{"prompt": "How?"}\n',
    "gold.jsonl": '{"custom_id": "q1", "gold": "4"}\n',
    "forecast.jsonl": '{"custom_id": "other", "tokens": 100}\n',
    "gold.csv": "custom_id,gold\nq1,4\n",
    "template.txt": "Answer the question.\n",
    "choices.csv": "question,A,B\nWhich?,1,2\n",
    "choices.txt": "{question}\nA: {A}\n",
    "done.jsonl": "{}\n",
    "no-header.csv": "Why?,4\nHow?,5\n",
    "inside.jsonl": '{"data": {"question": "Why?"}}\n',
    "list.json": '{"data": [{"question": "Why?"}]}\n',
    "two-places.jsonl": '{"instruction": "Translate", "input": "Ja"}\n',
    "texts.jsonl": '"Why?"\n',
    "python.csv": "messages\n\"[{'role': 'user'}]\"\n",
    "old.xls": b"\xd0\xcf\x11\xe0" + bytes(99),
    "q.parquet": b"PAR1\x15\x04",
    "q.jsonl.zst": b"\x28\xb5\x2f\xfd\xc8",
    "utf32.txt": "Why?\n".encode("utf-32"),
    "page.csv": "<!doctype html>\n<html><body>Sign in</body></html>\n",
    "nan.jsonl": '{"question": "Why?", "answer": NaN}\n',
    "limit.jsonl": '{"messages": [{"role": "user", "content": "Why?"}], "max_tokens": "9"}\n',
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
    ("the same column twice", "plan columns-twice.csv --budget 1k"),
    ("two forms in one file", "plan mixed.jsonl --budget 1k"),
    ("the same id twice", "plan twice.jsonl --budget 1k"),
    ("a CSV without a header", "plan no-header.csv --budget 1k"),
    ("questions inside a field", "plan inside.jsonl --budget 1k"),
    ("questions inside a list", "plan list.json --budget 1k"),
    ("an instruction beside its input", "plan two-places.jsonl --budget 1k"),
    ("texts in JSON", "plan texts.jsonl --budget 1k"),
    ("a chat in the syntax of Python", "plan python.csv --budget 1k"),
    ("an old spreadsheet", "plan old.xls --budget 1k"),
    ("Parquet", "plan q.parquet --budget 1k"),
    ("packed with zstd", "plan q.jsonl.zst --budget 1k"),
    ("UTF-32", "plan utf32.txt --budget 1k"),
    ("a login page in place of the file", "plan page.csv --budget 1k"),
    ("NaN", "plan nan.jsonl --budget 1k"),
    ("an address", "plan https://example.com/q.csv --budget 1k"),
    ("a limit that is a text", "plan limit.jsonl --budget 1k"),
    ("a budget of 0", "plan q.csv --budget 0 --quiet --out - --errors /dev/null"),
    ("a negative budget", "plan q.csv --budget -5"),
    ("a budget that is not a number", "plan q.csv --budget abc"),
    ("a point that may separate thousands", "plan q.csv --budget 200.000"),
    ("half a token", "plan q.csv --budget 1.5"),
    ("money without prices", "plan q.csv --budget $5"),
    ("no budget", "plan q.csv"),
    ("a forecast for other requests", "plan good.jsonl --budget 1k --forecast forecast.jsonl"),
    ("a template without a place for the question", "plan q.csv --budget 1k --prompt-template template.txt"),
    ("an output that exists", "plan q.csv --budget 1k --out done.jsonl"),
    ("an output in a folder that does not exist", "plan q.csv --budget 1k --out no/such/out.jsonl"),
    ("a table as the output", "run q.csv --budget 1k --out answers.csv --base-url http://127.0.0.1:9/v1"),
    ("a full disk", "plan q.csv --budget 1k --quiet --out /dev/full"),
    ("the input as the output", "plan q.csv --budget 1k --out q.csv"),
    ("a mistyped option", "plan q.csv --bugdet 1k"),
    ("a mistyped command", "pln q.csv --budget 1k"),
    ("an unknown policy", "plan q.csv --budget 1k --policy magic"),
    ("a mistyped policy", "run q.csv --budget 1k --policy indx --base-url http://127.0.0.1:9/v1"),
    ("a policy that cannot be planned", "plan q.csv --budget 1k --policy index"),
    ("a policy that knows the answers", "plan q.csv --budget 1k --policy oracle"),
    ("no model named", "run q.csv --budget 1k"),
    ("the input as the model", "run --budget 1k --local q.csv"),
    ("a mistyped model", "run q.csv --budget 1k --quiet --local smollm-135m"),
    ("a file that is not a model", "run q.csv --budget 1k --quiet --local photo"),
    ("an invalid address", "run q.csv --budget 1k --base-url localhost:8000"),
    ("a template that wants another column", "plan choices.csv --budget 1k --prompt-template choices.txt"),
    ("a table of correct answers", "run q.csv --budget 1k --gold gold.csv --base-url http://127.0.0.1:9/v1"),
    ("correct answers of other questions", "run q.csv --budget 1k --gold gold.jsonl --base-url http://127.0.0.1:9/v1"),
    ("an unknown grader", "run q.csv --budget 1k --grader maths --base-url http://127.0.0.1:9/v1"),
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
