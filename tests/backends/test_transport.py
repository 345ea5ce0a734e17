"""What goes over the wire: connections, proxies, secrets, and streams cut at any byte."""

import asyncio
import gc
import json
import socket
import threading
import time
import uuid
from contextlib import suppress
from itertools import zip_longest

import pytest

from shadowprice.backends.openai import OpenAIBackend
from shadowprice.errors import BackendError, Denied, InputError, Unavailable

from . import hostile
from .asking import CHAT, SHORT, ask, meet
from .hostile import Server, fails

pytestmark = pytest.mark.usefixtures("no_proxy")
PROXIES = ("NO_PROXY", "no_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")


class TestAProxy:
    """From the environment, as curl and others use it."""

    @pytest.fixture(params=["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
    def proxy(self, request, monkeypatch):
        for name in PROXIES:
            monkeypatch.delenv(name, raising=False)
        with Server(hostile.well_behaved) as server:
            monkeypatch.setenv(request.param, server.url.removesuffix("/v1"))
            yield server

    def test_is_not_used_for_this_machine(self, proxy):
        with Server(hostile.well_behaved) as server:
            for host in ("127.0.0.1", "localhost", "0.0.0.0"):
                assert ask(server.url.replace("127.0.0.1", host)).tokens == 10
            assert len(server.requests) == 3
            assert ask(server.url.replace("127.0.0.1", "[::1]")).tokens == 0  # where nothing listens
        assert proxy.requests == []

    def test_is_used_for_other_machines(self, proxy):
        assert ask("http://model.invalid/v1").tokens == 10
        assert [request.path for request in proxy.requests] == ["http://model.invalid/v1/chat/completions"]

    def test_is_not_used_where_the_environment_excludes_it(self, proxy, monkeypatch):
        monkeypatch.setenv("NO_PROXY", "model.invalid")
        assert ask("http://model.invalid/v1", timeout=4).tokens == 0
        assert proxy.requests == []

    def test_receives_its_credentials(self, proxy, monkeypatch):
        for name in PROXIES:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1").replace("//", "//user:pass-word@"))
        assert ask("http://model.invalid/v1").tokens == 10
        assert proxy.requests[0].headers["proxy-authorization"] == "Basic dXNlcjpwYXNzLXdvcmQ="

    def test_that_does_not_answer_costs_nothing(self, monkeypatch):
        for name in PROXIES:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HTTP_PROXY", "http://user:pass-word@127.0.0.1:9")
        outcome = ask("http://model.invalid/v1")
        assert (type(outcome), outcome.tokens) == (Unavailable, 0)
        assert "pass-word" not in str(outcome)

    def test_of_another_kind_is_an_error(self, monkeypatch):
        for name in PROXIES:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("ALL_PROXY", "socks5://user:pass-word@127.0.0.1:9")
        with pytest.raises(InputError, match=r"socks5 proxy.+HTTP_PROXY.+NO_PROXY") as caught:
            OpenAIBackend("http://model.invalid/v1", "m")
        assert "pass-word" not in str(caught.value)
        OpenAIBackend("http://127.0.0.1/v1", "m")


class TestSecrets:
    KEY = "sk-very-secret-key"

    @pytest.mark.parametrize("status", [400, 401, 429, 500])
    def test_are_not_in_messages(self, status):
        outcome = meet(fails(status, f"Incorrect API key provided: {self.KEY}."), api_key=self.KEY)
        assert str(outcome) == f"{status}: Incorrect API key provided: ***."

    def test_are_not_in_messages_of_a_stream(self):
        async def behave(request, reply):
            await reply.head()
            await reply.event({"error": {"message": request.headers["authorization"]}})

        assert str(meet(behave, api_key=self.KEY)) == "the server reported an error: Bearer ***"

    def test_may_be_in_the_address(self):
        with Server(hostile.never_ending) as server:
            url = server.url.replace("//", "//user:pass-word@")

            async def twice():
                backend = OpenAIBackend(url, "m", **SHORT)
                await backend.complete(CHAT, 5)
                try:
                    with pytest.raises(Exception, match="ignored a limit") as caught:
                        await backend.complete(CHAT, 5)
                    return str(caught.value)
                finally:
                    await backend.close()

            assert "pass-word" not in asyncio.run(twice())
        assert server.requests[0].headers["authorization"] == "Basic dXNlcjpwYXNzLXdvcmQ="

    @pytest.mark.parametrize("url", ["http://", "http://user:pass-word@", "https://[::1", "ftp://host/v1"])
    def test_are_not_in_the_error_about_an_address(self, url):
        with pytest.raises(InputError, match="http://127") as caught:
            OpenAIBackend(url, "m")
        assert "pass-word" not in str(caught.value)


def several(url, bodies, pauses=()):
    """Answers or errors, one after another, of one backend."""

    async def ask_all():
        backend, done = OpenAIBackend(url, "m", **SHORT), []
        for body, pause in zip_longest(bodies, pauses, fillvalue=0):
            try:
                done.append(await backend.complete(body, 10))
            except BackendError as error:
                done.append(error)
            await asyncio.sleep(pause)
        await backend.close()
        return done

    return asyncio.run(ask_all())


class Keeping:
    """A server that keeps connections open after an answer.

    delay   seconds before the end of a response, after its last event
    lost    the request at which a connection is closed instead, without a byte of response
    closes  it does not keep them after all
    refuses it answers 400, and closes the connection at the next request, without a byte of response
    """

    def __init__(self, *, delay=0.0, lost=0, closes=False, refuses=False):
        self.delay, self.lost, self.closes, self.refuses = delay, lost, closes, refuses
        self.connections, self.requests = 0, 0

    def __enter__(self):
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._socket.close()

    def _accept(self):
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.connections += 1
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as servers do
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with suppress(OSError), connection, connection.makefile("rb") as stream:
            while line := stream.readline():
                length = 0
                while (line := line.strip()) and not line.startswith(b"x"):
                    if line.lower().startswith(b"content-length"):
                        length = int(line.split(b":")[1])
                    line = stream.readline()
                stream.read(length)
                self.requests += 1
                if self.requests == self.lost:
                    return
                if self.refuses:
                    connection.sendall(b"HTTP/1.1 400 -\r\ncontent-length: 2\r\n\r\nno")
                    stream.readline()
                    return
                usage = {"prompt_tokens": 1, "completion_tokens": 3}
                event = {"choices": [{"delta": {"content": "w0 w1"}, "finish_reason": "stop"}], "usage": usage}
                events = f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode()
                head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
                head += b"keep-alive: timeout=5, max=100\r\n\r\n"
                connection.sendall(head + b"%x\r\n%s\r\n" % (len(events), events))
                time.sleep(self.delay)
                connection.sendall(b"0\r\n\r\n")
                if self.closes:
                    return


class TestAConnection:
    """One is watched for a tenth of a second; if its server keeps it, connections are used again."""

    def test_is_not_used_again_before_the_server_is_known_to_keep_it(self):
        with Keeping() as server:
            several(server.url, [CHAT] * 3)
        assert server.connections == 3

    def test_is_used_again_once_the_server_is_known_to_keep_it(self):
        with Keeping() as server:
            done = several(server.url, [CHAT] * 6, pauses=[0.2])
        assert [each.tokens for each in done] == [3] * 6
        assert server.connections == 1

    def test_is_not_used_again_after_a_second(self):
        with Keeping() as server:
            several(server.url, [CHAT] * 3, pauses=[0.2, 1.3])
        assert server.connections == 2

    def test_is_used_again_if_the_end_of_the_response_comes_a_little_later(self):
        with Keeping(delay=0.005) as server:
            several(server.url, [CHAT] * 4, pauses=[0.2])
        assert server.connections == 1

    def test_is_not_used_again_if_the_server_closes_it_though_it_announced_to_keep_it(self):
        """As llama.cpp does after a stream."""
        with Keeping(closes=True) as server:
            done = several(server.url, [CHAT] * 6, pauses=[0.2])
        assert [each.tokens for each in done] == [3] * 6
        assert server.connections == 6

    def test_is_not_used_again_after_a_refusal_before_the_server_is_known_to_keep_it(self):
        with Keeping(refuses=True) as server:
            done = several(server.url, [CHAT] * 5)
        assert [(type(each).__name__, each.tokens) for each in done] == [("Refused", 0)] * 5
        assert server.connections == 5

    def test_that_was_used_before_and_is_lost_has_an_unknown_cost_and_ends_all_reuse(self):
        with Keeping(lost=3) as server:
            done = several(server.url, [CHAT] * 6, pauses=[0.2])
        assert [type(each).__name__ for each in done] == [*["Completion"] * 2, "Unavailable", *["Completion"] * 3]
        assert (done[2].tokens, done[2].sent, done[2].cause) == (None, True, "the connection broke")
        assert server.connections == 4  # one for the first three, one for each of the others

    def test_that_the_server_closes_is_not_used_again(self):
        with Server(hostile.well_behaved) as server:
            assert [each.tokens for each in several(server.url, [CHAT] * 3)] == [10] * 3
        assert server.connections == 3

    def test_with_an_unfinished_answer_is_not_used_again(self):
        with Keeping(delay=60) as server:
            assert [each.tokens for each in several(server.url, [CHAT] * 3)] == [3] * 3
        assert server.connections == 3

    def test_carries_a_key_of_its_own_with_every_attempt(self):
        with Server(hostile.knows_no_stream_options) as server:
            several(server.url, [CHAT] * 2)
        keys = [request.headers["idempotency-key"] for request in server.requests]
        assert len({uuid.UUID(key) for key in keys}) == len(keys) == 3

    def test_that_speaks_another_protocol_costs_nothing(self):
        with Server(hostile.well_behaved) as server:
            outcome = ask(server.url.replace("http://", "https://"))
        assert (type(outcome), outcome.tokens) == (Unavailable, 0)

    def test_backends_may_be_used_in_several_event_loops(self):
        with Server(hostile.well_behaved) as server:
            backend = OpenAIBackend(server.url, "m", **SHORT)
            assert [asyncio.run(backend.complete(CHAT, 3)).tokens for _ in range(2)] == [3, 3]
            del backend
            gc.collect()  # a backend that was not closed gives no warning


class TestTheServersAddress:
    @pytest.mark.parametrize("end", ["", "/"])
    def test_may_end_in_a_slash(self, end):
        with Server(hostile.well_behaved) as server:
            ask(server.url + end)
        assert server.requests[0].path == "/v1/chat/completions"

    def test_may_have_a_query(self):
        with Server(hostile.well_behaved) as server:
            ask(server.url + "?api-version=2")
        assert server.requests[0].path == "/v1/chat/completions?api-version=2"

    def test_that_redirects_is_refused_with_the_new_one(self):
        outcome = meet(fails(307, location="http://elsewhere.invalid/v1"))
        assert (type(outcome), outcome.tokens) == (Denied, 0)
        assert str(outcome) == "307: the server redirects to http://elsewhere.invalid/v1"


def test_a_large_request_arrives():
    body = {"messages": [{"role": "user", "content": "x" * 3_000_000}], "odd": 10**30}
    with Server(hostile.well_behaved) as server:
        assert ask(server.url, body, timeout=5).tokens == 10
    assert len(server.requests[0].body["messages"][0]["content"]) == 3_000_000
    assert server.requests[0].body["odd"] == 10**30


class TestAStream:
    @pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
    @pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"], ids=repr)
    def test_may_be_cut_at_any_byte(self, size, newline):
        async def behave(request, reply):
            await reply.head()
            events = [reply.chunk([reply.choice(word)]) for word in ("né ", "😀 ", "终")]
            events += [reply.chunk([reply.choice(None, "stop")], usage={"completion_tokens": 3, "prompt_tokens": 2})]
            lines = [f": hello{newline}data: {json.dumps(event, ensure_ascii=False)}{newline * 2}" for event in events]
            data = "".join([*lines, f"data: [DONE]{newline * 2}"]).encode()
            reply.server.generated += 3
            for start in range(0, len(data), size):
                await reply.send(data[start : start + size])

        done = meet(behave, timeout=5)
        assert (done.text, done.tokens, done.usage_source, done.input_tokens) == ("né 😀 终", 3, "server", 2)

    def test_may_have_events_of_several_lines(self):
        async def behave(request, reply):
            await reply.head()
            for event in (reply.chunk([reply.choice("hi")]), reply.chunk([reply.choice(None, "stop")])):
                await reply.send("".join(f"data: {line}\n" for line in json.dumps(event, indent=1).splitlines()) + "\n")
            await reply.usage(1)

        assert meet(behave).text == "hi"

    def test_may_have_very_long_lines(self):
        async def behave(request, reply):
            await reply.head()
            await reply.piece("word " * 200_000, tokens=190_000)
            await reply.finish()
            await reply.usage(190_000)

        done = meet(behave, limit=200_000, timeout=5)
        assert (len(done.text), done.tokens) == (1_000_000, 190_000)

    def test_may_contain_bytes_that_are_not_text(self):
        async def behave(request, reply):
            await reply.head()
            await reply.send(b'data: {"choices": [{"delta": {"content": "caf\xe9"}, "finish_reason": "stop"}]}\n\n')

        assert meet(behave).text == "caf\ufffd"

    def test_may_be_compressed(self):
        async def behave(request, reply):
            import gzip

            await reply.head(content_encoding="gzip")
            event = reply.chunk([reply.choice("hi", "stop")], usage={"completion_tokens": 1})
            await reply.send(gzip.compress(f"data: {json.dumps(event)}\n\n".encode()))

        assert meet(behave).text == "hi"

    def test_ends_at_done(self):
        async def behave(request, reply):
            await hostile.well_behaved(request, reply)
            await reply.event({"error": "too late"})
            await asyncio.sleep(60)

        assert meet(behave, timeout=30, stall_timeout=30).tokens == 10

    def test_with_an_invalid_chunk_has_broken(self):
        async def behave(request, reply):
            await reply.head(transfer_encoding="chunked")
            event = 'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
            await reply.send(f"{len(event):x}\r\n{event}\r\n")
            reply.server.generated += 1
            await asyncio.sleep(0.1)
            await reply.send("no size\r\n")
            await asyncio.sleep(60)

        outcome = meet(behave, timeout=30, stall_timeout=30)
        assert (str(outcome), outcome.tokens) == ("the connection broke within the answer", None)

    def test_may_report_an_error_of_its_own_kind(self):
        async def behave(request, reply):
            await reply.head()
            await reply.say(2)
            await reply.send("event: error\ndata: out of memory\n\n")

        outcome = meet(behave)
        assert (str(outcome), outcome.tokens) == ("the server reported an error: out of memory", None)
