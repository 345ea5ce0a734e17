"""Any OpenAI-compatible server, and the distrust it deserves.

Answers are always streamed, so that a server which ignores its limit can be stopped. A chunk of the
stream that says something is a piece. A piece holds one token or several, so the number of pieces
never exceeds the number of tokens: with more pieces than the limit the limit was ignored, with more
pieces than the server counts its count is wrong.

What an answer is charged (`limit`: what was sent, not more than the grant):

    more pieces than the limit                      the pieces, and the stream is closed   limit_ignored
    usage above the limit                           the usage                              limit_ignored
    usage from the pieces seen up to the limit      the usage
    usage below the pieces, negative, not a number  the limit                              usage_wrong
    no usage                                        the limit

A server that ignored a limit is asked nothing more: what it would generate cannot be bounded.

A failure costs nothing where nothing can have been generated (no connection, 429, a refusal) and is of
unknown cost everywhere else.

A cut answer is gone on with by its text: a plain prompt is sent again with the text after it, a chat with
the text as an assistant's message that is not finished (`continue_final_message`). llama.cpp, vLLM and
SGLang go on from there; other servers answer anew, and that can be told: the prompt they count is longer
than the old one and its answer. Text is not tokens: a model that wrote a word in an unusual way reads it in
the usual one, and may go on in another way. White space at the end is held back, since some chat templates
take it off; the model writes it again.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, Literal, TypeGuard

from shadowprice.backends.base import LIMIT_FIELDS, granted, pausable, response, with_text
from shadowprice.errors import BackendError, Distrusted, InputError, MissingExtra, Refused, Unavailable
from shadowprice.types import Completion

try:
    import openai
except ImportError:
    raise MissingExtra("openai", "talking to an OpenAI-compatible server") from None

_CONNECT = 10.0  # seconds for a connection; shorter if the whole answer has less
_LONGEST_DELAY = 300.0  # a server that asks for more is asked again after this
_MOST = 2**24  # tokens; no model writes more in one answer, so that a higher count is no count
_LONGEST_TOKEN = 128  # characters; the longest in the vocabularies in use are runs of 128 spaces
_THIS_MACHINE = ("all://127.0.0.1", "all://localhost", "all://[::1]", "all://0.0.0.0")  # no proxy can reach it for us
_WORDS = ("content", "reasoning_content", "reasoning", "refusal")  # of a delta: each is generated text


class OpenAIBackend:
    """A model behind an OpenAI-compatible endpoint.

    base_url       with the version: http://127.0.0.1:8000/v1
    model          its name there; "" leaves the name to each request
    api_key        None: the environment's OPENAI_API_KEY, else "none", which local servers accept
    timeout        seconds for a whole answer, waiting for its first word included
    stall_timeout  seconds from one word to the next
    limit_field    what limits a chat. Newer servers want max_completion_tokens; older ones know, and
                   llama-cpp-python heeds, only max_tokens. Plain completions always take max_tokens.
    goes_on        whether it goes on with a chat that was cut; None: the first one that is, tells
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout: float = 600.0,
        stall_timeout: float = 60.0,
        limit_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens",
        goes_on: bool | None = None,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise InputError(f"base URL {base_url!r} is not one", fix="write it as http://127.0.0.1:8000/v1")
        if limit_field not in ("max_completion_tokens", "max_tokens"):
            raise InputError(f"limit field {limit_field!r}", fix="choose max_completion_tokens or max_tokens")
        self.model = model
        self._timeout, self._stall_timeout = timeout, stall_timeout
        self._limit_field, self._goes_on = limit_field, goes_on
        self._asks_usage = True
        self._caught = ""
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=api_key or os.environ.get("OPENAI_API_KEY") or "none",
            max_retries=0,  # who retries must account for every attempt
            timeout=openai.Timeout(None, connect=min(timeout, _CONNECT)),  # the rest is timed here
            # A kept connection that its server has just closed looks like an answer that was lost, and
            # would be charged as one. A new connection costs little beside an answer.
            default_headers={"Connection": "close"},
            http_client=openai.DefaultAsyncHttpxClient(mounts=dict.fromkeys(_THIS_MACHINE)),
        )

    async def complete(self, body: Mapping[str, Any], limit: int) -> Completion:
        limit = granted(body, limit)
        if self._caught:
            raise Distrusted(self._caught)
        answer = _Answer(body, limit)
        failure = await self._listen(self._request(body, limit), answer)
        # What breaks after the last word no longer matters: the answer is whole.
        if answer.finish is None and not answer.overrun:
            raise failure or Unavailable("the stream ended without a finish_reason", tokens=None)
        if answer.finish in ("abort", "error"):  # vLLM, SGLang
            raise Unavailable(f"the server gave up, finish_reason {answer.finish}", tokens=None)
        done = answer.completion(self.model)
        if "limit_ignored" in done.flags:
            self._caught = f"the server at {self._client.base_url} ignored a limit of {limit:,} tokens: {done.tokens:,}"
        return done

    def resumes(self, body: Mapping[str, Any]) -> bool | None:
        if not pausable(body):
            return False
        if "messages" not in body:
            return isinstance(body.get("prompt"), str)
        return self._goes_on if body["messages"][-1].get("role") != "assistant" else False

    async def extend(self, body: Mapping[str, Any], so_far: Completion | None, limit: int) -> Completion:
        if so_far is None:
            return await self.complete(body, limit)
        chat = "messages" in body
        said = so_far.text.rstrip() if chat else so_far.text
        try:
            if self.resumes(body) is False or not said or _says_more(so_far):
                raise Refused("the server cannot go on with a part of an answer", code="not_continued")
            more = await self.complete(_onward(body, said), limit)
        except Refused:
            if chat:
                self._goes_on = bool(self._goes_on)
            raise
        if chat and self._goes_on is None:
            self._goes_on = _went_on(so_far, said, more)
            if not self._goes_on:
                raise Refused("the server began anew", tokens=more.tokens, code="not_continued")
        return with_text(more, _without(so_far.text[len(said) :], more.text))

    async def fetch(self, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """What the server answers beside the protocol, at once; fails as `complete` does."""
        try:
            async with asyncio.timeout(self._timeout):
                return _mapping(await self._client.post(url, body=dict(body), cast_to=object))
        except TimeoutError:
            raise Unavailable("the server did not answer in time", tokens=None) from None
        except Exception as error:
            raise _failure(error) from None

    async def close(self) -> None:
        await self._client.close()

    def _request(self, body: Mapping[str, Any], limit: int) -> dict[str, Any]:
        request = {field: value for field, value in body.items() if field not in (*LIMIT_FIELDS, "stream_options")}
        request[self._limit_field if "messages" in body else "max_tokens"] = limit
        if self.model:
            request["model"] = self.model
        return {**request, "stream": True}

    async def _listen(self, request: dict[str, Any], answer: _Answer) -> BackendError | None:
        """Hear the answer to its end, or to its limit; returns what cut it short, if anything did."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        try:
            async with asyncio.timeout_at(deadline) as clock:
                stream = await self._open(request)
                try:
                    async for event in _events(stream):
                        answer.add(event)
                        if answer.overrun:  # what is already here is still counted; waiting for more ends it
                            clock.reschedule(loop.time())
                        elif answer.pieces:  # before the first one a model may think, or queue, in silence
                            clock.reschedule(min(deadline, loop.time() + self._stall_timeout))
                finally:
                    await stream.close()
        except TimeoutError:
            silent = "stopped in mid-answer" if answer.pieces else "did not answer in time"
            return Unavailable(f"the server {silent}", tokens=None)
        except Exception as error:  # whatever the client and its HTTP layers make of bytes that are not an answer
            return _failure(error)
        return None

    async def _open(self, request: dict[str, Any]) -> openai.AsyncStream[object]:
        asked = self._asks_usage
        try:
            return await self._post({**request, "stream_options": {"include_usage": True}} if asked else request)
        except openai.APIStatusError as error:
            if not asked or error.status_code not in (400, 422) or "stream_options" not in f"{error} {error.body}":
                raise
        self._asks_usage = False  # a refusal generated nothing, so that asking again is still the same attempt
        return await self._post(request)

    async def _post(self, request: dict[str, Any]) -> openai.AsyncStream[object]:
        # Not `client.chat.completions.create`: the body goes out as it is, with fields the client does
        # not know, and events come back as they are, without being forced into its types.
        path = "/chat/completions" if "messages" in request else "/completions"
        return await self._client.post(
            path, body=request, cast_to=object, stream=True, stream_cls=openai.AsyncStream[object]
        )


async def _events(stream: openai.AsyncStream[object]) -> AsyncIterator[object]:
    """The events of a stream; one event, the whole answer, from a server that does not stream."""
    if stream.response.headers.get("content-type", "").startswith("application/json"):
        yield json.loads(await stream.response.aread())
        return
    with suppress(StopAsyncIteration):
        while True:
            yield await anext(stream)


# --- going on ----------------------------------------------------------------------------------


def _onward(body: Mapping[str, Any], said: str) -> dict[str, Any]:
    """The request that asks for what comes after `said`."""
    if "messages" not in body:
        return {**body, "prompt": body["prompt"] + said}
    messages = [*body["messages"], {"role": "assistant", "content": said}]
    return {**body, "messages": messages, "continue_final_message": True, "add_generation_prompt": False}


def _says_more(answer: Completion) -> bool:
    """Whether there is more to an answer than its text: thoughts or tool calls, which cannot be sent back."""
    (choice,) = answer.body["choices"]
    return not choice.get("message", {}).keys() <= {"role", "content"}


def _went_on(so_far: Completion, said: str, more: Completion) -> bool:
    """A server that begins anew counts its own answer and the frame around it as prompt, or says it again."""
    if so_far.usage_source != "server" or more.usage_source != "server":
        return False
    before, after = (part.body["usage"]["prompt_tokens"] for part in (so_far, more))
    again = more.text and (more.text.startswith(said) or said.startswith(more.text))
    return before < after <= before + so_far.tokens and not again


def _without(held: str, text: str) -> str:
    """The text without the white space that was held back and is now said again, or a part of it."""
    return "" if held.startswith(text) else text.removeprefix(held)


# --- what arrives ------------------------------------------------------------------------------


class _Malformed(ValueError):
    """An event that is not in the form of the protocol."""


class _Answer:
    """What has arrived of one answer."""

    def __init__(self, body: Mapping[str, Any], limit: int) -> None:
        self.body, self.limit = body, limit
        self.finish: str | None = None
        self.pieces = 0
        self._characters = 0
        self._words: dict[str, list[str]] = {field: [] for field in _WORDS}
        self._calls: dict[int, dict[str, Any]] = {}
        self._logprobs: dict[str, list[Any]] = {}
        self._head: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._used: int | None = None
        self._usage_wrong = False

    @property
    def seen(self) -> int:
        """Tokens that arrived for certain: one a piece, more if the pieces are too long for that."""
        return max(self.pieces, -(-self._characters // _LONGEST_TOKEN))

    @property
    def overrun(self) -> bool:
        return self.seen > self.limit

    def add(self, event: object) -> None:
        fields = _mapping(event)
        for field in ("id", "created", "model", "system_fingerprint"):
            if fields.get(field) and isinstance(fields[field], str | int):
                self._head.setdefault(field, fields[field])
        if fields.get("usage") is not None:
            self._add_usage(fields["usage"])
        for choice in _list(fields.get("choices")):
            self._add_choice(_mapping(choice))

    def _add_usage(self, usage: object) -> None:
        try:
            used = _used(usage)
        except _Malformed:
            self._usage_wrong = True
            return
        if used is not None:  # some servers count along, with every chunk
            self._used = max(used, self._used or 0)
            self._usage = _mapping(usage)

    def _add_choice(self, choice: dict[str, Any]) -> None:
        # a chunk of a chat, a whole chat, or either of a plain completion
        delta = _mapping(choice.get("delta") or choice.get("message") or {"content": choice.get("text")})
        words = {field: _string(delta.get(field)) for field in _WORDS}
        calls = [_mapping(call) for call in _list(delta.get("tool_calls"))]
        functions = [_mapping(call.get("function") or {}) for call in calls]
        size = sum(map(len, words.values())) + sum(len(_string(f.get("arguments"))) for f in functions)
        self.pieces += size > 0
        self._characters += size
        if self.overrun or choice.get("index") not in (0, None):  # an answer nobody asked for is only counted
            return
        for field, word in words.items():
            self._words[field].append(word)
        for place, (call, function) in enumerate(zip(calls, functions, strict=True)):
            self._add_call(place, call, function)
        for field, values in _mapping(choice.get("logprobs") or {}).items():
            if isinstance(values, list):
                self._logprobs.setdefault(field, []).extend(values)
        self.finish = _string(choice.get("finish_reason")) or self.finish

    def _add_call(self, place: int, call: dict[str, Any], function: dict[str, Any]) -> None:
        index = call.get("index", place)
        if not isinstance(index, int):
            raise _Malformed(f"a tool call with index {index!r:.40}")
        known = self._calls.setdefault(index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        known["id"] = known["id"] or _string(call.get("id"))
        for field in ("name", "arguments"):
            known["function"][field] += _string(function.get(field))

    def completion(self, model: str) -> Completion:
        finish = "length" if self.overrun else self.finish or "stop"
        tokens, source, flags = self._charge()
        words = {field: text for field, parts in self._words.items() if (text := "".join(parts))}
        text = words.pop("content", "")
        body = response(
            self.body,
            name=str(self._head.get("id", "")),
            model=str(self._head.get("model", model)),
            text=text,
            finish=finish,
            tokens=tokens,
            prompt_tokens=prompt if _whole(prompt := self._usage.get("prompt_tokens")) else 0,
            created=created if _whole(created := self._head.get("created"), 2**53) else int(time.time()),
        )
        if "system_fingerprint" in self._head:
            body["system_fingerprint"] = self._head["system_fingerprint"]
        choice = body["choices"][0]
        choice["logprobs"] = self._logprobs or None
        if "message" in choice:
            choice["message"].update(words)
            if self._calls:
                choice["message"]["tool_calls"] = [call for _, call in sorted(self._calls.items())]
        body["usage"] = {**self._usage, **body["usage"]}
        return Completion(text, tokens, "length" if finish == "length" else "stop", source, flags, body)

    def _charge(self) -> tuple[int, Literal["server", "counted", "assumed"], tuple[str, ...]]:
        """The table at the head of this file."""
        if self.overrun:
            return max(self.seen, self._used or 0), "counted", ("limit_ignored",)
        # An answer that was cut at its limit cannot have been empty, even if none of it was shown.
        low = max(self.seen, self.finish == "length")
        if self._usage_wrong or (self._used is not None and self._used < low):
            return self.limit, "assumed", ("usage_wrong",)
        if self._used is None:
            return self.limit, "assumed", ()
        return self._used, "server", ("limit_ignored",) if self._used > self.limit else ()


def _used(usage: object) -> int | None:
    """The server's count of what it generated, None if it gives none."""
    fields = _mapping(usage)
    used, prompt, total = (fields.get(f"{kind}_tokens") for kind in ("completion", "prompt", "total"))
    if used is None:
        return None
    if not _whole(used):
        raise _Malformed(f"a usage of {used!r:.40}")
    # Some services leave reasoning out of the answer's count (Gemini, xAI), but not out of the total.
    return max(used, total - prompt) if _whole(total) and _whole(prompt) else used


def _whole(value: object, most: int = _MOST) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= most


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Malformed(f"{value!r:.40} where an object belongs")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list | None):
        raise _Malformed(f"{value!r:.40} where a list belongs")
    return value or []


def _string(value: object) -> str:
    if not isinstance(value, str | None):
        raise _Malformed(f"{value!r:.40} where text belongs")
    return value or ""


# --- what goes wrong ---------------------------------------------------------------------------


def _failure(error: Exception) -> BackendError:
    if isinstance(error, openai.APIStatusError):
        return _refusal(error)
    if isinstance(error, openai.APIConnectionError):
        cause = error.__cause__ or error
        # By name: they are httpx's or httpx2's, as the client's version has it.
        unsent = {"ConnectError", "ConnectTimeout", "PoolTimeout"} & {kind.__name__ for kind in type(cause).__mro__}
        what = "no connection" if unsent else "the connection broke"
        return Unavailable(f"{what}: {_line(cause)}", tokens=0 if unsent else None)
    if isinstance(error, openai.APIError):  # {"error": ...} in the stream
        return Unavailable(f"the server broke off: {_line(error.message)}", tokens=None)
    return Unavailable(f"not an answer: {_line(error)}", tokens=None)


def _refusal(error: openai.APIStatusError) -> BackendError:
    said = error.body
    if isinstance(said, dict):
        said = said.get("message") or said.get("detail") or said
    message, status = f"{error.status_code}: {_line(said or 'no reason given')}", error.status_code
    if status == 429 and error.code != "insufficient_quota":  # OpenAI's word for an account that is empty
        return Unavailable(message, tokens=0, delay=_delay(error.response.headers))
    if status in (408, 409) or status >= 500:
        return Unavailable(message, tokens=None, delay=_delay(error.response.headers))
    return Refused(message)


def _delay(headers: Mapping[str, str]) -> float | None:
    """The seconds a server asks to wait, never more than `_LONGEST_DELAY`."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        with suppress(KeyError, ValueError):
            if (seconds := float(headers[name]) * unit) >= 0:
                return min(seconds, _LONGEST_DELAY)
    with suppress(KeyError, ValueError, TypeError, OverflowError):
        seconds = parsedate_to_datetime(headers["retry-after"]).timestamp() - time.time()
        return min(max(seconds, 0.0), _LONGEST_DELAY)
    return None


def _line(said: object) -> str:
    """Whatever it is, in one line of bearable length."""
    return " ".join((str(said) or type(said).__name__).split())[:300]
