"""Questions and answers on the page about a run: whole, folded, inert, and never more than a browser can show."""

from __future__ import annotations

import re

import pytest

from shadowprice.accounts.view import whole_answers
from shadowprice.report import run as run_module
from shadowprice.report.run import run_report
from shadowprice.report.shown import shown
from shadowprice.run_folder import RunFolder
from shadowprice.types import Request, Usage

from ..run_folders import answer, note, part
from .conftest import GOLD, TRACES
from .helpers import HOSTILE, Page

LONG = "First line.\n" + "So it goes on and on. " * 100 + "THE END"


@pytest.fixture
def place(tmp_path):
    folder = RunFolder.create(tmp_path / "run", 1000, {"policy": "clear"})
    yield folder
    folder.ledger.close()


def answered(folder, name, text, tokens=5):
    ledger = folder.ledger
    ledger.settle(ledger.reserve(name, 10), tokens, Usage(tokens), answer(name, tokens, text=text))


def record_of(page, name):
    """The HTML of a request on the page."""
    return next(each for each in re.findall(r"<tbody>.*?</tbody>", page, re.DOTALL) if f">{name}<" in each)


class TestTexts:
    def test_every_request_has_its_question_gold_and_answer(self, run_of):
        page = run_report(run_of("graded"))
        for trace in TRACES[:60]:
            text = Page(record_of(page, trace.id)).words
            assert " ".join(trace.prompt.split()) in text
            if trace.id in GOLD:
                assert f"gold {GOLD[trace.id][0]} " in text

    def test_a_long_answer_is_whole_and_folded(self, place):
        answered(place, "a", LONG)
        page = run_report(place.path)
        (inside,) = re.findall(r"<details><summary><i>answer</i>.*?</details>", page, re.DOTALL)
        assert Page(inside).text.count("THE END") == 1
        assert f"<pre>\n{LONG}</pre>" in inside

    def test_a_short_answer_needs_no_click(self, place):
        answered(place, "a", "Paris")
        assert "<p><i>answer</i> Paris</p>" in run_report(place.path)

    def test_the_chunks_so_far_are_shown_too(self, place):
        from shadowprice.formats.results import chunk_line

        ledger = place.ledger
        for text in ("It is ", "Paris"):
            line = chunk_line(part(3, "length", text=text), sample=0, landing=False)
            ledger.settle_chunk(ledger.reserve("a", 3), 3, Usage(3), line)
        with whole_answers(place.path) as find:
            assert find("a") == "It is Paris"
        assert "It is Paris" in run_report(place.path)

    def test_no_question_gold_or_answer_becomes_markup(self, place):
        hostile = HOSTILE.encode(errors="replace").decode() + "\n" + "x" * 200  # long enough to be folded
        answered(place, "a", hostile)
        place.keep_requests([Request("a", hostile)], {"a": (hostile, "exact")})
        found = Page(run_report(place.path))
        assert found.tags.count("script") == 1
        assert "img" not in found.tags
        assert found.handlers == []
        assert found.text.count("alert(1)") == 6  # three texts, each with its beginning

    def test_a_folder_without_questions_is_shown_without_them(self, place):
        answered(place, "a", "Paris")
        page = run_report(place.path)
        assert "<i>question</i>" not in page
        assert "<i>gold</i>" not in page


class TestLargeRuns:
    def test_the_page_says_what_was_left_out_and_where_it_is(self, run_of, monkeypatch):
        monkeypatch.setattr(run_module, "shown", lambda *given: shown(*given, most_rows=20, most_text=2000))
        text = Page(run_report(run_of("graded"))).words
        assert re.search(r"20 of 60 requests are on this page, the first of every outcome: .* of \d+ declined", text)
        assert re.search(r"\d+ long texts are cut\. Everything is in .*ledger\.sqlite;", text)
        assert "--csv FILE writes it as a table" in text
        assert "more characters" in text

    def test_a_large_run_makes_a_page_that_a_browser_can_open(self, place):
        names = [f"q{i}" for i in range(20_000)]
        place.keep_requests([Request(name, "What? " * 20) for name in names], None)
        ledger, line = place.ledger, "word " * 400
        with ledger.together():
            for name in names[:200]:
                ledger.settle(ledger.reserve(name, 5), 5, Usage(5), answer(name, 5, text=line))
            ledger.note_many((name, note(name, "declined", "budget_abandoned", "declined")) for name in names[200:])
        page = run_report(place.path)
        assert len(page) < 6_000_000
        text = Page(page).words
        assert "3,000 of 20,000 requests are on this page" in text
        assert "200 of 200 finished" in text


def test_the_page_shows_a_fix_beside_every_cause(run_of):
    words = Page(run_report(run_of("failing"))).words
    assert "the server answered 503the server is overloaded or still loading: --resume later" in words
