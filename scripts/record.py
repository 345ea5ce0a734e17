"""Record the answers of Qwen2.5-Coder-1.5B-Instruct that the package ships, with its own `collect`.

    python scripts/record.py math QUESTIONS build/recording      # hours; stop it and run it again: it continues
    python scripts/record.py ship QUESTIONS build/recording      # what is recorded by now, into the package

QUESTIONS is a folder of NAME.jsonl.gz files with lines {"id", "problem", "gold"}, for the names below. Evaluation and
training questions take turns, in a random order that is always the same, so that any prefix of the recording can be
used. Greedy, cap 2,048, with probes: `landed` says, by age, whether the final answer that the model states there is
correct, the tokens that stating it takes, and what it states.

What ships: questions and answers where the licence of the questions allows it; of the others ids, lengths, grades and
probes. Questions that are in the package are not recorded again.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import orjson
from recorded import DATA, write_manifest

from shadowprice.backends.models import MODELS
from shadowprice.datasets.shipped import shipped_sets, shipped_traces
from shadowprice.formats.jsonl import read_objects
from shadowprice.formats.traces import read_traces, write_traces
from shadowprice.types import Trace

SET = "qwen2.5-coder-1.5b"
EVALUATION = {
    "math500": 300, "gsm8k_test": 150, "olympiadbench": 60, "minerva_math": 30, "amc23": 20, "aime24": 20, "aime25": 20
}  # fmt: skip
TRAINING = {"gsm8k_train": 275, "math_train": 275}
FREE = {"math500": "eval", "gsm8k_test": "eval", "gsm8k_train": "train", "math_train": "train"}  # MIT; where they ship
SUMMARY = "summary"  # the split of the others


def questions(folder: Path) -> list[dict[str, str]]:
    """Those that are not in the package yet, in the order of their recording."""
    order = random.Random(2026)
    evaluation = [each for name, count in EVALUATION.items() for each in _some(folder, name, count, order)]
    training = [each for name, count in TRAINING.items() for each in _some(folder, name, count, order)]
    order.shuffle(evaluation)
    order.shuffle(training)
    done = {trace.id for trace in _shipped()}
    in_turns = [each for pair in zip(evaluation, training, strict=False) for each in pair]
    in_turns += evaluation[len(training) :] + training[len(evaluation) :]
    return [each for each in in_turns if each["id"] not in done]


def _some(folder: Path, name: str, count: int, order: random.Random) -> list[dict[str, str]]:
    rows = [row for row in _rows(folder, name) if row["gold"].strip()]
    order.shuffle(rows)
    return [{**row, "dataset": name, "grader": "math"} for row in rows[:count]]


def _rows(folder: Path, name: str) -> list[dict[str, str]]:
    rows = (row for _, row in read_objects(folder / f"{name}.jsonl.gz"))
    return [{"id": row["id"], "problem": row["problem"], "gold": str(row.get("gold", ""))} for row in rows]


def _shipped() -> Iterator[Trace]:
    for split in shipped_sets().get(SET, {}):
        yield from shipped_traces(split, SET)


def collect(folder: Path, *more: str) -> int:
    command = [
        sys.executable, "-m", "shadowprice", "collect", str(folder / "questions.jsonl"), "--local", SET,
        "--prompt-template", "math", "--probe", "--max-tokens", "2048", "--run-folder", str(folder / "run"),
        "--out", str(folder / "traces.jsonl.gz"), *more,
    ]  # fmt: skip
    return subprocess.run(command).returncode


def record(source: Path, folder: Path, slots: str, threads: str) -> int:
    path = folder / "questions.jsonl"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(orjson.dumps(each) + b"\n" for each in questions(source)))
    resume = ["--resume"] if (folder / "run" / "manifest.json").exists() else []
    return collect(folder, "--concurrency", slots, "--slots", slots, "--threads", threads, *resume)


def ship(source: Path, folders: list[Path]) -> int:
    """Adds what is recorded to the files of the package, in the order of the recording."""
    asked = {row["id"]: row for name in EVALUATION | TRAINING for row in _rows(source, name)}
    traces = {trace.id: trace for trace in _shipped()}
    for folder in folders:
        if code := collect(folder, "--so-far", "--force"):
            return code
        traces |= {trace.id: trace for trace in read_traces(folder / "traces.jsonl.gz")}
    splits: dict[str, list[Trace]] = {}
    for trace in traces.values():
        row = asked[trace.id]
        split = FREE.get(trace.dataset, SUMMARY)
        whole = replace(trace, prompt=row["problem"], gold=row["gold"], model=MODELS[SET].title)
        bare = replace(whole, prompt="", gold="", response=None, extra={**trace.extra, "landed": _bare_probes(trace)})
        splits.setdefault(split, []).append(bare if split == SUMMARY else whole)
    for split, found in splits.items():
        write_traces(DATA / f"{SET}.{split}.jsonl.gz", found)
        print(f"{split}: {len(found):,} traces")
    write_manifest()
    return 0


def _bare_probes(trace: Trace) -> dict[str, list[object]]:
    """Whether they were correct, and their tokens, without what they state."""
    return {age: probe[:2] for age, probe in trace.extra.get("landed", {}).items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["math", "ship"])
    parser.add_argument("questions", type=Path)
    parser.add_argument("folder", type=Path, nargs="+")
    parser.add_argument("--slots", default="32", help="answers at the same time: 32 are twice as fast as 4")
    parser.add_argument("--threads", default="2")
    options = parser.parse_args()
    if options.what == "ship":
        return ship(options.questions, options.folder)
    return record(options.questions, options.folder[0], options.slots, options.threads)


if __name__ == "__main__":
    sys.exit(main())
