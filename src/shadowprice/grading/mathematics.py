"""Mathematical answers, by math-verify in processes of their own.

math-verify parses with sympy, and some answers (9^9^9^9) keep sympy computing for hours or until the
memory is full. Its own time limit uses `signal.alarm`, which works only in the main thread of a process
and not during long steps of C code. So each answer goes to one of a few long-lived workers, with a
wall-clock limit; a worker that does not reply in time is killed and replaced. Callers may be threads.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from shadowprice.errors import MissingExtra
from shadowprice.grading.answers import announced, boxes, plain_characters
from shadowprice.grading.grades import Grade

_WORKER = Path(__file__).with_name("_math_worker.py")
_LONGEST = 10_000  # characters given to math-verify
_START = 120.0  # seconds for a worker to load sympy on a busy machine


class _Died(Exception):
    pass


class _Worker:
    """One process; compares one answer at a time."""

    def __init__(self, memory: int) -> None:
        # -P: nothing is imported from the folder of the script, whose modules have common names
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER), str(memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the caller
        )
        self._received = b""
        try:
            self._read(time.monotonic() + _START)
        except BaseException as error:
            self.close()
            if isinstance(error, _Died):
                raise MissingExtra("math", "grading mathematics") from None
            raise

    def ask(self, question: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Raises TimeoutError or _Died; in both cases the worker must be closed."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(question).encode() + b"\n")
            stdin.flush()
        except OSError:
            raise _Died from None
        return self._read(time.monotonic() + seconds)

    def _read(self, deadline: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        poll = select.poll()  # select() stops at file descriptor 1024
        poll.register(pipe, select.POLLIN)
        while b"\n" not in self._received:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
            piece = os.read(pipe, 65536)
            if not piece:
                raise _Died
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe:
                    pipe.close()


class MathPool:
    """At most `size` workers, started when needed and reused until `close`."""

    def __init__(self, size: int = 2, memory: int = 2 << 30) -> None:
        self._idle: list[_Worker] = []
        self._memory = memory
        self._free = threading.BoundedSemaphore(size)
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def check(self, answer: str, gold: str, seconds: float) -> Grade:
        """The grade of an answer. If the worker dies, another one retries once."""
        question = {"answer": answer, "gold": gold, "seconds": seconds}
        with self._free:
            for _ in range(2):
                worker = self._take()
                try:
                    reply = worker.ask(question, seconds)
                except _Died:
                    worker.close()
                except TimeoutError:
                    worker.close()
                    return Grade(False, "timeout", f"not checked within {seconds:g} s")
                except BaseException:
                    worker.close()
                    raise
                else:
                    with self._lock:
                        self._idle.append(worker)
                    return Grade(reply["correct"], reply["reason"], reply["detail"])
        return Grade(False, "error", "the checker died twice")

    def _take(self) -> _Worker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return _Worker(self._memory)

    def close(self) -> None:
        with self._lock:
            workers, self._idle = self._idle, []
        for worker in workers:
            worker.close()

    @property
    def usable(self) -> bool:
        return self._owner == os.getpid()  # after a fork the workers are the parent's


_pool: MathPool | None = None
_pool_lock = threading.Lock()


def _shared_pool() -> MathPool:
    global _pool
    with _pool_lock:
        if _pool is None or not _pool.usable:
            _pool = MathPool()
            atexit.register(_pool.close)
        return _pool


def grade_math(answer: str, gold: str, *, seconds: float = 10.0, pool: MathPool | None = None) -> Grade:
    """Correct if math-verify finds the final answer equal to the gold.

    The final answer is the last `\\boxed{}` (boxes joined by "and" or a comma are one list), else
    what the text announces, else what math-verify finds in its last 10,000 characters. That finds no
    formula without dollar signs and no list, so that a short answer is then read as a formula itself.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise MissingExtra("math", "grading mathematics")
    if not gold.strip():
        return Grade(None, "error", "the gold is empty")
    if not answer.strip():
        return Grade(False, "no_answer")
    cut, short = "", ""
    wanted = boxes(gold) or gold.strip()
    if len(wanted) > _LONGEST:
        return Grade(None, "error", f"the gold has more than {_LONGEST} characters")
    box = boxes(answer)
    if box is not None:
        if not box:
            return Grade(False, "no_answer", "an empty box")
        if len(box) > _LONGEST:
            return Grade(False, "wrong", f"a box of {len(box)} characters")
        if _squeezed(box) == _squeezed(wanted):
            return Grade(True, "correct")
        shown = _boxed(box)
    else:
        final = announced(answer) or answer
        if _squeezed(final) == _squeezed(wanted):
            return Grade(True, "correct")
        short = _formula(final)
        shown = plain_characters(answer[-_LONGEST:])
        if len(answer) > _LONGEST:
            cut = f"cut to the last {_LONGEST} of {len(answer)} characters"
    pool = pool or _shared_pool()
    grade = pool.check(shown, _boxed(wanted), seconds)
    if not grade.correct and short and (grade.reason == "no_answer" or "," in wanted or "\\" in short):
        again = pool.check(_boxed(short), _boxed(wanted), seconds)
        grade = again if again.correct else grade
    return Grade(grade.correct, grade.reason, "; ".join(filter(None, (grade.detail, cut))))


_LEAD = re.compile(r".*(?:\b(?:is|are|equals)\b|[:=])\s*(?=\S)", re.DOTALL)
_SHORT = 200  # characters of an answer that may be a formula


def _formula(answer: str) -> str:
    """The formula that a short answer states: `[0,1]` in "The interval is [0,1]."; empty if it has other words."""
    answer = answer.strip()
    if len(answer) > _SHORT or "\n" in answer:
        return ""
    stated = _LEAD.sub("", answer, count=1).rstrip(". ")
    stated = re.sub(r",? and ", ", ", stated)
    return "" if re.search(r"(?<!\\)\b[A-Za-z]{3,}\b", stated) else stated


# What math-verify misreads: 15,000\,\text{cm} as the set of 15 and 0, 15\,000 as a product, and
# v_{\text{max}}, with all that follows, as a unit.
_WORD = r"\\(?:text|mathrm|textrm|mathit|textbf|mathbf)\{([\w ]*)\}"
_REWRITES = [
    (re.compile("π"), r"\\pi "),
    (re.compile(r"√\s*(?:\((.+?)\)|(\w+))"), r"\\sqrt{\1\2}"),
    (re.compile("°"), ""),
    (re.compile(r"^(\d+) +(\d+)/(\d+)$"), r"\1\\frac{\2}{\3}"),
    (re.compile(r"(?<!\\)\\!"), ""),
    (re.compile(r"(?<=\d)\\[,; ](?=\d{3}(?!\d))"), ""),
    (re.compile(r"(?<!\\)\\[,;: ]"), " "),
    (re.compile(rf"_\{{{_WORD}\}}|_{_WORD}"), r"_{\1\2}"),
    (re.compile(r"(?<=\d)\^\{?\\(?:text|mathrm|textrm)\{(?:st|nd|rd|th)\}\}?"), ""),
]


def _boxed(text: str) -> str:
    """In the form math-verify reads best; without this, 5.3e-9 is a product with Euler's number."""
    text = plain_characters(text).strip().strip("$").strip()
    float_form = re.fullmatch(r"([-+]?\d+(?:\.\d+)?)[eE]([-+]?\d{1,9})", text)
    if float_form:
        text = rf"{float_form[1]} \times 10^{{{int(float_form[2])}}}"
    for pattern, plain in _REWRITES:
        text = pattern.sub(plain, text)
    return rf"\boxed{{{text}}}"


def _squeezed(text: str) -> str:
    return re.sub(r"\s|\\left\b|\\right\b|\\[,;!]|\$|\.\s*$", "", plain_characters(text))
