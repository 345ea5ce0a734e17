"""How a model is asked for its final answer before it has ended, by name or from a file."""

from __future__ import annotations

import os
from dataclasses import dataclass

from shadowprice.errors import InputError
from shadowprice.formats.jsonl import decoded

__all__ = ["LANDINGS", "Landing", "read_landing"]


@dataclass(frozen=True)
class Landing:
    r"""The text that an answer continues with, and the most tokens that the final answer after it may take.

    After a text that ends in ``\boxed{`` the final answer ends where the box is closed; after any other text it ends
    with its line.
    """

    text: str
    tokens: int = 16


LANDINGS = {
    "math": Landing("\n\nTherefore, the final answer is \\boxed{"),
    "think": Landing("\n</think>\n\nThe final answer is \\boxed{"),
    "plain": Landing("\nFinal answer:", 32),
}


def read_landing(name: str) -> Landing:
    """A landing by its name in `LANDINGS`, or the text in a file."""
    if name in LANDINGS:
        return LANDINGS[name]
    if not os.path.isfile(name):
        raise InputError(
            "no such landing, and no such file", path=name, fix=f"choose one of {', '.join(LANDINGS)}, or name a file"
        )
    with open(name, "rb") as file:
        text = decoded(file.read(), name).rstrip("\r\n")
    if not text.strip():
        raise InputError("is empty", path=name, fix="write the text that asks for the final answer")
    return Landing(text, LANDINGS["plain"].tokens)
