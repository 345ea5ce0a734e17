"""Explains what a backend found wrong with answers (`Completion.flags`)."""

from __future__ import annotations

_WORDS = {
    "limit_ignored": "longer than their limit: charged for all that arrived",
    "usage_wrong": "counted by the server in a way that cannot be correct: charged their whole limit, or more",
    "usage_estimated": "not counted by the server, and they look longer than their limit: charged by estimate",
    "not_counted": "not counted by the server: charged their whole limit",
    "malformed": "not quite in OpenAI's format: what could not be read was left out",
    "not_continued": "could not be continued by the server",
    "continuation_unverified": "the server did not show whether it continued them or started over",
    "context_full": "the context of the model was full",
}


def flag_in_words(flag: str, answers: int) -> str:
    """`6 answers: not counted by the server: charged their whole limit`."""
    return f"{answers:,} answer{'' if answers == 1 else 's'}: {_WORDS.get(flag, flag)}"
