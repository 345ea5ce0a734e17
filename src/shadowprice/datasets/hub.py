"""The paper's benchmarks on the Hugging Face hub, and how their rows become questions.

    load("math500")                      needs the extra [datasets]
    load("gsm8k-test", mirror="copies")  reads copies/openai/gsm8k instead of the hub

What each dataset contains, and how far that was checked, is in docs/benchmarks.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any, Literal

from shadowprice.errors import InputError, MissingExtra
from shadowprice.forecast.huggingface import quiet
from shadowprice.formats.questions import Question
from shadowprice.grading import Limits
from shadowprice.grading.answers import boxes


class Row:
    """A row of a dataset; a column that is missing or has no text is an error that names the row."""

    def __init__(self, path: str, number: int, columns: Mapping[str, Any]) -> None:
        self.path, self.number, self._columns = path, number, columns

    def text(self, column: str) -> str:
        value = self._value(column)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int):
            value = str(value)
        if not isinstance(value, str) or not value.strip():
            raise self.invalid(f"has {value!r:.40} in {column!r}, not a text")
        return value

    def optional_text(self, column: str) -> str:
        return self.text(column) if self._value(column) else ""

    def texts(self, column: str) -> list[str]:
        value = self._value(column)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.invalid(f"has {value!r:.40} in {column!r}, not a list of texts")
        return value

    def invalid(self, problem: str) -> InputError:
        fix = "the dataset has changed; --mirror DIR reads an older copy"
        return InputError(f"row {self.number} {problem}", path=self.path, fix=fix)

    def _value(self, column: str) -> Any:
        if column not in self._columns:
            raise self.invalid(f"has no column {column!r}, only {', '.join(self._columns)}")
        return self._columns[column]


# --- mathematics -------------------------------------------------------------------------------


def _columns(problem: str, answer: str, key: str = "") -> Callable[[Row], Question]:
    """Datasets with one column for the problem and one for the final answer."""
    return lambda row: Question(row.text(key) if key else str(row.number), row.text(problem), row.text(answer))


def _gsm8k(row: Row) -> Question:
    _, marker, final = row.text("answer").rpartition("####")
    if not marker or not final.strip():
        raise row.invalid("has no final answer after ####")
    return Question(str(row.number), row.text("question"), final.strip().replace(",", ""))


def _boxed(row: Row) -> Question:
    """Datasets whose final answer is in the last box of the solution; some solutions are just a number."""
    solution = row.text("solution").replace("\\fbox", "\\boxed")
    final = boxes(solution) or _open_box(solution) or (solution if solution.isdecimal() else "")
    if not final:
        raise row.invalid("has no box in its solution")
    return Question(str(row.number), row.text("problem"), final)


def _open_box(solution: str) -> str:
    """The text after `\\boxed` up to the end of the formula: a few rows of MATH have `\\boxed 7$` or an open box."""
    _, box, rest = solution.rpartition("\\boxed")
    return re.split(r"\$|\\\]", rest)[0].strip().removeprefix("{").rstrip(". ") if box else ""


def _olympiad(row: Row) -> Question:
    problem = "\n\n".join(filter(None, (row.optional_text("context"), row.text("question"))))
    final = ", ".join(row.texts("final_answer"))
    if not final:
        raise row.invalid("has no final answer")
    return Question(str(row.number), problem, final)


# --- programs ----------------------------------------------------------------------------------

# Thousands of inputs, compared by NumPy, whose libraries use hundreds of megabytes of address space.
_PLUS = Limits(seconds=30, memory=1 << 30)
# Tests that import pandas, matplotlib or scikit-learn, and draw or train with them.
_LIBRARIES = Limits(seconds=120, memory=4 << 30, file_size=64 << 20, disk=256 << 20)

# The tests of BigCodeBench are a unittest class, which the grader does not run by itself.
_RUN_UNITTEST = """
import unittest

_outcome = unittest.TestResult()
unittest.defaultTestLoader.loadTestsFromTestCase(TestCases).run(_outcome)
assert _outcome.testsRun and _outcome.wasSuccessful(), (_outcome.errors + _outcome.failures)[:1]
"""


def _humaneval(row: Row) -> Question:
    prompt = row.text("prompt")
    problem = (
        "Complete this Python function. Answer with the whole function and what it imports, in one code block."
        f"\n\n```python\n{prompt.strip()}\n```"
    )
    options = {"prompt": prompt, "entry_point": row.text("entry_point")}
    return Question(row.text("task_id"), problem, row.text("test"), options=options)


def _with_tests(task: str, tests: list[str]) -> str:
    """The task with its tests: nothing else says what the function is called."""
    shown = "\n".join(tests)
    return (
        f"{task.strip()}\n\nAnswer with Python in one code block. It must pass these tests:\n\n```python\n{shown}\n```"
    )


def _mbpp(row: Row) -> Question:
    tests = row.texts("test_list")
    gold = "\n".join(filter(None, [row.optional_text("test_setup_code"), *tests]))
    return Question(row.text("task_id"), _with_tests(row.text("text"), tests), gold)


def _mbpp_plus(row: Row) -> Question:
    gold = "\n".join([*row.texts("test_imports"), row.text("test")])
    return Question(row.text("task_id"), _with_tests(row.text("prompt"), row.texts("test_list")), gold)


def _bigcodebench(row: Row) -> Question:
    # As its authors do: the imports and the head of the function come before the answer.
    head = f"{row.text('code_prompt').rstrip()}\n    pass\n"
    return Question(
        row.text("task_id"), row.text("instruct_prompt"), row.text("test") + _RUN_UNITTEST, options={"prompt": head}
    )


# --- the datasets ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Benchmark:
    """Where a dataset is on the hub, how its rows are read, and what the paper uses it for.

    `tier` is the paper's threshold tier (tables 6 and 7); datasets of programs have none.
    """

    path: str
    split: str  # several are joined by +
    read: Callable[[Row], Question]
    role: Literal["training", "evaluation"]
    tier: Literal["easy", "moderate", "hard", "very hard", ""] = ""
    configs: tuple[str | None, ...] = (None,)  # joined; None: the dataset has only one
    grader: str = "math"
    limits: Limits | None = None  # of the sandbox that programs run in


_SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)

BENCHMARKS: dict[str, Benchmark] = {
    "gsm8k-train": Benchmark("openai/gsm8k", "train", _gsm8k, "training", "easy", ("main",)),
    "gsm8k-test": Benchmark("openai/gsm8k", "test", _gsm8k, "training", "easy", ("main",)),
    "math-train": Benchmark("EleutherAI/hendrycks_math", "train", _boxed, "training", "moderate", _SUBJECTS),
    "math500": Benchmark(
        "HuggingFaceH4/MATH-500", "test", _columns("problem", "answer", "unique_id"), "evaluation", "moderate"
    ),
    "olympiadbench": Benchmark(
        "Hothan/OlympiadBench", "train", _olympiad, "evaluation", "hard", ("OE_TO_maths_en_COMP",)
    ),
    "amc23": Benchmark("math-ai/amc23", "test", _columns("question", "answer"), "evaluation", "hard"),
    "aime24": Benchmark("math-ai/aime24", "test", _boxed, "evaluation", "very hard"),
    "aime25": Benchmark("math-ai/aime25", "test", _columns("problem", "answer"), "evaluation", "very hard"),
    "minerva": Benchmark("math-ai/minervamath", "test", _columns("question", "answer"), "evaluation", "very hard"),
    "humaneval": Benchmark("openai/openai_humaneval", "test", _humaneval, "training", grader="code"),
    "mbpp": Benchmark(
        "google-research-datasets/mbpp",
        "prompt+test+validation+train",
        _mbpp,
        "training",
        configs=("full",),
        grader="code",
    ),
    "humaneval+": Benchmark("evalplus/humanevalplus", "test", _humaneval, "evaluation", grader="code", limits=_PLUS),
    "mbpp+": Benchmark("evalplus/mbppplus", "test", _mbpp_plus, "evaluation", grader="code", limits=_PLUS),
    "bigcodebench": Benchmark(
        "bigcode/bigcodebench", "v0.1.4", _bigcodebench, "evaluation", grader="code", limits=_LIBRARIES
    ),
}


def load(name: str, *, limit: int | None = None, mirror: str | os.PathLike[str] | None = None) -> list[Question]:
    """The questions of a benchmark, in the hub's order; at most the first `limit`.

    `mirror` is a folder with copies of the datasets, each under its name on the hub.
    """
    if name not in BENCHMARKS:
        raise InputError("unknown benchmark", path=name, fix=f"choose one of {', '.join(BENCHMARKS)}")
    benchmark = BENCHMARKS[name]
    options = {} if benchmark.limits is None else {"limits": benchmark.limits}
    questions: dict[str, Question] = {}
    for number, columns in enumerate(islice(_rows(benchmark, mirror), limit)):
        row = Row(benchmark.path, number, columns)
        question = benchmark.read(row)
        if question.id in questions:
            raise row.invalid(f"has the id {question.id!r}, which another row has too")
        questions[question.id] = replace(
            question,
            id=f"{name}/{question.id}",
            dataset=name,
            grader=benchmark.grader,
            options={**options, **question.options},
        )
    if not questions:
        raise InputError("has no rows", path=benchmark.path, fix="check the copy that --mirror names")
    return list(questions.values())


def _rows(benchmark: Benchmark, mirror: str | os.PathLike[str] | None) -> Iterator[Mapping[str, Any]]:
    try:
        import datasets
    except ImportError:
        raise MissingExtra("datasets", "loading a benchmark") from None
    path = benchmark.path if mirror is None else os.path.join(mirror, benchmark.path)
    if mirror is not None and not os.path.isdir(path):
        raise InputError("no copy of the dataset", path=path, fix=_copied(benchmark, path))
    streaming = mirror is not None  # without streaming, `datasets` would cache one copy and use it for another
    for config, split in product(benchmark.configs, benchmark.split.split("+")):
        try:
            with quiet():
                rows = list(datasets.load_dataset(path, config, split=split, streaming=streaming))
        except Exception as error:  # network, hub, format and version fail in dozens of ways
            problem = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            at = " ".join(filter(None, (config, split)))
            fix = "check the network, or give --mirror DIR" if mirror is None else _copied(benchmark, path)
            raise InputError(f"{at} cannot be loaded: {problem}", path=path, fix=fix) from None
        yield from rows


def _copied(benchmark: Benchmark, path: str) -> str:
    return f"copy it with: hf download --repo-type dataset {benchmark.path} --local-dir {path}"
