"""A limit goes into a line without touching anything else in it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice.formats.batch import read_requests, with_limit

from ..conftest import request_line

TRICKY = [
    '{"custom_id":"a","body":{}}',
    '{"body" : { "x" : 1.0e5, "y":[{"max_completion_tokens": 9}] } , "custom_id":"a"}',
    '{"custom_id":"a \\"body\\": {", "body":{"messages":[{"content":"\\u00e9 {\\"max_completion_tokens\\": 5}"}]}}',
    '{"custom_id":"a","body":{"seed":123456789012345678901234567890,"t":1.10,"z":-0.0}}',
    '{"custom_id":"a","body":{"max_completion_tokens":null,"k":[]}}',
    '{"custom_id":"a","body":{"k":[],"max_completion_tokens" : 7 }}',
    '{"custom_id":"a","body":{"max_completion_tokens":5,"max_completion_tokens":900}}',
    '{"body":{"old":1},"custom_id":"a","body":{"new":2}}',
    '{"custom_id":"ü","body":{"text":"😀\u2028"}}',
]


@pytest.mark.parametrize("line", TRICKY)
def test_only_the_limit_changes(line):
    planned = with_limit(line.encode(), "max_completion_tokens", 42).decode()
    before, after = json.loads(line), json.loads(planned)
    assert after["body"].pop("max_completion_tokens") == 42
    before["body"].pop("max_completion_tokens", None)
    assert before == after
    assert list(before) == list(after)
    # and as text: what was written around it is still there, byte for byte
    for piece in ("123456789012345678901234567890", "1.10", "1.0e5", "\\u00e9", "-0.0", "😀\u2028"):
        assert (piece in line) == (piece in planned)


def test_every_copy_of_a_repeated_limit_is_set():
    line = b'{"custom_id":"a","body":{"max_tokens":5,"max_tokens":900}}'
    assert with_limit(line, "max_tokens", 3) == b'{"custom_id":"a","body":{"max_tokens":3,"max_tokens":3}}'


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(
    body=st.dictionaries(st.text() | st.just("max_tokens"), json_values, max_size=5),
    other=st.dictionaries(st.text().filter(lambda key: key != "body"), json_values, max_size=3),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
)
def test_any_json_survives(body, other, indent, ascii_only):
    record = {**other, "body": body}
    line = json.dumps(record, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    try:
        line.decode()
    except UnicodeDecodeError:
        return  # lone surrogates are no UTF-8; such a line is refused on reading
    planned = json.loads(with_limit(line, "max_tokens", 11))
    assert planned == {**record, "body": {**body, "max_tokens": 11}}


class TestReading:
    def test_what_it_takes_from_a_request(self, batch):
        path = batch(
            [
                request_line("a", "Why?", max_tokens=50, max_completion_tokens=40, n=2),
                request_line("b", max_tokens=None),
                {"custom_id": "c", "url": "/v1/completions", "body": {"prompt": ["one", "two"], "best_of": 3}},
                {"custom_id": "d", "url": "/v1/responses", "body": {"input": "Hm", "max_output_tokens": 9}},
                {"custom_id": "e", "body": {"messages": [{"content": [{"type": "text", "text": "Part"}]}]}},
            ]
        )
        a, b, c, d, e = read_requests(path)
        assert (a.query.id, a.query.text, a.query.max_tokens, a.query.answers) == ("a", "Why?", 40, 2)
        assert (b.query.max_tokens, b.query.answers, b.limit_field) == (None, 1, "max_completion_tokens")
        assert (c.query.text, c.query.answers, c.limit_field) == ("one\ntwo", 6, "max_tokens")
        assert (d.query.max_tokens, d.limit_field) == (9, "max_output_tokens")
        assert e.query.text == "Part"
        assert [r.older_limit for r in (a, b, c, d, e)] == [True, False, False, False, False]

    def test_blank_lines_a_byte_order_mark_and_windows_line_ends(self, tmp_path):
        path = tmp_path / "odd.jsonl"
        line = json.dumps(request_line("a")).encode()
        path.write_bytes(b"\xef\xbb\xbf" + line + b"\r\n\r\n  \n" + line.replace(b'"a"', b'"b"'))
        assert [(r.query.id, r.line) for r in read_requests(path)] == [("a", 1), ("b", 4)]
