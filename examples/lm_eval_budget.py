"""A task of lm-eval under a hard budget of output tokens, on an OpenAI-compatible server.

python examples/lm_eval_budget.py http://127.0.0.1:8000/v1 MODEL 600
"""

import json
import sys
import tempfile
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

from shadowprice.integrations.lm_eval import ShadowpriceLM


def main(base_url: str, model: str, budget: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = [{"question": f"What is {n} + {n}? Explain each step.", "answer": str(2 * n)} for n in range(1, 21)]
        data = Path(folder, "sums.jsonl")
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        sums = {
            "task": "sums",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}, "cache_dir": folder},
            "test_split": "test",
            "output_type": "generate_until",
            "doc_to_text": "{{question}}",
            "doc_to_target": "{{answer}}",
            "generation_kwargs": {"until": ["\n\n\n"], "max_gen_toks": 200},
            "metric_list": [{"metric": "exact_match", "regexes_to_ignore": ["[^0-9]"]}],
        }
        answers = ShadowpriceLM(base_url, model, budget)
        found = lm_eval.simple_evaluate(
            answers, tasks=[sums], task_manager=TaskManager(include_defaults=False), bootstrap_iters=0
        )
    outcomes = [result.outcome for result in answers.results]
    print(f"{len(outcomes)} requests, {outcomes.count('declined')} declined, {len(found['samples']['sums'])} samples")
    print(f"charged {answers.spent} of {budget}")


if __name__ == "__main__":
    main(*sys.argv[1:])
