"""Record the answers of Qwen2.5-Coder-1.5B-Instruct that the package ships, with its own `collect`.

    python scripts/record.py math build/recording/math --questions DIR   # hours; stop it and run it again: it continues
    python scripts/record.py code build/recording/code --questions DIR   # HumanEval, 4 answers to each
    python scripts/record.py greedy-code build/recording/greedy --questions DIR
    python scripts/record.py rollouts build/recording/rollouts           # 16 answers to each of a few questions
    python scripts/record.py ship build/recording/*                      # what is recorded by now, into the package

DIR is a folder of NAME.jsonl.gz files with lines {"id", "problem", "gold"}, for the names below; for HumanEval
with "test" and "entry_point" as well. Evaluation and training questions take turns, in a random order that is always
the same, so that any prefix of the recording can be used. Mathematics is greedy, cap 2,048, with probes: `landed` says,
by age, whether the final answer that the model states there is correct, the tokens that stating it takes, and what it
states.

What ships: questions and answers where the licence of the questions allows it; of the others ids, lengths, grades and
probes. Questions that are in the package are not recorded again. Of a recording that was stopped, the answers up to the
first question without one ship: those after it that have ended are the short ones.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import orjson
from recorded import DATA, write_manifest

from shadowprice.backends.models import MODELS
from shadowprice.datasets.shipped import shipped_sets, shipped_traces
from shadowprice.formats.jsonl import read_objects
from shadowprice.formats.traces import read_traces, write_traces
from shadowprice.types import Trace

SET = "qwen2.5-coder-1.5b"
# How many questions of each are to be in the package.
EVALUATION = {
    "math500": 380, "gsm8k_test": 104, "olympiadbench": 60, "minerva_math": 30, "amc23": 20, "aime24": 15, "aime25": 15
}  # fmt: skip
TRAINING = {"gsm8k_train": 252, "math_train": 252}
FREE = {"math500": "eval", "gsm8k_test": "eval", "gsm8k_train": "train", "math_train": "train"}  # MIT; where they ship
SUMMARY = "summary"  # the split of the others
ROLLOUTS = 12  # questions


def questions(folder: Path) -> list[dict[str, str]]:
    """Those that the package still needs, in the order of their recording."""
    done = {trace.id for trace in _shipped()}
    order = random.Random(2026)
    evaluation = [each for name, count in EVALUATION.items() for each in _missing(folder, name, count, done, order)]
    training = [each for name, count in TRAINING.items() for each in _missing(folder, name, count, done, order)]
    order.shuffle(evaluation)
    order.shuffle(training)
    in_turns = [each for pair in zip(evaluation, training, strict=False) for each in pair]
    return in_turns + evaluation[len(training) :] + training[len(evaluation) :]


def _missing(folder: Path, name: str, count: int, done: set[str], order: random.Random) -> list[dict[str, str]]:
    rows = [row for row in _rows(folder, name) if row["gold"].strip()]
    new = [row for row in rows if row["id"] not in done]
    order.shuffle(new)
    recorded = len(rows) - len(new)
    return [{**row, "dataset": name, "grader": "math"} for row in new[: max(0, count - recorded)]]


def _rows(folder: Path, name: str) -> list[dict[str, str]]:
    rows = (row for _, row in read_objects(folder / f"{name}.jsonl.gz"))
    return [{"id": row["id"], "problem": row["problem"], "gold": str(row.get("gold", ""))} for row in rows]


def _shipped() -> Iterator[Trace]:
    for split in shipped_sets().get(SET, {}):
        yield from shipped_traces(split, SET)


def collect(folder: Path, *more: str) -> int:
    asked = json.loads((folder / "asked.json").read_text())
    command = [
        sys.executable, "-m", "shadowprice", "collect", *asked, "--local", SET,
        "--run-folder", str(folder / "run"), "--out", str(folder / "traces.jsonl.gz"), *more,
    ]  # fmt: skip
    return subprocess.run(command).returncode


def record(what: str, source: Path, folder: Path, slots: str, threads: str) -> int:
    if not (folder / "asked.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "asked.json").write_text(json.dumps(PREPARE[what](source, folder)))
    resume = ["--resume"] if (folder / "run" / "manifest.json").exists() else []
    return collect(folder, "--concurrency", slots, "--slots", slots, "--threads", threads, *resume)


def _math(source: Path, folder: Path) -> list[str]:
    _write(folder / "questions.jsonl", questions(source))
    return [str(folder / "questions.jsonl"), "--prompt-template", "math", "--probe", "--max-tokens", "2048"]


def _rollouts(source: Path, folder: Path) -> list[str]:
    """Questions of MATH-500 with answers of moderate length: those that the paper's figure needs many answers to."""
    some = [t for t in shipped_traces("eval", SET) if t.dataset == "math500" and 100 <= t.tokens <= 500][:ROLLOUTS]
    rows = [{"id": t.id, "problem": t.prompt, "gold": t.gold, "dataset": t.dataset, "grader": "math"} for t in some]
    _write(folder / "questions.jsonl", rows)
    sampled = ["--samples", "16", "--temperature", "1"]
    return [str(folder / "questions.jsonl"), "--prompt-template", "math", "--max-tokens", "1024", *sampled]


def _code(source: Path, folder: Path) -> list[str]:
    return [*_greedy_code(source, folder), "--samples", "4", "--temperature", "0.8"]


def _greedy_code(source: Path, folder: Path) -> list[str]:
    """HumanEval as the hub has it, from the folder of questions."""
    rows = [row for _, row in read_objects(source / "humaneval.jsonl.gz")]
    path = folder / "hub" / "openai" / "openai_humaneval" / "test.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, [{"task_id": row["id"], "prompt": row["problem"], **row} for row in rows])
    return ["hf:humaneval", "--mirror", str(folder / "hub"), "--max-tokens", "1024"]


PREPARE = {"math": _math, "rollouts": _rollouts, "code": _code, "greedy-code": _greedy_code}


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))


def ship(folders: list[Path]) -> int:
    """Adds what is recorded to the files of the package, in the order of the recording."""
    traces = {_key(trace): trace for trace in _shipped()}
    for folder in folders:
        if code := collect(folder, "--so-far", "--force"):
            return code
        found = _up_to_a_gap(list(read_traces(folder / "traces.jsonl.gz")), folder / "questions.jsonl")
        traces |= {_key(trace): replace(trace, model=MODELS[SET].title) for trace in found}
    splits: dict[str, list[Trace]] = {}
    for trace in traces.values():
        split = _split(trace)
        splits.setdefault(split, []).append(_bare(trace) if split == SUMMARY else trace)
    for split, some in splits.items():
        write_traces(DATA / f"{SET}.{split}.jsonl.gz", some)
        print(f"{split}: {len(some):,} traces")
    write_manifest()
    return 0


def _up_to_a_gap(found: list[Trace], questions: Path) -> list[Trace]:
    if not questions.exists():
        return found
    answered = {trace.id for trace in found}
    order = [row["id"] for _, row in read_objects(questions)]
    complete = set(takewhile(answered.__contains__, order))
    return [trace for trace in found if trace.id in complete]


def _key(trace: Trace) -> tuple[str, int, float]:
    return trace.id, trace.sample, trace.temperature


def _split(trace: Trace) -> str:
    if trace.dataset == "humaneval":
        return "code" if trace.temperature else "greedy-code"
    return "rollouts" if trace.temperature else FREE.get(trace.dataset, SUMMARY)


def _bare(trace: Trace) -> Trace:
    """Without what its licence does not let us ship."""
    landed = {age: probe[:2] for age, probe in trace.extra.get("landed", {}).items()}
    return replace(trace, prompt="", gold="", response=None, extra={**trace.extra, "landed": landed})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*PREPARE, "ship"])
    parser.add_argument("folder", type=Path, nargs="+")
    parser.add_argument("--questions", type=Path, metavar="DIR")
    parser.add_argument("--slots", default="32", help="answers at the same time: 32 are twice as fast as 4")
    parser.add_argument("--threads", default="2")
    options = parser.parse_args()
    if options.what == "ship":
        return ship(options.folder)
    return record(options.what, options.questions, options.folder[0], options.slots, options.threads)


if __name__ == "__main__":
    sys.exit(main())
