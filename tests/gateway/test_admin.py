"""The auth matrix, and what operators see and change."""

import asyncio
import base64

import pytest

from shadowprice.accounts.notes import Price

from ..backends.hostile import Server
from .browser import CHROMIUM, browser
from .inside import ADMIN, configured, run, served
from .upstream import LENGTH, model

TENANTS = """
budgets = ["100k/day"]
[[route]]
name = "m"
base_url = "{url}"
model = "m1"
[[route]]
name = "other"
base_url = "{url}"
model = "m2"
[[team]]
name = "search"
budgets = ["50k/day"]
[[tenant]]
name = "alice"
team = "search"
key_env = "ALICE"
budgets = ["1000"]
[[tenant]]
name = "bob"
key_env = "BOB"
models = ["other"]
"""
KEYS = {"alice": "alice-secret-key", "bob": "bob-secret-key"}


@pytest.fixture
def gateway(tmp_path, monkeypatch):
    monkeypatch.setenv("ALICE", KEYS["alice"])
    monkeypatch.setenv("BOB", KEYS["bob"])

    def go(work, text=TENANTS):
        async def main(url):
            async with served(configured(tmp_path, text.format(url=url)), tmp_path) as client:
                await work(client)

        with Server(model) as upstream:
            go.upstream = upstream
            run(main(upstream.url))

    return go


BASIC = "Basic " + base64.b64encode(b"me:admin-secret-key").decode()
WAYS = {
    "no key": {},
    "a wrong key": {"Authorization": "Bearer sk-sp-wrong"},
    "a wrong scheme": {"Authorization": f"Token {KEYS['alice']}"},
    "the hash of a key": {"Authorization": "Bearer 9c56cc51b374c3ba189210d5b6d4bf57790d351c96c47c02190ecf1e430635ab"},
    "bytes": {"Authorization": "Bearer \xff\xfe"},
    "a tenant": {"Authorization": f"Bearer {KEYS['alice']}"},
    "another tenant": {"Authorization": f"Bearer {KEYS['bob']}"},
    "the admin": ADMIN,
    "the admin, basic": {"Authorization": BASIC},
}
PLACES = {
    ("POST", "/v1/chat/completions"): {"a tenant": 200, "another tenant": 404},
    ("GET", "/v1/models"): {"a tenant": 200, "another tenant": 200},
    ("POST", "/v1/embeddings"): {"a tenant": 200, "another tenant": 404},
    ("GET", "/v1/files"): {"a tenant": 200, "another tenant": 200},
    ("GET", "/admin"): {"the admin": 200, "the admin, basic": 200},
    ("GET", "/admin/state"): {"the admin": 200, "the admin, basic": 200},
    ("GET", "/admin/budgets"): {"the admin": 200, "the admin, basic": 200},
    ("GET", "/admin/prices"): {"the admin": 200, "the admin, basic": 200},
    ("GET", "/admin/requests"): {"the admin": 200, "the admin, basic": 200},
    ("GET", "/admin/tenants"): {"the admin": 200, "the admin, basic": 200},
    ("GET", "/admin/nothing"): {"the admin": 404, "the admin, basic": 404},
    ("POST", "/admin/tenants"): {"the admin": 400},
    ("DELETE", "/admin/tenants/nobody"): {"the admin": 404},
    ("POST", "/admin/state"): {"the admin": 405},
    ("POST", "/admin/tenants/nobody"): {"the admin": 405},
    ("GET", "/admin/tenants/nobody/key"): {"the admin": 405, "the admin, basic": 405},
    ("GET", "/admin/tenants/nobody/other"): {"the admin": 404, "the admin, basic": 404},
    ("TRACE", "/v1/models/x"): {"a tenant": 405, "another tenant": 405},
    ("PUT", "/v1/embeddings"): {"a tenant": 405, "another tenant": 405},
    ("GET", "/healthz"): dict.fromkeys(WAYS, 200),
    ("GET", "/metrics"): dict.fromkeys(WAYS, 200),
}


def test_the_matrix_of_keys_and_endpoints(gateway):
    async def work(client):
        for (method, path), allowed in PLACES.items():
            for way, headers in WAYS.items():
                body = {"model": "m", "messages": [], "input": "x"} if method == "POST" else None
                status, content, _ = await client.ask(method, path, body, **headers)
                assert status == allowed.get(way, 401), f"{method} {path} with {way}: {status}"
                if status == 401:
                    assert "secret" not in str(content)
        assert len(gateway.upstream.requests) == 2 + 2  # of the tenant alone, and two files

    gateway(work)


@pytest.mark.parametrize("model", [["m"], {"a": 1}, 1, None])
def test_a_model_that_is_no_name_does_not_exist(gateway, model):
    async def work(client):
        assert (await client.chat(KEYS["bob"], model=model))[0] == 404

    gateway(work)


def test_a_tenants_key_is_not_sent_to_the_server(gateway):
    async def work(client):
        await client.chat(KEYS["alice"])
        assert "authorization" not in gateway.upstream.requests[-1].headers

    gateway(work)


def test_every_level_of_the_tree_is_charged_and_the_tightest_one_declines(gateway):
    async def work(client):
        for _ in range(10):
            status, content, _ = await client.chat(KEYS["alice"])
        assert (status, content["error"]["code"]) == (402, "budget_exhausted")
        assert "tenant alice total" in content["error"]["message"]
        generated = gateway.upstream.generated
        assert generated <= 1000
        for account in ("all day", "team search day", "tenant alice total"):
            assert await client.spent(account) == generated

    gateway(work)


def test_metrics_name_tenants_only_to_the_admin(gateway):
    async def work(client):
        await client.chat(KEYS["alice"])
        _, everyone, _ = await client.ask("GET", "/metrics")
        _, admin, _ = await client.ask("GET", "/metrics", **ADMIN)
        assert "alice" not in everyone
        assert f'shadowprice_tenant_tokens_total{{tenant="alice"}} {LENGTH}' in admin
        assert 'shadowprice_available{account="tenant alice total"}' in admin

    gateway(work)


def test_tenants_are_added_changed_and_removed_while_it_runs(gateway):
    async def work(client):
        record = {"name": "carol", "team": "search", "budgets": ["300"], "value": 2.5}
        status, made, _ = await client.ask("POST", "/admin/tenants", record, **ADMIN)
        assert (status, made["accounts"][-1]) == (201, "tenant carol total")
        key = made["key"]
        assert (await client.chat(key, max_tokens=100))[0] == 200
        assert (await client.ask("POST", "/admin/tenants", record, **ADMIN))[0] == 409
        assert (await client.chat(key, max_tokens=250))[2]["x-shadowprice-grant"] == "200"
        assert (await client.chat(key))[0] == 402

        status, _, _ = await client.ask("PUT", "/admin/tenants/carol", {"budgets": ["1k"]}, **ADMIN)
        assert status == 200
        assert (await client.chat(key, max_tokens=100))[0] == 200  # what it has spent still counts
        assert await client.spent("tenant carol total") == 400

        _, again, _ = await client.ask("POST", "/admin/tenants/carol/key", **ADMIN)
        assert (await client.chat(key))[0] == 401
        assert (await client.chat(again["key"], max_tokens=10))[0] == 200
        _, listed, _ = await client.ask("GET", "/admin/tenants", **ADMIN)
        assert [each["name"] for each in listed["tenants"]] == ["alice", "bob", "carol"]
        stored = await asyncio.to_thread(client.app.notes.tenants)
        assert key not in str(stored)
        assert again["key"] not in str((stored, listed))

        assert (await client.ask("DELETE", "/admin/tenants/carol", **ADMIN))[0] == 200
        assert (await client.chat(again["key"]))[0] == 401
        assert (await client.ask("DELETE", "/admin/tenants/alice", **ADMIN))[0] == 409

    gateway(work)


@pytest.mark.parametrize(
    "record", [[], {}, {"name": "x y"}, {"name": "x", "budgets": ["1/week"]}, {"name": "x", "key_sha256": "a"}]
)
def test_an_invalid_tenant_is_refused_in_one_line(gateway, record):
    async def work(client):
        status, content, _ = await client.ask("POST", "/admin/tenants", record, **ADMIN)
        assert (status, content["error"]["code"]) == (400, "invalid_request_error")
        assert "\n" not in content["error"]["message"]

    gateway(work)


def test_a_gateway_without_keys_has_no_tenants_to_add(gateway):
    async def work(client):
        status, content, _ = await client.ask("POST", "/admin/tenants", {"name": "x"}, **ADMIN)
        assert (status, content["error"]["code"]) == (409, "no_keys")

    gateway(work, 'budgets = ["5k"]\n[[route]]\nname = "m"\nbase_url = "{url}"\n')


def test_prices_and_requests_are_shown(gateway):
    async def work(client):
        await client.chat(KEYS["alice"])
        await client.app.look_and_write()
        client.app.notes.write([Price("all day", 1.0, 0.25, 7)])
        _, content, _ = await client.ask("GET", "/admin/prices?account=all%20day&since=0.5", **ADMIN)
        assert content["prices"][0] == {"account": "all day", "at": 1.0, "price": 0.25, "available": 7}
        assert (await client.ask("GET", "/admin/prices?since=x", **ADMIN))[0] == 400
        _, content, _ = await client.ask("GET", "/admin/requests", **ADMIN)
        (record,) = content["requests"]
        assert (record["tenant"], record["decision"], record["output"]) == ("alice", "shrunk", LENGTH)
        assert record["why"] == "little is left of tenant alice total"
        _, state, _ = await client.ask("GET", "/admin/state", **ADMIN)
        assert state["requests"] == content["requests"]
        assert [each["account"] for each in state["accounts"]][:2] == ["all day", "team search day"]
        assert state["minutes"][0][1:] == ["alice", "shrunk", 1, LENGTH]
        assert KEYS["alice"] not in str(state)

    gateway(work)


def test_drained_it_takes_no_new_requests_also_in_its_other_processes(gateway):
    async def work(client):
        assert (await client.ask("POST", "/admin/drain", **ADMIN))[0] == 200
        assert (await client.chat(KEYS["alice"]))[0] == 503
        assert (await client.ask("GET", "/readyz"))[0] == 503
        assert (await client.ask("GET", "/healthz"))[0] == 200
        client.app.gateway.draining = False  # as in another process, before it looks
        await client.app.look_and_write()
        assert client.app.gateway.draining

    gateway(work)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)")
def test_the_dashboard_is_live_and_fits_a_phone(gateway):
    async def work(client):
        for number in range(8):
            await client.chat(KEYS["alice"], max_tokens=50 + number)
        await client.app.look_and_write()
        address = client.root.replace("http://", "http://me:admin-secret-key@") + "/admin"
        async with browser(address, width=390) as page:
            await page.until("document.body.dataset.ready === 'true'")
            assert await page.value("document.querySelectorAll('#requests tbody tr').length") == 8
            assert await page.value("document.querySelectorAll('#budgets .budget').length") == 3
            assert await page.value("document.querySelectorAll('#decisions rect').length") >= 1
            assert await page.value("document.querySelectorAll('#scatter circle').length") == 8
            assert await page.value("document.documentElement.scrollWidth") <= 390
            outside = (
                "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > 391).length"
            )
            assert await page.value(outside) == 0
            assert "as asked" in await page.value("document.body.innerText")

            status, _, _ = await client.chat(KEYS["alice"], max_tokens=5000)
            assert status == 200
            for _ in range(6):
                await client.chat(KEYS["alice"], max_tokens=600)
            await client.app.look_and_write()
            await page.until("document.querySelector('td.exhausted') !== null")
            assert await page.value("document.querySelectorAll('#requests tbody tr').length") == 15
            hosts = "performance.getEntriesByType('resource').every(e => e.name.startsWith(location.origin))"
            assert await page.value(hosts)
            assert page.errors == []

    gateway(work)
