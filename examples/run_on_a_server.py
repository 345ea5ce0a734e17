"""Answer questions on an OpenAI-compatible server under one budget, as results come in.

python examples/run_on_a_server.py http://127.0.0.1:8000/v1 MODEL
"""

import asyncio
import sys

import shadowprice as sp

QUESTIONS = [f"What is {n} + {n}? Answer with the number." for n in range(1, 21)]


async def main(base_url: str, model: str) -> None:
    async with sp.OpenAIBackend(base_url, model=model) as backend:
        run = sp.Run(QUESTIONS, budget="10/query", backend=backend, policy="index", accounting="metered")
        async for result in run:
            print(result.id, result.outcome, result.usage.output, repr(result.text[:40]))
        print(f"spent {run.spent} of {run.budget} tokens")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
