"""What to do about requests that failed, by their error message."""

from __future__ import annotations

import re

_AGAIN = "then --resume"
_EMPTY = r"insufficient_quota|your (current )?quota|: 402\b"
_NAMELESS = r"provide a model\b|\bmodel( \w+)? is (required|missing)|missing .{0,20}\bmodel\b"
_MODEL = r"model_not_found|: 404\b|no model\b|(invalid|unknown) model|\bmodel\b.{0,80}not (exist|found)"
# The first pattern that is found in `code: message` counts. Changing a request makes it a new run.
_FIXES = [
    (r"--exposure allows", f"if that is so, --exposure 100% believes it, and a smaller --concurrency helps; {_AGAIN}"),
    (_EMPTY, f"the account is empty: add credit, or use another key; {_AGAIN}"),
    (r": 40[13]\b|api.key", f"check the key in $OPENAI_API_KEY and its permissions; {_AGAIN}"),
    (_NAMELESS, "name the model with --model, in a new run"),
    (_MODEL, f"check --model and --base-url; {_AGAIN}"),
    (r": 405\b|redirect", "check --base-url: it usually ends in /v1"),
    (r": 429\b", f"the server limits the rate of requests: a smaller --concurrency, {_AGAIN}"),
    (r": 503\b|answered 503", "the server is overloaded or still loading: --resume later"),
    (r": 408\b|in time|timed? ?out", f"the server is slow or hangs: a smaller --concurrency, {_AGAIN}"),
    (r": 409\b", "--resume later"),
    (r"--context \d", f"raise --context to that; {_AGAIN}"),
    (r"see --context", f"raise --context; {_AGAIN}"),
    (r": 413\b|context.length|too long|maximum context", "shorten the request, in a new run"),
    (
        r": 4(00|22)\b.*max_(completion_)?tokens",
        f"it may want --limit-field max_tokens, or max_completion_tokens; {_AGAIN}",
    ),
    (r": 4\d\d\b|request_refused", "the server refuses the request itself: correct it, in a new run"),
    (r"no secure connection", f"is --base-url http:// and not https://, or its certificate not trusted? {_AGAIN}"),
    (r"no connection|connection refused|unknown host|name resolution", f"is the server up at --base-url? {_AGAIN}"),
    (r"not a completion|not an answer", "check --base-url: something else answers there"),
    (
        r"too much|ignore[sd] (a|its|the) limit",
        f"it may obey --limit-field max_tokens, or max_completion_tokens: try the other, {_AGAIN}",
    ),
    (r": 5\d\d\b|connection (broke|was lost)|reported an error", f"check the server's log; {_AGAIN}"),
    (r"no_trace|not_recorded", "there is no recorded answer to this request"),
]
_OF_ROUTES = {
    "$OPENAI_API_KEY": "the variable of its api_key_env",
    "--base-url": "the base_url of the route",
    "--model": "the model of the route",
    "--concurrency": "max_concurrency of the route",
    "--context": "the context of the route",
}
_PATTERNS = [(re.compile(pattern, re.IGNORECASE), fix) for pattern, fix in _FIXES]


def fix_for(code: str, message: str) -> str:
    """What to do about a failure, in one line. `code` may be empty: then the message begins with the status."""
    text = f"{code}: {message}"
    return next((fix for pattern, fix in _PATTERNS if pattern.search(text)), "--resume tries again")


def fix_for_route(message: str) -> str:
    """The same for a route, whose options are in the file of routes."""
    fix = fix_for("", message)
    for option, key in _OF_ROUTES.items():
        fix = fix.replace(option, key)
    return fix
