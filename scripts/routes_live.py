"""Two models on this machine as two routes under one budget in dollars, against each of them alone.

    python scripts/routes_live.py build/routes                      # about half an hour on two busy cores
    python scripts/routes_live.py build/routes --questions 20 --train 40

Records answers of Qwen2.5-Coder-1.5B to small tasks of the training split, and trains a forecaster for it; that of
SmolLM2 is trained on the answers in the package. Then answers other small tasks with both as routes at made-up rates
of 1 : 12, kills the run (kill -9) three seconds after it has begun to spend, twice, and resumes it; and
with each model alone at the same money. Prints the summaries, and what the servers themselves counted. Stop it and run
it again: it continues. What is shown in docs/routes.md is written by --docs.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from shadowprice.accounts.sqlite import Ledger
from shadowprice.cost import Rates
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.forecast.text import TextForecaster
from shadowprice.formats.traces import read_traces
from shadowprice.types import Trace, Usage

TASKS = ("number", "copy", "product", "one-step", "half", "sum", "units", "comparison", "letters")
CAP = 96
RATES = {"small": ("smollm2-135m", 0.01, 0.02), "large": ("qwen2.5-coder-1.5b", 0.12, 0.24)}
DOCS = Path(__file__).resolve().parent.parent / "docs" / "routes.md"
_SHOWN = re.compile(r"(?<=<!-- live -->\n).*?(?=<!-- end of live -->)", re.DOTALL)


def chosen(split: str, count: int) -> list[Trace]:
    """Short tasks of every kind, in turn."""
    kinds = {task: [t for t in shipped_traces(split, "smollm2") if t.dataset == task] for task in TASKS}
    rows = (kinds[task][at] for at in range(max(map(len, kinds.values()))) for task in TASKS if at < len(kinds[task]))
    return [trace for trace, _ in zip(rows, range(count), strict=False)]


def write_questions(path: Path, traces: list[Trace]) -> None:
    lines = [{"id": t.id, "question": t.prompt, "answer": t.gold, "grader": t.extra.get("grader")} for t in traces]
    path.write_text("".join(json.dumps({k: v for k, v in line.items() if v}) + "\n" for line in lines))


def shadowprice(*words: object) -> list[str]:
    return [sys.executable, "-m", "shadowprice", *map(str, words)]


def trained(folder: Path, count: int) -> None:
    """A forecaster for each model, from answers to the same questions."""
    write_questions(folder / "train.jsonl", chosen("train", count))
    if not (folder / "large.jsonl").exists():
        resume = ["--resume"] if (folder / "large.jsonl.run").exists() else []
        command = shadowprice(
            "collect", folder / "train.jsonl", "--local", RATES["large"][0], "--threads", 1, "--slots", 1,
            "--concurrency", 1, "--max-tokens", CAP, "--out", folder / "large.jsonl", *resume,
        )  # fmt: skip
        subprocess.run(command, check=True)
    small = [t for t in shipped_traces("train", "smollm2") if t.dataset in TASKS]
    TextForecaster().fit(small).save(folder / "forecast-small")
    TextForecaster().fit(small).adapt(list(read_traces(folder / "large.jsonl"))).save(folder / "forecast-large")


def routes_file(folder: Path, *names: str) -> Path:
    path = folder / f"{'-'.join(names)}.toml"
    path.write_text(
        "\n".join(
            f'[[route]]\nname = "{name}"\nlocal = "{RATES[name][0]}"\n'
            f'rates = {{ input = {RATES[name][1]}, output = {RATES[name][2]} }}\nforecaster = "forecast-{name}"\n'
            for name in names
        )
    )
    return path


def answered(folder: Path, routes: Path, budget: str, *, kills: int = 0) -> tuple[str, dict]:
    """Runs to the end, after some kills; returns what it printed and its summary."""
    name = routes.stem
    run = folder / f"{name}.run"
    words = [
        "run", folder / "eval.jsonl", "--routes", routes, "--budget", budget, "--max-tokens", CAP, "--threads", 1,
        "--concurrency", 2, "--out", folder / f"{name}.answers.jsonl", "--run-folder", run, "--quiet", "--force",
    ]  # fmt: skip
    for _ in range(kills):
        if run.exists() and json.loads((run / "manifest.json").read_text())["done"]:
            break
        process = subprocess.Popen(shadowprice(*words, *(["--resume"] if run.exists() else [])))
        before, deadline = _spent(run), time.monotonic() + 300
        while time.monotonic() < deadline and process.poll() is None and _spent(run) <= before:
            time.sleep(0.5)
        if process.poll() is None:
            time.sleep(3)
            process.send_signal(signal.SIGKILL)
            process.wait()
            print(f"killed {name} at {_spent(run):,} nano-dollars", flush=True)
    done = subprocess.run(shadowprice(*words, *(["--resume"] if run.exists() else [])), capture_output=True, text=True)
    if done.returncode not in (0, 3):
        raise SystemExit(done.stderr)
    return done.stdout, json.loads((run / "manifest.json").read_text())["summary"]


def _spent(run: Path) -> int:
    """What a run has spent, read beside it."""
    import sqlite3

    try:
        with sqlite3.connect(f"file:{run / 'ledger.sqlite'}?mode=ro", uri=True) as db:
            sql = "SELECT coalesce(sum(units), 0) FROM journal WHERE kind IN ('settle', 'chunk', 'orphan')"
            return int(db.execute(sql).fetchone()[0])
    except sqlite3.Error:
        return 0


def audit(run: Path, budget: int) -> str:
    """What was charged is what the servers counted, at their rates, and what was in flight when a run was killed."""
    with Ledger.reopen(run / "ledger.sqlite") as ledger:
        lost = sum(entry.units for entry in ledger.entries() if entry.kind == "orphan")
        counted = 0
        for _, line in ledger.results():
            own = json.loads(line)["shadowprice"]
            assert own["usage_source"] == "server"
            counted += Rates.dollars(*RATES[own["route"]][1:]).cost(Usage(**own["usage"]))
        assert counted + lost == ledger.spent <= budget, (counted, lost, ledger.spent, budget)
    return f"{counted:,} nano-dollars by the servers' own counts and {lost:,} lost to kills, of {budget:,}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--questions", type=int, default=54)
    parser.add_argument("--train", type=int, default=90)
    parser.add_argument("--budget", default="$0.00045")
    parser.add_argument("--docs", action="store_true", help="write the output into docs/routes.md")
    options = parser.parse_args()
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    trained(folder, options.train)
    write_questions(folder / "eval.jsonl", chosen("eval", options.questions))
    ways = {"both": ("small", "large"), "small alone": ("small",), "large alone": ("large",)}
    shown = []
    for way, names in ways.items():
        text, summary = answered(folder, routes_file(folder, *names), options.budget, kills=2 if len(names) == 2 else 0)
        note = audit(folder / f"{'-'.join(names)}.run", summary["budget"])
        shown.append(
            f"$ shadowprice run eval.jsonl --routes {'-'.join(names)}.toml --budget '{options.budget}'\n{text}"
        )
        score = f"{summary['correct']} of {summary['graded']} correct, {summary['overspent']} overspent"
        print(f"{way}: {score}; {note}", text, sep="\n")
    if options.docs:
        block = "```console\n" + "\n".join(shown).replace(f"{folder}/", "") + "```\n"
        DOCS.write_text(_SHOWN.sub(lambda _: block, DOCS.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
