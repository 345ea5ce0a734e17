"""Requests are read from batch files; a limit is put into a line without touching anything else in it."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice.errors import InputError
from shadowprice.formats.batch import as_batch, parse_batch, read_batch, text_of, with_limit

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
    # and as text: everything around it is the same, byte for byte
    for piece in ("123456789012345678901234567890", "1.10", "1.0e5", "\\u00e9", "-0.0", "😀\u2028"):
        assert (piece in line) == (piece in planned)


def test_every_copy_of_a_repeated_limit_is_set():
    line = b'{"custom_id":"a","body":{"max_tokens":5,"max_tokens":900}}'
    assert with_limit(line, "max_tokens", 3) == b'{"custom_id":"a","body":{"max_tokens":3,"max_tokens":3}}'


class TestOtherLimits:
    """The one limit that is set must be the one that holds."""

    def limits(self, limit=50, *, lower_others, **body):
        line = json.dumps({"custom_id": "a", "body": body}).encode()
        return json.loads(with_limit(line, "max_tokens", limit, lower_others=lower_others))["body"]

    def test_others_are_left_alone_or_lowered(self):
        body = {"max_completion_tokens": 900, "max_output_tokens": 7}
        assert self.limits(lower_others=False, **body) == {"max_tokens": 50, **body}
        assert self.limits(lower_others=True, **body) == {
            "max_tokens": 50,
            "max_completion_tokens": 50,
            "max_output_tokens": 7,
        }

    def test_null_stays_null(self):
        assert self.limits(lower_others=True, max_completion_tokens=None)["max_completion_tokens"] is None

    @pytest.mark.parametrize("lower_others", [True, False])
    def test_n_predict_overrides_the_others_and_is_always_lowered(self, lower_others):
        assert self.limits(lower_others=lower_others, n_predict=60) == {"max_tokens": 50, "n_predict": 50}
        assert self.limits(lower_others=lower_others, n_predict=40) == {"max_tokens": 50, "n_predict": 40}

    def test_a_repeated_limit_of_which_only_the_last_is_a_number(self):
        line = b'{"custom_id":"a","body":{"n_predict":"x","n_predict":900}}'
        assert with_limit(line, "max_tokens", 3).count(b'"n_predict":3') == 2


texts = st.text(st.characters(codec="utf-8"))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)


@given(
    body=st.dictionaries(texts | st.just("max_tokens"), json_values, max_size=5),
    other=st.dictionaries(texts.filter(lambda key: key != "body"), json_values, max_size=3),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
)
def test_any_json_survives(body, other, indent, ascii_only):
    body.pop("n_predict", None)
    record = {**other, "body": body}
    line = json.dumps(record, indent=indent, ensure_ascii=ascii_only).encode()
    planned = json.loads(with_limit(line, "max_tokens", 11))
    assert planned == {**record, "body": {**body, "max_tokens": 11}}


class TestReading:
    def test_the_request_in_a_line(self, batch):
        path = batch(
            [
                request_line("a", "Why?", max_tokens=50, max_completion_tokens=40, n=2),
                request_line("b", max_tokens=None),
                {"custom_id": "c", "url": "/v1/completions", "body": {"prompt": ["one", "two"], "best_of": 3}},
                {"custom_id": "d", "url": "/v1/responses", "body": {"input": "Hm", "max_output_tokens": 9}},
                {"custom_id": "e", "body": {"messages": [{"content": [{"type": "text", "text": "Part"}]}]}},
                {"custom_id": "f", "body": {"prompt": [17, 4, 99], "n_predict": 12, "max_tokens": 30}},
            ]
        )
        a, b, c, d, e, f = read_batch(path)
        assert (a.request.id, a.request.text, a.request.max_tokens, a.request.answers) == ("a", "Why?", 40, 2)
        assert (b.request.max_tokens, b.request.answers, b.limit_field) == (None, 1, "max_completion_tokens")
        assert (c.request.text, c.request.answers, c.limit_field) == ("one\ntwo", 6, "max_tokens")
        assert (d.request.max_tokens, d.limit_field) == (9, "max_output_tokens")
        assert e.request.text == "Part"
        assert (f.request.max_tokens, f.request.answers, f.limit_field) == (12, 1, "max_tokens")
        assert [line.older_limit for line in (a, b, c, d, e, f)] == [True, False, False, False, False, False]

    def test_line_numbers_raw_bytes_and_body(self, tmp_path):
        path = tmp_path / "odd.jsonl"
        line = json.dumps(request_line("a", temperature=0.50), indent=None).encode()
        path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + line + b"\r\n\r\n  \n" + line.replace(b'"a"', b'"b"')))
        a, b = read_batch(path)
        assert [(a.request.id, a.number), (b.request.id, b.number)] == [("a", 1), ("b", 4)]
        assert a.raw == line
        assert a.request.body == request_line("a", temperature=0.5)["body"]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"n_predict": -1}, "n_predict is -1"),
            ({"max_tokens": True}, "max_tokens is True"),
            ({"max_completion_tokens": 1.5}, "max_completion_tokens is 1.5"),
            ({"max_output_tokens": 2**31 + 1}, "max_output_tokens is 2147483649"),
        ],
    )
    def test_an_invalid_limit_is_an_error(self, batch, change, message):
        with pytest.raises(InputError, match=rf"^label:1: {message} \(give a whole number from 1 to 2147483648"):
            list(read_batch(batch([request_line("a", **change)]), "label"))


class TestInMemory:
    def parsed(self, *requests):
        return list(parse_batch(as_batch(requests), "requests"))

    def test_questions_bodies_and_batch_lines(self):
        chat = {"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 9, "seed": 10**25}
        lines = self.parsed("Why?", chat, {"prompt": "Once"}, {"input": "Hm"}, request_line("own", "Well?"))
        assert [line.request.id for line in lines] == ["request-1", "request-2", "request-3", "request-4", "own"]
        assert [line.request.text for line in lines] == ["Why?", "Why?", "Once", "Hm", "Well?"]
        assert [json.loads(line.raw)["url"].removeprefix("/v1") for line in lines] == [
            "/chat/completions",
            "/chat/completions",
            "/completions",
            "/responses",
            "/chat/completions",
        ]
        assert json.loads(lines[1].raw)["body"] == chat
        assert json.loads(lines[4].raw) == request_line("own", "Well?")

    def test_a_batch_line_without_an_id_gets_one(self):
        assert self.parsed({"body": {"prompt": "p"}})[0].request.id == "request-1"

    @pytest.mark.parametrize(
        ("request_", "message"),
        [
            (7, "a request cannot be of type int"),
            ({"text": "x"}, "no messages, prompt or input"),
            ({"prompt": "x", "temperature": float("nan")}, "cannot be written as JSON"),
            ({"prompt": "x", "stop": {1, 2}}, "cannot be written as JSON"),
            ({"prompt": "\ud800"}, "cannot be written as JSON"),
            (" ", "the question is empty"),
        ],
    )
    def test_what_is_not_a_request_is_named_by_its_position(self, request_, message):
        with pytest.raises(InputError, match=rf"^requests:2: {message}.*\)$"):
            self.parsed("fine", request_)


def test_text_of_nested_parts():
    parts = [{"role": "system", "content": "Be brief."}, {"content": [{"text": "One"}, {"image_url": "x"}, "Two"]}]
    assert text_of(parts) == "Be brief.\nOne\nTwo"
    assert text_of([1, 2, 3]) == ""
