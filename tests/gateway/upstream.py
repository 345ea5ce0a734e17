"""An upstream that keeps its limits and counts what it generates, and a gateway process in front of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from shadowprice.formats.limits import LIMIT_FIELDS

from ..backends.hostile import Reply, Request

LENGTH = 200  # tokens of every answer that is not cut


async def model(request: Request, reply: Reply) -> None:
    """One token a piece."""
    if "/models" in request.path:
        await reply.json(200, {"object": "list", "data": [{"id": "m", "object": "model"}]})
        return
    limits = [request.body[name] for name in LIMIT_FIELDS if request.body.get(name)]
    tokens = min([LENGTH, *limits])
    finish = "stop" if tokens == LENGTH else "length"
    if request.body.get("stream"):
        await reply.head()
        for number in range(tokens):
            await reply.piece(f"w{number % 10} ")
        await reply.finish(finish)
        await reply.usage(tokens)
        await reply.end()
        return
    reply.server.generated += tokens
    message = {"role": "assistant", "content": "w1 " * tokens}
    usage = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}
    choice = {"index": 0, "message": message, "finish_reason": finish, "odd": [1]}
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    await reply.json(200, body)


@contextmanager
def gateway(
    upstream: str, folder: object, *options: str, budget: str = "2000"
) -> Iterator[tuple[str, subprocess.Popen]]:
    """The address of a gateway process, and the process."""
    command = [sys.executable, "-m", "shadowprice", "serve", "--upstream", upstream, "--budget", budget]
    command += ["--port", "0", "--ledger", str(folder), *options]
    environment = {**os.environ, "SHADOWPRICE_ADMIN_KEY": "admin-secret-key", "OPENAI_API_KEY": ""}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            first = process.stderr.readline()
            assert first.startswith("http://"), first + process.stderr.read()
            yield first.split()[0], process
        finally:
            if process.poll() is None:
                process.terminate()
            process.communicate(timeout=20)
