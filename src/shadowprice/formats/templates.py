"""Prompts that a question is put into, by name or from a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from shadowprice.errors import InputError
from shadowprice.formats.jsonl import decoded

__all__ = ["INSTRUCTIONS", "PLAIN", "TEMPLATES", "in_template", "prompted", "read_template"]

PLAIN = "{problem}"
# Prompts by name; `{problem}` stands for the question.
TEMPLATES = {
    "plain": PLAIN,
    "none": PLAIN,
    "math": "{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{}.",
    "code": (
        "{problem}\n\nAnswer with the complete Python function and the imports it needs, in one ```python code block."
    ),
}
# What the named templates add after a question.
INSTRUCTIONS = tuple(each.removeprefix(PLAIN).strip() for each in TEMPLATES.values() if each != PLAIN)
_PLACES = (PLAIN, "{question}", "{prompt}")


def read_template(name: str) -> str:
    """A template by its name in `TEMPLATES`, or from a text file.

    In the file {problem} stands for the question; {question} and {prompt} mean the same.
    """
    if name in TEMPLATES:
        return TEMPLATES[name]
    if not os.path.isfile(name):
        fix = f"choose one of {', '.join(TEMPLATES)}, or name a file"
        raise InputError("no such template, and no such file", path=name, fix=fix)
    with open(name, "rb") as file:
        template = decoded(file.read(), name).rstrip("\r\n")
    for place in _PLACES:
        if place in template:
            return template.replace(place, PLAIN)
    raise InputError("has no {problem}", path=name, fix="write {problem} where the question belongs")


def in_template(template: str, question: str) -> str:
    return template.replace(PLAIN, question)


def prompted(body: Mapping[str, Any], template: str = PLAIN, system: str | None = None) -> dict[str, Any]:
    """A request body with its question put into `template`, and `system` as its system message.

    In a chat the question is the last message of the user.
    """
    new = dict(body)
    if template != PLAIN:
        if isinstance(new.get("messages"), list):
            new["messages"] = _with_last_question(new["messages"], template)
        else:
            field = "prompt" if "prompt" in new else "input"
            if not isinstance(new.get(field), str):
                raise InputError(f"{field} is not a text, so no template fits", fix="leave out --prompt-template")
            new[field] = in_template(template, new[field])
    if system:
        if not isinstance(new.get("messages"), list):
            raise InputError("not a chat, so it has no system message", fix="leave out --system")
        if any(message.get("role") in ("system", "developer") for message in new["messages"]):
            raise InputError("already has a system message", fix="leave out --system")
        new["messages"] = [{"role": "system", "content": system}, *new["messages"]]
    return new


def _with_last_question(messages: list[dict[str, Any]], template: str) -> list[dict[str, Any]]:
    for place in reversed(range(len(messages))):
        if messages[place].get("role") == "user":
            if not isinstance(content := messages[place].get("content"), str):
                break
            return [
                *messages[:place],
                {**messages[place], "content": in_template(template, content)},
                *messages[place + 1 :],
            ]
    raise InputError("no message of the user is a text, so no template fits", fix="leave out --prompt-template")
