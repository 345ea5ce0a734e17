"""The document describes what the gateway does: requests made from it, valid and invalid, get answers that it lists."""

import asyncio
import random
import re

from shadowprice.gateway.openapi import document

from ..backends.hostile import Server
from .inside import ADMIN, configured, run, served
from .upstream import model

TEXT = 'require_keys = true\nbudgets = ["500k"]\n[[route]]\nname = "m"\nbase_url = "{url}"\n'
ODD = [
    None,
    True,
    -1,
    0,
    1,
    2**40,
    1e300,
    "",
    "x",
    "\x00",
    "é" * 300,
    [],
    [[]],
    {},
    {"a": {"b": 1}},
    [{"role": "user"}],
]
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH")


def resolved(schema, whole):
    while "$ref" in schema:
        schema = whole["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def drawn(schema, whole, chance):
    """A value that fits a schema, or nearly."""
    schema = resolved(schema, whole)
    if chance.random() < 0.25:
        return chance.choice(ODD)
    kind = schema.get("type", "string")
    kind = chance.choice(kind) if isinstance(kind, list) else kind
    if kind == "object":
        fields = [name for name in schema.get("properties", {}) if chance.random() < 0.7]
        return {name: drawn(schema["properties"][name], whole, chance) for name in fields}
    if kind == "array":
        return [drawn(schema.get("items", {}), whole, chance) for _ in range(chance.randrange(3))]
    if kind in ("integer", "number"):
        return chance.randint(max(0, int(schema.get("minimum", 0))), 300)
    return True if kind == "boolean" else chance.choice(["m", "x-1", "1k/day", "user", "What is 2 + 3?"])


def test_it_is_complete_and_refers_to_what_exists():
    whole = document()
    assert whole["openapi"] == "3.1.0"
    for reference in re.findall(r"#/components/schemas/(\w+)", str(whole)):
        assert reference in whole["components"]["schemas"]
    for path, item in whole["paths"].items():
        assert set(re.findall(r"{(\w+)}", path)) == {each["name"] for each in item.get("parameters", [])}


def test_whatever_is_sent_gets_an_answer_that_is_listed(tmp_path):
    whole, chance = document(), random.Random(7)

    async def work(client):
        status, made, _ = await client.ask("POST", "/admin/tenants", {"name": "known", "budgets": ["400k"]}, **ADMIN)
        assert status == 201
        seen = set()
        for path, item in whole["paths"].items():
            if path == "/admin/drain":
                continue
            for method in METHODS:
                operation = item.get(method.lower())
                for _ in range(12 if operation and "requestBody" in operation else 3):
                    admin = path.startswith("/admin")
                    headers = dict(ADMIN) if admin else {"Authorization": f"Bearer {made['key']}"}
                    if chance.random() < 0.1:
                        headers = {}
                    body = None
                    if operation and "requestBody" in operation:
                        schema = operation["requestBody"]["content"]["application/json"]["schema"]
                        body = drawn(schema, whole, chance)
                    place = path.replace("{name}", chance.choice(["known", "other", "x%00", "é"]))
                    answered, content, _ = await client.ask(method, place, body, **headers)
                    listed = operation["responses"] if operation else {"401", "404", "405", "200"}
                    assert str(answered) in listed, f"{method} {place} {body!r}: {answered} {content}"
                    if answered >= 400 and isinstance(content, dict):
                        assert set(content["error"]) >= {"message", "type", "code"}
                    seen.add(answered)
        assert {200, 201, 400, 401, 404, 405} <= seen

    async def main(url):
        async with served(configured(tmp_path, TEXT.format(url=url)), tmp_path) as client:
            await work(client)

    with Server(model) as upstream:
        run(main(upstream.url))


def test_the_gateway_serves_it(tmp_path):
    async def main(url):
        async with served(configured(tmp_path, TEXT.format(url=url)), tmp_path) as client:
            _, content, _ = await client.ask("GET", "/openapi.json")
            assert content == document()

    asyncio.run(main("http://127.0.0.1:1/v1"))
