"""Whatever a server sends, it takes a bounded amount of memory and time, and nothing crashes."""

import json
import subprocess
import sys
import zlib
from pathlib import Path

import orjson
import pytest

from shadowprice.backends._events import EventParser, TooLong
from shadowprice.errors import Unavailable

from .asking import CHAT, meet
from .hostile import Server

pytestmark = pytest.mark.usefixtures("no_proxy")

MOST = 120 * 2**20  # bytes of memory that a client may take on top of what it has, for a limit of 10
FLOOD = 600 * 2**20  # bytes that a server would send

CLIENT = """
import asyncio, sys
from shadowprice.backends.openai import OpenAIBackend
from shadowprice.errors import BackendError

def memory(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

async def main():
    backend = OpenAIBackend(sys.argv[1], "m", timeout=20, stall_timeout=20)
    before = memory("VmRSS")
    try:
        done = await backend.complete({"messages": [{"role": "user", "content": "hello"}]}, 10)
        printed = f"{done.tokens} {','.join(done.flags)}"
    except BackendError as error:
        printed = f"{error.tokens} {error.cause}"
    await backend.close()
    print(memory("VmHWM") - before, printed)

asyncio.run(main())
"""


def floods(start, part, *, status=200, kind="text/event-stream", compressed=False):
    """Sends `start` and then `part` again and again, until the client hangs up."""

    async def behave(request, reply):
        await reply.head(status, kind, **({"content_encoding": "gzip"} if compressed else {}))
        squeeze = zlib.compressobj(wbits=31) if compressed else None
        reply.server.generated += 10
        for sent in range(0, FLOOD, len(part)):
            data = part if sent else start + part
            await reply.send(squeeze.compress(data) if squeeze else data)

    return behave


MANY = b",".join([b"[]"] * 2_000)
EVENT = b'data: {"choices": [{"index": 0, "delta": {"padding": [%s]}}]}\n\n' % MANY
LOGPROBS = b'data: {"choices": [{"index": 0, "delta": {}, "logprobs": {"content": [%s]}}]}\n\n' % MANY


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
class TestMemory:
    @pytest.mark.parametrize(
        ("behaviour", "cause"),
        [
            (floods(b"data: ", b"x" * 65_536), "too many bytes"),
            (floods(b": ", b"x" * 65_536), "too many bytes"),
            (floods(b"", b"data: x\n" * 8_192), "too many bytes"),
            (floods(b"", b": still here\n\n" * 4_096), "too many bytes"),
            (floods(b"", EVENT), "too many bytes"),
            (floods(b"", LOGPROBS), "too many bytes"),
            (floods(b'{"choices": "', b"x" * 65_536, kind="application/json"), "too many bytes"),
            (floods(b"<html>", b"x" * 65_536, kind="text/html"), "not a completion (text/html)"),
            (floods(b"data: ", b"x" * 2**20, compressed=True), "too many bytes"),
            (floods(b'{"choices": "', b"x" * 2**20, kind="application/json", compressed=True), "too many bytes"),
            (floods(b'{"error": "', b"x" * 65_536, status=500, kind="application/json"), "500: "),
            (floods(b'{"error": "', b"x" * 2**20, status=503, kind="application/json", compressed=True), "503: "),
        ],
        ids=[
            "line", "comment", "lines", "comments", "events", "logprobs", "json", "page", "gzip", "gzip-json", "error",
            "gzip-error",
        ],
    )  # fmt: skip
    def test_is_bounded(self, behaviour, cause):
        with Server(behaviour) as server:
            done = subprocess.run(
                [sys.executable, "-c", CLIENT, server.url], capture_output=True, text=True, timeout=60, check=True
            )
            assert server.saw_hang_up(within=5)
        memory, tokens, printed = done.stdout.strip().split(" ", 2)
        assert int(memory) < MOST
        assert (tokens, printed[: len(cause)]) == ("0" if "completion" in cause else "None", cause)


class TestAnEvent:
    def test_is_bounded_before_it_is_complete(self):
        for start in (b"data: ", b": "):
            parser = EventParser(1_000)
            parser.feed(start + b"x" * 900)
            with pytest.raises(TooLong):
                parser.feed(b"x" * 100)

    def test_is_bounded_over_all_its_lines(self):
        parser = EventParser(1_000)
        with pytest.raises(TooLong):
            parser.feed(b"data: 12345678901234\n" * 51)

    def test_has_its_own_bound(self):
        parser = EventParser(1_000)
        assert len(parser.feed((b"data: " + b"x" * 900 + b"\n\n") * 50)) == 50

    def test_with_every_alternative_to_every_token_is_honest(self):
        """20 alternatives with their bytes: several kB for a token, all in one body."""
        other = {"token": "Ġalternative", "logprob": -12.345678901234567, "bytes": [*range(200, 212)]}
        entry = {"token": "word", "logprob": -0.1, "bytes": [119, 111], "top_logprobs": [other] * 20}

        async def behave(request, reply):
            reply.server.generated += 2_000
            choice = {"message": {"content": "word " * 2_000}, "logprobs": {"content": [entry] * 2_000}}
            choice["finish_reason"] = "length"
            await reply.json(200, {"choices": [choice], "usage": {"completion_tokens": 2_000}})

        body = {**CHAT, "logprobs": True, "top_logprobs": 20}
        done = meet(behave, body, limit=2_000, timeout=5)
        assert (done.tokens, done.flags) == (2_000, ())
        assert len(done.body["choices"][0]["logprobs"]["content"]) == 2_000


def nested(depth):
    return "[" * depth + "]" * depth


class TestDepth:
    @pytest.mark.parametrize("depth", [100, 190, 260, 300, 900, 1_000, 1_500, 100_000])
    @pytest.mark.parametrize("where", ["logprobs", "delta", "usage", "id"])
    def test_kills_nothing(self, depth, where):
        odd = {
            "logprobs": '"delta": {"content": "hi"}, "logprobs": {"content": %s}',
            "delta": '"delta": {"content": "hi", "odd": %s}',
        }.get(where, '"delta": {"content": "hi"}') % ((nested(depth),) if where in ("logprobs", "delta") else ())
        head = f'"{where}": {nested(depth)}, ' if where in ("usage", "id") else ""

        async def behave(request, reply):
            await reply.head()
            reply.server.generated += 1
            await reply.send("data: {" + head + '"choices": [{' + odd + ', "finish_reason": "stop"}]}\n\n')

        outcome = meet(behave)
        if isinstance(outcome, Unavailable):
            assert outcome.tokens is None
        else:
            assert outcome.text == "hi"
            orjson.dumps({"response": {"body": outcome.body, "more": [outcome.text]}})

    def test_of_logprobs_does_not_cost_the_answer(self):
        async def behave(request, reply):
            await reply.head()
            reply.server.generated += 1
            choice = {**reply.choice("hi", "stop"), "logprobs": {"content": json.loads(nested(300))}}
            await reply.event(reply.chunk([choice], usage={"completion_tokens": 1}))

        done = meet(behave)
        assert (done.text, done.tokens) == ("hi", 1)
        orjson.dumps([done.body])


def test_very_many_calls_are_kept():
    """Each has an index of its own."""
    calls = [{"index": i, "function": {"name": "", "arguments": ""}} for i in range(20_000)]

    async def behave(request, reply):
        await reply.head()
        await reply.event(reply.chunk([{"index": 0, "delta": {"tool_calls": calls}, "finish_reason": "stop"}]))

    done = meet(behave, timeout=5, stall_timeout=5, limit=5_000)
    assert len(done.body["choices"][0]["message"]["tool_calls"]) == 20_000
