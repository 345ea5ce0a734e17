"""Pages from templates: everything that comes from data is escaped, and numbers are easy to read."""

from __future__ import annotations

import sys

import pytest

from shadowprice.errors import MissingExtra
from shadowprice.lab.results import Results
from shadowprice.report import render
from shadowprice.report.render import fixed, number, signed
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
