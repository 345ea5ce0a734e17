"""Events out of bytes, and an answer out of events, whatever a server does to them."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice.backends._events import EventParser, ServerError, parse_json, read_event
from shadowprice.backends._stream import Answer

CHAT = {"messages": [{"role": "user", "content": "hello"}]}


def parse(data, cuts=()):
    """The events of these bytes, cut into chunks."""
    parser, found, start = EventParser(), [], 0
    for cut in (*sorted(cuts), len(data)):
        found += parser.feed(data[start:cut]) if cut > start else []
        start = max(start, cut)
    return [*found, *parser.end()]


class TestEvents:
    @pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"], ids=repr)
    def test_may_use_any_line_end(self, newline):
        data = newline.join(
            [b": comment", b"data: a", b"data:b", b"", b"", b"event: x", b"id: 7", b"data:  c", b"", b""]
        )
        assert parse(data) == [(b"", b"a\nb"), (b"x", b" c")]

    @given(st.lists(st.sampled_from(["data: é😀", "data:", "event: e", ": c", "", "x", "datax: y"]), max_size=12),
           st.sampled_from(["\n", "\r\n", "\r"]), st.data())  # fmt: skip
    def test_do_not_depend_on_how_bytes_are_cut(self, lines, newline, data):
        stream = "".join(line + newline for line in lines).encode()
        cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
        assert parse(stream, cuts) == parse(stream) == parse(stream, range(len(stream)))

    def test_may_be_very_long(self):
        line = b"data: " + b"x" * 5_000_000
        (event,) = parse(line + b"\n\n", range(0, len(line), 65_536))
        assert len(event[1]) == 5_000_000

    def test_may_start_with_a_byte_order_mark(self):
        assert parse(b"\xef\xbb\xbfdata: a\n\n") == [(b"", b"a")]

    def test_may_lack_the_empty_line_at_the_end(self):
        assert parse(b"data: a\n\ndata: b") == [(b"", b"a"), (b"", b"b")]
        assert parse(b"data: a\n\ndata: b\n") == [(b"", b"a"), (b"", b"b")]

    def test_end_at_done(self):
        parser = EventParser()
        assert parser.feed(b"data: a\n\n") == [(b"", b"a")]
        assert not parser.done
        assert parser.feed(b"data: [DONE]\n\ndata: b\n\n") == []
        assert parser.done

    def test_without_data_are_none(self):
        assert parse(b"event: ping\n\n: hello\n\ndata: a\n\n") == [(b"", b"a")]


class TestJSON:
    def test_may_contain_bytes_that_are_not_text(self):
        assert parse_json(b'{"a": "\xff\xc3"}') == {"a": "\ufffd\ufffd"}

    def test_may_contain_numbers_that_json_does_not_know(self):
        assert parse_json(b'{"a": -Infinity}') == {"a": float("-inf")}

    @pytest.mark.parametrize("data", [b"", b"{", b"{a}"])
    def test_must_be_json(self, data):
        with pytest.raises(ValueError):
            parse_json(data)

    @pytest.mark.parametrize(
        ("kind", "data", "reason"),
        [
            (b"", b'{"error": {"message": "no memory"}}', "no memory"),
            (b"", b'{"error": {"detail": "no memory"}}', "no memory"),
            (b"", b'{"error": "no memory"}', "no memory"),
            (b"error", b'{"message": "no memory"}', "no memory"),
            (b"error", b'"no memory"', "no memory"),
            (b"error", b"no memory", "no memory"),
        ],
    )
    def test_may_be_an_error(self, kind, data, reason):
        with pytest.raises(ServerError) as caught:
            read_event(kind, data)
        assert str(caught.value) == reason

    def test_may_say_that_there_is_no_error(self):
        assert read_event(b"", b'{"error": null}') == {"error": None}


def chunk(text, **fields):
    return {"choices": [{"index": 0, "delta": {"content": text}, **fields}]}


class TestAnAnswer:
    def test_with_a_character_in_two_halves_can_be_written(self):
        answer = Answer(CHAT, 10)
        for piece in (b'"caf\xc3\xa9 \\ud83d"', b'"\\ude00 \\ud83d"'):
            answer.add(parse_json(b'{"choices": [{"delta": {"content": ' + piece + b"}}]}"))
        answer.add(chunk("", finish_reason="stop"))
        done = answer.completion("m")
        assert done.text == "café 😀 \ufffd"
        assert orjson.loads(orjson.dumps(done.body))["choices"][0]["message"]["content"] == done.text

    def test_with_a_usage_beyond_all_numbers_can_be_written(self):
        answer = Answer(CHAT, 10)
        answer.add({**chunk("a", finish_reason="stop"), "usage": {"completion_tokens": 1, "odd": 10**30}})
        done = answer.completion("m")
        assert done.tokens == 1
        assert json.loads(orjson.dumps(done.body))["usage"]["odd"] == 1e30

    @pytest.mark.parametrize(
        ("usage", "expected"),
        [
            ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}, (5, 4)),
            ({"prompt_tokens": 9}, (9, 0)),
            ({"prompt_tokens": 9, "prompt_tokens_details": None}, (9, 0)),
            ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 40}}, (0, 9)),
            ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": -4}}, (9, 0)),
            ({"prompt_tokens": "9", "prompt_tokens_details": {"cached_tokens": 4}}, (0, 0)),
            ({}, (0, 0)),
        ],
        ids=str,
    )
    def test_counts_the_prompt_that_was_read_and_cached(self, usage, expected):
        answer = Answer(CHAT, 10)
        answer.add({**chunk("a", finish_reason="stop"), "usage": {"completion_tokens": 1, **usage}})
        done = answer.completion("m")
        assert (done.input_tokens, done.cached_tokens) == expected

    @pytest.mark.parametrize("event", [17, None, [], "x", {"choices": 5}, {"choices": [{"delta": {"content": 5}}]}])
    def test_leaves_out_events_that_are_not_in_the_form_of_the_protocol_and_is_flagged(self, event):
        answer = Answer(CHAT, 10)
        for each in (chunk("a"), event, {**chunk("b", finish_reason="stop"), "usage": {"completion_tokens": 2}}):
            answer.add(each)
        done = answer.completion("m")
        assert (done.text, done.tokens, done.flags) == ("ab", 2, ("malformed",))
