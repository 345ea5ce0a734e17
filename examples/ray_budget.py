"""A dataset on a Ray cluster under one budget of output tokens, on an OpenAI-compatible server.

python examples/ray_budget.py http://127.0.0.1:8000/v1 MODEL 2000
"""

import sys
import tempfile

import ray

import shadowprice as sp


def main(base_url: str, model: str, budget: str) -> None:
    rows = [{"id": f"q{n}", "question": f"What is {n} * {n}? Explain each step."} for n in range(100)]
    dataset = ray.data.from_items(rows)  # or ray.data.read_parquet("big/")
    with tempfile.TemporaryDirectory() as folder:
        run = sp.ray.run(dataset, budget, backend=lambda: sp.OpenAIBackend(base_url, model), folder=f"{folder}/run")
        answers = run.to_dataset()  # id, outcome, text, tokens, cost, correct, error: a row for every question
        print(answers.take(1), run.summary.outcomes)
        print(f"{run.summary.spent} of {run.budget} tokens spent at a price of {run.summary.price}")


if __name__ == "__main__":
    main(*sys.argv[1:])
