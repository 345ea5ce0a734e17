"""Rows of a file of questions, whatever its form: each with the number of its first line."""

import csv
import gzip
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice.errors import InputError
from shadowprice.formats.rows import form_of, read_rows

KNOWN = ("question", "answer", "id")


@pytest.fixture
def read(tmp_path):
    def read(name, content):
        path = tmp_path / "content"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        form = form_of(str(path), name, KNOWN)
        return form, list(read_rows(str(path), name, form, KNOWN))

    return read


@pytest.mark.parametrize(
    ("name", "content", "form"),
    [
        ("q.csv", "a,b\n1,2\n", "csv"),
        ("q.TSV.gz", "a\tb\n1\t2\n", "csv"),
        ("q.jsonl", '{"question": "?"}\n', "json"),
        ("q.txt", "Why?\n", "text"),
        ("q.txt", '{"question": "?"}\n', "json"),  # named after what it looks like
        ("q.txt", "{a set}, what is it?\n", "text"),
        ("standard input", '{"question": "?"}\n', "json"),
        ("standard input", "Question;Answer\n1;2\n", "csv"),
        ("standard input", "Why, and how?\n", "text"),
        ("standard input", "[1] is a question?\n", "text"),
        ("standard input", "", "text"),
        ("questions.data", "id,question\n1,?\n", "csv"),
    ],
)
def test_the_name_decides_about_the_form_or_else_the_content(read, name, content, form):
    assert read(name, content)[0] == form


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("q.jsonl", '[{"question": "?"}]', "is a JSON array, not lines"),
        ("standard input", '["a", "b"]', "is a JSON array, not lines"),
        ("q.docx", "Why?\n", r"unknown extension \.docx"),
        ("q.csv", "question,answer\na,b,c\n", "q.csv:2: 3 fields, and the header has 2"),
        ("q.csv", 'question,answer\n\n"a\nb",c\nd\n', "q.csv:5: 1 field, and the header has 2"),
        ("q.csv", 'question,answer\n"a,b\n', "q.csv:2: not CSV: "),
        ("q.csv", "question,Answer,note,note,answer\na,1,x,y,2\n", "q.csv:1: 2 columns are called Answer"),
        ("q.csv", gzip.compress(b"question\nWhy?\n", mtime=0)[:-9], "damaged gzip"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(read, name, content, problem):
    with pytest.raises(InputError, match=problem):
        read(name, content)


def test_blank_rows_are_left_out_and_counted(read):
    assert read("q.txt", "\n Why? \n\nHow?")[1] == [(2, {"question": "Why?"}), (4, {"question": "How?"})]
    found = [(2, {"question": "a", "answer": "b"}), (5, {"question": "c", "answer": "d"})]
    assert read("q.csv", "question,answer\na,b\n\n , \nc,d\n")[1] == found


def test_a_row_over_several_lines_has_the_number_of_its_first(read):
    content = 'question,answer\r\n"a\r\nb",1\r\n"c",2\r\n'
    assert [number for number, _ in read("q.csv", content)[1]] == [2, 4]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_delimiter_is_the_one_that_finds_a_known_name(read, delimiter):
    content = delimiter.join(["question", "note, more; and more"]) if delimiter == "\t" else f"question{delimiter}note"
    _, ((_, row),) = read("q.csv", f"{content}\nWhy?{delimiter}x\n")
    assert row["question"] == "Why?"


def test_one_column_needs_no_header(read):
    assert read("q.csv", "Why?\nHow?\n")[1] == [(1, {"question": "Why?"}), (2, {"question": "How?"})]
    assert read("q.csv", "Question\nHow?\n")[1] == [(2, {"Question": "How?"})]


fields = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=12).map(str.strip)


@given(
    st.lists(st.tuples(fields.filter(bool), fields), min_size=1, max_size=5),
    st.sampled_from([",", ";", "\t"]),
    st.booleans(),
)
def test_any_table_is_read_back(tmp_path_factory, table, delimiter, packed):
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writerows([("question", "answer"), *table])
    content = text.getvalue().encode()
    path = tmp_path_factory.mktemp("rows") / "q.csv"
    path.write_bytes(gzip.compress(content) if packed else content)
    name = "q.tsv" if delimiter == "\t" else "q.csv"
    form = form_of(str(path), name, KNOWN)
    found = [tuple(row.values()) for _, row in read_rows(str(path), name, form, KNOWN)]
    assert found == table
