"""The tokens of a text, counted by the tokenizer of the model that wrote it, where that can be had.

    the server's own        vLLM and llama.cpp have /tokenize
    that of its model       if tokenizers is installed and the hub's cache has it, or if tiktoken is and knows the model

It is asked only about texts that look longer than what was counted for them. The count of the text is not the count of
what was generated (hidden reasoning and the marks around calls are not in the text), so it shows that a limit was
ignored, or that it can have been kept, and never makes an answer without usage cheaper than its limit.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from shadowprice.backends._events import mapping, parse_json, whole
from shadowprice.backends._http import Body, Client

__all__ = ["Tokenizer"]

_TIMEOUT = 10.0  # seconds
_Counter: TypeAlias = Callable[[str], int]


class Tokenizer:
    """`count` returns None if the server has no tokenizer. Such a server is asked only once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._serves = True
        self._counters: dict[str, _Counter | None] = {}  # by model

    async def count(self, text: str, model: str) -> int | None:
        counted = await self._ask(text, model) if self._serves else None
        if counted is not None or not model:
            return counted
        if model not in self._counters:
            self._counters[model] = await _loaded(model)
        counter = self._counters[model]
        with suppress(Exception):  # half a character, or whatever else a text may hold
            return counter(text) if counter else None
        return None

    async def _ask(self, text: str, model: str) -> int | None:
        # vLLM reads `prompt`, llama.cpp `content`; neither adds the marks that begin a text.
        request = {"prompt": text, "content": text, "add_special_tokens": False, "add_special": False}
        if model:
            request["model"] = model
        try:
            async with asyncio.timeout(_TIMEOUT):
                response = await self._client.post(f"{self._client.root}/tokenize", request)
                try:
                    reply = mapping(parse_json(await Body(response, 2**20 + 100 * len(text)).all()))
                finally:
                    self._client.release(response)
        except Exception:  # whatever it is: there is no count
            self._serves = False
            return None
        count = reply.get("count")
        if count is None and isinstance(reply.get("tokens"), list):
            count = len(reply["tokens"])
        return count if whole(count) else None


async def _loaded(model: str) -> _Counter | None:
    """A function that counts as this model does. Not waited for at exit: tiktoken may fetch its tables first."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[_Counter | None] = loop.create_future()

    def finish(counter: _Counter | None) -> None:
        if not found.done():
            found.set_result(counter)

    def load() -> None:
        counter = _load(model)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(finish, counter)

    threading.Thread(target=load, name="tokenizer", daemon=True).start()
    try:
        return await asyncio.wait_for(found, _TIMEOUT)
    except TimeoutError:
        return None


def _load(model: str) -> _Counter | None:
    for find in (_from_cache_of_the_hub, _from_tiktoken):
        with suppress(Exception):  # not installed, not known, not readable
            if counter := find(model):
                return counter
    return None


def _from_cache_of_the_hub(model: str) -> _Counter | None:
    hub, tokenizers = map(importlib.import_module, ("huggingface_hub", "tokenizers"))
    path = hub.try_to_load_from_cache(model, "tokenizer.json")  # without asking the hub
    if not isinstance(path, str):
        return None
    tokenizer: Any = tokenizers.Tokenizer.from_file(path)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def _from_tiktoken(model: str) -> _Counter:
    encoding: Any = importlib.import_module("tiktoken").encoding_for_model(model)
    return lambda text: len(encoding.encode(text, disallowed_special=()))
