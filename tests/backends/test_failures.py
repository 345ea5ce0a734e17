"""What a failure costs, and whether it is asked again: one test for every row of the table in `_failures`."""

import asyncio
import json
import socket
import threading
import time

import pytest

from shadowprice.backends import _http
from shadowprice.backends._failures import checked_after_generating
from shadowprice.backends.openai import OpenAIBackend
from shadowprice.errors import BackendError, Denied, Refused, Unavailable

from . import hostile
from .asking import CHAT, ask, meet
from .hostile import Server, fails

pytestmark = pytest.mark.usefixtures("no_proxy")

SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}}
NGINX = (
    "<html>\n<head><title>502 Bad Gateway</title></head>\n<body><center><h1>502 Bad Gateway</h1></center></body></html>"
)
PAGE = "<!doctype html><style>a{}</style><h1>504</h1><p>Slow &amp; far</p>"
COMPLETION = {"choices": [{"message": {"content": "hello"}}], "usage": {"completion_tokens": 9}}


def answers(status, content, kind="application/json", work=0, **headers):
    """A response with this body."""

    async def behave(request, reply):
        reply.server.generated += work
        if kind == "application/json":
            await reply.json(status, content, **headers)
        else:
            await reply.head(status, kind, **headers)
            await reply.send(content)

    return behave


async def busy_within_its_answer(request, reply):
    await reply.head()
    await reply.say(3)
    await reply.event({"error": {"message": "slow down", "code": 429}})


def row(outcome):
    return type(outcome), outcome.tokens, outcome.sent


class TestNothing:
    def test_a_refused_connection(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        outcome = ask(f"http://127.0.0.1:{port}/v1")
        assert row(outcome) == (Unavailable, 0, False)
        assert outcome.cause == f"connection refused (127.0.0.1:{port})"

    def test_an_unknown_host(self):
        outcome = ask("http://no-such-host.invalid/v1", timeout=4)
        assert row(outcome) == (Unavailable, 0, False)
        assert outcome.cause == "unknown host (no-such-host.invalid)"

    def test_no_secure_connection(self):
        def greet(listener):
            with listener.accept()[0] as connection:
                connection.sendall(b"220 another protocol\r\n")
                connection.recv(1)

        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=greet, args=(listener,), daemon=True).start()
            where = f"127.0.0.1:{listener.getsockname()[1]}"
            outcome = ask(f"https://{where}/v1")
        assert (*row(outcome), outcome.cause) == (Unavailable, 0, False, f"no secure connection ({where})")

    def test_no_connection_in_time(self):
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
        assert (*row(outcome), outcome.cause) == (Unavailable, 0, False, "no connection in time")

    @pytest.mark.parametrize("status", [401, 402, 403, 404, 405, 501])
    def test_a_key_an_account_a_model_or_an_address_that_is_denied(self, status):
        outcome = meet(fails(status, "invalid api key"))
        assert (*row(outcome), outcome.cause) == (Denied, 0, True, f"{status}: invalid api key")

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_a_redirect_which_is_not_followed(self, status):
        with Server(hostile.well_behaved) as other, Server(fails(status, location=other.url)) as server:
            outcome = ask(server.url)
        assert row(outcome) == (Denied, 0, True)
        assert other.url in str(outcome)
        assert other.url in outcome.cause
        assert other.requests == []

    @pytest.mark.parametrize("status", [400, 402, 403, 429])
    def test_an_empty_account(self, status):
        outcome = meet(answers(status, {"error": {"message": "You have no credit", "code": "insufficient_quota"}}))
        assert row(outcome) == (Denied, 0, True)

    def test_a_request_that_is_too_large(self):
        assert row(meet(fails(413))) == (Refused, 0, True)

    @pytest.mark.parametrize("status", [429, 503])
    def test_a_busy_server(self, status):
        assert row(meet(fails(status))) == (Unavailable, 0, True)

    @pytest.mark.parametrize("status", [400, 422])
    @pytest.mark.parametrize(
        "fields", [{}, {"tools": []}, {"tools": None}, {"response_format": {"type": "text"}}, {"stop": ["x"]}], ids=str
    )
    def test_a_refusal_of_a_plain_request(self, status, fields):
        assert row(meet(fails(status), {**CHAT, **fields})) == (Refused, 0, True)

    @pytest.mark.parametrize(
        ("content", "kind", "says"),
        [
            ("<!doctype html><html>Sign in first</html>", "text/html", ": Sign in first"),
            ("<html><title>Log in</title><p>nonce 123456789abc</p></html>", "text/html", ": Log in"),
            ("It works!", "text/plain", ": It works!"),
            ({"detail": "Not authenticated"}, "application/json", ": Not authenticated"),
            ({"status": "ok"}, "application/json", ': {"status": "ok"}'),
            ([True, None], "application/json", ": [true, null]"),
            ("", "text/html", ""),
            ("", "text/plain", ""),
        ],
        ids=str,
    )
    def test_a_status_200_without_a_completion_says_what_came_instead(self, content, kind, says):
        outcome = meet(answers(200, content, kind))
        assert (*row(outcome), outcome.cause) == (Unavailable, 0, True, f"not a completion ({kind}){says}")
        assert str(outcome).endswith(f"({kind}){says}")

    def test_an_invalid_field_is_named_as_fastapi_names_it(self):
        detail = [
            {"loc": ["body", "max_completion_tokens"], "msg": "extra fields not permitted", "type": "value_error"}
        ]
        outcome = meet(answers(422, {"detail": detail}))
        assert str(outcome) == "422: body.max_completion_tokens: extra fields not permitted"

    def test_a_page_that_breaks_off(self):
        async def behave(request, reply):
            await reply.head(200, "text/html", content_length="1000")
            await reply.send("<html>Sign in")

        assert row(meet(behave)) == (Unavailable, 0, True)

    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            ({"code": 429}, (Unavailable, 0)),
            ({"code": "503", "message": "loading"}, (Unavailable, 0)),
            ({"code": "rate_limit_exceeded"}, (Unavailable, 0)),
            ({"code": None, "type": "rate_limit_exceeded"}, (Unavailable, 0)),
            ({"code": 401}, (Denied, 0)),
            ({"code": "insufficient_quota"}, (Denied, 0)),
            ({"code": 400}, (Refused, 0)),
            ({"code": 500}, (Unavailable, None)),
            ({"code": 1234}, (Unavailable, None)),
            ({"code": 429, "failed_generation": "hel"}, (Unavailable, None)),
        ],
        ids=str,
    )
    def test_a_status_200_with_an_error_that_names_another(self, error, expected):
        async def streamed(request, reply):
            await reply.head()
            await reply.event({"error": error})

        async def in_an_event(request, reply):
            await reply.head()
            await reply.send(f"event: error\ndata: {json.dumps(error)}\n\n")

        for behaviour in (answers(200, {"error": error}), streamed, in_an_event):
            assert row(meet(behaviour)) == (*expected, True)


class TestAnUnknownCost:
    @pytest.mark.parametrize("status", [400, 422])
    @pytest.mark.parametrize(
        "fields",
        [
            SCHEMA,
            {"response_format": {"type": "json_object"}},
            {"tools": [{"type": "function", "function": {"name": "f"}}]},
            {"functions": [{"name": "f"}]},
            {"grammar": "root ::= 'x'"},
            {"json_schema": {"type": "object"}},
            {"guided_json": {"type": "object"}},
            {"guided_regex": "a+"},
            {"structured_outputs": {"choice": ["a"]}},
        ],
        ids=lambda fields: str(fields)[:30],
    )
    def test_a_refusal_of_structured_output(self, status, fields):
        """Some servers generate first: json_validate_failed."""
        assert checked_after_generating({**CHAT, **fields})
        outcome = meet(fails(status, "json_validate_failed", work=10), {**CHAT, **fields})
        assert row(outcome) == (Refused, None, True)

    def test_a_refusal_that_names_stream_options_beside_structured_output(self):
        async def twice(url):
            backend, done = OpenAIBackend(url, "m"), []
            for _ in range(2):
                try:
                    done.append(await backend.complete({**CHAT, **SCHEMA}, 10))
                except BackendError as error:
                    done.append(error)
            await backend.close()
            return done

        with Server(hostile.knows_no_stream_options) as server:
            first, second = asyncio.run(twice(server.url))
        assert row(first) == (Refused, None, True)
        assert second.tokens == 10
        assert len(server.requests) == 2  # one for each attempt

    @pytest.mark.parametrize("status", [307, 400, 401, 402, 403, 404, 405, 413, 422, 429, 501, 503])
    @pytest.mark.parametrize(
        "content",
        [
            COMPLETION,
            {"error": {"message": "too long", "response": COMPLETION}},
            {"error": {"code": "json_validate_failed", "failed_generation": "hel"}},
            {"error": {"message": "no"}, "usage": {"completion_tokens": 9}},
        ],
        ids=["completion", "within", "generation", "usage"],
    )
    def test_any_status_with_a_completion_in_its_body(self, status, content):
        outcome = meet(answers(status, content, work=9))
        assert outcome.tokens is None

    def test_a_status_with_a_long_body_of_json(self):
        outcome = meet(answers(503, {"padding": "x" * 100_000, **COMPLETION}, work=9))
        assert outcome.tokens is None

    @pytest.mark.parametrize("status", [408, 409, 500, 502, 504, 520, 529, 599])
    def test_trouble_within_the_server(self, status):
        outcome = meet(fails(status, work=10))
        assert (*row(outcome), outcome.cause) == (Unavailable, None, True, f"{status}: no")

    @pytest.mark.parametrize("status", [406, 410, 418, 424, 499])
    def test_any_other_refusal(self, status):
        assert row(meet(fails(status, work=10))) == (Refused, None, True)

    @pytest.mark.parametrize(
        "behaviour",
        [
            hostile.error_in_the_stream,
            answers(200, {"error": {"message": "upstream failed"}}, work=9),
            answers(200, '{"choices": [{"mess', "application/octet-stream", work=9),
            answers(200, "", "text/event-stream", work=9),
            busy_within_its_answer,
            hostile.hangs_up,
            hostile.hangs_up_in_mid_stream,
            hostile.silence,
            hostile.silence_in_mid_stream,
        ],
    )
    def test_a_status_200_that_fails(self, behaviour):
        assert row(meet(behaviour)) == (Unavailable, None, True)


class TestACompletionInAnotherForm:
    def test_is_read_whatever_its_type_says(self):
        for kind in ("text/plain", "application/octet-stream", "application/problem+json"):
            content = '{"choices": [{"message": {"content": "w0 "}, "finish_reason": "stop"}], "usage": '
            done = meet(answers(200, content + '{"completion_tokens": 1}}', kind, work=1))
            assert (done.text, done.tokens) == ("w0 ", 1)

    def test_may_be_a_stream_that_is_called_text(self):
        async def behave(request, reply):
            await reply.head(200, "text/plain")
            await reply.say(3)
            await reply.finish()
            await reply.usage(3)

        assert meet(behave).tokens == 3

    def test_may_be_a_line_for_every_event(self):
        async def behave(request, reply):
            await reply.head(200, "application/x-ndjson")
            reply.server.generated += 2
            events = [reply.chunk([reply.choice(text, finish)]) for text, finish in [("a ", None), ("b ", "stop")]]
            events.append({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}})
            await reply.send("".join(json.dumps(event) + "\n" for event in events))

        done = meet(behave)
        assert (done.text, done.tokens, done.usage_source, done.flags) == ("a b ", 2, "server", ())


class TestAnAnswerWithoutAFinishReason:
    """What was paid for is kept if it is complete: up to [DONE], or a whole body of JSON."""

    @pytest.mark.parametrize(("limit", "finish"), [(10, "stop"), (3, "length")])
    def test_in_a_stream(self, limit, finish):
        async def behave(request, reply):
            await reply.head()
            await reply.say(3)
            await reply.usage(3)
            await reply.end()

        done = meet(behave, limit=limit)
        assert (done.text, done.tokens, done.finish, done.flags) == ("w0 w1 w2 ", 3, finish, ("malformed",))

    def test_in_a_stream_without_usage(self):
        done = meet(hostile.streams("data: [DONE]\n\n"))
        assert (done.text, done.tokens, done.flags) == ("w0 w1 w2 ", 10, ("malformed",))

    @pytest.mark.parametrize("finish", [{}, {"finish_reason": None}])
    def test_in_a_body(self, finish):
        content = {"choices": [{"message": {"content": "w0 "}, **finish}], "usage": {"completion_tokens": 1}}
        done = meet(answers(200, content, work=1))
        assert (done.text, done.tokens, done.flags) == ("w0 ", 1, ("malformed",))

    def test_is_none_if_it_says_nothing(self):
        content = {"choices": [{"message": {"content": ""}}], "usage": {"completion_tokens": 9}}
        assert row(meet(answers(200, content, work=9))) == (Unavailable, None, True)


class TestTheCause:
    def test_is_the_same_for_all_requests(self):
        def printed(id, seconds, used):
            return (
                f"Rate limit reached for gpt-4o in organization org-{id} on tokens per min: Limit 30,000, Used {used}. "
                f"Please try again in {seconds}. Request req_{id}."
            )

        causes = {
            meet(fails(429, printed(*each))).cause
            for each in [
                ("a1b2c3d4e5f6a7b8", "6m0s", 29_876),
                ("00ff11ee22dd33cc", "1.2s", 9),
                ("0123456789abcdef", "830ms", 100),
            ]
        }
        (cause,) = causes
        assert cause.startswith("429: Rate limit reached for gpt-4o in organization …")
        assert len(cause) < 120

    def test_of_a_word_without_end_is_short(self):
        for printed in ("a" * 60_000, "1" * 60_000, "a1-" * 20_000, "1s" * 30_000, "1." * 30_000):
            assert len(meet(fails(500, printed)).cause) < 120

    def test_names_the_servers_code(self):
        outcome = meet(answers(404, {"error": {"message": "No such model", "code": "model_not_found"}}))
        assert outcome.cause == "404: model_not_found: No such model"

    @pytest.mark.parametrize(
        ("behaviour", "cause"),
        [
            (hostile.silence, "no answer in time"),
            (hostile.silence_in_mid_stream, "stopped within its answer"),
            (hostile.hangs_up, "the connection broke"),
            (hostile.error_in_the_stream, "error: out of memory"),
            (fails(503), "503: no"),
            (answers(500, "", "text/html"), "500: no reason given"),
            (answers(502, NGINX, "text/html"), "502: Bad Gateway"),
            (answers(504, PAGE, "text/html"), "504: Slow & far"),
            (answers(500, "<br>", "text/html"), "500: <br>"),
        ],
    )
    def test_is_short_and_says_what_happened(self, behaviour, cause):
        assert meet(behaviour).cause == cause


def test_a_status_200_with_a_completion_in_another_form_may_have_cost_anything():
    with Server(answers(200, [COMPLETION], work=9)) as server:
        assert ask(server.url).tokens is None


def test_a_stream_that_is_called_json_is_read():
    async def behave(request, reply):
        await reply.head(200, "application/json")
        await reply.say(3)
        await reply.finish()
        await reply.usage(3)
        await reply.end()

    with Server(behave) as server:
        assert ask(server.url).tokens == 3


def test_an_error_that_trickles_in_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(_http, "_REASON_TIMEOUT", 0.3)

    async def behave(request, reply):
        await reply.head(503, "application/json")
        await reply.send('{"error": "')
        while True:
            await reply.send("x")
            await asyncio.sleep(0.02)

    with Server(behave) as server:
        start = time.monotonic()
        outcome = ask(server.url, timeout=4, stall_timeout=4)
        assert time.monotonic() - start < 2
        assert server.saw_hang_up(within=2)
    assert row(outcome) == (Unavailable, None, True)  # long JSON may be an answer
    assert outcome.cause.startswith("503: ")


def test_what_is_refused_before_it_is_sent_says_so():
    for wrong in ({"n": 2}, {"echo": True}, {"max_tokens": 0}, {"prompt": ["a", "b"]}):
        assert row(ask("http://127.0.0.1:1/v1", {"prompt": "x", **wrong})) == (Refused, 0, False)
    assert row(ask("http://127.0.0.1:1/v1", {"input": "x"})) == (Refused, 0, False)
