"""What goes over the wire: connections, proxies, secrets, and streams cut at any byte."""

import asyncio
import gc
import json
import socket
import time

import pytest

from shadowprice.backends.openai import OpenAIBackend
from shadowprice.errors import Denied, InputError, Unavailable

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


class TestAConnection:
    def test_is_used_for_one_request(self):
        """A reused one that its server has just closed would look like an answer that was lost."""

        async def thrice(url):
            backend = OpenAIBackend(url, "m", **SHORT)
            for _ in range(3):
                await backend.complete(CHAT, 10)
            await backend.close()

        with Server(hostile.well_behaved) as server:
            asyncio.run(thrice(server.url))
        assert [request.headers["connection"] for request in server.requests] == ["close"] * 3

    def test_that_cannot_be_made_in_time_costs_nothing(self):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            waiting = [socket.socket() for _ in range(8)]
            for each in waiting:  # the queue of connections is full
                each.setblocking(False)
                each.connect_ex(listener.getsockname())
            outcome = ask(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", timeout=0.5)
            for each in waiting:
                each.close()
        assert (type(outcome), outcome.tokens) == (Unavailable, 0)
        assert "no connection" in str(outcome)

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

        start = time.monotonic()
        assert meet(behave, timeout=5, stall_timeout=5).tokens == 10
        assert time.monotonic() - start < 2

    def test_may_report_an_error_of_its_own_kind(self):
        async def behave(request, reply):
            await reply.head()
            await reply.say(2)
            await reply.send("event: error\ndata: out of memory\n\n")

        outcome = meet(behave)
        assert (str(outcome), outcome.tokens) == ("the server reported an error: out of memory", None)
