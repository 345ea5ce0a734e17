"""The document describes what the gateway does: requests made from it, valid and invalid, get answers that it lists."""

import asyncio
import random
import re
import shutil
import subprocess

import pytest

from shadowprice.gateway.openapi import document

from ..backends.hostile import Server
from .inside import ADMIN, configured, run, served
from .upstream import gateway, model

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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "paths", "except_for"),
    [
        # What is not understood is passed on: requests and methods that contradict the document need not be refused.
        ([], "^/v1|^/healthz|^/readyz|^/metrics", "negative_data_rejection,unsupported_method"),
        # A budget or a team that does not exist is refused, which a schema cannot say.
        (["--require-keys"], "^/admin", "negative_data_rejection,positive_data_acceptance"),
    ],
    ids=["requests", "admin"],
)
def test_schemathesis_finds_nothing(tmp_path, options, paths, except_for):
    command = shutil.which("schemathesis")
    if command is None:
        pytest.skip("schemathesis is not installed: pip install schemathesis")
    # A key of idempotency that was used for another request is refused with 422, which a schema cannot say.
    (tmp_path / "schemathesis.toml").write_text(
        '[checks]\npositive_data_acceptance.expected-statuses = ["2xx", "401", "404", "409", "422", "429", "5xx"]\n'
    )
    with Server(model) as upstream, gateway(upstream.url, tmp_path, *options, budget="100M") as (url, _):
        given = ["run", f"{url.removesuffix('/v1')}/openapi.json", "-H", "Authorization: Bearer admin-secret-key"]
        given += ["--include-path-regex", paths, "--exclude-path", "/admin/drain", "--exclude-checks", except_for]
        given += ["--phases", "examples,coverage,fuzzing", "-n", "20", "--seed", "1", "--generation-database", "none"]
        done = subprocess.run(
            [command, *given, "--no-color"], capture_output=True, text=True, cwd=tmp_path, timeout=300
        )
    assert done.returncode == 0, done.stdout[-6000:]
