"""What all backends share: limits of requests, parts of answers."""

import pytest

from shadowprice.backends.base import can_be_continued, effective_limit, join, opens_box, prefix, response
from shadowprice.errors import Refused
from shadowprice.formats.limits import ENDPOINTS, LIMIT_FIELDS
from shadowprice.types import Completion

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
TEXT = {"prompt": "hello"}


def completion(text, tokens, *, body=CHAT, finish="length", prompt=7, **fields):
    form = response(body, name="x", model="m", text=text, finish=finish, tokens=tokens, prompt_tokens=prompt)
    return Completion(text, tokens, finish, fields.pop("source", "server"), body=form, **fields)


def printed(answer):
    (choice,) = answer.body["choices"]
    return choice["message"]["content"] if "message" in choice else choice["text"]


class TestTheLimit:
    @pytest.mark.parametrize("field", LIMIT_FIELDS)
    def test_is_the_smaller_of_grant_and_callers(self, field):
        assert effective_limit({**CHAT, field: 4}, 10) == 4
        assert effective_limit({**CHAT, field: 40}, 10) == 10
        assert effective_limit({**CHAT, field: None}, 10) == 10

    @pytest.mark.parametrize("value", [0, -1, 1.5, "9", True])
    def test_of_the_caller_must_be_a_positive_whole_number(self, value):
        with pytest.raises(Refused, match="max_tokens"):
            effective_limit({**CHAT, "max_tokens": value}, 10)

    def test_every_endpoint_has_a_known_field(self):
        assert {endpoint.limit_field for endpoint in ENDPOINTS.values()} <= set(LIMIT_FIELDS)
        assert ENDPOINTS["/chat/completions"].question_field == "messages"
        url = "/v1/chat/completions"
        assert next(end for end in ENDPOINTS if url.endswith(end)) == "/chat/completions"


@pytest.mark.parametrize(("field", "value"), [("stop", ["x"]), ("tools", [{}]), ("response_format", {"type": "x"})])
def test_fields_that_apply_to_the_whole_answer_prevent_parts(field, value):
    assert can_be_continued(CHAT)
    assert can_be_continued({**CHAT, field: None})
    assert not can_be_continued({**CHAT, field: value})


def test_only_an_open_box_at_the_end_opens_a_box():
    assert opens_box("the answer is \\boxed{")
    assert not opens_box("\\boxed{} is the answer")
    assert not opens_box("")


class TestAPrefix:
    @pytest.mark.parametrize("body", [CHAT, TEXT], ids=["chat", "text"])
    def test_cuts_ids_exactly_and_text_in_proportion(self, body):
        whole = completion("abcdefgh", 4, body=body, finish="stop", ids=(1, 2, 3, 4), input_tokens=7)
        part = prefix(whole, 3)
        assert (part.text, part.tokens, part.finish, part.ids) == ("abcdef", 3, "length", (1, 2, 3))
        assert printed(part) == "abcdef"
        assert part.body["choices"][0]["finish_reason"] == "length"
        assert part.body["usage"] == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        assert part.body["id"] == "x"
        assert (printed(whole), whole.tokens) == ("abcdefgh", 4)

    def test_of_nothing_is_empty(self):
        part = prefix(completion("abc", 3, ids=(1, 2, 3)), 0)
        assert (part.text, part.tokens, part.ids) == ("", 0, ())

    @pytest.mark.parametrize("tokens", [3, 4])
    def test_of_everything_is_the_answer(self, tokens):
        whole = completion("abc", 3, finish="stop")
        assert prefix(whole, tokens) is whole

    def test_of_an_empty_answer_is_that_answer(self):
        assert prefix(completion("", 0), 0).tokens == 0

    def test_cannot_be_negative(self):
        with pytest.raises(ValueError, match="prefix"):
            prefix(completion("abc", 3), -1)


class TestJoining:
    def test_adds_texts_tokens_ids_and_flags(self):
        first = completion("ab", 2, ids=(1, 2), flags=("a", "b"), input_tokens=7)
        more = completion("c", 1, finish="stop", prompt=9, ids=(3,), flags=("b", "c"), input_tokens=1, cached_tokens=8)
        whole = join(first, more)
        assert (whole.text, whole.tokens, whole.finish, whole.ids) == ("abc", 3, "stop", (1, 2, 3))
        assert whole.flags == ("a", "b", "c")
        assert printed(whole) == "abc"
        assert whole.body["usage"] == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        assert (whole.usage.output, whole.usage.input, whole.usage.cached) == (3, 8, 8)

    def test_starts_from_nothing(self):
        more = completion("c", 1)
        assert join(None, more) is more

    @pytest.mark.parametrize("sources", [("assumed", "server"), ("server", "assumed"), ("counted", "server")])
    def test_has_the_less_certain_source(self, sources):
        first, more = (completion("a", 1, source=source) for source in sources)
        assert join(first, more).usage_source == next(source for source in sources if source != "server")

    def test_puts_the_suffix_between_the_parts(self):
        first, more = completion("ab", 2, ids=(1, 2)), completion("c", 1, ids=(3,))
        assert (join(first, more, " so ").text, join(first, more, " so ").ids) == ("ab so c", ())
        assert (join(None, more, " so ").text, join(None, more, " so ").ids) == (" so c", ())
        assert join(first, more, " so ").tokens == 3

    def test_prefix_and_rest_give_the_answer(self):
        whole = completion("abcd", 4, finish="stop", ids=(1, 2, 3, 4))
        rest = completion("cd", 2, finish="stop", ids=(3, 4))
        again = join(prefix(whole, 2), rest)
        assert (again.text, again.tokens, again.ids, again.finish) == (whole.text, 4, whole.ids, "stop")
