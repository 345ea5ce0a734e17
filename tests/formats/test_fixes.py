"""Every failure comes with something to do about it."""

import pytest

from shadowprice.formats.fixes import fix_for, fix_for_route


@pytest.mark.parametrize(
    ("code", "message", "fix"),
    [
        ("request_refused", "401: Incorrect API key", "OPENAI_API_KEY"),
        ("request_refused", "404: no such model", "--model"),
        ("request_refused", "429: insufficient_quota", "add credit"),
        ("backend_unavailable", "429: slow down", "--concurrency"),
        ("backend_unavailable", "503: loading model", "later"),
        ("backend_unavailable", "no connection (127.0.0.1:9): Network is unreachable", "--base-url"),
        ("backend_unavailable", "the server did not answer in time", "slow or hangs"),
        ("backend_unavailable", "408: request timeout", "slow or hangs"),
        ("backend_unavailable", "409: try again", "--resume later"),
        ("", "the server at http://127.0.0.1:9/v1 ignored a limit of 8 tokens: 61", "try the other"),
        ("request_refused", "400: This model's maximum context length is 4096 tokens", "shorten"),
        ("request_refused", "422: body.max_completion_tokens: extra fields not permitted", "--limit-field max_tokens"),
        ("request_refused", "400: messages must alternate", "correct it"),
        ("backend_unavailable", "500: internal error", "log"),
        ("request_refused", "405: method not allowed", "--base-url"),
        ("request_refused", "413: too large", "shorten"),
        ("request_refused", "the prompt needs --context 9000", "raise --context"),
        ("", "longer than the context of 256 tokens, see --context", "raise --context"),
        ("backend_unavailable", "the connection broke", "log"),
        ("no_trace", "no such prompt", "no recorded answer"),
        ("anything", "unheard of", "--resume tries again"),
        ("", "401: invalid_api_key: Incorrect API key", "OPENAI_API_KEY"),
        ("", "400: Invalid model name passed in model=m", "--model"),
        ("", "connection refused (127.0.0.1:9)", "is the server up"),
        ("", "no secure connection (127.0.0.1:9): WRONG_VERSION_NUMBER", "not https://"),
        ("", "the server refuses every request: 404: no such model", "--model"),
        ("", "the server's answer is not a completion (text/html)", "something else answers there"),
        ("", "the server has been unavailable for 5 s: not an answer: Expecting value", "something else answers there"),
        ("", "400: unsupported_parameter: Unsupported parameter: 'max_tokens'", "--limit-field"),
    ],
)
def test_every_kind_of_failure_has_one(code, message, fix):
    assert fix in fix_for(code, message)


def test_a_fix_for_a_route_names_keys_of_its_file_and_no_options():
    assert fix_for_route("connection refused (127.0.0.1:9)") == (
        "is the server up at the base_url of the route? then --resume"
    )
    assert "its api_key_env" in fix_for_route("401 Unauthorized: 401")
    assert fix_for_route(": 405") == "check the base_url of the route: it usually ends in /v1"
