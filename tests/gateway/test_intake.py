"""Hostile clients are refused in bounded time and memory, and others are served meanwhile."""

import asyncio

import pytest

from shadowprice.gateway import intake

from ..backends.hostile import Server
from .inside import configured, run, served
from .upstream import model

PLAIN = 'budgets = ["5k"]\n[[route]]\nname = "m"\nbase_url = "{url}"\n'


def hostile(tmp_path, work):
    async def main(upstream):
        async with served(configured(tmp_path, PLAIN.format(url=upstream.url)), tmp_path) as client:
            await work(client, upstream)

    with Server(model) as upstream:
        run(main(upstream))


async def raw(client, *parts, pause=0.0):
    """What comes back for these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(client.root.rsplit(":", 1)[1]))
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def test_a_large_body_is_refused_before_it_is_read(tmp_path):
    async def work(client, upstream):
        reply = await raw(client, HEAD + b"Content-Length: 20000000\r\n\r\n{")
        assert reply.startswith(b"HTTP/1.1 413")
        assert b"Connection: close" in reply
        chunk = b"%x\r\n%s\r\n" % (2**20, b" " * 2**20)
        reply = await raw(client, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 17)
        assert reply.startswith(b"HTTP/1.1 413")
        assert upstream.requests == []

    hostile(tmp_path, work)


def test_a_slow_body_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(intake, "_PATIENCE", 0.2)

    async def work(client, upstream):
        reply = await raw(client, HEAD + b"Content-Length: 1000\r\n\r\n", b"{", b" ", b" ", pause=0.1)
        assert reply.startswith(b"HTTP/1.1 408")

    hostile(tmp_path, work)


def test_bodies_of_many_clients_together_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(intake, "_TOGETHER", 3_000_000)
    monkeypatch.setattr(intake, "_PATIENCE", 1.0)

    async def work(client, upstream):
        part = HEAD + b"Content-Length: 2000000\r\n\r\n" + b" " * 1_000_000
        replies = await asyncio.gather(*(raw(client, part) for _ in range(6)))
        assert sorted(reply[9:12] for reply in replies) == [b"408"] * 3 + [b"503"] * 3
        assert (await client.chat())[0] == 200

    hostile(tmp_path, work)


def test_connections_above_a_number_are_closed_and_others_are_served(tmp_path):
    async def work(client, upstream):
        client.app.server.most = 5
        assert (await client.chat())[0] == 200
        port = int(client.root.rsplit(":", 1)[1])
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        await asyncio.sleep(0.1)
        closed = [reader.at_eof() or reader.exception() is not None for reader, _ in idle]
        assert closed.count(True) == 16
        assert (await client.chat())[0] == 200  # on its connection
        _, page, _ = await client.ask("GET", "/metrics")
        assert "shadowprice_connections_refused_total 16" in page
        for _, writer in idle:
            writer.close()

    hostile(tmp_path, work)


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe{",
        b'{"messages": "\xc3\x28"}',
        b"[" * 1_000_000,
        b'{"a":' * 50_000,
        b'{"messages": ' + b"[" * 400 + b"]" * 400 + b"}",
    ],
    ids=["no UTF-8", "half a character", "deep lists", "deep objects", "deeper than can be written"],
)
def test_bodies_that_are_not_what_they_should_be(tmp_path, content):
    async def work(client, upstream):
        length = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(content)
        assert (await raw(client, HEAD + length, content)).startswith(b"HTTP/1.1 400")
        assert upstream.requests == []

    hostile(tmp_path, work)


def test_a_body_that_is_not_compressed_as_it_says_is_refused(tmp_path):
    async def work(client, upstream):
        more = b"Content-Encoding: gzip\r\nContent-Length: 7\r\nConnection: close\r\n\r\n"
        assert (await raw(client, HEAD + more, b"notgzip")).startswith(b"HTTP/1.1 400")
        assert upstream.requests == []

    hostile(tmp_path, work)


@pytest.mark.parametrize(
    "line", [b"GET", b"POST / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02" * 40 + b"\r\n\r\n", b"A" * 70_000 + b"\r\n\r\n"]
)
def test_what_is_no_http_is_answered_with_400_or_closed(tmp_path, line):
    async def work(client, upstream):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(client.root.rsplit(":", 1)[1]))
        writer.write(line)
        writer.write_eof()
        reply = await asyncio.wait_for(reader.read(), 10)
        assert reply == b"" or reply.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))
        writer.close()
        assert (await client.chat())[0] == 200

    hostile(tmp_path, work)


@pytest.mark.parametrize(
    "path",
    ["/v1/../infill", "/v1/%2e%2e/infill", "/v1/..%2finfill", "/v1/%252e%252e/infill", "/v1/x/./y", "/v1/models%3fa=b"],
)
def test_no_path_leads_out_of_v1(tmp_path, path):
    """Beside /v1 a server may generate without a limit (/infill, /invocations) or show prompts of others (/slots)."""

    async def work(client, upstream):
        request = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}" % path.encode()
        assert (await raw(client, request)).startswith(b"HTTP/1.1 404")
        assert upstream.requests == []

    hostile(tmp_path, work)


def test_a_query_is_passed_on_as_it_is(tmp_path):
    async def work(client, upstream):
        request = b"GET /v1/files?after=a%26b%23c HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        await raw(client, request)
        assert upstream.requests[-1].path == "/v1/files?after=a%26b%23c"

    hostile(tmp_path, work)


def test_a_client_that_waits_for_100_continue_gets_it_and_the_server_is_not_asked_for_it(tmp_path):
    async def work(client, upstream):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(client.root.rsplit(":", 1)[1]))
        content = b'{"model": "m", "messages": [], "max_tokens": 5}'
        writer.write(HEAD + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % len(content))
        async with asyncio.timeout(10):
            assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n"
            writer.write(content)
            await reader.readline()
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        assert "expect" not in {name.lower() for name in upstream.requests[-1].headers}

    hostile(tmp_path, work)


def test_what_is_no_http_is_not_logged_since_it_may_have_a_key_in_it(tmp_path, caplog):
    async def work(client, upstream):
        reply = await raw(client, b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-\x01secret\r\n\r\n")
        assert b" 400 " in reply
        assert "secret" not in caplog.text

    hostile(tmp_path, work)
