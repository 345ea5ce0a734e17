"""Whole gateways: money, embeddings, shadow mode, several processes, clients of all kinds."""

import asyncio
import json
import socket
import time
import urllib.request
from contextlib import suppress

import pytest

from shadowprice.accounts.owner import SqliteOwner
from shadowprice.errors import LedgerError
from shadowprice.gateway.tenants import digest

from ..backends.hostile import Server
from .inside import CHAT, configured, run, served
from .upstream import LENGTH, gateway, model

MONEY = """
budgets = ["$0.002", "10k/day"]
{top}
[[route]]
name = "m"
base_url = "{url}"
model = "m1"
rates = {{ input = 1.0, output = 2.0 }}
"""


async def reads(request, reply):
    await reply.json(200, {"object": "list", "data": [], "usage": {"prompt_tokens": 7, "total_tokens": 7}})


def money(tmp_path, work, behave=model, top="", text=MONEY):
    async def main(upstream):
        config = configured(tmp_path, text.format(url=upstream.url, top=top))
        async with served(config, tmp_path) as client:
            await work(client, upstream)

    with Server(behave) as upstream:
        run(main(upstream))


def test_budgets_in_money_charge_what_was_read_and_generated(tmp_path):
    async def work(client, upstream):
        status, _, headers = await client.chat(max_tokens=50)
        assert status == 200
        assert await client.spent("all total dollars") == 5 * 1000 + 50 * 2000
        assert await client.spent("all day") == 50
        assert headers["x-ratelimit-limit-tokens"] == "1000"  # $0.002 at $2 a million

    money(tmp_path, work)


def test_a_budget_in_money_is_never_exceeded(tmp_path):
    async def work(client, upstream):
        answers = await asyncio.gather(*(client.chat(stream=bool(i % 2), max_tokens=90) for i in range(60)))
        statuses = [status for status, _, _ in answers]
        assert set(statuses) == {200, 402}
        cost = statuses.count(200) * 5 * 1000 + upstream.generated * 2000
        assert cost <= 2_000_000

    money(tmp_path, work)


def test_what_cannot_be_bounded_is_refused_where_it_costs_money(tmp_path):
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]

    async def work(client, upstream):
        status, content, _ = await client.chat(messages=image)
        assert status == 400
        assert "context" in content["error"]["message"]
        assert (await client.ask("POST", "/v1/moderations", {"input": "x"}))[0] == 404
        assert upstream.requests == []

    money(tmp_path, work)


IMAGE = {"type": "input_image", "image_url": "http://x/y.png"}
TEXT = {"role": "user", "content": "a question"}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("responses", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
        ("responses", {"input": [{"type": "function_call_output", "call_id": "c", "output": [IMAGE]}]}),
        ("responses", {"input": [{"type": "computer_call_output", "output": IMAGE}]}),
        ("responses", {"input": [{"role": "user", "content": [IMAGE]}], "messages": [TEXT]}),
        ("responses", {"input": "a question", "tools": [{"type": "web_search"}]}),
        ("chat/completions", {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}, TEXT]}),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": [], "text": "odd"}]}]}),
    ],
)
def test_what_a_request_only_refers_to_is_refused_where_it_costs_money(tmp_path, path, fields):
    async def work(client, upstream):
        status, content, _ = await client.ask("POST", f"/v1/{path}", {"model": "m", **fields})
        assert (status, content["error"]["code"]) == (400, "invalid_request_error")
        assert upstream.requests == []

    money(tmp_path, work)


def test_tools_that_the_client_runs_pass_where_they_cost_money(tmp_path):
    async def work(client, upstream):
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        result = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "5"}]}
        body = {"model": "m", "input": [TEXT, call, result], "tools": [{"type": "function", "name": "f"}]}
        assert (await client.ask("POST", "/v1/responses", body))[0] == 200

    money(tmp_path, work)


def test_embeddings_pass_and_are_charged_what_they_read(tmp_path):
    async def work(client, upstream):
        body = {"model": "m", "input": ["one", "two"]}
        status, content, headers = await client.ask("POST", "/v1/embeddings", body)
        assert (status, content["object"]) == (200, "list")
        assert upstream.requests[-1].body == {**body, "model": "m1"}
        assert headers["x-shadowprice-decision"] == "granted"
        assert await client.spent("all total dollars") == 7000
        assert await client.spent("all day") == 7
        status, content, _ = await client.ask("POST", "/v1/embeddings", {"model": "m", "input": "x" * 20_000})
        assert (status, content["error"]["code"]) == (402, "budget_exhausted")
        assert len(upstream.requests) == 1

    money(tmp_path, work, reads)


@pytest.mark.parametrize(
    ("path", "field"), [("/v1/embeddings", "input"), ("/v1/completions", "prompt")], ids=["inputs", "prompts"]
)
def test_several_prompts_in_one_request_may_each_be_as_long_as_the_context(tmp_path, path, field):
    async def work(client, upstream):
        several = {"model": "m", field: ["word " * 300] * 20, "max_tokens": 1}
        status, content, _ = await client.ask("POST", path, several)
        assert (status, content["error"]["code"]) == (402, "budget_exhausted")
        assert upstream.requests == []
        assert (await client.ask("POST", path, {**several, field: ["word " * 300] * 2}))[0] == 200

    with_context = MONEY.replace("rates", "context = 400\nrates")
    money(tmp_path, work, text=with_context)


def test_in_shadow_mode_a_scarce_budget_declines_nothing_and_reports(tmp_path):
    async def work(client, upstream):
        found = [await client.chat() for _ in range(12)]
        assert {status for status, _, _ in found} == {200}
        assert found[-1][2]["x-shadowprice-decision"] == "exhausted"
        assert "max_completion_tokens" not in upstream.requests[-1].body
        assert await client.spent("all day") == upstream.generated == 12 * LENGTH

    money(tmp_path, work, top='mode = "shadow"')


def test_the_log_has_no_prompt_no_answer_and_no_key(tmp_path):
    async def work(client, upstream):
        await client.chat("some-client-key", messages=[{"role": "user", "content": "a private question"}])
        (line,) = client.lines
        assert json.loads(line)["decision"] in ("granted", "shrunk")
        assert "private" not in line
        assert "some-client-key" not in line
        assert "w1" not in line

    money(tmp_path, work, top='log = "json"')


def test_a_mistake_of_the_gateway_is_an_answer_and_not_a_broken_connection(tmp_path, monkeypatch, caplog):
    async def work(client, upstream):
        monkeypatch.setattr(client.app.gateway.prices, "purses", lambda *_: 1 / 0)
        status, content, _ = await client.chat()
        assert (status, content["error"]["code"]) == (500, "internal_error")
        assert "a request failed" in caplog.text
        assert upstream.requests == []

    money(tmp_path, work)


def test_with_a_ledger_that_cannot_be_written_nothing_is_sent(tmp_path, monkeypatch):
    async def work(client, upstream):
        def broken(worker, wants):
            raise LedgerError("the disk is full")

        monkeypatch.setattr(client.app.tree.owner, "lease", broken)
        status, content, _ = await client.chat()
        assert (status, content["error"]["code"]) == (503, "ledger_unavailable")
        assert "the disk is full" in content["error"]["message"]
        assert upstream.requests == []
        monkeypatch.undo()
        assert (await client.chat())[0] == 200

    money(tmp_path, work)


def test_a_client_that_leaves_while_units_are_leased_loses_none_of_them(tmp_path, monkeypatch):
    async def work(client, upstream):
        lease = client.app.tree.owner.lease

        def slow(worker, wants):
            time.sleep(0.4)
            return lease(worker, wants)

        monkeypatch.setattr(client.app.tree.owner, "lease", slow)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.chat()
        await asyncio.sleep(0.6)
        assert upstream.requests == []
        assert await client.spent("all day") == 0
        assert await client.spent("all total dollars") == 0
        assert (await client.chat(max_tokens=50))[0] == 200
        assert await client.spent("all day") == 50

    money(tmp_path, work)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/v2/x", 404), ("POST", "/healthz", 405), ("GET", "/openapi.json", 200)],
)
def test_other_paths(tmp_path, method, path, status):
    async def work(client, upstream):
        assert (await client.ask(method, path))[0] == status

    money(tmp_path, work)


def test_several_workers_share_the_port_and_the_budget(tmp_path):
    async def work(url, upstream):
        import aiohttp

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:

            async def post():
                async with session.post(url + "/chat/completions", json={**CHAT, "max_tokens": 60}) as response:
                    assert response.status in (200, 402), await response.text()
                    return response.status, response.headers["x-shadowprice-decision"]

            found = await asyncio.gather(*(post() for _ in range(100)))
            assert {status for status, _ in found} == {200, 402}
            for _ in range(40):  # what one process holds and does not use, the other gets
                await post()
        assert 1900 < upstream.generated <= 2000

    with Server(model) as upstream:
        with gateway(upstream.url, tmp_path, "--workers", "2") as (url, process):
            run(work(url, upstream))
        assert process.returncode == 0
    assert list((tmp_path / "workers").iterdir()) == []


class Clock:
    now = 36_000_000.0  # the start of an hour

    def __call__(self):
        return self.now


HOURLY = 'budgets = ["{budget}/hour"]\n[[route]]\nname = "m"\nbase_url = "{url}"\n'


def test_while_a_window_ends_under_load_each_window_has_its_own_budget(tmp_path):
    clock = Clock()

    async def main(upstream):
        config = configured(tmp_path, 'policy = "first-come"\n' + HOURLY.format(url=upstream.url, budget="2k"))
        async with served(config, tmp_path, clock=clock) as client:
            generated = [0]
            for _ in range(3):
                clock.now += 3590.0
                before = [client.chat(stream=bool(i % 2), max_tokens=90) for i in range(30)]
                await asyncio.gather(*before)
                generated.append(upstream.generated)
                assert upstream.generated <= 2000 * (len(generated) - 1)
                clock.now += 10.0
            assert upstream.generated > 3 * 1900

            async def roll():
                await asyncio.sleep(0.05)
                clock.now += 3600.0

            await asyncio.gather(roll(), *(client.chat(stream=True, max_tokens=90) for i in range(80)))
            assert upstream.generated <= 2000 * 5  # of the window that ended, and of the next
            assert 0 <= await client.spent("all hour") <= 2000

    with Server(model) as upstream:
        run(main(upstream))


def test_the_price_rises_with_demand_and_declines_what_is_worth_little(tmp_path):
    """Requests of value 1 and 10 in turn, for half an hour, that would use four times the budget."""
    clock = Clock()

    async def main(upstream):
        config = configured(tmp_path, HOURLY.format(url=upstream.url, budget="20k"))
        async with served(config, tmp_path, clock=clock) as client:
            served_values, prices, codes = [], [], set()
            for number in range(200):
                clock.now += 9.0
                value = "10" if number % 2 else "1"
                status, content, headers = await client.chat(headers={"x-shadowprice-value": value}, max_tokens=400)
                prices.append(float(headers["x-shadowprice-price"]))
                if status == 200:
                    served_values.append(value)
                else:
                    codes.add(content["error"]["code"])
            assert prices[0] == 0
            assert max(prices) > 0
            assert codes == {"budget_declined"}
            assert served_values.count("10") > 2 * served_values.count("1")
            assert 0.35 * 20_000 < upstream.generated < 0.65 * 20_000  # half of the window, half of the budget

    with Server(model) as upstream:
        run(main(upstream))


NESTED = """
budgets = ["1M/month"]
require_keys = true
[[route]]
name = "m"
base_url = "{url}"
[[tenant]]
name = "alice"
key_sha256 = "{key}"
budgets = ["100/minute"]
"""


def test_an_exhausted_request_may_be_retried_when_the_budget_that_lacks_units_refills(tmp_path):
    async def main(upstream):
        config = configured(tmp_path, NESTED.format(url=upstream.url, key=digest("sk-alice")))
        async with served(config, tmp_path, clock=lambda: 1_800_000_000.0 + 15) as client:
            answers = [await client.chat("sk-alice", max_tokens=50) for _ in range(3)]
            assert [status for status, _, _ in answers] == [200, 200, 402]
            error = answers[-1][1]["error"]
            assert (error["code"], error["retry_after"]) == ("budget_exhausted", 45.0)  # not the end of the month

    with Server(model) as upstream:
        run(main(upstream))


@pytest.mark.parametrize("stream", [False, True])
def test_responses_are_limited_and_charged_too(tmp_path, stream):
    async def responses(request, reply):
        usage = {"input_tokens": 5, "output_tokens": 30, "total_tokens": 35}
        whole = {"id": "r", "object": "response", "status": "completed", "output": [], "usage": usage}
        if not stream:
            await reply.json(200, whole)
            return
        await reply.head()
        for _ in range(30):
            await reply.event({"type": "response.output_text.delta", "delta": "word "})
        await reply.event({"type": "response.completed", "response": whole})

    async def work(client, upstream):
        body = {"model": "m", "input": "What is 2 + 3?", "stream": stream, "max_output_tokens": 80}
        status, content, _ = await client.ask("POST", "/v1/responses", body)
        assert status == 200
        assert "output_tokens" in str(content)
        assert upstream.requests[-1].body == {**body, "model": "m1"}
        assert await client.spent("all day") == 30
        assert await client.spent("all total dollars") == 5 * 1000 + 30 * 2000

    money(tmp_path, work, responses)


def test_completions_with_several_prompts_reserve_for_all_of_them(tmp_path):
    async def completions(request, reply):
        count = len(request.body["prompt"]) * request.body["n"]
        choices = [{"index": i, "text": "w " * 10, "finish_reason": "stop"} for i in range(count)]
        await reply.json(200, {"choices": choices, "usage": {"prompt_tokens": 6, "completion_tokens": 10 * count}})

    async def work(client, upstream):
        body = {"model": "m", "prompt": ["a", "b"], "n": 2, "max_tokens": 30}
        assert (await client.ask("POST", "/v1/completions", body))[0] == 200
        assert await client.spent("all day") == 40
        status, _, _ = await client.ask("POST", "/v1/completions", {**body, "n": 20, "max_tokens": 400})
        assert status in (200, 402)
        for request in upstream.requests:
            assert request.body["max_tokens"] * request.body["n"] * 2 <= 1000  # of $0.002

    money(tmp_path, work, completions)


@pytest.mark.parametrize(
    ("cut", "counted", "charged"), [(True, 30, 60), (True, 60, 60), (False, 20, 40), (False, 40, 40), (False, 33, 33)]
)
def test_several_answers_are_charged_even_if_the_server_counts_one_of_them(tmp_path, cut, counted, charged):
    """llama.cpp does."""

    async def work(client, upstream):
        assert (await client.chat(n=2, max_tokens=30))[0] == 200
        assert await client.spent("all day") == charged
        assert (await client.ask("POST", "/v1/completions", {"prompt": ["a", "b"], "max_tokens": 30}))[0] == 200
        assert await client.spent("all day") == 2 * charged

    async def counts_one(request, reply):
        text, finish = ("word" * 30, "length") if cut else ("word" * 20, "stop")
        part = {"message": {"role": "assistant", "content": text}} if request.chat else {"text": text}
        choices = [{"index": number, **part, "finish_reason": finish} for number in range(2)]
        await reply.json(200, {"choices": choices, "usage": {"prompt_tokens": 5, "completion_tokens": counted}})

    async def main(upstream):
        text = f'budgets = ["10k/day"]\n[[route]]\nname = "m"\nbase_url = "{upstream.url}"\n'
        async with served(configured(tmp_path, text), tmp_path) as client:
            await work(client, upstream)

    with Server(counts_one) as upstream:
        run(main(upstream))


def test_a_request_gets_what_another_process_returns_while_it_waits(tmp_path):
    async def main(upstream):
        config = configured(tmp_path, f"budgets = ['2000']\n[[route]]\nname = 'm'\nbase_url = '{upstream.url}'")
        async with served(config, tmp_path) as one, served(config, tmp_path) as two:
            held = one.app.tree.reserve(config.budgets, 2000)
            one.app.tree.void(held)

            async def housekeeping():
                while True:
                    one.app.tree.trim()
                    await asyncio.sleep(0.05)

            task = asyncio.create_task(housekeeping())
            assert (await two.chat())[0] == 200
            task.cancel()

    with Server(model) as upstream:
        run(main(upstream))


def test_a_budget_that_is_used_up_is_asked_for_once_a_second(tmp_path, monkeypatch):
    async def main(upstream):
        config = configured(tmp_path, f"budgets = ['2000']\n[[route]]\nname = 'm'\nbase_url = '{upstream.url}'")
        async with served(config, tmp_path) as one, served(config, tmp_path) as two:
            one.app.tree.reserve(config.budgets, 1990)
            assert [(await two.chat(max_tokens=10))[0] for _ in range(2)] == [200, 402]
            asked = []
            monkeypatch.setattr(SqliteOwner, "lease", lambda *_: asked.append(1))
            assert [(await two.chat())[0] for _ in range(20)] == [402] * 20
            assert asked == []

    with Server(model) as upstream:
        run(main(upstream))


def test_workers_end_with_their_supervisor_also_if_that_is_killed(tmp_path):
    with Server(model) as upstream, gateway(upstream.url, tmp_path, "--workers", "2") as (url, process):
        process.kill()
        process.wait()
        port = int(url.removesuffix("/v1").rpartition(":")[2])
        for _ in range(100):
            time.sleep(0.1)
            with suppress(OSError):
                socket.create_server(("127.0.0.1", port)).close()
                return
        raise AssertionError("somebody still listens on the port")


def test_it_listens_on_ipv6(tmp_path):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with Server(model) as upstream, gateway(upstream.url, tmp_path, "--host", "::1", "--workers", "2") as (url, _):
        assert url.startswith("http://[::1]:")
        with urllib.request.urlopen(url.removesuffix("/v1") + "/healthz", timeout=10) as answer:
            assert answer.status == 200


def test_workers_that_are_still_starting_are_no_failure(tmp_path):
    with Server(model) as upstream:
        with gateway(upstream.url, tmp_path, "--workers", "4") as (_, process):
            pass  # it gets SIGTERM as soon as one of them answers
        assert process.returncode == 0
