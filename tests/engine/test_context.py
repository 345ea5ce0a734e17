"""Limits by the context of a model, and requests that do not fit."""

import asyncio

import pytest

from shadowprice.backends.recorded import RecordedBackend
from shadowprice.engine.context import within_context
from shadowprice.errors import Refused, Unavailable
from shadowprice.types import Request


class Small:
    """A context of 100 tokens; a prompt has as many as it has words."""

    def __init__(self):
        self.asked = 0

    async def room(self, body, limit):
        words = len(body["prompt"].split())
        if limit is not None and words + limit <= 100:
            return None
        self.asked += 1
        if body["prompt"] == "down":
            raise Unavailable("down", tokens=0)
        if words >= 100:
            raise Refused("too long", code="context_length_exceeded", sent=False)
        await asyncio.sleep(0)
        return 100 - words


def request(text, limit=None):
    return Request("q", text, limit, body={"prompt": text})


def fitted(requests, backend, max_tokens=None):
    found, refused = asyncio.run(within_context(requests, backend, max_tokens, 2))
    return [each.max_tokens for each in found], {place: str(error) for place, error in refused.items()}


@pytest.mark.parametrize(("max_tokens", "first"), [(None, 90), (95, 90), (20, None)])
def test_what_is_left_is_the_limit_and_a_callers_own_stays(max_tokens, first):
    """A request about which the server says nothing now is left to the attempt to send it."""
    asked = [request("w " * 10), request("w " * 80, 30), request("w " * 100), request("down", 100)]
    assert fitted(asked, Small(), max_tokens) == ([first, 30, None, 100], {2: "too long"})


def test_prompts_that_surely_fit_are_not_counted():
    backend = Small()
    assert fitted([request("w " * 10, 50), request("w")], backend, 60) == ([50, None], {})
    assert backend.asked == 0


def test_other_backends_have_no_context():
    asked = [request("w " * 1000)]
    assert fitted(asked, RecordedBackend([])) == ([None], {})
