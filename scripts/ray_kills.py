"""Kills workers and coordinators of jobs on a real Ray cluster, with kill -9, at random moments.

    python scripts/ray_kills.py [--workers-killed 20] [--coordinators-killed 10] [--seed 0]

Each job answers 240 rows on a server that counts every token, with two or four workers. Checked of each: the budget is
not exceeded, no request is sent twice, every id is in the output once, and what is lost is at most what the workers
that were killed had in flight. Prints a line for each job, and what they add up to; the exit code is 1 if anything is
violated. Takes a network namespace of its own, as tests/distributed does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.distributed.conftest import Cluster, why_not  # noqa: E402


def violations(found: dict, rows: int) -> list[str]:
    checks = {
        "the budget was exceeded": found["overspent"] > 0 or found["generated"] > found["spent"],
        "a request was sent twice": found["sent twice"] > 0,
        "an id is missing or there twice": not found["rows"] == found["ids"] == rows,
        "more was lost than was in flight": found["lost rows"] > found["most lost"],
        "the job stopped": bool(found["stopped"]),
    }
    return [name for name, wrong in checks.items() if wrong]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers-killed", type=int, default=20)
    parser.add_argument("--coordinators-killed", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if reason := why_not():
        print(reason)
        return 2
    cluster, wrong = Cluster(sys.stderr), 0
    totals = {"worker": [0, 0, 0, 0, 0], "coordinator": [0, 0, 0, 0, 0]}
    seed = options.seed
    for who, wanted in (("worker", options.workers_killed), ("coordinator", options.coordinators_killed)):
        while totals[who][0] < wanted:
            workers, kills = 2 + 2 * (seed % 2), min(2, wanted - totals[who][0])
            outcome = cluster("killed", who=who, seed=seed, workers=workers, kills=kills)
            problems = violations(outcome, 240)
            wrong += bool(problems)
            figures = [outcome[name] for name in ("killed", "lost rows", "lost", "spent", "generated")]
            totals[who] = [sum(pair) for pair in zip(totals[who], figures, strict=True)]
            print(
                f"seed {seed}: {workers} workers, {outcome['killed']} x kill -9 of a {who}: {outcome['outcomes']}, "
                f"{outcome['lost rows']} rows lost, spent {outcome['spent']}, generated {outcome['generated']} of "
                f"{outcome['budget']}  {'; '.join(problems) or 'ok'}",
                flush=True,
            )
            seed += 1
    for who, (kills, rows, lost, spent, generated) in totals.items():
        print(
            f"{who}: {kills} kills, {rows} rows and {lost} tokens lost, spent {spent}, generated {generated}, "
            f"overspent 0 in all jobs"
            if not wrong
            else f"{who}: {wrong} jobs with violations"
        )
    cluster.process.stdin.close()
    cluster.process.wait(60)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
