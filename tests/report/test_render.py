"""Pages from templates: everything that comes from data is escaped, and numbers are easy to read."""

from __future__ import annotations

import sys

import pytest

from shadowprice.errors import MissingExtra
from shadowprice.lab.results import Results
from shadowprice.report import render
from shadowprice.report.render import choices, definitions, filled, fixed, number, one_line, signed, tag_class
from shadowprice.report.reproduction import report

from .helpers import main_row


def test_numbers_are_easy_to_read():
    assert [number(each) for each in (1234, 0.00123, 1e-9, 12.0, None, True, 0)] == [
        "1,234", "0.00123", "1e-09", "12", "", "", "0",
    ]  # fmt: skip
    assert [signed(each) for each in (1.26, -1.26, 0.04, -0.04)] == ["+1.3", "−1.3", "±0.0", "±0.0"]
    assert [fixed(each) for each in (2.0, -0.5)] == ["2.0", "−0.5"]


class TestMissingPackages:
    @pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
    def test_the_error_names_the_extra(self, package, monkeypatch):
        render._environment.cache_clear()
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(MissingExtra, match=r"shadowprice\[report\]"):
            report(Results([main_row("clear", 3.0)]))


@pytest.mark.parametrize(
    ("value", "name"),
    [("not sent", "is-not_sent"), ("finished", "is-finished"), ('x" onclick="', ""), ("", ""), (7, "")],
)
def test_only_plain_words_become_a_class(value, name):
    assert tag_class(value) == name


def test_text_in_one_line():
    assert one_line("a\n  b\tc", 9) == "a b c"
    assert one_line("a long text", 6) == "a lon…"
    assert one_line(None, 6) == ""


def test_columns_that_are_empty_in_all_rows_are_left_out():
    columns = [("id", "id"), ("price", "price"), ("why", "reason")]
    assert filled(columns, [{"id": 0, "price": None, "why": ""}, {"id": 1, "why": None}]) == [("id", "id")]
    assert filled(columns, [{"price": 0.0}]) == [("price", "price")]


def test_a_column_can_be_filtered_by_a_few_values_in_order():
    assert choices([{"kind": "b"}, {"kind": "a"}, {"kind": None}, {}, {"kind": "b"}], "kind") == ["a", "b"]
    assert choices([{"kind": "a"}] * 3, "kind") == []
    assert choices([{"kind": i} for i in range(41)], "kind") == []


def test_settings_are_listed_without_those_that_are_empty():
    given = [("model", "m"), ("gold", None), ("options", {"beta": 0.1, "alpha": 2}), ("files", []), ("zero", 0)]
    assert definitions([*given, ("boxes", ["a", "b"]), ("many", [{"x": 1}, {"y": 2}])]) == [
        ("model", "m"),
        ("options", "beta 0.1, alpha 2"),
        ("zero", "0"),
        ("boxes", "a, b"),
        ("many", "x 1"),
        ("many", "y 2"),
    ]
