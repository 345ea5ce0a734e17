"""Short answers: `exact` compares text, `numeric` compares the last number.

Both read the final answer if one is announced. In this order: the last complete `\\boxed{...}`;
what follows the last "the answer is", "final answer:", "answer:" or "####", to the end of its line;
otherwise the whole text (`exact`) or all of its numbers (`numeric`).
"""

from __future__ import annotations

import math
import re
import unicodedata

from shadowprice.grading.grades import Grade

_LONGEST = 20_000  # characters read from the end where no answer is announced

_MARKER = re.compile(
    r"####|(?:\bthe (?:correct |final )?answer is\b|\b(?:final )?answer\s*[*_]*:)[:*_ \t]*", re.IGNORECASE
)
_BRACES = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)
_BETWEEN = re.compile(r"(?:[\s$,;.\\()\[\]]|\band\b|\bor\b)*", re.IGNORECASE)
_SUPERSCRIPT = re.compile("[⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_SIGNS = {"−": "-", "–": "-", "﹣": "-", "－": "-", "＋": "+", "⁄": "/", "∕": "/", "．": ".", "，": ",", "％": "%"}
_SPACES = {"\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u2007": " ", "\u200b": "", "\u2060": "", "\ufeff": ""}


def boxes(text: str) -> str | None:
    """The content of the last `\\boxed{}`; boxes joined by "and", "or" or a comma count as one list."""
    complete: list[tuple[int, int, int]] = []  # outermost complete boxes: start, content, end
    open_braces: list[tuple[int, int] | None] = []
    for brace in _BRACES.finditer(text):
        if brace[0] == "{":
            open_braces.append(None)
        elif brace[0] == "}":
            box = open_braces.pop() if open_braces else None
            if box:
                while complete and complete[-1][0] > box[0]:  # boxes within this one
                    complete.pop()
                complete.append((*box, brace.end()))
        elif brace[0].startswith("\\boxed"):
            open_braces.append((brace.start(), brace.end()))
    if not complete:
        return None
    run = [complete.pop()]
    while complete:
        between = text[complete[-1][2] : run[0][0]]
        if len(between) > 40 or not re.search(r",|;|\band\b|\bor\b", between) or not _BETWEEN.fullmatch(between):
            break
        run.insert(0, complete.pop())
    return ", ".join(text[content : end - 1].replace("\\boxed", "").strip() for _, content, end in run)


def announced(text: str) -> str | None:
    """The final answer where the text announces one, else None."""
    box = boxes(text)
    if box is not None:
        return box
    last = None
    for last in _MARKER.finditer(text):  # noqa: B007
        pass
    if last is None:
        return None
    line = text[last.end() :].lstrip().partition("\n")[0]
    return line if re.search(r"\w", line) else None


def plain_characters(text: str) -> str:
    """Digits of every script, minus signs, fractions and spaces as ASCII; superscripts as `^{2}`."""
    if text.isascii():
        return text
    text = _SUPERSCRIPT.sub(lambda m: "^{" + unicodedata.normalize("NFKC", m[0]).replace("−", "-") + "}", text)
    return "".join(map(_plain, text))


def _plain(character: str) -> str:
    if character.isascii():
        return character
    if character in _SIGNS or character in _SPACES:
        return _SIGNS.get(character) or _SPACES[character]
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    if unicodedata.decomposition(character).startswith("<fraction>"):  # ½; a space keeps 1½ a mixed number
        return " " + unicodedata.normalize("NFKC", character).replace("⁄", "/")
    return character


# --- exact -------------------------------------------------------------------------------------


def normalised(text: str) -> str:
    """Without case, markup, LaTeX commands around text, surrounding punctuation, a leading article, extra space."""
    text = unicodedata.normalize("NFKC", plain_characters(text)).casefold()
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf|textit|operatorname)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\[,;!: ]|\\[()\[\]]|[*`$]|(?<!\w)_+|(?<!_)_+(?!\w)", " ", text)
    text = " ".join(text.split()).strip(" \t.,;:!?\"'“”‘’«»()[]{}<>#")
    return re.sub(r"^(?:the|an?) ", "", text)


def grade_exact(answer: str, gold: str) -> Grade:
    """Correct if the final answer, or else the whole text, is the gold except for case, space and markup."""
    wanted = normalised(gold)
    if not wanted:
        return Grade(None, "error", "the gold is empty")
    final = announced(answer)
    stated = normalised(final if final is not None else answer[-_LONGEST:])
    if not stated:
        return Grade(False, "no_answer")
    return Grade.of(stated == wanted, f"read as {stated[:80]!r}")


# --- numeric -----------------------------------------------------------------------------------

_UNSIGNED = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,3}(?: \d{3})+(?![\d/])|\d+)?(?:\.\d+)?"
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w)\]}])[-+]\s?)?(?:[$€£¥]\s?(?P<inner>[-+])?)?"
    r"(?:\\[dt]?frac\s*\{\s*(?P<top>-?[\d.]{1,40})\s*\}\s*\{\s*(?P<bottom>[\d.]{1,40})\s*\}"
    rf"|(?=[\d.])(?P<number>{_UNSIGNED})"
    r"(?:[eE](?P<exponent>[-+]?\d{1,3})(?![\w.])|\s?(?:[x×*·]|\\times|\\cdot)\s?10\s?(?:\^|\*\*)\s?\{?(?P<power>[-+]?\d{1,3})\}?)?"
    r"(?:\s?/\s?(?P<over>\d{1,40}(?:\.\d+)?)(?![\d/])|\s(?P<numerator>\d{1,9})/(?P<denominator>\d{1,9})(?![\d/]))?)"
    r"\s?(?P<percent>\\?%)?"
)


def numbers(text: str) -> list[tuple[float, bool]]:
    """Every number of the text, as (value, is a percentage)."""
    text = re.sub(r"\\[,!;]|\{,\}", lambda m: "," if m[0] == "{,}" else "", plain_characters(text)).replace("\\$", "$")
    values = []
    for match in _NUMBER.finditer(text):
        value = _value(match)
        if value is not None:
            values.append((value, match["percent"] is not None))
    return values


def _value(match: re.Match[str]) -> float | None:
    try:
        if match["top"] is not None:
            value = float(match["top"]) / float(match["bottom"])
        else:
            digits = match["number"].replace(",", "").replace(" ", "")
            value = float(f"{digits}e{match['exponent'] or match['power'] or 0}")
            if match["over"]:
                value /= float(match["over"])
            elif match["numerator"]:
                value += int(match["numerator"]) / int(match["denominator"])
    except (ValueError, ZeroDivisionError):
        return None
    negative = "-" in ((match["sign"] or "") + (match["inner"] or ""))
    return -value if negative else value


def grade_numeric(answer: str, gold: str, *, relative: float = 1e-4, absolute: float = 1e-9) -> Grade:
    """Correct if the last number is the gold's last number within a tolerance.

    Thousands separators, currencies, units, fractions, mixed numbers and powers of ten are read. A
    percentage equals the bare number or its hundredth: 25% is 25 and 0.25.
    """
    wanted = numbers(gold)
    if not wanted:
        return Grade(None, "error", f"no number in the gold {gold[:40]!r}")
    final = announced(answer)
    stated = numbers(final[-_LONGEST:]) if final is not None else []
    stated = stated or numbers(answer[-_LONGEST:])
    if not stated:
        return Grade(False, "no_answer")
    value, percent = stated[-1]
    target, target_percent = wanted[-1]
    pairs = [(value, target)]
    if percent != target_percent:
        pairs.append((value / 100, target) if percent else (value, target / 100))
    correct = any(math.isclose(a, b, rel_tol=relative, abs_tol=absolute) for a, b in pairs)
    return Grade.of(correct, f"read as {value:g}{'%' if percent else ''}")
