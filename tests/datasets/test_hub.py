"""Rows as the hub has them become questions that can be asked and graded."""

import gzip
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shadowprice.cli import main
from shadowprice.collect import check_programs
from shadowprice.datasets.hub import BENCHMARKS, load
from shadowprice.errors import InputError, MissingExtra
from shadowprice.formats.questions import Question, sha256_of_questions
from shadowprice.formats.traces import read_traces
from shadowprice.grading import GRADERS, grade

from ..backends import hostile

QUESTIONS = Path(__file__).parents[2] / "shared" / "questions"

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

# path -> config -> split -> file, rows: as the cards of the sets on the hub lay them out
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
    """Writes a set as it lies on the hub: files, and a card that says which of them are what (but for None)."""
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


@pytest.fixture(scope="module", autouse=True)
def _a_cache_of_our_own(tmp_path_factory):
    datasets = pytest.importorskip("datasets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        yield


@pytest.fixture(scope="module")
def mirror(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    for path, configs in HUB.items():
        publish(folder, path, configs)
    return folder


# --- loading -----------------------------------------------------------------------------------

GOLDS = {
    "gsm8k-train": {"0": "12"},
    "gsm8k-test": {"0": "12", "1": "50000"},
    "math-train": {"0": r"\frac{x+1}{2}", "1": r"\{1, {2}\}", "2": "2", "3": "0", "4": r"\frac{1}{2}", "5": "1, -1"}
    | {str(n): r"\frac{x+1}{2}" for n in range(6, 12)},
    "math500": {"test/precalculus/807.json": r"\left( 3, \frac{\pi}{2} \right)"},
    "olympiadbench": {"0": "$2$", "1": "$3$, $5$"},
    "amc23": {"0": "27"},
    "aime24": {"0": "025"},
    "aime25": {"0": "70"},
    "minerva": {"0": "4.5e33"},
}
PROGRAMS = {
    "humaneval": HUMANEVAL,
    "humaneval+": HUMANEVAL_PLUS,
    "mbpp": MBPP,
    "mbpp+": MBPP_PLUS,
    "bigcodebench": BIGCODEBENCH,
}


def test_every_benchmark_is_loaded_below():
    assert GOLDS.keys() | PROGRAMS.keys() == BENCHMARKS.keys()
    assert {benchmark.path for benchmark in BENCHMARKS.values()} == HUB.keys()


@pytest.mark.parametrize("name", BENCHMARKS)
def test_questions_are_named_after_their_benchmark(name, mirror):
    questions = load(name, mirror=mirror)
    assert len({question.id for question in questions}) == len(questions) > 0
    for question in questions:
        assert question.id.startswith(f"{name}/")
        assert (question.dataset, question.grader) == (name, BENCHMARKS[name].grader)
        assert question.grader in GRADERS


@pytest.mark.parametrize("name", GOLDS)
def test_mathematics(name, mirror):
    questions = load(name, mirror=mirror)
    assert {q.id.removeprefix(f"{name}/"): q.gold for q in questions} == GOLDS[name]
    for question in questions:
        assert grade("math", rf"Therefore $\boxed{{{question.gold}}}$.", question.gold).correct
        assert grade("math", r"$\boxed{-123456}$", question.gold).correct is False


def test_the_context_of_a_problem_stands_before_it(mirror):
    assert [q.problem for q in load("olympiadbench", mirror=mirror)] == [
        "How many moves?",
        "Let $n$ be odd.\n\nFind all.",
    ]


def whole(name, row):
    """The published solution as a model would answer with it."""
    start = {"humaneval": "prompt", "humaneval+": "prompt", "bigcodebench": "complete_prompt"}
    program = row[start[name]] + row["canonical_solution"] if name in start else row["code"]
    return f"Here it is:\n\n```python\n{program}\n```\nIt is as asked."


@pytest.mark.parametrize("name", PROGRAMS)
def test_published_solutions_pass_and_others_do_not(name, mirror):
    questions = load(name, mirror=mirror)
    for question, row in zip(questions, PROGRAMS[name], strict=name != "mbpp"):
        found = grade("code", whole(name, row), question.gold, **question.options)
        assert found.correct, found
        broken = whole(name, row).replace("return ", "return 1 + ")
        found = grade("code", broken, question.gold, **question.options)
        assert (found.correct, found.reason) == (False, "wrong"), found


def test_a_function_alone_finds_what_its_prompt_imports_and_defines(mirror):
    first, second = load("humaneval", mirror=mirror)
    answer = "```python\ndef second(items: List[int]) -> int:\n    return items[1]\n```"
    assert grade("code", answer, first.gold, **first.options).correct
    assert grade("code", "    return x // 2", second.gold, **second.options).correct
    (third,) = load("bigcodebench", mirror=mirror)
    answer = "```python\ndef task_func(path):\n    return len(json.load(open(path)))\n```"
    assert grade("code", answer, third.gold, **third.options).correct


def test_tasks_show_what_the_function_is_called(mirror):
    for name in ("mbpp", "mbpp+"):
        for question, row in zip(load(name, mirror=mirror), PROGRAMS[name], strict=False):
            assert all(test in question.problem for test in row["test_list"])


def test_splits_are_joined_in_order(mirror):
    ids = [11, 12, 21, 22, 31, 32, 41, 42]
    assert [q.id for q in load("mbpp", mirror=mirror)] == [f"mbpp/{n}" for n in ids]


@pytest.mark.parametrize("name", ["gsm8k-test", "math-train", "mbpp", "bigcodebench"])
def test_with_and_without_a_cache_they_are_the_same(name, mirror, monkeypatch):
    monkeypatch.chdir(mirror)  # `datasets` looks there before it asks the hub
    assert load(name) == load(name, mirror=mirror)


def test_the_first_few(mirror):
    assert [q.id for q in load("math-train", mirror=mirror, limit=5)] == [f"math-train/{n}" for n in range(5)]


# --- what goes wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"id": 0, "question": "How far?", "url": "u"}, r"row 0 has no column 'answer', only id, question, url"),
        ({"question": "", "answer": 1.0}, r"row 0 has no text in 'question', but ''"),
        ({"question": "How far?", "answer": None}, r"row 0 has no text in 'answer', but None"),
    ],
)
def test_a_row_that_does_not_fit_is_named(tmp_path, row, said):
    publish(tmp_path, "math-ai/amc23", {"default": {"test": ("test.jsonl", [row])}})
    with pytest.raises(InputError, match=rf"^math-ai/amc23: {said} \(.*--mirror"):
        load("amc23", mirror=tmp_path)


@pytest.mark.parametrize(
    ("name", "path", "row", "said"),
    [
        ("gsm8k-test", "openai/gsm8k", {"question": "q", "answer": "12"}, "no final answer after ####"),
        ("aime24", "math-ai/aime24", {"problem": "p", "solution": "Try it."}, "no box in its solution"),
        ("mbpp+", "evalplus/mbppplus", {**MBPP_PLUS[0], "test_list": "assert 1"}, "no list of texts in 'test_list'"),
    ],
)
def test_a_row_without_its_answer_is_named(tmp_path, name, path, row, said):
    config = BENCHMARKS[name].configs[0] or "default"
    publish(tmp_path, path, {config: {"test": ("test.jsonl", [row])}})
    with pytest.raises(InputError, match=f"^{path}: row 0 has {said}"):
        load(name, mirror=tmp_path)


def test_rows_of_one_name_are_refused(tmp_path):
    publish(tmp_path, "openai/openai_humaneval", {"default": {"test": ("test.jsonl", HUMANEVAL[:1] * 2)}})
    with pytest.raises(InputError, match="row 1 is called 'HumanEval/0', as another is"):
        load("humaneval", mirror=tmp_path)


def test_a_copy_that_is_not_there_or_lacks_a_split(tmp_path):
    with pytest.raises(InputError, match=r"math-ai/amc23: no copy of the set \(copy it with: hf download"):
        load("amc23", mirror=tmp_path)
    publish(tmp_path, "math-ai/amc23", {"default": {"train": ("a.jsonl", [{"question": "q", "answer": 1}])}})
    with pytest.raises(InputError, match=r"math-ai/amc23: test cannot be loaded: .*Bad split") as error:
        load("amc23", mirror=tmp_path)
    assert "\n" not in str(error.value)


def test_without_the_package_the_extra_is_named(monkeypatch, mirror):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"pip install 'shadowprice\[datasets\]'"):
        load("amc23", mirror=mirror)


def test_without_a_network_one_line_says_so(tmp_path):
    command = [sys.executable, "-m", "shadowprice", "collect", "math500", "--out", str(tmp_path / "out"), "--local"]
    done = subprocess.run(
        [*command, "--quiet"],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("shadowprice: HuggingFaceH4/MATH-500: test cannot be loaded: ConnectionError")
    assert "--mirror DIR" in done.stderr


def test_tests_that_import_what_is_not_here_are_refused_before_anything_is_paid_for():
    wants = Question("q", "?", "import numpy, no_such_package.part\nassert f()", grader="code")
    with pytest.raises(InputError, match=r"tests cannot run here: no no_such_package \(pip install"):
        check_programs([wants])
    check_programs([Question("q", "?", "import numpy, math\nassert f()", grader="code")])
    check_programs([Question("q", "?", "import no_such_package", grader="exact")])


# --- collecting --------------------------------------------------------------------------------


def says(text):
    async def behave(request, reply):
        await reply.head()
        await reply.piece(text)
        await reply.finish("stop")
        await reply.usage(1)
        await reply.end()

    return behave


def collect(server, source, folder, *more):
    arguments = ["collect", source, "--out", folder / "traces.jsonl.gz", "--base-url", server.url, "--model", "m"]
    return main([str(a) for a in [*arguments, "--max-tokens", 9, "--quiet", *more]])


class TestCollect:
    @pytest.mark.parametrize("source", ["gsm8k-test", "hf:gsm8k-test"])
    def test_a_benchmark_by_name(self, tmp_path, mirror, monkeypatch, source):
        monkeypatch.chdir(tmp_path)
        if source.startswith("hf:"):
            Path("gsm8k-test").write_text("a file that would come first")
        with hostile.Server(says(r"It is \boxed{50000}.")) as server:
            assert collect(server, source, tmp_path, "--mirror", mirror) == 0
            asked = {request.body["messages"][0]["content"] for request in server.requests}
        assert asked == {row["question"] for row in GSM8K}
        traces = list(read_traces(tmp_path / "traces.jsonl.gz"))
        assert [(t.id, t.dataset, t.gold, t.correct) for t in traces] == [
            ("gsm8k-test/0", "gsm8k-test", "12", False),
            ("gsm8k-test/1", "gsm8k-test", "50000", True),
        ]

    def test_a_benchmark_of_programs(self, tmp_path, mirror):
        with hostile.Server(says(whole("humaneval+", HUMANEVAL_PLUS[0]))) as server:
            assert collect(server, "humaneval+", tmp_path, "--mirror", mirror) == 0
        traces = list(read_traces(tmp_path / "traces.jsonl.gz"))
        assert [t.correct for t in traces] == [True, False]

    def test_a_file_comes_before_a_benchmark(self, tmp_path, monkeypatch, batch):
        monkeypatch.chdir(tmp_path)
        batch([{"id": f"q{i}", "problem": "Say it", "gold": "it", "grader": "exact"} for i in range(5)], "math500")
        with hostile.Server(says("it")) as server:
            assert collect(server, "math500", tmp_path, "--limit", 2) == 0
        assert [t.id for t in read_traces(tmp_path / "traces.jsonl.gz")] == ["q0", "q1"]

    def test_only_the_same_questions_are_continued(self, tmp_path, mirror, capsys):
        changed = tmp_path / "changed"
        rows = [{**GSM8K[0], "answer": "#### 13"}, GSM8K[1]]
        publish(changed, "openai/gsm8k", {"main": {"test": ("main/test-0.parquet", rows)}})
        with hostile.Server(says("12")) as server:
            assert collect(server, "gsm8k-test", tmp_path, "--mirror", mirror) == 0
            assert collect(server, "gsm8k-test", tmp_path, "--mirror", mirror, "--resume") == 0
            assert len(server.requests) == 2
            assert collect(server, "gsm8k-test", tmp_path, "--mirror", changed, "--resume") == 2
        assert "another input" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("source", "more", "said"),
        [
            ("math5000", [], "math5000: no such file, and no such benchmark (benchmarks are gsm8k-train,"),
            ("hf:x", [], "hf:x: no such file, and no such benchmark"),
            ("math500", ["--grader", "exact"], "--grader exact: math500 has its own"),
            ("math500", ["--limit", "0"], "--limit 0 (give 1 or more)"),
        ],
    )
    def test_what_cannot_be_meant(self, tmp_path, capsys, source, more, said):
        with hostile.Server(says("")) as server:
            assert collect(server, source, tmp_path, *more) == 2
        assert said in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []


def test_the_hash_of_questions_tells_them_apart():
    first = Question("q", "?", "1", options={"prompt": "x", "entry_point": "f"})
    same = Question("q", "?", "1", options={"entry_point": "f", "prompt": "x"})
    other = Question("q", "?", "1", options={"prompt": "x", "entry_point": "g"})
    assert sha256_of_questions([first]) == sha256_of_questions([same]) != sha256_of_questions([other])


def test_the_help_names_the_benchmarks(capsys):
    with pytest.raises(SystemExit):
        main(["collect", "--help"])
    text = capsys.readouterr().out
    named = text[text.index("by name:") : text.index("A file of that name")]
    assert re.findall(r"[\w+-]+", named)[2:] == list(BENCHMARKS)


def test_the_document_lists_the_benchmarks():
    text = (Path(__file__).parents[1] / "docs" / "benchmarks.md").read_text()
    for name, benchmark in BENCHMARKS.items():
        (line,) = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
        config = "seven subjects" if len(benchmark.configs) > 1 else benchmark.configs[0] or ""
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        assert cells[1:4] == [benchmark.path, config, benchmark.split]
        assert cells[5] == f"{benchmark.role} {benchmark.tier}".strip()


# --- against other copies of the same sets ------------------------------------------------------


def other_copy(name):
    path = QUESTIONS / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"no questions at {path}")
    with gzip.open(path) as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("name", "copy", "columns"),
    [
        ("gsm8k-train", "gsm8k_train", lambda q: {"question": q["problem"], "answer": q["solution"]}),
        ("gsm8k-test", "gsm8k_test", lambda q: {"question": q["problem"], "answer": q["solution"]}),
        ("amc23", "amc23", lambda q: {"question": q["problem"], "answer": q["gold"]}),
        ("aime24", "aime24", lambda q: {"problem": q["problem"], "solution": rf"\boxed{{{q['gold']}}}"}),
    ],
)
def test_golds_are_those_of_another_copy(tmp_path, name, copy, columns):
    others = other_copy(copy)
    benchmark = BENCHMARKS[name]
    rows = [columns(other) for other in others]
    publish(tmp_path, benchmark.path, {benchmark.configs[0]: {benchmark.split: ("test.jsonl", rows)}})
    questions = load(name, mirror=tmp_path)
    assert [q.problem for q in questions] == [other["problem"] for other in others]
    assert [q.gold for q in questions] == [str(other["gold"]).removesuffix(".0") for other in others]


def test_real_answers_survive_their_boxes(tmp_path):
    golds = [other["gold"] for other in other_copy("math_train")]
    golds = [gold for gold in golds if gold and gold.count("{") == gold.count("}") and r"{\}" not in gold]
    rows = [{"problem": "p", "solution": rf"Thus $x=\boxed{{{gold}}}.$"} for gold in golds]
    publish(tmp_path, "math-ai/aime24", {None: {"test": ("test.jsonl", rows)}})
    assert [q.gold for q in load("aime24", mirror=tmp_path)] == golds
    assert len(golds) > 7490


def test_published_programs_pass_their_own_tests(tmp_path):
    rows = [
        {
            "task_id": other["id"],
            "prompt": other["problem"],
            "canonical_solution": other["gold"],
            "test": other["test"],
            "entry_point": other["entry_point"],
        }
        for other in other_copy("humaneval")
    ]
    publish(tmp_path, "openai/openai_humaneval", {"openai_humaneval": {"test": ("test.parquet", rows)}})
    questions = load("humaneval", mirror=tmp_path)
    check_programs(questions)
    for question, row in random.Random(3).sample(list(zip(questions, rows, strict=True)), 8):
        found = grade("code", whole("humaneval", row), question.gold, **question.options)
        assert found.correct, (question.id, found)
