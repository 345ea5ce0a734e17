"""Results as CSV: RFC 4180, UTF-8, and no text that a spreadsheet would execute."""

import csv
import io

import pytest

from shadowprice.cost import Rates
from shadowprice.formats.spreadsheet import ResultRow, csv_lines

ROW = ResultRow("a", "Why?", "Because.", "42", True, "finished", "ended after 5 of 9 tokens", 5, 5)


def written(*rows, **options):
    return b"".join(csv_lines(rows, **options))


def read(data):
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


def test_the_header_and_a_row():
    assert written(ROW) == (
        b"id,question,answer,gold,correct,outcome,reason,tokens,cost\r\n"
        b"a,Why?,Because.,42,true,finished,ended after 5 of 9 tokens,5,5\r\n"
    )


def test_quotes_commas_line_ends_and_every_script_survive():
    text = 'She said "a, b",\r\nthen\n\nZürich 東京 🙂'
    (row,) = read(written(ROW._replace(answer=text, question=text)))
    assert (row["answer"], row["question"]) == (text, text)


@pytest.mark.parametrize(
    "text", ["=1+1", "+x", "-x", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1+1", "--1", "-2+3", "+1;=x"]
)
@pytest.mark.parametrize("field", ["id", "question", "answer", "gold", "reason", "outcome"])
def test_text_that_looks_like_a_formula_gets_an_apostrophe(text, field):
    (row,) = read(written(ROW._replace(**{field: text})))
    assert row[field] == f"'{text}"


@pytest.mark.parametrize("text", ["-5", "+3.25", "-1,234.5", "-1e-3", "-.5", "-50%", "", "a=b", "1-2"])
def test_numbers_and_other_text_stay_as_they_are(text):
    (row,) = read(written(ROW._replace(answer=text)))
    assert row["answer"] == text


@pytest.mark.parametrize(("correct", "shown"), [(True, "true"), (False, "false"), (None, "")])
def test_a_grade_may_be_unknown(correct, shown):
    assert read(written(ROW._replace(correct=correct)))[0]["correct"] == shown


@pytest.mark.parametrize(("nano", "shown"), [(0, "0"), (1, "0.000000001"), (1_500_000, "0.0015"), (20 * 10**9, "20")])
def test_money_is_in_dollars(nano, shown):
    (row,) = read(written(ROW._replace(cost=nano), rates=Rates.dollars("0.1", "0.5")))
    assert row["cost"] == shown


def test_what_no_file_can_hold_is_replaced():
    (row,) = read(written(ROW._replace(answer="a\0b\ud800")))
    assert row["answer"] == "a\ufffdb?"
