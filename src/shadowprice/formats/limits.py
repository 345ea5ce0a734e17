"""The fields in which a request states its question and its token limit."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CHAT_LIMITS", "ENDPOINTS", "LIMIT_FIELDS", "Endpoint"]


class Endpoint(NamedTuple):
    """The fields of a request body: the one that limits the answer, and the one that holds the question."""

    limit_field: str
    question_field: str


# By the end of the URL, the more specific end first.
ENDPOINTS = {
    "/chat/completions": Endpoint("max_completion_tokens", "messages"),
    "/completions": Endpoint("max_tokens", "prompt"),
    "/responses": Endpoint("max_output_tokens", "input"),
}
CHAT_LIMITS = ("max_completion_tokens", "max_tokens")  # some servers know only one of them
# Every name that some server accepts for the limit. In llama.cpp its own `n_predict` overrides the others.
LIMIT_FIELDS = ("max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict")
