"""What to do about a request that failed."""

from __future__ import annotations

import pytest

from shadowprice.report.fixes import fix_for


@pytest.mark.parametrize(
    ("code", "message", "way"),
    [
        ("request_refused", "401: Incorrect API key", "OPENAI_API_KEY"),
        ("request_refused", "404: no such model", "--model"),
        ("request_refused", "429: insufficient_quota", "add credit"),
        ("backend_unavailable", "429: slow down", "--concurrency"),
        ("backend_unavailable", "503: loading model", "later"),
        ("backend_unavailable", "no connection: Cannot connect to host 127.0.0.1:9", "--base-url"),
        ("backend_unavailable", "the server did not answer in time", "slow or hangs"),
        ("request_refused", "400: This model's maximum context length is 4096 tokens", "shorten"),
        ("request_refused", "400: messages must alternate", "correct it"),
        ("backend_unavailable", "500: internal error", "log"),
        ("request_refused", "405: method not allowed", "--base-url"),
        ("request_refused", "413: too large", "shorten"),
        ("request_refused", "the prompt needs --context 9000", "raise --context"),
        ("backend_unavailable", "the connection broke", "log"),
        ("no_trace", "no such prompt", "no recorded answer"),
        ("anything", "unheard of", "--resume tries again"),
    ],
)
def test_every_kind_of_failure_has_one(code, message, way):
    assert way in fix_for(code, message)
