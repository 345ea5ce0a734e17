"""The tokens of a text, counted by the server that wrote it, where it can: vLLM and llama.cpp have /tokenize.

It is asked only about texts that look longer than what was counted for them. The count of the text is not the count of
what was generated (hidden reasoning and the marks around calls are not in the text), so it shows that a limit was
ignored, or that it can have been kept, and never makes an answer without usage cheaper than its limit.
"""

from __future__ import annotations

import asyncio

from shadowprice.backends._events import mapping, parse_json, whole
from shadowprice.backends._http import Body, Client

__all__ = ["Tokenizer"]

_TIMEOUT = 10.0  # seconds


class Tokenizer:
    """`count` gives None where the server has no such endpoint, and does not ask again then."""

    def __init__(self, client: Client, model: str) -> None:
        self._client, self._model = client, model
        self._works = True

    async def count(self, text: str) -> int | None:
        if not self._works:
            return None
        # vLLM reads `prompt`, llama.cpp `content`; neither adds the marks that begin a text.
        request = {"prompt": text, "content": text, "add_special_tokens": False, "add_special": False}
        if self._model:
            request["model"] = self._model
        try:
            async with asyncio.timeout(_TIMEOUT):
                response = await self._client.post(f"{self._client.root}/tokenize", request)
                try:
                    found = mapping(parse_json(await Body(response, 2**20 + 100 * len(text)).all()))
                finally:
                    self._client.release(response)
        except Exception:  # for any reason: there is no count
            self._works = False
            return None
        count = found.get("count")
        if count is None and isinstance(found.get("tokens"), list):
            count = len(found["tokens"])
        return count if whole(count) else None
