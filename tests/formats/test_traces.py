"""Traces are read back as they were written; an invalid line is named."""

import gzip

import pytest

from shadowprice.errors import InputError
from shadowprice.formats.traces import numbered_traces, read_traces, write_traces
from shadowprice.types import Trace

TRACES = [
    Trace("a", "Why?", 12, True, dataset="d", gold="x", model="m", response="Because ü.", extra={"variant": 3}),
    Trace("b", "How?", 512, None, truncated=True, sample=2, temperature=0.7, max_tokens=512),
]
GOOD = '{"id": "a", "prompt": "p", "tokens": 1}'


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_written_traces_are_read_back(tmp_path, name):
    assert write_traces(tmp_path / name, TRACES) == 2
    assert list(read_traces(tmp_path / name)) == TRACES


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ('{"id": "a", "prompt": "p", "tokens": 1, "sample": false}', "sample is False"),
        ('{"id": "a", "prompt": "p", "tokens": 1, "temperature": "hot"}', "temperature is 'hot'"),
        ("[]", "not a JSON object"),
        ('{"id": "a", "prompt": "p"}', "no tokens"),
        ('{"id": "a", "prompt": "p", "tokens": "12"}', "tokens is '12'"),
        ('{"id": "a", "prompt": "p", "tokens": true}', "tokens is True"),
        ('{"id": "a", "prompt": "p", "tokens": -1}', "tokens is -1"),
        ('{"id": [5], "prompt": "p", "tokens": 1}', r"id is \[5\], not a text \(fix or remove the line: {"),
        ('{"id": "a", "prompt": "p", "tokens": 1.5}', "tokens is 1.5, not a whole number"),
        ('{"id": "a", "prompt": "p", "tokens": 1e18}', "tokens is 1e"),
        ('{"id": "a", "prompt": "p", "tokens": 1, "correct": "yes"}', "correct is 'yes', not true or false"),
        ('{"id": "a", "prompt": "p", "tokens": 1, "correct": 0.5}', "correct is 0.5"),
    ],
)
def test_an_invalid_line_is_named(tmp_path, line, message):
    path = tmp_path / "bad.jsonl.gz"
    path.write_bytes(gzip.compress(f"{GOOD}\n{line}\n".encode()))
    with pytest.raises(InputError, match=f"bad.jsonl.gz:2: {message}"):
        list(read_traces(path))


def test_invalid_lines_can_be_skipped_and_are_reported(tmp_path):
    path = tmp_path / "bad.jsonl"
    lines = [GOOD, "{", "", "[]", '{"id": [5], "prompt": "p", "tokens": 1}', GOOD.replace("a", "b")]
    path.write_text("\n".join(lines))
    errors = []
    assert [trace.id for trace in read_traces(path, skip=errors.append)] == ["a", "b"]
    assert [(error.line, error.problem.split(":")[0]) for error in errors] == [
        (2, "not JSON"),
        (4, "not a JSON object"),
        (5, "id is [5], not a text"),
    ]


def test_an_optional_field_that_is_null_is_missing(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"id": "a", "prompt": "p", "tokens": 1, "gold": null, "temperature": null, "sample": null}\n')
    assert list(read_traces(path)) == [Trace("a", "p", 1)]
    path.write_text('{"id": "a", "prompt": null, "tokens": 1}\n')
    with pytest.raises(InputError, match="prompt is None"):
        list(read_traces(path))


def test_types_that_other_programs_write_are_restored_where_nothing_is_lost(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"id": 7, "prompt": "p", "tokens": 5.0, "gold": 12, "correct": 1, "truncated": 0.0, "sample": 2.0, "n": 1.0}\n'
    )
    (trace,) = read_traces(path)
    assert trace == Trace("7", "p", 5, True, gold="12", truncated=False, sample=2, extra={"n": 1.0})
    assert [type(value) for value in (trace.tokens, trace.correct, trace.truncated, trace.sample)] == [
        int, bool, bool, int,
    ]  # fmt: skip


def test_unknown_fields_are_kept(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"id": "a", "prompt": "p", "tokens": 1, "template": "qwen", "landed": null}\n')
    (trace,) = read_traces(path)
    assert trace.extra == {"template": "qwen", "landed": None}
    write_traces(path, [trace])
    assert list(read_traces(path)) == [trace]


def test_line_numbers_count_blank_lines(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('\n{"id": "a", "prompt": "p", "tokens": 1}\n\n{"id": "b", "prompt": "p", "tokens": 2}\n')
    assert [(number, trace.id) for number, trace in numbered_traces(path)] == [(2, "a"), (4, "b")]
