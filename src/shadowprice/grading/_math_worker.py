"""A process that compares answers with math-verify: JSON lines in, JSON lines out.

Started by `mathematics.py`; ends when its stdin does. Nothing of shadowprice is imported: the file
must run alone. Its argument is the most memory it may use, in bytes.
"""

from __future__ import annotations

import json
import logging
import math
import os
import resource
import sys
from contextlib import suppress
from typing import Any


def _compare(answer: str, gold: str, seconds: float) -> tuple[bool | None, str, str]:
    from math_verify import parse, verify
    from math_verify.errors import TimeoutException

    limit = max(1, int(seconds / 3))  # three steps; the caller enforces the total
    try:
        wanted = parse(gold, parsing_timeout=limit, raise_on_error=True)
    except (Exception, TimeoutException) as error:
        return None, "error", f"cannot parse the gold ({type(error).__name__})"
    if not wanted:
        return None, "error", "cannot parse the gold"
    try:
        parsed = parse(answer, parsing_timeout=limit, raise_on_error=True)
        if not parsed:
            return False, "no_answer", ""
        if verify(wanted, parsed, timeout_seconds=limit, raise_on_error=False):
            if _equal_only_by_rounding(wanted[0], parsed[0]):
                return False, "wrong", "equal only when rounded to six decimals"
            return True, "correct", ""
    except TimeoutException:
        return False, "timeout", f"not checked within {limit} s"
    except (ArithmeticError, MemoryError, RecursionError) as error:
        return False, "error", f"too much for sympy ({type(error).__name__})"
    except Exception as error:
        return False, "wrong", f"not comparable ({type(error).__name__})"
    return False, "wrong", ""


def _equal_only_by_rounding(wanted: Any, found: Any) -> bool:
    """math-verify rounds to six decimals, where 4e-24 and 5e-19 are both zero."""
    try:
        if not (wanted.is_number and found.is_number and wanted.is_real and found.is_real):
            return False
        target, value = float(wanted), float(found)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return False
    return abs(target) < 0.01 and not math.isclose(target, value, rel_tol=1e-3, abs_tol=0 if target else 1e-12)


def _limit_cpu(seconds: float) -> None:
    """The kernel ends a worker whose caller is gone and whose sympy is stuck."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    most = int(usage.ru_utime + usage.ru_stime + seconds) + 5
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def main() -> None:
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print must not be read as a reply
    import math_verify  # noqa: F401  (the slow part, before the first answer waits for it)

    logging.disable(logging.CRITICAL)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), int(sys.argv[1])))
    replies.write(b"{}\n")
    for line in sys.stdin.buffer:
        question: dict[str, Any] = json.loads(line)
        _limit_cpu(question["seconds"])
        correct, reason, detail = _compare(question["answer"], question["gold"], question["seconds"])
        replies.write(json.dumps({"correct": correct, "reason": reason, "detail": detail}).encode() + b"\n")


if __name__ == "__main__":
    main()
