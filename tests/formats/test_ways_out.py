"""Every failure comes with something to do about it."""

import pytest

from shadowprice.formats.ways_out import way_out


@pytest.mark.parametrize(
    ("code", "message", "way"),
    [
        ("request_refused", "401: Incorrect API key", "OPENAI_API_KEY"),
        ("request_refused", "404: no such model", "--model"),
        ("request_refused", "429: insufficient_quota", "pay in"),
        ("backend_unavailable", "429: slow down", "--concurrency"),
        ("backend_unavailable", "503: loading model", "later"),
        ("backend_unavailable", "no connection (127.0.0.1:9): Network is unreachable", "--base-url"),
        ("backend_unavailable", "the server did not answer in time", "slow or hangs"),
        ("request_refused", "400: This model's maximum context length is 4096 tokens", "shorten"),
        ("request_refused", "400: messages must alternate", "correct it"),
        ("backend_unavailable", "500: internal error", "log"),
        ("anything", "unheard of", "--resume tries again"),
        ("", "401: invalid_api_key: Incorrect API key", "OPENAI_API_KEY"),
        ("", "400: Invalid model name passed in model=m", "--model"),
        ("", "connection refused (127.0.0.1:9)", "is the server up"),
        ("", "the server refuses every request: 404: no such model", "--model"),
        ("", "the server's answer is not a completion (text/html)", "something else answers there"),
    ],
)
def test_every_kind_of_failure_has_one(code, message, way):
    assert way in way_out(code, message)
