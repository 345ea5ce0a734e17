"""A gateway process in front of a real server that counts its own tokens."""

import asyncio
import io
import json
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from ..backends.hostile import Server
from .upstream import LENGTH, gateway, model

CHAT = {"model": "m", "messages": [{"role": "user", "content": "What is 2 + 3?"}]}
ADMIN = {"Authorization": "Bearer admin-secret-key"}
NODE = Path(__file__).parents[2] / "build" / "node" / "node_modules" / "openai"


@pytest.fixture
def upstream():
    with Server(model) as server:
        yield server


async def post(session, url, body=CHAT, path="/chat/completions", **headers):
    async with session.post(url + path, json=body, headers=headers) as response:
        return response.status, await response.read(), response.headers


def run(work):
    async def main():
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            return await work(session)

    return asyncio.run(main())


async def spent(session, url, account="all total"):
    async with session.get(url.removesuffix("/v1") + "/admin/budgets", headers=ADMIN) as response:
        balance = (await response.json())[account]
        return balance["spent"] + balance["reserved"]


def test_an_answer_passes_and_is_charged_what_it_used(upstream, tmp_path):
    with gateway(upstream.url, tmp_path) as (url, _):

        async def work(session):
            status, content, headers = await post(session, url, {**CHAT, "max_tokens": 50, "odd": {"a": 1}})
            assert status == 200
            assert json.loads(content)["choices"][0]["odd"] == [1]
            assert upstream.requests[-1].body == {**CHAT, "max_tokens": 50, "odd": {"a": 1}}
            assert headers["x-shadowprice-decision"] == "granted"
            assert headers["x-shadowprice-grant"] == "50"
            assert headers["x-ratelimit-limit-tokens"] == "2000"
            assert await spent(session, url) == upstream.generated == 50
            async with session.get(url + "/models") as response:
                assert (await response.json())["data"][0]["id"] == "m"

        run(work)


def test_a_stream_arrives_as_it_was_sent_without_the_usage_that_was_not_asked_for(upstream, tmp_path):
    with gateway(upstream.url, tmp_path) as (url, _):

        async def work(session):
            _, content, _ = await post(session, url, {**CHAT, "stream": True})
            events = [json.loads(line[6:]) for line in content.split(b"\n\n") if line.startswith(b"data: {")]
            assert all(event["choices"] for event in events)
            assert content.endswith(b"data: [DONE]\n\n")
            assert len(events) == LENGTH + 1
            asked = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
            assert b'"completion_tokens"' in (await post(session, url, asked))[1]
            assert await spent(session, url) == upstream.generated == 2 * LENGTH

        run(work)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", ["[DONE]", '{"choices": [{"index": 0, "delta": {"content": "end"}}]}', "usage"])
def test_the_last_event_arrives_also_without_an_empty_line_after_it(tmp_path, end, last):
    usage = '{"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 4}}'

    async def behave(request, reply):
        await reply.head()
        events = ['{"choices": [{"index": 0, "delta": {"content": "w "}}]}'] * 3
        await reply.send((end * 2).join(f"data: {each}" for each in [*events, usage if last == "usage" else last]))

    with Server(behave) as upstream, gateway(upstream.url, tmp_path) as (url, _):

        async def work(session):
            _, content, _ = await post(session, url, {**CHAT, "stream": True, "max_tokens": 50})
            assert content.count(b"data: ") == (3 if last == "usage" else 4)
            assert content.endswith((end * 2).encode() if last == "usage" else last.encode())
            assert await spent(session, url) == (4 if last == "usage" else 50)

        run(work)


@pytest.mark.parametrize("budget", ["2000", "2000/day rolling"])
def test_many_clients_at_once_never_exceed_the_budget(upstream, tmp_path, budget):
    with gateway(upstream.url, tmp_path, budget=budget) as (url, _):

        async def work(session):
            bodies = [{**CHAT, "stream": bool(i % 2), **({"max_tokens": 90} if i % 3 else {})} for i in range(150)]
            answers = await asyncio.gather(*(post(session, url, body) for body in bodies))
            assert {status for status, _, _ in answers} == {200, 402}
            declined = json.loads(next(content for status, content, _ in answers if status == 402))["error"]
            assert (declined["type"], declined["code"]) == ("insufficient_quota", "budget_exhausted")
            assert all(h["x-should-retry"] == "false" for status, _, h in answers if status == 402)
            assert upstream.generated <= 2000
            for _ in range(40):  # one by one, until nothing is left
                await post(session, url)
            assert 2000 - 16 < upstream.generated <= 2000

        run(work)


@pytest.mark.parametrize("stream", [False, True])
def test_an_idempotency_key_is_answered_once_whatever_races(upstream, tmp_path, stream):
    with gateway(upstream.url, tmp_path) as (one, _), gateway(upstream.url, tmp_path) as (two, _):

        async def work(session):
            body, key = {**CHAT, "max_tokens": 30, "stream": stream}, {"Idempotency-Key": "k1"}
            answers = await asyncio.gather(*(post(session, (one, two)[i % 2], body, **key) for i in range(12)))
            assert {(status, content) for status, content, _ in answers} == {(200, answers[0][1])}
            assert len(upstream.requests) == 1
            assert upstream.generated == 30
            assert (await post(session, one, {**body, "max_tokens": 31}, **key))[0] == 422
            assert (await post(session, one, body, **{"Idempotency-Key": "k2"}))[0] == 200
            assert upstream.generated == 60

        run(work)


def test_two_gateways_on_one_ledger_share_the_budget(upstream, tmp_path):
    with gateway(upstream.url, tmp_path) as (one, _), gateway(upstream.url, tmp_path) as (two, _):

        async def work(session):
            bodies = [{**CHAT, "max_tokens": 60, "stream": bool(i % 2)} for i in range(120)]
            await asyncio.gather(*(post(session, (one, two)[i % 2], body) for i, body in enumerate(bodies)))
            assert upstream.generated <= 2000
            for i in range(30):
                await post(session, (one, two)[i % 2], {**CHAT, "max_tokens": 60})
            assert 1900 < upstream.generated <= 2000

        run(work)


def test_killed_and_restarted_it_never_exceeds_the_budget(upstream, tmp_path):
    for _ in range(4):
        with gateway(upstream.url, tmp_path) as (url, process):

            async def work(session, url=url, process=process):
                tasks = [
                    asyncio.create_task(post(session, url, {**CHAT, "stream": True, "max_tokens": 60}))
                    for _ in range(6)
                ]
                before = upstream.generated
                for _ in range(500):  # somewhere within the answers
                    await asyncio.sleep(0.01)
                    if upstream.generated > before + 90:
                        break
                process.kill()
                await asyncio.gather(*tasks, return_exceptions=True)

            run(work)
        assert upstream.generated <= 2000
    assert upstream.generated > 300


def test_a_client_that_leaves_closes_the_upstream_and_is_charged_what_was_seen(tmp_path):
    async def slow(request, reply):
        await reply.head()
        for number in range(LENGTH):
            await reply.piece(f"w{number} ")
            await asyncio.sleep(0.02)

    with Server(slow) as upstream, gateway(upstream.url, tmp_path) as (url, _):

        async def work(session):
            async with session.post(url + "/chat/completions", json={**CHAT, "stream": True}) as response:
                await response.content.readany()
            assert await asyncio.to_thread(upstream.saw_hang_up, 5)
            await asyncio.sleep(0.3)
            assert upstream.generated <= await spent(session, url) < 100

        run(work)


@pytest.mark.parametrize("last", ["w0", "usage"])
def test_a_client_that_leaves_is_charged_the_reasoning_that_it_was_not_shown(tmp_path, last):
    async def reasons(request, reply):
        reply.server.generated += 300
        await reply.head()
        await reply.say(5)
        await reply.finish()
        await reply.usage(305, total_tokens=310, completion_tokens_details={"reasoning_tokens": 300})
        await asyncio.sleep(0.3)
        await reply.end()

    with Server(reasons) as upstream, gateway(upstream.url, tmp_path, budget="20k") as (url, _):

        async def work(session):
            body = {**CHAT, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 500}
            await post(session, url, body)  # so that it is known that this server reasons
            for _ in range(5):
                async with session.post(url + "/chat/completions", json=body) as response:
                    while last.encode() not in await response.content.readline():
                        pass
            await asyncio.sleep(0.5)
            assert 6 * 300 < upstream.generated <= await spent(session, url)

        run(work)


def test_an_upstream_that_ignores_its_limit_is_cut_off_and_gets_no_more(tmp_path):
    async def endless(request, reply):
        await reply.head()
        for number in range(5000):
            await reply.piece(f"w{number} ")
            await asyncio.sleep(0.001)

    with Server(endless) as upstream, gateway(upstream.url, tmp_path) as (url, _):

        async def work(session):
            await post(session, url, {**CHAT, "stream": True, "max_tokens": 40})
            assert upstream.saw_hang_up(5)
            assert upstream.generated < 1000
            assert await spent(session, url) > 40
            assert (await post(session, url))[0] == 503
            assert len(upstream.requests) == 1

        run(work)


def test_errors_of_the_upstream_pass_and_cost_what_they_may_have_generated(tmp_path):
    async def broken(request, reply):
        await reply.error(request.body["status"], "no")

    with Server(broken) as upstream, gateway(upstream.url, tmp_path) as (url, _):

        async def work(session):
            for status, cost in ((429, 0), (401, 0), (400, 0), (500, 70)):
                before = await spent(session, url)
                answered, content, _ = await post(session, url, {**CHAT, "status": status, "max_tokens": 70})
                assert answered == status
                assert json.loads(content)["error"]["message"] == "no"
                assert await spent(session, url) - before == cost

        run(work)


def test_headers_of_the_upstream_pass_and_those_of_the_gateway_replace_its_own(tmp_path):
    async def behave(request, reply):
        usage = {"prompt_tokens": 1, "completion_tokens": 1}
        more = {"Set_Cookie": "a=1\r\nSet-Cookie: b=2", "X_RateLimit_Remaining_Tokens": "7", "X_Request_Id": "r1"}
        await reply.json(200, {"choices": [], "usage": usage}, **more, X_Odd="a\x01b")

    with Server(behave) as upstream, gateway(upstream.url, tmp_path) as (url, _):

        async def work(session):
            for path in ("/chat/completions", "/models"):
                async with session.request("POST" if "chat" in path else "GET", url + path, json=CHAT) as response:
                    assert response.headers.getall("Set-Cookie") == ["a=1", "b=2"]
                    assert response.headers["X-Request-Id"] == "r1"
                    assert "X-Odd" not in response.headers  # with it no response can be written
                    (left,) = response.headers.getall("X-RateLimit-Remaining-Tokens")
                    assert (left == "7") == (path == "/models")

        run(work)


def test_what_a_request_began_and_the_server_repeats_is_not_charged(tmp_path):
    """llama.cpp repeats the beginning of an answer; that must not look as if it had ignored its limit."""
    begun = "It is a long story. " * 100

    async def repeats(request, reply):
        message = {"role": "assistant", "content": request.body["messages"][-1]["content"] + "five"}
        usage = {"prompt_tokens": 900, "completion_tokens": 2, "total_tokens": 902}
        await reply.json(200, {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})

    with Server(repeats) as upstream, gateway(upstream.url, tmp_path) as (url, _):

        async def work(session):
            for _ in range(2):  # the server still gets requests
                messages = [*CHAT["messages"], {"role": "assistant", "content": begun}]
                status, answer, _ = await post(session, url, {**CHAT, "messages": messages, "max_tokens": 8})
                assert (status, json.loads(answer)["choices"][0]["message"]["content"]) == (200, begun + "five")
            assert await spent(session, url) == 4

        run(work)


def test_a_server_that_cannot_be_reached_costs_nothing(tmp_path):
    with gateway("http://127.0.0.1:1/v1", tmp_path) as (url, _):

        async def work(session):
            assert (await post(session, url))[0] == 502
            assert await spent(session, url) == 0

        run(work)


def test_a_price_shrinks_and_declines_by_value(upstream, tmp_path):
    with gateway(upstream.url, tmp_path, "--price", "0.02") as (url, _):

        async def work(session):
            status, content, headers = await post(session, url)
            assert (status, headers["x-shadowprice-decision"]) == (402, "declined")
            assert json.loads(content)["error"]["code"] == "budget_declined"
            status, _, headers = await post(session, url, **{"x-shadowprice-value": "100"})
            assert (status, headers["x-shadowprice-decision"]) == (200, "shrunk")

        run(work)


def test_in_shadow_mode_everything_passes_and_is_counted(upstream, tmp_path):
    with gateway(upstream.url, tmp_path, "--mode", "shadow", budget="300") as (url, _):

        async def work(session):
            statuses = [(await post(session, url))[0] for _ in range(3)]
            assert statuses == [200] * 3
            assert upstream.requests[-1].body == CHAT
            assert await spent(session, url) == upstream.generated == 3 * LENGTH

        run(work)


def test_what_cannot_be_understood_or_is_too_large_is_refused(upstream, tmp_path):
    with gateway(upstream.url, tmp_path) as (url, _):

        async def work(session):
            bodies = [b"{", b"\xff", b"[" * 100_000, json.dumps({**CHAT, "n": "x"}).encode()]
            bodies += [json.dumps({**CHAT, "odd": 0}).replace("0", "[" * 300 + "]" * 300).encode(), b" " * 20_000_000]
            for body in bodies:
                async with session.post(url + "/chat/completions", data=io.BytesIO(body)) as response:
                    assert response.status == (413 if len(body) > 2**24 else 400)
                    assert (await response.json())["error"]["code"]
            for path in ("/messages", "/chat/completions/x", "/../v1//generate"):
                assert (await post(session, url, path=path))[0] == 404
            assert (await post(session, url, path="//chat/completions/"))[0] == 200
            assert len(upstream.requests) == 1

        run(work)


def test_admin_endpoints_need_the_key(upstream, tmp_path):
    with gateway(upstream.url, tmp_path) as (url, _):
        root = url.removesuffix("/v1")

        async def work(session):
            for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "admin"}):
                async with session.get(root + "/admin/budgets", headers=headers) as response:
                    assert response.status == 401
            for path in ("/healthz", "/readyz", "/metrics"):
                async with session.get(root + path) as response:
                    assert response.status == 200
            async with session.post(root + "/admin/drain", headers=ADMIN) as response:
                assert response.status == 200
            async with session.get(root + "/readyz") as response:
                assert response.status == 503
            assert (await post(session, url))[0] == 503

        run(work)


def test_at_sigterm_answers_under_way_end(tmp_path):
    async def slow(request, reply):
        await asyncio.sleep(0.5)
        await model(request, reply)

    with Server(slow) as upstream, gateway(upstream.url, tmp_path) as (url, process):

        async def work(session):
            task = asyncio.create_task(post(session, url))
            await asyncio.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            assert (await task)[0] == 200

        run(work)
        assert process.wait(10) == 0
    assert list((tmp_path / "workers").iterdir()) == []


def test_the_openai_client_works_unchanged(upstream, tmp_path):
    openai = pytest.importorskip("openai")
    with (
        gateway(upstream.url, tmp_path) as (url, _),
        openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client,
    ):
        answer = client.chat.completions.create(**CHAT, max_tokens=20)
        assert answer.usage.completion_tokens == 20
        parts = list(client.chat.completions.create(**CHAT, max_tokens=20, stream=True))
        assert len([part for part in parts if part.choices[0].delta.content]) == 20
        for _ in range(2000 // LENGTH):
            with suppress(openai.APIStatusError):
                client.chat.completions.create(**CHAT)
        with pytest.raises(openai.APIStatusError) as error:
            client.chat.completions.create(**CHAT)
        assert error.value.status_code == 402
    assert upstream.generated <= 2000


@pytest.mark.skipif(not NODE.exists(), reason="no openai client for Node here (npm install openai, in build/node)")
def test_the_openai_client_for_node_works_unchanged(upstream, tmp_path):
    shutil.copy(Path(__file__).with_name("client.mjs"), NODE.parent.parent)
    with gateway(upstream.url, tmp_path) as (url, _):
        command = ["node", NODE.parent.parent / "client.mjs", url]
        found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True, timeout=60).stdout)
    assert (found["tokens"], found["parts"], found["models"]) == (20, 20, ["m"])
    assert found["declined"] == {"status": 402, "code": "budget_exhausted", "type": "insufficient_quota"}
    assert upstream.generated <= 2000
    declined = [request for request in upstream.requests if request.headers.get("x-stainless-retry-count", "0") != "0"]
    assert declined == []


@pytest.mark.slow
def test_a_client_that_never_finishes_its_headers_is_closed(upstream, tmp_path):
    with gateway(upstream.url, tmp_path) as (url, _), socket.socket() as slow:
        place = urlsplit(url)
        slow.connect((place.hostname, place.port))
        slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n")
        slow.settimeout(45)
        assert slow.recv(1000) == b""
