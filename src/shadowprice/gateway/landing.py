"""Landing: an answer that is cut at the grant of the market is asked for its final answer, within the grant.

This needs a route with a `landing`, whose server continues answers (`formats.landings`). Some tokens of the grant are
held back. If the answer is cut, it is sent back with the text of the landing after it, and continued with these tokens.
Both parts together are the answer, and both are charged. Streams do not land, nor does what cannot be continued (tools,
structured output, several answers), nor anything under budgets in money, because the prompt is read twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from shadowprice.accounts.windows import Account
from shadowprice.backends._continuing import continuation, final_text
from shadowprice.backends._events import EventParser
from shadowprice.backends.base import can_be_continued, opens_box, stops_of
from shadowprice.errors import MissingExtra
from shadowprice.formats.landings import Landing
from shadowprice.gateway.admission import Decision
from shadowprice.gateway.bodies import Ask, limited
from shadowprice.gateway.connections import Response
from shadowprice.gateway.relay import Attempt
from shadowprice.gateway.upstreams import Upstream, Upstreams
from shadowprice.grading.answers import boxes
from shadowprice.types import Usage

try:
    from aiohttp import web
except ImportError:
    raise MissingExtra("gateway", "the gateway") from None

__all__ = ["LandingAttempt", "landing_of"]

_MOST_STOPS = 4  # that servers accept
_EVENT = 2**20  # bytes


def landing_of(upstream: Upstream, ask: Ask, decision: Decision, path: Sequence[Account]) -> Landing | None:
    """How the answer to a request lands if it is cut; None if it does not land."""
    landing = upstream.route.landing
    if landing is None or decision.kind != "shrunk" or decision.grant < 2 * landing.tokens:
        return None
    if ask.stream or ask.answers > 1 or not can_be_continued(ask.body) or any(account.money for account in path):
        return None
    if ask.endpoint == "/chat/completions":
        return landing if isinstance(ask.body.get("messages"), list) and not ask.begun else None
    return landing if ask.endpoint == "/completions" and isinstance(ask.body.get("prompt"), str) else None


class LandingAttempt(Attempt):
    """An attempt whose answer lands if it is cut; `grant` is for both parts."""

    def __init__(
        self,
        landing: Landing,
        upstreams: Upstreams,
        upstream: Upstream,
        ask: Ask,
        grant: int,
        headers: Callable[[], dict[str, str]],
    ) -> None:
        super().__init__(upstreams, upstream, ask, grant - landing.tokens, 0, headers)
        self._landing = landing

    async def run(self, request: web.BaseRequest, body: dict[str, Any]) -> web.StreamResponse:
        reply = await super().run(request, body)
        if not isinstance(reply, web.Response) or (found := _cut(reply, self._landing)) is None:
            return reply
        answer, text = found
        whole = text + self._landing.text
        sent = whole.rstrip() if self._ask.endpoint == "/chat/completions" else whole
        more = {**continuation(self._ask.body, sent), "stop": stops_of(self._landing.text)[:_MOST_STOPS]}
        # As a stream: in whole answers llama.cpp repeats what it continues.
        ask = self._ask._replace(body={**more, "stream": True}, stream=True)
        second = _Final(self._upstreams, self._upstream, ask, self._landing.tokens, 0, self._headers, new=True)
        before = self.usage
        try:
            await second.run(request, limited(ask, self._landing.tokens, self._upstream.route.limit_field))
        finally:  # also if the client leaves meanwhile
            self.left = second.left
            output = before.output + second.usage.output
            self.usage = Usage(output, before.input + second.usage.input, before.cached + second.usage.cached)
        if not second.text:
            return reply  # as it was cut
        full = whole + final_text(self._landing.text, whole[len(sent) :], second.text, second.finish)
        _write(answer, full, second.finish, output)
        reply.body = orjson.dumps(answer)
        reply.headers["x-shadowprice-landing"] = str(len(text))
        return reply


class _Final(Attempt):
    """The attempt at the final answer, which is not passed on by itself."""

    text, finish = "", "length"

    async def _relay(self, request: web.BaseRequest, response: Response) -> web.StreamResponse:
        parser = EventParser(_EVENT)
        try:
            async for chunk in response.content.iter_any():
                self._add(parser, chunk)
                if self._answer.overrun:
                    break
        finally:
            if not response.content.at_eof():
                response.close()
        self._charge()
        self.text, self.finish = self._answer.text(), self._answer.finish or "length"
        return web.Response()


def _cut(reply: web.Response, landing: Landing) -> tuple[dict[str, Any], str] | None:
    """The answer in a response and its text, if it was cut before it stated its final answer, and is only text."""
    if reply.status != 200 or (found := _read(reply)) is None:
        return None
    answer, choice, text = found
    stated = opens_box(landing.text) and boxes(text) is not None
    return (answer, text) if choice.get("finish_reason") == "length" and text and not stated else None


def _read(reply: web.Response) -> tuple[dict[str, Any], dict[str, Any], str] | None:
    """The body of a response, its only choice and the text of that; None: it has another form, or more than text."""
    try:
        answer = orjson.loads(reply.body if isinstance(reply.body, bytes) else b"")
        (choice,) = answer["choices"]
        message = choice["message"] if "message" in choice else {"content": choice["text"]}
        more = {name for name, value in message.items() if value} - {"role", "content"}
    except (orjson.JSONDecodeError, TypeError, KeyError, ValueError, AttributeError):
        return None
    text = message.get("content") or ""
    return (answer, choice, text) if isinstance(text, str) and not more else None


def _write(answer: dict[str, Any], text: str, finish: str, tokens: int) -> None:
    (choice,) = answer["choices"]
    if "message" in choice:
        choice["message"]["content"] = text
    else:
        choice["text"] = text
    choice["finish_reason"] = finish
    if isinstance(usage := answer.get("usage"), dict):  # its prompt counts once
        prompt = usage.get("prompt_tokens")
        total = {"total_tokens": prompt + tokens} if isinstance(prompt, int) else {}
        answer["usage"] = {**usage, "completion_tokens": tokens, **total}
