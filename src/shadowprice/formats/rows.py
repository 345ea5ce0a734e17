"""Rows of files with questions: lines of text, CSV (RFC 4180), JSON lines; each row maps field names to values.

A file may be gzipped under any name. It must be UTF-8; an error names the encoding that it seems to have.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import zlib
from collections.abc import Collection, Iterator
from typing import Any, Literal, TypeAlias

from shadowprice.errors import InputError
from shadowprice.formats.jsonl import decoded, not_text, parse_object, read_objects

__all__ = ["Form", "Row", "form_of", "read_rows"]

Form: TypeAlias = Literal["json", "csv", "text"]
Row: TypeAlias = "tuple[int, dict[str, Any]]"

_GZIP = b"\x1f\x8b"
_HEAD = 1 << 16  # bytes that show the form of a file
_FORMS: dict[str, Form] = {
    ".jsonl": "json", ".ndjson": "json", ".json": "json", ".csv": "csv", ".tsv": "csv", ".tab": "csv", ".txt": "text",
}  # fmt: skip
_TABS = (".tsv", ".tab")
_DELIMITERS = (",", ";", "\t", "|")
_SEPARATOR = re.compile(r"sep=(.)\s*?(?:\r\n|\r|\n)", re.IGNORECASE)  # a first line that Excel reads and writes
_NEW_LINE = re.compile(r"\r\n|\r|\n")
_A_NAME = re.compile(r"[^\W\d][\w-]*")  # of a column: a question has more than one word
_ARRAY = re.compile(r'\[\s*[{"]')  # of JSON; a question may begin with a bracket too
_FIELD_SIZE = 2**31 - 1  # characters in a field: in effect no limit
_NAMES = "name it .jsonl, .csv, .tsv or .txt by what it holds"


def form_of(path: str, label: str, known: Collection[str]) -> Form:
    """The form of a file, by its name or else by its content; `known` are the names of fields that we use."""
    head = _head(path, label)
    extension = _extension(label)
    start = _SEPARATOR.sub("", head.lstrip(), count=1)
    if _ARRAY.match(start) or (start[:1] == "[" and _FORMS.get(extension) == "json"):
        raise InputError("is a JSON array, not lines", path=label, fix="one object a line: jq -c '.[]' OLD > NEW.jsonl")
    if extension == ".txt" and (_is_json_line(start) or _is_table(start, known)):
        extension = ""  # the content decides
    if extension in _FORMS:
        return _FORMS[extension]
    if start[:1] == "{":
        return "json"
    if any(name in known for name in _header(start, _delimiter(start, "", known))):
        return "csv"
    if extension:
        raise InputError(f"cannot be read: unknown extension {extension}", path=label, fix=_NAMES)
    return "text"


def read_rows(path: str, label: str, form: Form, known: Collection[str]) -> Iterator[Row]:
    """The rows of a file, each with the number of its first line; those that are blank are left out."""
    if form == "json":
        return read_objects(path, label, form='{"question": ..., "answer": ...}')
    if form == "csv":
        return _csv_rows(_text(path, label), label, known)
    lines = enumerate(_NEW_LINE.split(_text(path, label)), start=1)
    return ((number, {"question": line.strip()}) for number, line in lines if line.strip())


def _csv_rows(text: str, label: str, known: Collection[str]) -> Iterator[Row]:
    stated = _SEPARATOR.match(text)
    delimiter = stated[1] if stated else _delimiter(text.lstrip(), _extension(label), known)
    csv.field_size_limit(_FIELD_SIZE)
    content = io.StringIO(text[stated.end() :] if stated else text, newline="")
    reader = csv.reader(content, delimiter=delimiter, strict=True, skipinitialspace=True)
    header: list[str] | None = None
    before = 1 if stated else 0
    first_line = before + 1
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(f"not CSV: {_in_words(error)}", path=label, line=first_line, fix=_QUOTES) from None
        number, first_line = first_line, before + reader.line_num + 1
        if not any(field.strip() for field in fields):
            continue
        if header is None:
            header = [field.strip() for field in fields]
            if len(header) > 1 or _name(header[0]) in known or _A_NAME.fullmatch(header[0]):
                _check_header(header, known, label, number)
                continue
            header = ["question"]  # one column of questions needs no header
        while len(fields) > len(header) and not fields[-1].strip():  # delimiters at the end of lines
            fields.pop()
        if len(fields) != len(header):
            problem = f"{len(fields)} field{'' if len(fields) == 1 else 's'}, and the header has {len(header)}"
            fix = f"quote fields that hold {delimiter!r} or a line break"
            raise InputError(problem, path=label, line=number, fix=fix)
        yield number, dict(zip(header, fields, strict=True))


_QUOTES = 'quote fields that hold a comma, a quote or a line break, and write " as ""'


def _in_words(error: csv.Error) -> str:
    if "expected after" in str(error):
        return "text follows a closing quote"
    return "a quote is never closed" if "unexpected end" in str(error) else str(error)


def _check_header(header: list[str], known: Collection[str], label: str, number: int) -> None:
    names = [_name(field) for field in header]
    if twice := next((field for field in header if _name(field) in known and names.count(_name(field)) > 1), None):
        problem = f"{names.count(_name(twice))} columns are called {twice}"
        raise InputError(problem, path=label, line=number, fix="rename or remove all but one")


def _delimiter(text: str, extension: str, known: Collection[str]) -> str:
    """The one with a known name in the header, or else a tab by the name of the file, or with the most columns."""

    def worth(delimiter: str) -> tuple[bool, bool, int]:
        names = _header(text, delimiter)
        is_header = any(name in known for name in names)
        by_name = delimiter == "\t" and extension in _TABS
        return is_header, by_name, len(names) if is_header or delimiter != "|" else 0  # a question may have a | in it

    return max(_DELIMITERS, key=worth)  # the first of equals


def _header(text: str, delimiter: str) -> list[str]:
    line = _NEW_LINE.split(text[:_HEAD], maxsplit=1)[0]
    return [_name(field) for field in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])]


def _name(field: str) -> str:
    """A column as it is compared: `Question` is `question`."""
    return field.strip().casefold()


def _extension(label: str) -> str:
    return os.path.splitext(label.lower().removesuffix(".gz"))[1]


def _is_table(text: str, known: Collection[str]) -> bool:
    """Whether text begins with a line of two or more column names, one of them known: no question does."""
    names = _header(text, _delimiter(text, "", known))
    return len(names) > 1 and any(name in known for name in names) and all(map(_A_NAME.fullmatch, names))


def _is_json_line(text: str) -> bool:
    if text[:1] != "{":
        return False
    try:
        parse_object(text.partition("\n")[0].encode())
    except InputError:
        return False
    return True


def _text(path: str, label: str) -> str:
    return decoded(b"".join(_blocks(path, label)), label)


def _head(path: str, label: str) -> str:
    """The beginning of a file; raises InputError if it shows that the file is not text."""
    head = next(_blocks(path, label), b"")
    if problem := not_text(head):
        raise InputError(problem.problem, path=label, fix=problem.fix)
    return head.decode(errors="replace").removeprefix("\ufeff")


def _blocks(path: str, label: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        plain = file.peek(2)[:2] != _GZIP
        source: Any = file if plain else gzip.GzipFile(fileobj=file)
        try:
            while block := source.read(_HEAD):
                yield block
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"damaged gzip: {error}", path=label, fix="download it or write it again") from None
