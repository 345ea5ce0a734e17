"""Record answers of Qwen2.5-Coder-1.5B-Instruct to mathematics, with probes: a list of questions, and `collect`.

    python scripts/record.py QUESTIONS build/recording [THREADS]

QUESTIONS is a folder of NAME.jsonl.gz files with lines {"id", "problem", "gold"}, for the names in `EVALUATION` and
`TRAINING`. Questions of evaluation and training sets take turns, in a random order that is always the same, so that any
prefix of the recording can be used; those in recordings/ are left out. It takes hours; run again, it continues.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import orjson

from shadowprice.formats.jsonl import read_objects

RECORDED = Path(__file__).resolve().parent.parent / "recordings"
EVALUATION = {"math500": 300, "olympiadbench": 90, "minerva_math": 60, "amc23": 40, "aime24": 30, "aime25": 30}
TRAINING = {"gsm8k_train": 275, "math_train": 275}


def questions(folder: Path) -> list[dict[str, str]]:
    chosen = random.Random(2026)
    evaluation = [each for name, count in EVALUATION.items() for each in _some(folder, name, count, chosen)]
    training = [each for name, count in TRAINING.items() for each in _some(folder, name, count, chosen)]
    chosen.shuffle(evaluation)
    chosen.shuffle(training)
    done = {row["id"] for path in RECORDED.glob("*.jsonl.gz") for _, row in read_objects(path)}
    in_turns = [each for pair in zip(evaluation, training, strict=True) for each in pair]
    return [each for each in in_turns if each["id"] not in done]


def _some(folder: Path, name: str, count: int, chosen: random.Random) -> list[dict[str, str]]:
    rows = [row for _, row in read_objects(folder / f"{name}.jsonl.gz") if str(row.get("gold", "")).strip()]
    return [
        {"id": row["id"], "problem": row["problem"], "gold": str(row["gold"]), "dataset": name, "grader": "math"}
        for row in chosen.sample(rows, min(count, len(rows)))
    ]


def main(source: Path, folder: Path, threads: str = "1") -> int:
    folder.mkdir(parents=True, exist_ok=True)
    path, run = folder / "questions.jsonl", folder / "run"
    if not path.exists():
        path.write_bytes(b"".join(orjson.dumps(each) + b"\n" for each in questions(source)))
    command = [
        sys.executable, "-m", "shadowprice", "collect", str(path), "--local", "qwen2.5-coder-1.5b",
        "--prompt-template", "math", "--probe", "--max-tokens", "2048", "--concurrency", "4", "--threads", threads,
        "--out", str(folder / "traces.jsonl.gz"), "--run-folder", str(run),
        *(["--resume"] if (run / "manifest.json").exists() else []),
    ]  # fmt: skip
    return subprocess.run(command).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]))
