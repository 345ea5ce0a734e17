"""Answers in words: `words` looks for the gold in what a model says, `choice` for the letter that it chooses.

People answer "Paris", models "The capital of France is **Paris**." So these graders read sentences, which `exact` does
not. Both read the final answer where one is announced (`announced`), and else the whole text.
"""

from __future__ import annotations

import re

from shadowprice.grading.answers import announced, normalised
from shadowprice.grading.grades import Grade

_LONGEST = 20_000  # characters read from the end
_WORD = re.compile(r"\w+[+#]*")
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ud7ff\uf900-\ufaff]")  # no space between words
OPPOSITES = ({"yes", "no"}, {"true", "false"})
_LETTER = r"[\W_]*([A-Z])(?![^\W_])(?!['’]\w)"  # alone: neither the beginning of a word nor the I of I'm
# How a letter is chosen: at the start with a mark behind it, by name, in brackets or bold, or in any place. The letters
# A and I are words as well, so that they count only where the form shows a choice.
_START = re.compile(
    r"[\s*_(\[\"'$\\]*([A-Z])(?:[\s*_\"'$\\]*$|[*_]*[).:,\]\\]|\s+is (?:the )?(?:correct|right|best)\b)",
    re.MULTILINE,
)
_NAMED = re.compile(rf"(?i:\b(?:option|choice|answer|letter)\b|\b(?:is|be)\b:?){_LETTER}")
_MARKED = re.compile(r"(?:\(|\[|\*\*|\{)([A-Z])(?:\)|\]|\*\*|\})")
_ANYWHERE = re.compile(r"(?<![\w'’])([B-HJ-Z])(?![\w'’])")


def grade_words(answer: str, gold: str) -> Grade:
    """Correct if the gold is in the final answer as whole words, except for case, markup and punctuation.

    It does not count where it is denied ("not Paris") or one of several ("Paris or Rome"). For yes, no, true and false
    the answer's own verdict counts: its first word, or else the last of the two words in it.
    """
    wanted = normalised(gold)
    if not wanted:
        return Grade(None, "error", "the gold is empty")
    final = announced(answer)
    found = normalised(final if final is not None else answer[-_LONGEST:])
    if not found:
        return Grade(False, "no_answer")
    if pair := next((pair for pair in OPPOSITES if wanted in pair), None):
        verdict = _verdict(found, pair)
        return Grade.of(verdict == wanted, f"read as {verdict!r}") if verdict else Grade(False, "no_answer")
    stated = found == wanted or _states(found, wanted)
    return Grade.of(stated, f"read as {found[:80]!r}")


def _states(text: str, gold: str) -> bool:
    """Whether a text has the words of the gold in it, one after the other, and neither denies nor doubts them."""
    if _UNSPACED.search(gold):
        return gold in text
    there, wanted = ["", *_words(text), ""], _words(gold)
    for place in range(1, len(there) - len(wanted)):
        end = place + len(wanted)
        if there[place:end] == wanted and there[place - 1] not in ("not", "or") and there[end] != "or":
            return True
    return False


def _words(text: str) -> list[str]:
    """The words of a text without `and`; letters that stand alone are joined: `U.S.A.` and `J. K.` are one word."""
    words: list[str] = []
    alone = False
    for word in _WORD.findall(re.sub("n['’]t\\b", " not", text)):
        if word == "and":
            continue
        if alone and len(word) == 1 and word.isalpha():
            words[-1] += word
        else:
            words.append(word)
            alone = len(word) == 1 and word.isalpha()
    return words


def _verdict(text: str, pair: set[str]) -> str | None:
    """Which of two opposite words a text states."""
    words: list[str] = re.findall(r"\w+", text)
    stated = [word for word in words if word in pair]
    if not stated:
        return None
    return stated[0] if words[0] in pair else stated[-1]


def grade_choice(answer: str, gold: str) -> Grade:
    """Correct if the answer chooses the letter of the gold: B, (B) or `B. Rome`."""
    wanted = _START.match(gold.replace("\\text{", " ").replace("\\boxed{", " ").replace("}", " ").strip())
    if wanted is None:
        return Grade(None, "error", f"no letter in the gold {gold[:40]!r}")
    chosen = _chosen(answer)
    return Grade.of(chosen == wanted[1], f"read as {chosen}") if chosen else Grade(False, "no_answer")


def _chosen(answer: str) -> str | None:
    final = announced(answer)
    if final is not None:
        plain = final.replace("\\text", "").replace("\\mathrm", "").replace("{", "(").replace("}", ")")
        if alone := re.match(rf"{_LETTER}|[\W_]*([a-z])[\W_]*(?:$|[).:,])", plain):
            return (alone[1] or alone[2]).upper()
        answer = final
    text = answer[-_LONGEST:]
    starts = _START.findall(text.strip()) if _START.match(text.strip()) else []
    if len({*starts}) == 1:  # several are a list of what there is to choose
        return str(starts[0])
    for form in (_NAMED, _MARKED, _ANYWHERE):
        if letters := form.findall(text):
            return str(letters[-1])
    return None
