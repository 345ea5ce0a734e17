import pytest

from shadowprice.gateway.relay import as_chat, split_events


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_events_are_cut_where_they_end_and_no_byte_is_lost(end):
    data = end.join([b"data: 1", b"data: 2", b"data: 3"])
    for cut in range(len(data)):
        *first, rest = split_events(data[:cut])
        *more, left = split_events(rest + data[cut:])
        assert b"".join([*first, *more, left]) == data
        assert [event.strip() for event in (*first, *more)] == [b"data: 1", b"data: 2"]


def test_events_of_responses_are_read_like_those_of_a_chat():
    delta = as_chat({"type": "response.output_text.delta", "delta": "Hi"})
    assert delta == {"choices": [{"index": 0, "delta": {"content": "Hi"}}]}
    usage = {"input_tokens": 3, "output_tokens": 7}
    counted = {"prompt_tokens": 3, "completion_tokens": 7}
    assert as_chat({"type": "response.completed", "response": {"usage": usage}})["usage"] == counted
    assert as_chat({"object": "response", "usage": usage})["usage"] == counted
    reasoned = as_chat({"usage": {**usage, "output_tokens_details": {"reasoning_tokens": 5}}})
    assert reasoned["usage"]["completion_tokens_details"] == {"reasoning_tokens": 5}


@pytest.mark.parametrize("event", [None, 3, "x", [], {"choices": [1]}])
def test_anything_else_stays_as_it_is(event):
    assert as_chat(event) is event
