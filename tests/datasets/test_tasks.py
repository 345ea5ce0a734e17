"""Generated tasks: distinct, seeded, in two splits, and with correct answers."""

import re
from collections import Counter
from datetime import date, timedelta
from itertools import pairwise

import pytest

from shadowprice.datasets.tasks import Task, split_of, tasks
from shadowprice.errors import InputError

MANY = tasks(0, 5000)
PINNED = ["sum-d27de4b7a85e102e", "sequence-52cba4de9077ef96", "units-cd8144119cefc7e1"]


def of(*kinds: str) -> list[Task]:
    return [task for task in MANY if task.kind in kinds]


def whole_numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def test_five_thousand_different_questions():
    assert len({"".join(task.prompt.lower().split()) for task in MANY}) == 5000
    assert len({task.id for task in MANY}) == 5000
    assert all(task.id.startswith(task.kind) for task in MANY)


def test_the_seed_decides():
    assert tasks(0, 5000) == MANY
    assert tasks(0, 10) == MANY[:10]
    assert tasks(1, 10) != MANY[:10]


def test_the_same_on_every_machine():
    """Traces are shipped for these tasks: a change of wording or order makes them worthless."""
    assert [task.id for task in tasks(7, 3)] == PINNED


def test_training_and_evaluation_never_meet():
    train, evaluation = tasks(1, 2500, split="train"), tasks(2, 2500, split="eval")
    assert not {task.prompt for task in train} & {task.prompt for task in evaluation}
    assert {split_of(task.prompt) for task in train} == {"train"}
    assert {split_of(task.prompt.upper() + " ") for task in evaluation} == {"eval"}


def test_every_kind_is_in_a_short_list():
    share = Counter(task.kind for task in MANY[:300])
    assert share.keys() == {task.kind for task in MANY}
    assert max(share.values()) < 75


def test_invalid_arguments():
    with pytest.raises(InputError, match="20000 or fewer"):
        tasks(0, 10**9)
    with pytest.raises(InputError, match="choose train or eval"):
        tasks(0, 1, split="test")


# --- the answers, computed in another way ------------------------------------------------------------


def test_answers_fit_their_graders():
    for task in MANY:
        assert task.answer == task.answer.strip() != ""
        assert task.grader == "exact" or task.answer.isdigit()
        assert task.prompt == task.prompt.strip()


def test_sums_and_products():
    for task in of("sum", "product"):
        a, b = whole_numbers(task.prompt)
        minus = "-" in task.prompt or "minus" in task.prompt or "Subtract" in task.prompt
        assert int(task.answer) == (a * b if task.kind == "product" else abs(a - b) if minus else a + b)
        assert int(task.answer) >= 0


def test_word_problems():
    for task in of("one-step"):
        a, b = whole_numbers(task.prompt)[:2]
        word = next(word for word in ("more", "half", "gives", "boxes") if word in task.prompt)
        assert int(task.answer) == {"more": a + b, "half": a / 2, "gives": a - b, "boxes": a * b}[word]
    for task in of("two-step"):
        n = whole_numbers(task.prompt)
        word = next(word for word in ("together", "finds", "lost", "dollars") if word in task.prompt)
        a, b, c = n if len(n) == 3 else (*n, 0)
        assert int(task.answer) == {
            "together": a + (a + b), "finds": a * b + c, "lost": a - b - c, "dollars": c - a * b,
        }[word]  # fmt: skip


def test_units():
    seconds = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
    metres = {"millimeter": 1, "centimeter": 10, "meter": 1000, "kilometer": 1_000_000}
    others = {"gram": 1, "kilogram": 1000, "inche": 1, "feet": 12, "piece": 1, "dozen": 12, "month": 1, "year": 12}
    size = seconds | metres | others
    for task in of("units"):
        (n,) = whole_numbers(task.prompt)
        small, large = re.search(r"many (\w+) are in \d+ (\w+)", task.prompt).groups() if "many" in task.prompt else (
            re.search(r"to (\w+)", task.prompt)[1], re.search(r"\d+ (\w+)", task.prompt)[1]
        )  # fmt: skip
        small, large = (unit.removesuffix("s") for unit in (small, large))
        assert int(task.answer) * size[small] == n * size[large]


def test_comparisons_and_sequences():
    for task in of("comparison"):
        assert int(task.answer) == max(whole_numbers(task.prompt))
    for task in of("sequence"):
        shown = re.search(r"\d+(, \d+)+", task.prompt)[0]
        terms = [*whole_numbers(shown), int(task.answer)]
        assert len({b - a for a, b in pairwise(terms)}) == 1


def test_days():
    monday = date(2024, 1, 1)
    days = {f"{monday + timedelta(i):%A}": monday + timedelta(i) for i in range(7)}
    for task in of("day"):
        today = days[re.search(r"(?:after|before|on) ([A-Z]\w+)", task.prompt)[1]]
        then = today + timedelta(1 if " after" in task.prompt else -1)
        assert task.answer.split()[-1] == f"{then:%A}"


def test_counting():
    for task in of("letters"):
        word = re.search(r"the word (\w+)", task.prompt)[1]
        letter = re.search(r"the letter (\w) ", task.prompt)
        assert int(task.answer) == (sum(c == letter[1] for c in word) if letter else len(word))
    for task in of("words"):
        assert int(task.answer) == 1 + re.search('"(.*)"', task.prompt)[1].count(" ")


def test_capitals():
    sure = {"France": "Paris", "Japan": "Tokyo", "Australia": "Canberra", "Turkey": "Ankara", "Peru": "Lima"}
    for country, city in sure.items():
        answers = {task.answer for task in of("capital") if country in task.prompt}
        assert answers <= {city, f"The capital of {country} is {city}"}
        assert answers


def test_copies_and_strings():
    for task in of("copy"):
        assert task.prompt.endswith(task.answer)
    for task in of("string"):
        text, answer = task.prompt.replace(",", ""), task.answer.replace(",", "")
        if "times" in text:
            assert answer.split() == [text.split()[3]] * whole_numbers(text)[0]
        elif "backwards" in text:
            assert f"word {answer[::-1]} " in text
        elif "Sort" in text:
            assert answer.split() == sorted(answer.split())
        else:
            assert text.lower().endswith(answer.lower())
            assert answer.isupper() == ("capital" in text)


def test_what_is_repeated_ends_with_the_answer():
    for task in of("listing", "number"):
        place = 1 if "numbers from" in task.prompt else -1
        assert whole_numbers(task.prompt)[place] == int(task.answer)


def test_halves():
    for task in of("half"):
        assert whole_numbers(task.prompt)[0] == 2 * int(task.answer)


def test_rambles():
    for task in of("ramble"):
        n = whole_numbers(task.prompt)
        result = n[0] + n[1] if "how to add" in task.prompt else n[0] * n[1] if "costs" in task.prompt else n[-1]
        assert int(task.answer) == result
