"""Put token limits into an OpenAI Batch file, so that the whole batch keeps to a budget.

python examples/plan_a_batch.py
"""

import json
import tempfile
from pathlib import Path

import shadowprice as sp

QUESTIONS = [
    "What is the capital of France?",
    "Name the largest planet.",
    "Prove that the square root of two is irrational, step by step.",
    "Find all pairs of positive integers (a, b) with a^2 - b^2 = 2026, and explain why there are no others.",
]


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    batch = folder / "requests.jsonl"
    with batch.open("w") as file:
        for number, question in enumerate(QUESTIONS):
            body = {"model": "m", "messages": [{"role": "user", "content": question}]}
            line = {"custom_id": f"q{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")

    plan = sp.plan(batch, budget=900, policy="expected")
    plan.write(folder / "planned.jsonl", errors=folder / "declined.jsonl")
    print(f"{plan.admitted} of {plan.requests} admitted, {plan.granted} of {plan.budget} tokens granted")
    for line in (folder / "planned.jsonl").read_text().splitlines():
        request = json.loads(line)
        print(request["custom_id"], request["body"]["max_completion_tokens"])


if __name__ == "__main__":
    main()
