"""An eval in Inspect AI under a hard budget of output tokens, on an OpenAI-compatible server.

python examples/inspect_budget.py http://127.0.0.1:8000/v1 MODEL 600
"""

import os
import sys
import tempfile

from inspect_ai import Task, eval, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

from shadowprice.integrations.inspect_ai import BUDGET, Budget  # where it is installed, Inspect finds it by itself


@task
def sums() -> Task:
    samples = [Sample(input=f"What is {n} + {n}? Explain each step.", target=str(2 * n)) for n in range(1, 21)]
    return Task(dataset=samples, solver=generate(), scorer=includes())


def main(base_url: str, model: str, budget: str) -> None:
    os.environ.update({BUDGET: budget, "LOCAL_BASE_URL": base_url, "LOCAL_API_KEY": "none"})
    with tempfile.TemporaryDirectory() as logs:
        (log,) = eval(sums(), model=f"openai-api/local/{model}", log_dir=logs, display="none", max_connections=4)
        answered = [sample for sample in log.samples or [] if sample.limit is None]
        used = sum(usage.output_tokens for usage in log.stats.model_usage.values())
        print(f"{log.status}: {len(answered)} of {len(log.samples or [])} samples answered, {used} tokens used")
    print(f"charged {Budget.purse.spent} of {Budget.purse.budget}, reserved {Budget.purse.reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
