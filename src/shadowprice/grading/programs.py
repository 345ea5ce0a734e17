"""Programs, graded by running their tests in a sandbox; `levels.py` says what it enforces.

The sandbox protects the machine, not the grade: a program shares an interpreter with its tests, so a
program that is written to cheat them can, for example with objects that are equal to everything.
"""

from __future__ import annotations

import ast
import re
import secrets
import textwrap

from shadowprice.errors import InputError
from shadowprice.grading.grades import Grade
from shadowprice.grading.levels import Limits, SandboxError, check_code_grading, run_in_box

_LONGEST = 1_000_000  # characters of a program

_FENCE = re.compile(
    r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_PYTHON = {"", "python", "py", "python3"}


def grade_code(
    answer: str,
    tests: str,
    *,
    prompt: str = "",
    entry_point: str = "",
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    python: str = "",
    level: str = "",
    unsafe: bool = False,
) -> Grade:
    """Correct if every test passes on the program in the answer.

    HumanEval style: `tests` define `check(candidate)`, which is called with `entry_point`; the answer may
    continue `prompt`. MBPP style: `tests` are assert lines, without an entry point. Both may import what is
    installed beside shadowprice. `python` is an interpreter to use instead of ours, readable by every user.
    `level` is a sandbox to use instead of the one `sandbox()` chooses. Without a sandbox programs run only if
    `unsafe`; otherwise it raises InputError (`check_code_grading` does so ahead of time).
    """
    if level == "process" and not unsafe:
        raise InputError("the level process is not a sandbox", fix="give unsafe=True to use it anyway")
    problem = _test_problem(tests, entry_point)
    if problem:
        return Grade(None, "error", problem)
    if not answer.strip():
        return Grade(False, "no_answer")
    if len(answer) > _LONGEST:
        return Grade(False, "wrong", f"an answer of {len(answer)} characters")
    level = level or check_code_grading(unsafe, python)
    token = secrets.token_hex(16)
    judged = {"programs": readings(answer, prompt, entry_point), "tests": tests, "entry_point": entry_point}
    try:
        outcome = run_in_box(judged, token, limits, level, python)
    except SandboxError as error:
        return Grade(None, "error", f"no sandbox: {error}")
    if outcome["report"] == token and outcome["end"] == "exit":
        return Grade(True, "correct")
    if outcome["end"] == "timeout":
        return Grade(False, "timeout", f"not done within {limits.seconds:g} s")
    report = outcome["report"].replace(token, "")[:300]
    return Grade(False, "wrong", report or f"ended before its tests did ({outcome['end']})")


def _test_problem(tests: str, entry_point: str) -> str:
    """Why the tests cannot grade anything, because every program would pass them or fail; empty if they can."""
    try:
        statements = ast.parse(tests).body
    except (SyntaxError, ValueError) as error:
        return f"the tests are not valid Python: {error}"
    has_check = any(isinstance(s, ast.FunctionDef) and s.name == "check" for s in statements)
    if entry_point and not has_check:
        return "there is an entry_point, but the tests do not define check(candidate)"
    if not entry_point and has_check:
        return "the tests define check(candidate), but there is no entry_point"
    if not entry_point and not any(isinstance(node, ast.Assert) for s in statements for node in ast.walk(s)):
        return "the tests assert nothing"
    return ""


# --- the program in an answer ------------------------------------------------------------------


def readings(answer: str, prompt: str = "", entry_point: str = "") -> list[str]:
    """The programs that the answer may contain, best guess first; the first that compiles is run.

    Code comes from markdown fences if there are any. Code that defines the entry point is put after
    the prompt (for its imports and helpers), or used alone; other code continues the prompt, with
    its indentation fixed where the model lost it.
    """
    blocks = [body for _, language, body in _FENCE.findall(answer) if language.lower() in _PYTHON]
    if not blocks:
        start = re.search(r"^(?:(?:async )?def |class |import |from |@)", answer, re.MULTILINE)
        candidates = [answer, answer[start.start() :]] if start else [answer]
    elif entry_point:
        candidates = [block for block in reversed(blocks) if _defines(block, entry_point)] or blocks[-1:]
        candidates = [candidates[0], "\n".join(blocks)]
    else:
        candidates = ["\n".join(blocks), *reversed(blocks)]
    if not prompt:
        return candidates
    found = []
    for code in candidates:
        if not entry_point or _defines(code, entry_point):
            found += [f"{prompt}\n{code}", code]
        else:
            indent = _indent(prompt)
            found += [prompt + code, prompt + indent + code.lstrip(), prompt + textwrap.indent(code, indent)]
            body = re.match(r"(?:[ \t]+[^\n]*(?:\n|\Z)|[ \t]*\n)+", code)
            if body:  # base models continue after the function
                found.append(prompt + body[0])
    return found


def _defines(code: str, name: str) -> bool:
    return (
        re.search(rf"^(?:(?:async\s+)?def\s+{re.escape(name)}\b|{re.escape(name)}\s*=)", code, re.MULTILINE) is not None
    )


def _indent(prompt: str) -> str:
    last = next((line for line in reversed(prompt.splitlines()) if line.strip()), "")
    return last[: len(last) - len(last.lstrip())] or "    "
