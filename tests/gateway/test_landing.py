"""An answer that is cut at the grant of the market lands within it, where its server continues answers."""

import asyncio

import pytest

from ..backends.hostile import Server
from .inside import CHAT, configured, run, served

LANDING = """
budgets = ["{budget}"]
[[route]]
name = "m"
base_url = "{url}"
landing = "math"
{rates}
"""
SUFFIX = "\n\nTherefore, the final answer is \\boxed{"


def is_continued(body):
    return bool(body.get("continue_final_message")) or "boxed" in str(body.get("prompt"))


async def endless(request, reply):
    """Generates up to every limit, and states its answer when it is asked for it."""
    body = request.body
    tokens = 3 if is_continued(body) else request.limit
    reply.server.generated += tokens * body.get("n", 1)
    text, finish = ("42", "stop") if is_continued(body) else ("w " * tokens, "length")
    if body.get("stream"):
        await reply.head()
        await reply.piece(text, 0)
        await reply.finish(finish)
        await reply.usage(tokens)
        await reply.end()
        return
    part = {"message": {"role": "assistant", "content": text}} if request.chat else {"text": text}
    usage = {"prompt_tokens": 5, "completion_tokens": tokens * body.get("n", 1)}
    await reply.json(200, {"choices": [{"index": 0, **part, "finish_reason": finish}], "usage": usage})


def landing(tmp_path, work, behave=endless, budget="1000", rates=""):
    async def main(upstream):
        text = LANDING.format(url=upstream.url, budget=budget, rates=rates)
        async with served(configured(tmp_path, text), tmp_path) as client:
            await work(client, upstream)

    with Server(behave) as upstream:
        run(main(upstream))


def test_an_answer_that_is_cut_lands_within_its_grant(tmp_path):
    async def work(client, upstream):
        status, answer, headers = await client.chat(headers={"Idempotency-Key": "k"})
        assert (status, headers["x-shadowprice-decision"]) == (200, "shrunk")
        first, second = upstream.requests
        grant = int(headers["x-shadowprice-grant"])
        assert (first.limit, second.limit) == (grant - 16, 16)
        text = "w " * first.limit
        assert second.body["messages"] == [*CHAT["messages"], {"role": "assistant", "content": text + SUFFIX}]
        assert ["idempotency-key" in each.headers for each in (first, second)] == [True, False]
        (choice,) = answer["choices"]
        assert choice["message"]["content"] == text + SUFFIX + "42}"
        assert (choice["finish_reason"], headers["x-shadowprice-landing"]) == ("stop", str(len(text)))
        used = first.limit + 3
        assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": used, "total_tokens": used + 5}
        assert await client.spent("all total") == upstream.generated == used <= grant
        assert (await client.chat(headers={"Idempotency-Key": "k"}))[1] == answer  # once
        assert len(upstream.requests) == 2

    landing(tmp_path, work)


def test_so_does_a_plain_completion(tmp_path):
    async def work(client, upstream):
        _, answer, _ = await client.ask("POST", "/v1/completions", {"model": "m", "prompt": "Q: "})
        first, second = upstream.requests
        assert second.body["prompt"] == "Q: " + "w " * first.limit + SUFFIX
        assert answer["choices"][0]["text"] == "w " * first.limit + SUFFIX + "42}"
        assert await client.spent("all total") == upstream.generated

    landing(tmp_path, work)


@pytest.mark.parametrize(
    ("fields", "budget", "rates"),
    [
        ({"stream": True}, "1000", ""),
        ({"tools": [{"type": "function"}]}, "1000", ""),
        ({"response_format": {"type": "json_object"}}, "1000", ""),
        ({"n": 2}, "1000", ""),
        ({"max_tokens": 20}, "1000", ""),  # all that it asks for
        ({"messages": [*CHAT["messages"], {"role": "assistant", "content": "It is"}]}, "1000", ""),
        ({}, "1M", ""),
        ({}, "$0.002", "rates = { input = 1.0, output = 2.0 }"),
    ],
    ids=["stream", "tools", "format", "several", "own limit", "unfinished message", "ample", "money"],
)
def test_others_are_cut_or_end_as_they_are(tmp_path, fields, budget, rates):
    async def work(client, upstream):
        status, _, headers = await client.chat(**fields)
        assert (status, len(upstream.requests)) == (200, 1)
        assert "x-shadowprice-landing" not in headers

    landing(tmp_path, work, budget=budget, rates=rates)


async def refusing(request, reply):
    if is_continued(request.body):
        await reply.error(400, "continue_final_message: unknown")
    else:
        await endless(request, reply)


async def stated(request, reply):
    reply.server.generated += request.limit
    message = {"role": "assistant", "content": "\\boxed{7} and more"}
    usage = {"prompt_tokens": 5, "completion_tokens": request.limit}
    await reply.json(200, {"choices": [{"index": 0, "message": message, "finish_reason": "length"}], "usage": usage})


@pytest.mark.parametrize(("behave", "sent"), [(refusing, 2), (stated, 1)])
def test_without_a_landing_the_answer_is_the_one_that_was_cut(tmp_path, behave, sent):
    async def work(client, upstream):
        status, answer, headers = await client.chat()
        assert (status, answer["choices"][0]["finish_reason"]) == (200, "length")
        assert "x-shadowprice-landing" not in headers
        assert len(upstream.requests) == sent
        assert await client.spent("all total") == upstream.generated

    landing(tmp_path, work, behave)


def test_a_client_that_leaves_meanwhile_is_charged_for_both_parts(tmp_path):
    async def slow(request, reply):
        if is_continued(request.body):
            await asyncio.sleep(60)
        await endless(request, reply)

    async def work(client, upstream):
        task = asyncio.create_task(client.chat())
        while len(upstream.requests) < 2:
            await asyncio.sleep(0.01)
        task.cancel()
        while client.app.gateway.open:
            await asyncio.sleep(0.01)
        assert await client.spent("all total") == upstream.requests[0].limit + 16

    landing(tmp_path, work, slow)
