"""Collecting traces: answers to questions under a large cap, graded. Forecasters learn from them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.base import LANDING, Backend
from shadowprice.engine.executor import USUAL, Progress, Tolerance, execute
from shadowprice.engine.fixed import Ages, Fixed
from shadowprice.errors import InputError
from shadowprice.formats.limits import LIMIT_FIELDS
from shadowprice.formats.questions import Question
from shadowprice.formats.results import parse_result
from shadowprice.formats.templates import PLAIN, prompted
from shadowprice.grading import check_code_grading, grade
from shadowprice.grading.answers import boxes
from shadowprice.run_folder import restore
from shadowprice.summary import flags_of
from shadowprice.types import Completion, Request, Result, Trace

_CHARACTERS = 4  # per token, if a length has to be estimated from a text


def requests_for(
    questions: Sequence[Question],
    *,
    samples: int,
    temperature: float,
    template: str = PLAIN,
    system: str | None = None,
) -> list[Request]:
    """A request for every sample of every question; sample s has the seed s."""
    requests: list[Request] = []
    for question in questions:
        asked = prompted(question.request_body(), template, system)
        for name in ("n", "best_of", "stream", *LIMIT_FIELDS):  # settings of a batch file that ours replace
            asked.pop(name, None)
        for sample in range(samples):
            body: Mapping[str, Any] = {**asked, "temperature": temperature, "seed": sample}
            requests.append(Request(f"{question.id}#{sample}", question.problem, body=body))
    return requests


def budget_for(requests: Sequence[Request], max_tokens: int, probe: Ages | None) -> int:
    """The most tokens that answering and probing all requests can take."""
    return len(requests) * (max_tokens + (probe.most if probe else 0))


async def collect(
    requests: Sequence[Request],
    ledger: Ledger,
    backend: Backend,
    *,
    max_tokens: int,
    probe: Ages | None = None,
    concurrency: int = 8,
    tolerance: Tolerance = USUAL,
    progress: Progress | None = None,
    on_event: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Answers all requests with `max_tokens` each, and probes the answers. Continues from what is in the ledger."""
    scheduler = Fixed(max_tokens, probe=probe)
    scheduler.add(requests)
    progress = progress or Progress(ledger.budget)
    restore(scheduler, ledger, requests, progress)
    return await execute(
        scheduler,
        ledger,
        backend,
        concurrency=concurrency,
        tolerance=tolerance,
        progress=progress,
        on_event=on_event,
    )


def graded(
    questions: Sequence[Question],
    results: Mapping[str, bytes],
    *,
    samples: int,
    temperature: float,
    max_tokens: int,
    model: str,
    template: str = PLAIN,
    unsafe_code: bool = False,
) -> Iterator[Trace]:
    """The answers as traces, in the order of the questions; failed requests are left out.

    results      lines of the ledger, by request
    unsafe_code  run programs in answers even without a sandbox
    """
    for question in questions:
        for sample in range(samples):
            if (line := results.get(f"{question.id}#{sample}")) is None:
                continue
            result = parse_result(line)
            if (answer := result.completion) is None:
                continue
            truncated = answer.finish == "length"
            yield Trace(
                id=question.id,
                prompt=question.problem,
                tokens=_length(answer),
                correct=_is_correct(question, answer.text, unsafe_code, truncated=truncated),
                truncated=truncated,
                dataset=question.dataset,
                gold=question.gold,
                model=model,
                sample=sample,
                temperature=temperature,
                max_tokens=max_tokens,
                response=answer.text,
                extra=_extra(question, result, template, unsafe_code),
            )


def _length(answer: Completion) -> int:
    """The length of an answer. If the server did not count it, the whole limit was charged, which is not its length."""
    if answer.usage_source != "assumed" or answer.finish == "length":
        return answer.tokens
    return min(answer.tokens, max(answer.certain, len(answer.text) // _CHARACTERS))


def _extra(question: Question, result: Result, template: str, unsafe_code: bool) -> dict[str, Any]:
    """Further fields of a trace: the template unless it is plain, flags, and the probes."""
    extra: dict[str, Any] = {}
    if template != PLAIN:
        extra["template"] = template
    if result.completion and (flags := flags_of(result.completion)):
        extra["flags"] = list(flags)
    if probes := result.extra.get("probes"):
        # By age: whether the final answer stated there is correct, its tokens, and the answer.
        extra["landed"] = {
            age: [_is_correct(question, LANDING + text, unsafe_code), tokens, boxes(LANDING + text)]
            for age, (text, tokens) in probes.items()
        }
    return extra


def _is_correct(question: Question, answer: str, unsafe_code: bool, *, truncated: bool = False) -> bool | None:
    """Whether the answer is correct; None if the correct answer is unknown."""
    if not question.gold:
        return None
    options = {**question.options, "unsafe": unsafe_code} if question.grader == "code" else question.options
    return bool(grade(question.grader, answer, question.gold, truncated=truncated, **options).correct)


def check_programs(questions: Sequence[Question], *, unsafe_code: bool = False) -> str:
    """The level of the sandbox that programs will be graded in; empty if there are none.

    Raises InputError if tests cannot run here: every answer would be paid for and graded as wrong.
    """
    programs = [question for question in questions if question.grader == "code"]
    if not programs:
        return ""
    level = check_code_grading(unsafe_code)
    wanted: set[str] = set()
    for question in programs:
        wanted |= _imported(question.gold) | _imported(question.options.get("prompt", ""))
    tests = f"from importlib.util import find_spec\nmissing = [m for m in {sorted(wanted)} if not find_spec(m)]\n"
    trial = grade("code", "pass", f"{tests}assert not missing, 'no ' + ', '.join(missing)", unsafe=unsafe_code)
    if not trial.correct:
        fix = "grade on another machine" if trial.correct is None else "pip install what they import beside shadowprice"
        raise InputError(f"tests cannot run here: {trial.detail.removeprefix('AssertionError: ')}", fix=fix)
    return level


def _imported(program: str) -> set[str]:
    """The packages that a program imports at its top level."""
    try:
        statements = ast.parse(program).body
    except SyntaxError:
        return set()
    names = [alias.name for s in statements if isinstance(s, ast.Import) for alias in s.names]
    names += [s.module or "" for s in statements if isinstance(s, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names} - {""}
