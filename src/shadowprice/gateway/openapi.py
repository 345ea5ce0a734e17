"""The gateway's interface as an OpenAPI document."""

from __future__ import annotations

from typing import Any

from shadowprice import __version__

__all__ = ["document"]

_TOKENS = {"type": "integer", "minimum": 1, "maximum": 2**31}
_NAME = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"}
_BUDGETS = {"type": "array", "items": {"type": "string"}, "example": ["1M/day", "$20/month"]}
_VALUE = {"type": "number", "minimum": 0, "maximum": 1e9}
_MESSAGES = {
    "type": "array",
    "items": {"type": "object", "properties": {"role": {"type": "string"}, "content": {}}, "required": ["role"]},
}


def _body(question: str, form: Any, limit: str) -> dict[str, Any]:
    properties = {
        "model": {"type": "string"},
        question: form,
        limit: _TOKENS,
        "n": {"type": "integer", "minimum": 1, "maximum": 128},
        "stream": {"type": "boolean"},
    }
    return {"type": "object", "properties": properties, "additionalProperties": True}


_SCHEMAS: dict[str, Any] = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "code": {"type": ["string", "null"]},
                    "price": {"type": "number", "description": "utility per output token"},
                    "forecast": {"type": "integer", "description": "tokens of the answer"},
                    "retry_after": {"type": ["number", "null"], "description": "seconds until the budget refills"},
                },
            }
        },
    },
    "Chat": _body("messages", _MESSAGES, "max_completion_tokens"),
    "Completion": _body("prompt", {"type": ["string", "array"], "items": {}}, "max_tokens"),
    "Response": _body("input", {"type": ["string", "array"], "items": {}}, "max_output_tokens"),
    "Embeddings": {
        "type": "object",
        "properties": {"model": {"type": "string"}, "input": {"type": ["string", "array"], "items": {}}},
        "required": ["input"],
    },
    "Tenant": {
        "type": "object",
        "properties": {
            "name": _NAME,
            "team": {"type": "string"},
            "budgets": _BUDGETS,
            "value": _VALUE,
            "max_value": _VALUE,
            "max_tokens": _TOKENS,
            "models": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
}
_CHANGES = {**_SCHEMAS["Tenant"], "required": []}
_NUMBERS = ("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-shadowprice-grant", "x-shadowprice-forecast")
_HEADERS = {
    **{name: {"schema": {"type": "string"}} for name in _NUMBERS},
    "x-ratelimit-reset-tokens": {"schema": {"type": "string"}, "description": "seconds, as 3600s, or never"},
    "x-shadowprice-price": {"schema": {"type": "string"}, "description": "utility per output token"},
    "x-shadowprice-decision": {"schema": {"enum": ["granted", "shrunk", "declined", "exhausted"]}},
}
_LANDING = {"schema": {"type": "string"}, "description": "the character at which a landing begins"}
_ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
_ASKED = {
    200: "the answer",
    400: "invalid",
    401: "no such key",
    402: "declined, or the budget is used up",
    404: "no such model",
    408: "too slow",
    409: "the outcome of the first request with this Idempotency-Key is unknown",
    413: "too large",
    422: "the Idempotency-Key was used for another request",
    502: "the server cannot be reached",
    503: "draining, or the ledger cannot be written: nothing was sent",
}


def _responses(known: dict[int, str], kind: str = "application/json") -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, text in known.items():
        content = _ERROR if status >= 400 and kind != "text/plain" else {kind: {"schema": {}}}
        responses[str(status)] = {"description": text, "content": content}
    return responses


def _ask(schema: str, about: str) -> dict[str, Any]:
    parameters = [
        {"name": "x-shadowprice-value", "in": "header", "schema": _VALUE, "description": "of a correct answer"},
        {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "maxLength": 255}},
    ]
    responses = _responses(_ASKED)
    for status in ("200", "402"):
        responses[status] = {**responses[status], "headers": _HEADERS}
    responses["200"]["headers"] = {**_HEADERS, "x-shadowprice-landing": _LANDING}
    responses["200"]["content"] = {"application/json": {"schema": {}}, "text/event-stream": {"schema": {}}}
    body = {"required": True, "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}}
    return {"post": {"summary": about, "parameters": parameters, "requestBody": body, "responses": responses}}


def _admin(method: str, about: str, ok: int = 200, schema: Any = None, *more: int, **parameters: str) -> dict[str, Any]:
    texts = {ok: "done", 400: "invalid", 401: "not the admin key", 404: "not found", 409: "conflict"}
    known = {status: texts[status] for status in (ok, 401, *more)}
    operation: dict[str, Any] = {"summary": about, "security": [{"admin": []}], "responses": _responses(known)}
    if schema:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if parameters:
        operation["parameters"] = [
            {"name": n, "in": "query", "schema": {"type": kind}} for n, kind in parameters.items()
        ]
    return {method: operation}


def _named(*operations: dict[str, Any]) -> dict[str, Any]:
    name = {"name": "name", "in": "path", "required": True, "schema": _NAME}
    return {"parameters": [name], **{key: value for each in operations for key, value in each.items()}}


def _public(about: str, *statuses: int, kind: str = "text/plain") -> dict[str, Any]:
    return {"get": {"summary": about, "security": [], "responses": _responses(dict.fromkeys(statuses, about), kind)}}


def document() -> dict[str, Any]:
    tenant = {"$ref": "#/components/schemas/Tenant"}
    listed = _admin("get", "Who has a key")
    listed |= _admin("post", "Adds a tenant, and makes its key", 201, tenant, 400, 409)
    changed = _named(
        _admin("put", "Changes a tenant", 200, _CHANGES, 400, 404, 409),
        _admin("delete", "Ends a tenant's key", 200, None, 404, 409),
    )
    paths = {
        "/v1/chat/completions": _ask("Chat", "A chat, within the budget"),
        "/v1/completions": _ask("Completion", "A completion, within the budget"),
        "/v1/responses": _ask("Response", "A response, within the budget"),
        "/v1/embeddings": _ask("Embeddings", "Embeddings; the tokens of the input are charged"),
        "/v1/models": {"get": {"summary": "The models", "responses": _responses({200: "models", 401: "no such key"})}},
        "/admin": _admin("get", "The dashboard"),
        "/admin/state": _admin("get", "What the dashboard shows"),
        "/admin/budgets": _admin("get", "Every account: limit, available, reserved, spent"),
        "/admin/prices": _admin("get", "Posted prices over time", 200, None, 400, account="string", since="number"),
        "/admin/requests": _admin("get", "The latest requests, and why each was decided as it was"),
        "/admin/tenants": listed,
        "/admin/tenants/{name}": changed,
        "/admin/tenants/{name}/key": _named(_admin("post", "A new key instead of the old one", 200, None, 404, 409)),
        "/admin/drain": _admin("post", "Accepts no new requests, and finishes those in flight"),
        "/healthz": _public("The process is alive", 200),
        "/readyz": _public("It takes requests", 200, 503),
        "/metrics": _public("Metrics in Prometheus' text format", 200),
        "/openapi.json": _public("This document", 200, kind="application/json"),
    }
    paths["/admin"]["get"]["responses"]["200"]["content"] = {"text/html": {"schema": {"type": "string"}}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "shadowprice gateway",
            "version": __version__,
            "description": "One URL in front of any OpenAI-compatible server, and a budget that holds.",
        },
        "security": [{"key": []}, {}],
        "paths": paths,
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "the tenant's key"},
                "admin": {"type": "http", "scheme": "bearer", "description": "the admin key"},
            },
        },
    }
