"""Collect the traces that the package ships, with its own `collect` (`make traces`).

    python scripts/traces.py train 2000 build/train
    python scripts/traces.py eval 1000 build/eval

Writes the questions and runs `shadowprice collect` on the embedded model, greedy, cap 512. Stop it
and run it again: it continues. When it is done, the traces are in src/shadowprice/datasets.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from recorded import DATA, write_manifest

from shadowprice.datasets.tasks import tasks


def main(split: str, count: int, folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    questions = folder / "questions.jsonl"
    with questions.open("w") as out:
        for task in tasks(2026, count, split=split):
            line = {
                "id": task.id,
                "problem": task.prompt,
                "gold": task.answer,
                "dataset": task.kind,
                "grader": task.grader,
            }
            out.write(json.dumps(line) + "\n")
    run = folder / "run"
    command = [
        sys.executable, "-m", "shadowprice", "collect", str(questions), "--local", "--max-tokens", "512",
        "--out", str(DATA / f"smollm2-135m.{split}.jsonl.gz"), "--run-folder", str(run),
        *(["--resume"] if (run / "manifest.json").exists() else []),
    ]  # fmt: skip
    done = subprocess.run(command)
    if done.returncode == 0:
        write_manifest()
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
