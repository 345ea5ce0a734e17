"""Datasets as they are on the hub: rows in its columns, files, and a card."""

import json

# --- rows, in the hub's columns ----------------------------------------------------------------

GSM8K = [
    {"question": "Ann has 3 nests of 4 eggs. How many eggs?", "answer": "3*4 = <<3*4=12>>12 eggs.\n#### 12"},
    {"question": "A van costs 40 times $1,250. How much?", "answer": "40 x 1,250 is #### what?\n#### 50,000 "},
]
MATH = [
    {"problem": "Halve $x+1$.", "level": "Level 1", "type": "Algebra", "solution": r"It is $\boxed{\frac{x+1}{2}}.$"},
    {"problem": "A set?", "level": "Level 2", "type": "Algebra", "solution": r"So \boxed{\{1, {2}\}} it is."},
    {"problem": "One and one?", "level": "Level 1", "type": "Algebra", "solution": r"$1+1=\boxed 2.$"},
    {"problem": "One less?", "level": "Level 1", "type": "Algebra", "solution": r"$1-1=\fbox{0}$"},
    {"problem": "Left?", "level": "Level 1", "type": "Algebra", "solution": r"Then \[x = \boxed{\frac{1}{2}.\]"},
    {"problem": "Both?", "level": "Level 1", "type": "Algebra", "solution": r"$\boxed{1}$ and $\boxed{-1}$."},
]
OLYMPIAD = [
    {
        "id": 1606,
        "question": "How many moves?",
        "solution": ["Two."],
        "final_answer": ["$2$"],
        "context": None,
        "image_1": None,
        "is_multiple_answer": False,
        "unit": None,
    },
    {
        "id": 1607,
        "question": "Find all.",
        "solution": ["As follows."],
        "final_answer": ["$3$", "$5$"],
        "context": "Let $n$ be odd.",
        "image_1": None,
        "is_multiple_answer": True,
        "unit": None,
    },
]
HUMANEVAL = [
    {
        "task_id": "HumanEval/0",
        "prompt": 'from typing import List\n\n\ndef second(items: List[int]) -> int:\n    """ The second item. """\n',
        "canonical_solution": "    return items[1]\n",
        "test": "\n\nMETADATA = {'author': 'x'}\n\n\ndef check(candidate):\n    assert candidate([4, 5]) == 5\n",
        "entry_point": "second",
    },
    {
        "task_id": "HumanEval/1",
        "prompt": "def twice(x):\n    return 2 * x\n\n\ndef half(x):\n"
        '    """ Undo twice.\n    >>> half(twice(3))\n    3\n    """\n',
        "canonical_solution": "    return x // 2\n",
        "test": "def check(candidate):\n    for x in range(9):\n        assert candidate(twice(x)) == x\n",
        "entry_point": "half",
    },
]
COMPARED = """
def is_floats(x):
    return isinstance(x, float) or isinstance(x, (list, tuple)) and all(isinstance(i, float) for i in x)

def assertion(out, exp, atol):
    atol = atol or 1e-6 * is_floats(exp)
    if out != exp and atol != 0:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else:
        assert out == exp, f"out: {out}, exp: {exp}"
"""
HUMANEVAL_PLUS = [
    {
        **HUMANEVAL[0],
        "test": f"import numpy as np\n{COMPARED}\ndef check(candidate):\n    inputs = [[[4, 5]], [[1, 0, 2]]]\n"
        "    results = [5, 0]\n    for i, (inp, exp) in enumerate(zip(inputs, results)):\n"
        "        assertion(candidate(*inp), exp, 0)\n",
    },
    {
        "task_id": "HumanEval/2",
        "prompt": 'def third(x: float) -> float:\n    """ A third. """\n',
        "canonical_solution": "    return x / 3\n",
        "test": f"import numpy as np\n{COMPARED}\ndef check(candidate):\n    assertion(candidate(1.0), 0.3333333, 0)\n",
        "entry_point": "third",
    },
]
MBPP = [
    {
        "task_id": 11,
        "text": "Write a function to add one.",
        "code": "def add_one(x):\r\n  return x + 1",
        "test_list": ["assert add_one(1) == 2", "assert add_one(-1) == 0"],
        "test_setup_code": "",
        "challenge_test_list": [],
    },
    {
        "task_id": 12,
        "text": "Write a function to read the value of a node.",
        "code": "def value(node):\r\n  return node.value",
        "test_list": ["assert value(node) == 7"],
        "test_setup_code": "class Node:\r\n  value = 7\r\nnode = Node()",
        "challenge_test_list": [],
    },
]
MBPP_PLUS = [
    {
        "task_id": 2,
        "code": "\ndef add_half(x):\n  return x + 0.5\n",
        "prompt": "Write a function to add one half.",
        "source_file": "Benchmark Questions Verification V2.ipynb",
        "test_imports": ["import math"],
        "test_list": ["assert math.isclose(add_half(1), 1.5)"],
        "test": f"import numpy as np\nfrom math import inf\n{COMPARED}\ninputs = [[1], [0.1 + 0.2]]\n"
        "results = [1.5, 0.8]\nfor i, (inp, exp) in enumerate(zip(inputs, results)):\n"
        "    assertion(add_half(*inp), exp, 0)\n",
    }
]
BIGCODEBENCH = [
    {
        "task_id": "BigCodeBench/0",
        "complete_prompt": 'import json\nimport os\ndef task_func(path):\n    """\n    How many keys?\n    """\n',
        "instruct_prompt": "Count the keys of a JSON file.\nYou should write self-contained code starting with:\n"
        "```\nimport json\nimport os\ndef task_func(path):\n```",
        "canonical_solution": "    with open(path) as file:\n        return len(json.load(file))",
        "code_prompt": "import json\nimport os\ndef task_func(path):\n",
        "test": "import json\nimport unittest\nclass TestCases(unittest.TestCase):\n    def setUp(self):\n"
        "        with open('a.json', 'w') as file:\n            json.dump({'a': 1, 'b': 2}, file)\n"
        "    def test_counts(self):\n        self.assertEqual(task_func('a.json'), 2)\n"
        "    def test_none(self):\n        with self.assertRaises(FileNotFoundError):\n            task_func('b.json')",
        "entry_point": "task_func",
        "doc_struct": "{}",
        "libs": "['json', 'os']",
    }
]
SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)

# path -> config -> split -> file, rows: as the cards of the datasets on the hub have them
HUB = {
    "openai/gsm8k": {
        "main": {"train": ("main/train-0.parquet", GSM8K[:1]), "test": ("main/test-0.parquet", GSM8K)},
        "socratic": {"train": ("socratic/train-0.parquet", GSM8K[:1])},
    },
    "EleutherAI/hendrycks_math": {
        subject: {"train": (f"{subject}/train-0.parquet", MATH if subject == "algebra" else MATH[:1])}
        for subject in SUBJECTS
    },
    "HuggingFaceH4/MATH-500": {
        "default": {
            "test": (
                "test.jsonl",
                [
                    {
                        "problem": "Convert $(0,3)$.",
                        "solution": "...",
                        "answer": r"\left( 3, \frac{\pi}{2} \right)",
                        "subject": "Precalculus",
                        "level": 2,
                        "unique_id": "test/precalculus/807.json",
                    }
                ],
            )
        }
    },
    "Hothan/OlympiadBench": {
        "OE_MM_maths_en_COMP": {"train": ("OlympiadBench/OE_MM_maths_en_COMP.parquet", OLYMPIAD[:1])},
        "OE_TO_maths_en_COMP": {"train": ("OlympiadBench/OE_TO_maths_en_COMP.parquet", OLYMPIAD)},
    },
    "math-ai/amc23": {
        None: {"test": ("test-0.parquet", [{"id": 0, "question": "How far?", "answer": 27.0, "url": "u"}])}
    },
    "math-ai/aime24": {
        "default": {"test": ("test-0.parquet", [{"id": 60, "problem": "Why?", "solution": r"\boxed{025}", "url": "u"}])}
    },
    "math-ai/aime25": {"default": {"test": ("test.jsonl", [{"problem": "Which bases?", "answer": "70", "id": "0"}])}},
    "math-ai/minervamath": {"default": {"test": ("test.jsonl", [{"question": "How bright?", "answer": "4.5e33"}])}},
    "openai/openai_humaneval": {"openai_humaneval": {"test": ("openai_humaneval/test-0.parquet", HUMANEVAL)}},
    "google-research-datasets/mbpp": {
        "full": {
            split: (f"full/{split}-0.parquet", [{**row, "task_id": row["task_id"] + shift} for row in MBPP])
            for shift, split in enumerate(("prompt", "test", "validation", "train"), start=0)
            for shift in (10 * shift,)
        },
        "sanitized": {"test": ("sanitized/test-0.parquet", MBPP_PLUS)},
    },
    "evalplus/humanevalplus": {"default": {"test": ("data/test-0.parquet", HUMANEVAL_PLUS)}},
    "evalplus/mbppplus": {"default": {"test": ("data/test-0.parquet", MBPP_PLUS)}},
    "bigcode/bigcodebench": {
        "default": {
            "v0.1.0_hf": ("data/v0.1.0_hf-0.parquet", BIGCODEBENCH * 2),
            "v0.1.4": ("data/v0.1.4-0.parquet", BIGCODEBENCH),
        }
    },
}


def publish(mirror, path, configs):
    """Writes a dataset as it is on the hub: files, and a card that names them (except for the config None)."""
    from datasets import Dataset

    card = ["---", "configs:"]
    for config, splits in configs.items():
        card += [f"- config_name: {config}", "  data_files:"]
        for split, (name, rows) in splits.items():
            card += [f"  - split: {split}", f"    path: {name}"]
            place = mirror / path / name
            place.parent.mkdir(parents=True, exist_ok=True)
            if name.endswith(".parquet"):
                Dataset.from_list(rows).to_parquet(place)
            else:
                place.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if None not in configs:
        (mirror / path / "README.md").write_text("\n".join([*card, "---", ""]))


def whole(name, row):
    """The published solution as a model would answer with it."""
    start = {"humaneval": "prompt", "humaneval+": "prompt", "bigcodebench": "complete_prompt"}
    program = row[start[name]] + row["canonical_solution"] if name in start else row["code"]
    return f"Here it is:\n\n```python\n{program}\n```\nIt is as asked."
