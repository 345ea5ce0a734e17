"""One reproduction of the shipped answers and its page, shared by all tests of reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from shadowprice.lab.results import Results
from shadowprice.report.reproduction import report

from ..lab.conftest import once, results  # noqa: F401


@pytest.fixture(scope="session")
def page(once, results: Results) -> str:  # noqa: F811
    def make(path: Path) -> None:
        path.write_text(report(results))

    return once("page.html", make).read_text()
