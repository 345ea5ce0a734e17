"""Rows as the hub has them become questions that can be asked and graded."""

import gzip
import json
import random
import re
import sys
from pathlib import Path

import pytest

from shadowprice.cli import main
from shadowprice.collect import check_programs
from shadowprice.datasets.hub import BENCHMARKS, load
from shadowprice.errors import InputError, MissingExtra
from shadowprice.grading import GRADERS, grade

from .published import BIGCODEBENCH, HUB, HUMANEVAL, HUMANEVAL_PLUS, MBPP, MBPP_PLUS, publish, whole

ROOT = Path(__file__).parents[2]
QUESTIONS = ROOT.parent / "shared" / "questions"

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


def test_a_limit(mirror):
    assert [q.id for q in load("math-train", mirror=mirror, limit=5)] == [f"math-train/{n}" for n in range(5)]


# --- what goes wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": 0, "question": "How far?", "url": "u"}, r"row 0 has no column 'answer', only id, question, url"),
        ({"question": "", "answer": 1.0}, r"row 0 has '' in 'question', not a text"),
        ({"question": "How far?", "answer": None}, r"row 0 has None in 'answer', not a text"),
    ],
)
def test_an_invalid_row_is_named(tmp_path, row, message):
    publish(tmp_path, "math-ai/amc23", {"default": {"test": ("test.jsonl", [row])}})
    with pytest.raises(InputError, match=rf"^math-ai/amc23: {message} \(.*--mirror"):
        load("amc23", mirror=tmp_path)


@pytest.mark.parametrize(
    ("name", "path", "row", "message"),
    [
        ("gsm8k-test", "openai/gsm8k", {"question": "q", "answer": "12"}, "no final answer after ####"),
        ("aime24", "math-ai/aime24", {"problem": "p", "solution": "Try it."}, "no box in its solution"),
        (
            "mbpp+",
            "evalplus/mbppplus",
            {**MBPP_PLUS[0], "test_list": "assert 1"},
            "'assert 1' in 'test_list', not a list of texts",
        ),
    ],
)
def test_a_row_without_its_answer_is_named(tmp_path, name, path, row, message):
    config = BENCHMARKS[name].configs[0] or "default"
    publish(tmp_path, path, {config: {"test": ("test.jsonl", [row])}})
    with pytest.raises(InputError, match=f"^{path}: row 0 has {message}"):
        load(name, mirror=tmp_path)


def test_rows_with_the_same_id_are_refused(tmp_path):
    publish(tmp_path, "openai/openai_humaneval", {"default": {"test": ("test.jsonl", HUMANEVAL[:1] * 2)}})
    with pytest.raises(InputError, match="row 1 has the id 'HumanEval/0', which another row has too"):
        load("humaneval", mirror=tmp_path)


def test_a_copy_that_is_missing_or_lacks_a_split(tmp_path):
    with pytest.raises(InputError, match=r"math-ai/amc23: no copy of the dataset \(copy it with: hf download"):
        load("amc23", mirror=tmp_path)
    publish(tmp_path, "math-ai/amc23", {"default": {"train": ("a.jsonl", [{"question": "q", "answer": 1}])}})
    with pytest.raises(InputError, match=r"math-ai/amc23: test cannot be loaded: .*Bad split") as error:
        load("amc23", mirror=tmp_path)
    assert "\n" not in str(error.value)


def test_without_the_package_the_extra_is_named(monkeypatch, mirror):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"pip install 'shadowprice\[datasets\]'"):
        load("amc23", mirror=mirror)


def test_the_help_names_the_benchmarks(capsys):
    with pytest.raises(SystemExit):
        main(["collect", "--help"])
    text = capsys.readouterr().out
    named = text[text.index("by name:") : text.index("If a file has that name")]
    assert re.findall(r"[\w+-]+", named)[2:] == list(BENCHMARKS)


def test_the_document_lists_the_benchmarks():
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    for name, benchmark in BENCHMARKS.items():
        (line,) = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
        config = "seven subjects" if len(benchmark.configs) > 1 else benchmark.configs[0] or ""
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        assert cells[1:4] == [benchmark.path, config, benchmark.split]
        assert cells[5] == f"{benchmark.role} {benchmark.tier}".strip()


# --- compared with other copies of the same datasets ---------------------------------------------


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
