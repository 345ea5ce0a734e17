"""Rows of results: grouped, filtered, and as text that can be shown."""

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from shadowprice.report.rows import describe, from_paper, grouped, known, printable, shorten, words

ROWS = [{"a": 1, "b": "x"}, {"a": 2}, {"a": 1, "b": None}, {"a": 2, "b": "x"}]


def test_groups_keep_the_order_of_the_rows():
    assert list(grouped(ROWS, "a").items()) == [((1,), [ROWS[0], ROWS[2]]), ((2,), [ROWS[1], ROWS[3]])]
    assert list(grouped(ROWS, "a", "b")) == [(1, "x"), (2, None), (1, None), (2, "x")]


def test_a_value_that_is_missing_or_null_is_not_known():
    assert known(ROWS, "b") == [ROWS[0], ROWS[3]]
    assert known(ROWS, "a", "b") == [ROWS[0], ROWS[3]]
    assert known([{"solved": 0}], "solved") == [{"solved": 0}]


def test_only_the_source_says_that_a_row_is_the_papers():
    assert [from_paper(row) for row in ({"source": "paper"}, {"source": "ours"}, {})] == [True, False, False]


@given(st.text(st.characters(exclude_categories=[])))
def test_any_text_can_be_shown(text):
    shown = printable(text)
    assert len(shown) == len(text)
    assert printable(shown) == shown
    element = ElementTree.Element("a")
    element.text = shown
    assert ElementTree.fromstring(ElementTree.tostring(element, "utf-8")).text == (
        shown.replace("\r\n", "\n").replace("\r", "\n") or None
    )


def test_ordinary_text_stays_as_it_is():
    for text in ("line\n\ttab", "naïve 二 😀", ""):
        assert printable(text) == text


@given(st.text(), st.integers(1, 40))
def test_shortened_text_fits_and_says_that_it_was_shortened(text, limit):
    short = shorten(text, limit)
    assert len(short) <= limit
    assert short == text or (short.endswith("…") and text.startswith(short[:-1]))
    assert (short == text) == (len(text) <= limit)


def test_names_become_words():
    assert words("queries_are_of") == "queries are of"
    assert describe("mostly_hard", 1024) == "mostly hard, 1,024 tokens per query"
    assert describe(None, 256.0) == "256 tokens per query"
    assert describe("balanced", None) == "balanced"
    assert describe(None, None) == ""
