import asyncio
import json
from dataclasses import replace

import pytest

from shadowprice.errors import Denied, Refused, Unavailable
from shadowprice.gateway.appraisal import Appraiser
from shadowprice.gateway.upstreams import Route, Upstream, Upstreams, can_fall_back

from ..backends.hostile import Server
from .inside import Alike, configured, run, served
from .upstream import LENGTH, model

ROUTES = [
    Route("small", "http://a/v1", "model-a", fallbacks=("large", "small")),
    Route("large", "http://b/v1", "model-b"),
]


def chosen(name, routes=ROUTES, change=lambda upstreams: None):
    async def work():
        upstreams = Upstreams(routes, keys=False)
        change(upstreams)
        found = [each.route.name for each in upstreams.choose(name)]
        await upstreams.close()
        return found

    return asyncio.run(work())


def test_a_route_is_chosen_by_its_name_or_its_model():
    assert chosen("small") == chosen("model-a") == ["small", "large"]
    assert chosen("large") == ["large"]
    assert chosen("other") == chosen(None) == chosen(3) == []


def test_a_route_without_a_model_takes_any():
    anything = Route("any", "http://c/v1")
    assert chosen("other", [*ROUTES, anything]) == ["any"]
    assert chosen(None, ROUTES[1:]) == ["large"]


def test_one_that_cannot_be_reached_or_ignores_limits_comes_last():
    def unreachable(upstreams):
        upstreams.choose("small")[0].failed(Unavailable("no", tokens=0, sent=False))

    assert chosen("small", change=unreachable) == ["large", "small"]

    def busy(upstreams):
        upstreams.choose("small")[0].failed(Unavailable("503", tokens=0))

    assert chosen("small", change=busy) == ["small", "large"]


def test_only_a_request_that_is_not_at_fault_is_sent_elsewhere():
    assert can_fall_back(Unavailable("no", tokens=None))
    assert can_fall_back(Denied("401"))
    assert not can_fall_back(Refused("400"))


def test_the_name_of_the_model_is_the_servers():
    assert Upstream(ROUTES[0]).rewritten({"model": "small", "x": 1}) == {"model": "model-a", "x": 1}
    assert Upstream(Route("any", "http://c")).rewritten({"model": "m"}) == {"model": "m"}


TWO = """
budgets = ["2000"]
[[route]]
name = "first"
base_url = "{first}"
model = "m1"
fallbacks = ["second"]
max_concurrency = 2
[[route]]
name = "second"
base_url = "{second}"
model = "m2"
"""


class TestFallbacks:
    @pytest.mark.parametrize(("status", "cost"), [(503, 0), (429, 0), (401, 0), (500, 100)])
    def test_stay_inside_the_same_budget(self, tmp_path, status, cost):
        async def broken(request, reply):
            await reply.error(status, "no")

        async def work(first, second):
            text = 'log = "json"' + TWO.format(first=first.url, second=second.url)
            async with served(configured(tmp_path, text), tmp_path) as client:
                answered, content, _ = await client.chat(model="first", max_tokens=100)
                assert answered == 200
                assert content["usage"]["completion_tokens"] == 100
                assert second.requests[-1].body["model"] == "m2"
                assert await client.spent("all total") == cost + 100
                (record,) = [each for each in map(json.loads, client.lines) if each["event"] == "request"]
                assert (record["route"], record["fallbacks"], record["output"]) == ("second", 1, cost + 100)

        with Server(broken) as first, Server(model) as second:
            run(work(first, second))

    def test_a_refused_request_is_not_sent_elsewhere(self, tmp_path):
        async def refuses(request, reply):
            await reply.error(400, "too long")

        async def work(first, second):
            async with served(configured(tmp_path, TWO.format(first=first.url, second=second.url)), tmp_path) as client:
                assert (await client.chat(model="first"))[0] == 400
                assert second.requests == []

        with Server(refuses) as first, Server(model) as second:
            run(work(first, second))

    def test_an_unreachable_route_is_asked_last_for_a_while(self, tmp_path):
        async def work(second):
            text = TWO.format(first="http://127.0.0.1:1/v1", second=second.url)
            async with served(configured(tmp_path, text), tmp_path) as client:
                for _ in range(3):
                    assert (await client.chat(model="first", max_tokens=10))[0] == 200
                assert client.app.gateway.counts["fallbacks"] == 1
                assert await client.spent("all total") == 30

        with Server(model) as second:
            run(work(second))

    def test_no_route_gets_more_requests_at_a_time_than_it_may(self, tmp_path):
        most, now = 0, 0

        async def slow(request, reply):
            nonlocal most, now
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.05)
            now -= 1
            await model(request, reply)

        async def work(first):
            text = TWO.replace('fallbacks = ["second"]', "").format(first=first.url, second=first.url)
            async with served(configured(tmp_path, text), tmp_path) as client:
                answers = await asyncio.gather(*(client.chat(model="first", max_tokens=10) for _ in range(8)))
                assert {status for status, _, _ in answers} == {200}

        with Server(slow) as first:
            run(work(first))
        assert most == 2

    def test_models_are_listed_by_the_names_of_routes(self, tmp_path):
        async def work(first):
            async with served(configured(tmp_path, TWO.format(first=first.url, second=first.url)), tmp_path) as client:
                _, content, _ = await client.ask("GET", "/v1/models")
                assert [each["id"] for each in content["data"]] == ["first", "second", "auto"]
                status, content, _ = await client.chat(model="other")
                assert (status, content["error"]["code"]) == (404, "model_not_found")
                assert (await client.chat(model="m2"))[1]["usage"]["completion_tokens"] == LENGTH

        with Server(model) as first:
            run(work(first))


CHOICE = """
budgets = ["$1"]
[[route]]
name = "small"
base_url = "{url}"
model = "m1"
rates = {{ input = 0, output = 1 }}
[[route]]
name = "large"
base_url = "{url}"
model = "m2"
rates = {{ input = 0, output = 10 }}
[[tenant]]
name = "a"
key_env = "TENANT_A"
[[tenant]]
name = "b"
key_env = "TENANT_B"
models = ["small", "auto"]
"""


@pytest.mark.parametrize(("price", "value", "model_used"), [(5e-7, "0.8", "m1"), (5e-7, "20", "m2"), (0, "1", "m2")])
def test_auto_chooses_the_route_on_which_a_request_gains_most(tmp_path, monkeypatch, price, value, model_used):
    """The large model is more often correct, and ten times as dear: it is worth it for valuable requests."""
    monkeypatch.setenv("TENANT_A", "tenant-a-key")
    monkeypatch.setenv("TENANT_B", "tenant-b-key")

    async def work(url):
        config = configured(tmp_path, CHOICE.format(url=url))
        async with served(config, tmp_path, Alike(200.0, 0.4)) as client:
            gateway = client.app.gateway
            monkeypatch.setattr(gateway.prices, "price", lambda account, rate=1.0: price)  # of a nano-dollar
            gateway._appraisers["large"] = Appraiser(Alike(200.0, 0.9))
            large = gateway.upstreams.choose("large")[0]
            large.route = replace(large.route, forecaster="large")
            headers = {"x-shadowprice-value": value}
            status, _, _ = await client.chat("tenant-a-key", headers, model="auto", max_tokens=300)
            assert (status, server.requests[-1].body["model"]) == (200, model_used)
            status, _, _ = await client.chat("tenant-b-key", {"x-shadowprice-value": "20"}, model="auto")
            assert (status, server.requests[-1].body["model"]) == (200, "m1")  # all that it may use

    with Server(model) as server:
        run(work(server.url))
