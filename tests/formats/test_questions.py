"""Questions and gold answers from files."""

import gzip
import json

import pytest

from shadowprice.errors import InputError
from shadowprice.formats.questions import GRADERS, Question, read_gold, read_questions, sha256_of_questions
from shadowprice.grading import GRADERS as IMPLEMENTED

GOOD = {"id": "a", "problem": "2 + 3?", "gold": "5"}


@pytest.fixture
def questions(tmp_path):
    def write(*lines):
        path = tmp_path / "questions.jsonl"
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return path

    return write


def test_required_and_optional_fields(questions):
    path = questions(GOOD, "", {**GOOD, "id": "b", "dataset": "sums", "grader": "numeric", "level": 3})
    assert read_questions(path) == [
        Question("a", "2 + 3?", "5"),
        Question("b", "2 + 3?", "5", dataset="sums", grader="numeric"),
    ]


def test_a_grader_for_all_replaces_those_in_the_file(questions):
    path = questions({**GOOD, "grader": "numeric"}, {**GOOD, "id": "b", "grader": "unknown"})
    assert [question.grader for question in read_questions(path, "exact")] == ["exact", "exact"]


def test_gzip_needs_no_special_name(tmp_path):
    (tmp_path / "questions.jsonl").write_bytes(gzip.compress(json.dumps(GOOD).encode()))
    assert read_questions(tmp_path / "questions.jsonl") == [Question("a", "2 + 3?", "5")]


def test_gold_by_request(questions):
    path = questions({"custom_id": "x", "gold": "5"}, {"custom_id": "y", "gold": "no", "grader": "exact"})
    assert read_gold(path) == {"x": ("5", "math"), "y": ("no", "exact")}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", ":2: not JSON"),
        ("[]", r':2: not a JSON object \(write {"id": ..., "problem": ..., "gold": ...}\)'),
        ({"id": "b", "problem": "?"}, r":2: no gold \(write .*, all as strings\)"),
        ({**GOOD, "id": 7}, ":2: no id"),
        ({**GOOD, "id": "b", "problem": ""}, ":2: no problem"),
        ({**GOOD, "id": "b", "grader": "vibes"}, r":2: unknown grader 'vibes' \(choose one of math, "),
        ({**GOOD, "id": "b", "grader": ["math"]}, r":2: unknown grader \['math'\]"),
        (GOOD, r":2: id 'a' was used before \(keep one\)"),
    ],
)
def test_an_invalid_line_is_named_with_its_fix(questions, line, message):
    with pytest.raises(InputError, match=rf"questions\.jsonl{message}"):
        read_questions(questions(GOOD, line))


def test_a_file_without_lines_is_an_error(questions):
    with pytest.raises(InputError, match=r'has no lines \(write lines {"custom_id": ..., "gold": ...}\)'):
        read_gold(questions("", " "))


def test_the_graders_are_those_that_exist():
    assert set(GRADERS) == set(IMPLEMENTED)


def test_the_hash_depends_on_every_field():
    first = Question("a", "2 + 3?", "5")
    others = [
        Question("b", "2 + 3?", "5"),
        Question("a", "2 + 4?", "5"),
        Question("a", "2 + 3?", "6"),
        Question("a", "2 + 3?", "5", "d"),
        Question("a", "2 + 3?", "5", grader="exact"),
        Question("a", "2 + 3?", "5", options={"digits": 2}),
    ]
    assert len({sha256_of_questions([question]) for question in [first, *others]}) == 7
    assert sha256_of_questions([first]) == sha256_of_questions([Question("a", "2 + 3?", "5")])
