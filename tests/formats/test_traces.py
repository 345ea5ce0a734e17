"""Traces survive being written and read; what is none is named."""

import gzip

import pytest

from shadowprice.errors import InputError
from shadowprice.formats.traces import read_traces, write_traces
from shadowprice.types import Trace

TRACES = [
    Trace("a", "Why?", 12, True, dataset="d", gold="x", model="m", response="Because ü.", extra={"variant": 3}),
    Trace("b", "How?", 512, None, truncated=True, sample=2, temperature=0.7, max_tokens=512),
]


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_what_is_written_is_read(tmp_path, name):
    assert write_traces(tmp_path / name, TRACES) == 2
    assert list(read_traces(tmp_path / name)) == TRACES


def test_the_same_traces_give_the_same_bytes(tmp_path):
    for name in ("one.gz", "two.gz"):
        write_traces(tmp_path / name, TRACES)
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"id": "a", "prompt": "p"}', "no tokens"),
        ('{"id": "a", "prompt": "p", "tokens": "12"}', "tokens is '12'"),
        ('{"id": "a", "prompt": "p", "tokens": true}', "tokens is True"),
        ('{"id": "a", "prompt": "p", "tokens": -1}', "tokens is -1"),
        ('{"id": 5, "prompt": "p", "tokens": 1}', "id is 5"),
    ],
)
def test_a_line_that_is_no_trace_is_named(tmp_path, line, said):
    path = tmp_path / "bad.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": "a", "prompt": "p", "tokens": 1}\n' + line.encode() + b"\n"))
    with pytest.raises(InputError, match=f"bad.jsonl.gz:2: {said}".replace("[", r"\[")):
        list(read_traces(path))


def test_lines_that_are_none_can_be_skipped_and_are_told(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"id": "a", "prompt": "p", "tokens": 1}\n{\n\n[]\n{"id": "b", "prompt": "p", "tokens": 2}\n')
    told = []
    assert [trace.id for trace in read_traces(path, skip=told.append)] == ["a", "b"]
    assert [(error.line, error.problem.split(":")[0]) for error in told] == [(2, "not JSON"), (4, "not a JSON object")]


def test_an_optional_field_that_is_null_is_missing(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"id": "a", "prompt": "p", "tokens": 1, "gold": null, "temperature": null, "sample": null}\n')
    assert list(read_traces(path)) == [Trace("a", "p", 1)]
    path.write_text('{"id": "a", "prompt": null, "tokens": 1}\n')
    with pytest.raises(InputError, match="prompt is None"):
        list(read_traces(path))
