"""Compare policies on recorded answers, before spending anything.

python examples/simulate_policies.py [TRACES.jsonl.gz]
"""

import sys

import shadowprice as sp
from shadowprice.datasets.shipped import shipped_traces


def main(path: str = "") -> None:
    traces = list(sp.read_traces(path)) if path else shipped_traces("eval")
    for settings in (
        {"policy": "uniform", "reclaim": False},
        {"policy": "clear", "reclaim": False},  # the paper's CLEAR
        {"policy": "expected"},
        {"policy": "index", "accounting": "metered"},
    ):
        found = sp.simulate(traces, budget="200/query", **settings)
        print(f"{found.correct:4} correct for {found.spent:,} of {found.budget:,} tokens   {found.command}")


if __name__ == "__main__":
    main(*sys.argv[1:])
