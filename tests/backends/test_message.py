"""Nothing that was paid for is dropped, and whatever came can be written to a file."""

import json
import math

import orjson
import pytest

from shadowprice.backends._events import parse_json
from shadowprice.backends._stream import Answer, writable
from shadowprice.formats.results import chunk_line
from shadowprice.types import Completion

from .asking import CHAT, TEXT, meet
from .hostile import deltas

pytestmark = pytest.mark.usefixtures("no_proxy")


def message(*parts, finish="stop"):
    """The message that these deltas add up to, from a real server."""
    done = meet(deltas(*parts, finish=finish), limit=50)
    assert done.flags == ()
    return done.body["choices"][0]["message"]


ODD = {  # as JSON
    "half a character": r'"\ud83d"',
    "a number beyond 64 bits": "1" + "0" * 30,
    "a number that no float holds": "1" + "0" * 5000,
    "deep lists": "[" * 300 + "]" * 300,
    "deep objects": '{"a":' * 300 + "1" + "}" * 300,
    "a character of value 0": r'"a\u0000b"',
    "true": "true",
    "a number": "1.5",
    "a list": '[1, "x"]',
    "an object with an odd name": r'{"\ud800": "\ud800"}',
    "infinity": "Infinity",
}
CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
EVENT = {
    "id": "x",
    "created": 1,
    "model": "m",
    "system_fingerprint": "fp",
    "choices": [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": "b", "reasoning_content": "r", "tool_calls": [CALL]},
            "logprobs": {"content": [{"token": "b", "top_logprobs": []}]},
            "finish_reason": None,
        }
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 1}},
}


def places(value, path=()):
    """The path of every value in an event."""
    for name, each in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, name)
        if isinstance(each, dict | list):
            yield from places(each, (*path, name))


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize("path", [*places(EVENT)], ids=lambda path: ".".join(map(str, path)))
def test_one_odd_value_costs_no_answer(path, odd):
    event = json.loads(json.dumps(EVENT))
    place = event
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = "odd"
    answer = Answer(CHAT, 50)
    answer.add({"choices": [{"delta": {"content": "a"}}]})
    answer.add(parse_json(json.dumps(event).replace('"odd"', odd).encode()))
    answer.add({"choices": [{"delta": {"content": "c"}, "finish_reason": "stop"}]})
    done = answer.completion("m")
    assert done.text.startswith("a")
    assert done.text.endswith("c")
    chunk_line(done, sample=0, landing=False)


class TestAMessage:
    def test_keeps_a_function_call(self):
        call = {"function_call": {"name": "add", "arguments": ""}}
        more = [{"function_call": {"arguments": part}} for part in ('{"a": ', "1}")]
        assert message(call, *more)["function_call"] == {"name": "add", "arguments": '{"a": 1}'}

    def test_keeps_tool_calls_with_all_their_fields(self):
        first = {"index": 0, "id": "c0", "type": "function", "function": {"name": "f", "arguments": "{"}}
        first["extra_content"] = {"google": {"thought_signature": "abc"}}
        second = {"index": 0, "function": {"arguments": "}"}}
        other = {"index": 1, "id": "c1", "type": "custom", "custom": {"name": "g", "input": "x"}}
        found = message({"tool_calls": [first]}, {"tool_calls": [second, other]})["tool_calls"]
        assert found == [
            {
                "id": "c0",
                "type": "function",
                "function": {"name": "f", "arguments": "{}"},
                "extra_content": {"google": {"thought_signature": "abc"}},
            },
            {"id": "c1", "type": "custom", "custom": {"name": "g", "input": "x"}},
        ]

    def test_keeps_a_name_that_is_repeated_and_ids_that_are_repeated(self):
        part = {
            "tool_calls": [{"index": 0, "id": "c0", "type": "function", "function": {"name": "f", "arguments": "1"}}]
        }
        (call,) = message(part, part)["tool_calls"]
        assert call == {"id": "c0", "type": "function", "function": {"name": "f", "arguments": "11"}}

    def test_keeps_arguments_that_are_no_text(self):
        (call,) = message({"tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]})["tool_calls"]
        assert call["function"] == {"name": "f", "arguments": {"a": 1}}

    @pytest.mark.parametrize("field", ["reasoning", "reasoning_content", "refusal", "thoughts_of_a_new_kind"])
    def test_puts_texts_together(self, field):
        assert message({field: "hm "}, {field: "so"}, {"content": "42"})[field] == "hm so"

    def test_keeps_the_details_of_reasoning(self):
        def part(**fields):
            return {"reasoning_details": [{"type": "reasoning.text", "format": "v1", "index": 0, **fields}]}

        other = {"reasoning_details": [{"type": "reasoning.encrypted", "index": 1, "data": "AAAA"}]}
        found = message(part(text="hm "), part(text="so"), part(signature="sig"), other)["reasoning_details"]
        assert found == [
            {"type": "reasoning.text", "format": "v1", "index": 0, "text": "hm so", "signature": "sig"},
            {"type": "reasoning.encrypted", "index": 1, "data": "AAAA"},
        ]

    def test_keeps_annotations_and_audio(self):
        cited = {"annotations": [{"type": "url_citation", "url_citation": {"url": "http://x", "title": "X"}}]}
        sound = [{"audio": {"id": "a", "data": data, "transcript": word}} for data, word in (("AA", "w "), ("BB", "v"))]
        found = message({"content": "see"}, cited, cited, *sound)
        assert found["annotations"] == cited["annotations"] * 2
        assert found["audio"] == {"id": "a", "data": "AABB", "transcript": "w v"}

    def test_keeps_content_in_parts(self):
        think = {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}
        done = meet(deltas(think, {"content": [{"type": "text", "text": "4"}]}, {"content": "2"}), limit=50)
        assert done.text == "42"
        assert done.body["choices"][0]["message"]["content"] == [
            {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
            {"type": "text", "text": "4"},
            {"type": "text", "text": "2"},
        ]

    def test_of_a_text_that_turns_into_parts(self):
        done = meet(deltas({"content": "4"}, {"content": [{"type": "text", "text": "2"}]}), limit=50)
        assert done.text == "42"

    def test_in_parts_cannot_be_continued(self):
        from shadowprice.backends.openai import _has_more_than_text

        assert _has_more_than_text(meet(deltas({"content": [{"type": "text", "text": "2"}]}), limit=50))

    def test_keeps_values_of_any_kind(self):
        found = message({"content": "a", "odd": 1, "flag": True}, {"content": "b", "odd": 2}, {"odd": None})
        assert (found["odd"], found["flag"], found["content"]) == (2, True, "ab")

    def test_keeps_what_changes_its_kind(self):
        found = message({"odd": "text"}, {"odd": {"a": 1}}, {"odd": 5}, {"odd": "more"})
        assert json.dumps(found["odd"]).count("text") >= 1
        assert "more" in json.dumps(found["odd"])
        assert {"a": 1} in found["odd"]

    def test_has_one_role(self):
        found = message({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"})
        assert found == {"role": "assistant", "content": "ab"}

    def test_that_is_not_streamed_is_kept_as_well(self):
        printed = {"role": "assistant", "content": "x", "function_call": {"name": "f", "arguments": "{}"}, "odd": [1]}

        async def behave(request, reply):
            reply.server.generated += 2
            choice = {"index": 0, "message": printed, "finish_reason": "stop"}
            await reply.json(200, {"choices": [choice], "usage": {"completion_tokens": 2}})

        assert meet(behave).body["choices"][0]["message"] == printed


ODD = {
    "a split emoji": (b'"\\ud83d"', "\ufffd"),
    "half a character": (b'"a\\udc00b"', "a\ufffdb"),
    "a huge number": (b"1" + b"0" * 30, 1e30),
    "more than 64 bits": (b"18446744073709551616", 2.0**64),
    "a number beyond all numbers": (b"1" + b"0" * 400, math.inf),
    "a number of 5,000 digits": (b"9" * 5_000, math.inf),
    "infinity": (b"Infinity", math.inf),
    "bytes that are no text": (b'"\xff"', "\ufffd"),
}


class TestWhatCannotBeWritten:
    """Is replaced; all else is kept."""

    @pytest.mark.parametrize(
        ("name", "where"),
        [
            (name, where)
            for name, (given, _) in ODD.items()
            for where in ("content", "arguments", "odd", "logprobs", "usage", "system_fingerprint", "id")
            if where not in ("content", "arguments") or given.startswith(b'"')
        ],
    )
    @pytest.mark.parametrize("body", [CHAT, TEXT], ids=["chat", "text"])
    def test_anywhere(self, name, where, body):
        given, _ = ODD[name]
        delta = {"content": b'"content": %s', "odd": b'"content": "hi", "odd": %s'}.get(where, b'"content": "hi"')
        if where == "arguments":
            delta = b'"content": "hi", "tool_calls": [{"function": {"arguments": %s}}]'
        delta = delta.replace(b"%s", given)
        logprobs = b'{"content": [%s]}' % given if where == "logprobs" else b"null"
        head = b'"%s": %s, ' % (where.encode(), given) if where in ("id", "system_fingerprint") else b""
        usage = b'{"completion_tokens": 1, "odd": %s}' % (given if where == "usage" else b"0")
        event = b'{%s"choices": [{"delta": {%s}, "logprobs": %s, "finish_reason": "stop"}], "usage": %s}'
        answer = Answer(body, 10)
        answer.add(parse_json(event % (head, delta, logprobs, usage)))
        done = answer.completion("m")
        assert done.tokens == 1
        if where != "content":
            assert done.text == "hi"
        again = orjson.loads(orjson.dumps(done.body))
        assert again["choices"][0]["finish_reason"] == "stop"
        chunk_line(done, sample=0, landing=False)

    @pytest.mark.parametrize(("given", "expected"), ODD.values(), ids=ODD)
    def test_is_replaced_by_what_is_nearest(self, given, expected):
        assert writable({"a": [parse_json(given)], "b": "kept"}) == {"a": [expected], "b": "kept"}

    def test_nan_is_written_as_null(self):
        assert orjson.dumps(writable({"a": parse_json(b"NaN")})) == b'{"a":null}'

    def test_names_of_fields_are_cleaned_as_well(self):
        assert writable({"a": {"\ud83d": 1}}) == {"a": {"\ufffd": 1}}

    def test_halves_of_a_character_in_two_pieces_are_put_together(self):
        for field in ("content", "reasoning"):
            answer = Answer(CHAT, 10)
            for half in (b'"\\ud83d"', b'"\\ude00"'):
                answer.add(parse_json(b'{"choices": [{"delta": {"%s": %s}}]}' % (field.encode(), half)))
            answer.finish = "stop"
            assert answer.completion("m").body["choices"][0]["message"][field] == "😀"

    @pytest.mark.parametrize("depth", [150, 240, 254, 300, 900])
    def test_levels_beyond_what_can_be_written_are_left_out(self, depth):
        deep = json.loads("[" * depth + "]" * depth)
        body = writable({"a": deep, "b": {"c": "kept"}})
        assert body["b"] == {"c": "kept"}
        orjson.dumps([[[[[[[[body]]]]]]]])

    def test_a_body_in_order_is_not_copied(self):
        body = {"a": [1, "x", None]}
        assert writable(body) is body


def test_an_empty_completion_is_written():
    orjson.dumps(Completion("", 0, "stop", "server").body)
