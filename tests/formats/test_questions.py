"""Questions and gold answers from files."""

import json

import pytest

from shadowprice.errors import InputError
from shadowprice.formats.questions import GRADERS, Question, gold_text, read_gold, sha256_of_questions, usual_grader
from shadowprice.grading import GRADERS as IMPLEMENTED

GOOD = {"custom_id": "a", "gold": "5"}


@pytest.fixture
def questions(tmp_path):
    def write(*lines):
        path = tmp_path / "questions.jsonl"
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return path

    return write


def test_gold_by_request(questions):
    path = questions({"custom_id": "x", "gold": "5"}, {"custom_id": "y", "gold": "no", "grader": "exact"})
    assert read_gold(path) == {"x": ("5", "math"), "y": ("no", "exact")}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", ":2: not JSON"),
        ("[]", r':2: not a JSON object \(write {"custom_id": ..., "gold": ...}\)'),
        ({"custom_id": "b"}, r":2: no gold \(write "),
        ({"custom_id": "b", "gold": ["5"]}, r":2: gold is \['5'\] "),
        ({"custom_id": True, "gold": "5"}, ":2: no custom_id"),
        ({**GOOD, "custom_id": "b", "grader": "vibes"}, r":2: unknown grader 'vibes' \(choose one of math, "),
        (GOOD, r":2: custom_id 'a' was used before \(keep one\)"),
    ],
)
def test_an_invalid_line_is_named_with_its_fix(questions, line, message):
    with pytest.raises(InputError, match=rf"questions\.jsonl{message}"):
        read_gold(questions(GOOD, line))


def test_a_table_is_not_a_file_of_correct_answers(tmp_path):
    (tmp_path / "gold.csv").write_text("id,gold\na,4\n")
    with pytest.raises(
        InputError, match=r"is a table, not JSON lines \(write lines .*, or put the answers beside the q"
    ):
        read_gold(tmp_path / "gold.csv")


def test_numbers_are_ids_and_correct_answers_as_well(questions):
    assert read_gold(questions({"custom_id": 7, "gold": 72})) == {"7": ("72", "math")}


def test_the_correct_answer_of_a_worked_solution_follows_its_mark():
    assert gold_text("48 / 2 = <<48/2=24>>24\nTogether 72.\n#### 72") == "72"


GRADER = {
    "choice": ["B", "(B)", "B.", r"\text{(C)}"],
    "numeric": ["18 dollars", "$5.50 in all", "-3 degrees", "100,000 people"],
    "words": [
        "Paris", "New York", "yes", "True", "H2O", "C++", "Python 3", "COVID-19", "10:30", "2024-01-05", "12th",
        r"\text{Evelyn}", "The cat sat on the mat.", "all real numbers", "Mary's", "100 km/h",
    ],
    "math": [
        "42", "1,000", "$18", "1/2", "50%", "-3", "3:4", "x", "x = 5", "x^2 + 1", "2x+1", "(1, 2)", "[0, 1]", "{1, 2}",
        "1 and 2", r"\frac{1}{2}", r"2\pi", "pi", "log 2", "sin(x)", "5 sqrt 2", r"x \in [0, 1]", r"so \boxed{4}",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("grader", "gold"), [(grader, gold) for grader in GRADER for gold in GRADER[grader]])
def test_a_correct_answer_is_graded_by_what_it_looks_like(grader, gold):
    assert usual_grader(gold) == grader


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
        Question("a", "2 + 3?", "5", body={"prompt": "2 + 3?"}),
    ]
    assert len({sha256_of_questions([question]) for question in [first, *others]}) == 8
    assert sha256_of_questions([first]) == sha256_of_questions([Question("a", "2 + 3?", "5")])


def test_the_hash_does_not_depend_on_the_order_of_options():
    one = Question("q", "?", "1", options={"prompt": "x", "entry_point": "f"})
    other = Question("q", "?", "1", options={"entry_point": "f", "prompt": "x"})
    assert sha256_of_questions([one]) == sha256_of_questions([other])
