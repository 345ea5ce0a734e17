"""Requests to servers that answer what a test wants, byte for byte."""

import asyncio
import ssl
import zlib

import aiohttp
import pytest

from shadowprice.backends._failures import failure
from shadowprice.errors import InputError
from shadowprice.gateway import connections
from shadowprice.gateway.connections import Connections

SHORT = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Scripted(asyncio.Protocol):
    """Answers every request of a connection with the next of `answers`; None: closes it."""

    def __init__(self, server):
        self.server = server

    def connection_made(self, transport):
        self.transport = transport
        self.server.connections += 1

    def connection_lost(self, error):
        self.server.closed.set()

    def data_received(self, data):
        self.server.received.append(data)
        answer = self.server.answers.pop(0)
        if answer is None:
            self.transport.close()
        else:
            self.transport.write(answer)


class Server:
    def __init__(self, *answers):
        self.answers, self.received, self.connections = list(answers), [], 0
        self.closed = asyncio.Event()

    async def __aenter__(self):
        self._server = await asyncio.get_running_loop().create_server(lambda: Scripted(self), "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        self.client = Connections()
        return self

    async def __aexit__(self, *error):
        await self.client.close()
        self._server.close()

    async def ask(self, method="POST", end="/x", content=b"{}", **headers):
        async with self.client.request(method, self.url + end, [*headers.items()], content) as response:
            return response.status, await response.content.read(), response.headers


def run(work):
    asyncio.run(work())


def test_a_request_is_sent_as_it_was_given():
    async def work():
        async with Server(SHORT, SHORT, SHORT) as server:
            assert (await server.ask(end="/ü?q=%2B&r=a%20b", Odd="ä"))[:2] == (200, b"ok")
            head = server.received[0].decode()
            lines = ["POST /v1/%C3%BC?q=%2B&r=a%20b HTTP/1.1", f"Host: {server.url.split('/')[2]}", "Odd: ä"]
            assert head.split("\r\n") == [*lines, "Content-Length: 2", "", "{}"]
            await server.ask("GET", content=b"")
            assert b"Content-Length" not in server.received[1]
            await server.ask(content=b"")
            assert b"Content-Length: 0" in server.received[2]

    run(work)


def test_a_connection_is_used_again_after_a_response_was_read():
    async def work():
        async with Server(SHORT, SHORT) as server:
            await server.ask()
            await server.ask()
            assert server.connections == 1

    run(work)


def test_a_connection_is_closed_if_something_of_the_response_is_still_to_come():
    async def work():
        async with Server(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok", SHORT) as server:
            async with server.client.request("POST", server.url, [], b"") as response:
                assert await response.content.readany() == b"ok"
            await asyncio.wait_for(server.closed.wait(), 5)
            assert (await server.ask())[1] == b"ok"
            assert server.connections == 2

    run(work)


@pytest.mark.parametrize("when", ["head", "body"])
def test_a_connection_is_closed_if_the_request_is_cancelled(when):
    async def work():
        async with Server(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok" if when == "body" else b"") as server:
            asking = asyncio.create_task(server.ask())
            while not server.received:
                await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.wait_for(server.closed.wait(), 5)
            with pytest.raises(asyncio.CancelledError):
                await asking

    run(work)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + SHORT,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: deflate\r\ncontent-length: 10\r\n\r\n" + zlib.compress(b"ok"),
    ],
    ids=["announced", "chunked", "compressed"],
)
def test_responses_are_read_in_any_form(answer):
    async def work():
        async with Server(answer) as server:
            assert (await server.ask())[:2] == (200, b"ok")

    run(work)


def test_the_response_to_head_has_no_body():
    async def work():
        async with Server(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", SHORT) as server:
            assert (await server.ask("HEAD", content=b""))[:2] == (200, b"")
            assert (await server.ask())[1] == b"ok"

    run(work)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (None, aiohttp.ServerDisconnectedError, "the connection broke"),
        (b"no HTTP\r\n\r\n", aiohttp.ClientResponseError, "not an answer"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", aiohttp.ClientError, ""),
    ],
    ids=["closed", "no HTTP", "no chunk"],
)
def test_what_is_no_response_may_have_cost_something(answer, error, message):
    async def work():
        async with Server(answer) as server:
            with pytest.raises(error) as raised:
                await server.ask()
            found = failure(raised.value)
            assert message in str(found)
            assert found.tokens is None

    run(work)


def test_no_connection_costs_nothing():
    async def work():
        async with Server() as server:
            server._server.close()
            with pytest.raises(aiohttp.ClientConnectorError) as raised:
                await server.ask()
            assert failure(raised.value).tokens == 0

    run(work)


def test_a_server_without_a_valid_certificate_gets_nothing():
    async def work():
        async with Server() as server:
            server.url = server.url.replace("http:", "https:")
            server.answers = [b"no TLS"] * 2
            with pytest.raises((aiohttp.ClientConnectorError, ssl.SSLError)) as raised:
                await server.ask()
            assert failure(raised.value).tokens == 0
            assert not any(b"POST" in data for data in server.received)

    run(work)


@pytest.mark.parametrize("begun", [False, True])
def test_a_server_that_never_ends_is_not_waited_for(begun, monkeypatch):
    monkeypatch.setattr(connections, "_TOTAL", 0.1)
    monkeypatch.setattr(connections, "_SWEEP", 0.05)

    async def work():
        async with Server(b"HTTP/1.1 200 OK\r\n\r\nok" if begun else b"") as server:
            with pytest.raises(TimeoutError) as raised:
                await server.ask()
            assert failure(raised.value).tokens is None
            await asyncio.wait_for(server.closed.wait(), 5)

    run(work)


def test_a_header_never_becomes_two():
    async def work():
        async with Server() as server:
            with pytest.raises(InputError, match="line break"):
                await server.ask(Odd="1\r\nAuthorization: Bearer stolen")
            assert server.received == []

    run(work)
