"""Write a batch file of 300 sums and word problems, and forecasts for them.

    python examples/make_requests.py REQUESTS.jsonl FORECASTS.jsonl

The forecasts are what an engineer might guess: tokens grow with the number of steps, and the
chance of a right answer falls with it.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path


def main(requests: Path, forecasts: Path, count: int = 300) -> None:
    rng = random.Random(7)
    for path in (requests, forecasts):
        path.parent.mkdir(parents=True, exist_ok=True)
    with requests.open("w") as asked, forecasts.open("w") as guessed:
        for i in range(count):
            steps = rng.choice([1, 1, 1, 2, 2, 3, 5, 8])
            numbers = [rng.randint(2, 99) for _ in range(steps + 1)]
            text = "Think step by step. What is " + " + ".join(map(str, numbers)) + "?"
            body = {"model": "any", "messages": [{"role": "user", "content": text}], "temperature": 0}
            line = {"custom_id": f"sum-{i}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            asked.write(json.dumps(line) + "\n")
            guess = {"custom_id": f"sum-{i}", "tokens": 60 * steps + 20, "spread": 0.5, "solve": round(0.95**steps, 3)}
            guessed.write(json.dumps(guess) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
