"""The data of the page about a run. Only `read_run` knows how a run is stored."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from shadowprice.accounts.view import REQUESTS, Account, Attempt, RequestView, is_estimate, read_account
from shadowprice.cost import ALL_TOKENS, Rates, show
from shadowprice.formats.asked import Asked, read_asked
from shadowprice.formats.fixes import fix_for
from shadowprice.formats.flags import flag_in_words
from shadowprice.formats.results import DECLINED
from shadowprice.report.labels import Variant
from shadowprice.report.uniform import Uniform, uniform
from shadowprice.report.waterfall import Step
from shadowprice.types import Usage

Record = dict[str, Any]

WAITING = "waiting"
OUTCOMES = ("finished", "landed", "truncated", "declined", "failed", "not sent", WAITING)
_MOST_CAUSES = 20  # of failures that are listed


@dataclass(frozen=True)
class RunData:
    """Amounts are in units: tokens or, where `rates` are in money, nano-dollars."""

    folder: Path
    model: str
    policy: str  # the label; empty where the run does not name one
    created: str
    metered: bool
    by_index: bool
    reclaim: bool  # what is not used is granted again
    done: bool
    rates: Rates
    prices: Rates | None  # in dollars, beside a budget of tokens
    budget: int
    spent: int
    beyond_grants: int
    usage: Usage
    balance: Sequence[tuple[int, int]]  # spent and reserved after every attempt
    clearings: Sequence[Mapping[str, Any]]  # budget, queries, admitted, granted, price, status
    clearing_starts: Sequence[int]  # attempts that had ended before each clearing
    requests: Sequence[Record]  # id, outcome, correct, why, forecast, chance, price, attempts, grant, cost, ...
    asked: Mapping[str, Asked]  # the question and the correct answer, by id; {} in folders that do not keep them
    total: int | None  # requests of the run, where known
    outcomes: Counter[str]  # of `OUTCOMES`
    correct: int | None  # None: answers are not graded
    failures: Sequence[Record]  # by cause, the most frequent first: count, code, message, requests, fix
    uniform: Uniform | None  # the same budget in equal shares; None until the run is done
    steps: Sequence[Step]
    teacher: Mapping[str, Any]  # a summary of the teacher's estimates, {} without a teacher
    stopped: str  # why nothing more was sent
    warnings: list[str]  # what was wrong with answers, in words
    files: Mapping[str, str]  # where answers and errors were written: paths on the machine of the run
    settings: Sequence[tuple[str, Any]]
    sandboxes: Sequence[str]  # levels that programs in answers were run at

    @property
    def answered(self) -> int:
        """To the end: an answer that was cut is not counted."""
        return self.outcomes["finished"] + self.outcomes["landed"]

    def show(self, units: float) -> str:
        """An amount with its unit."""
        return show(round(units), self.rates)


def read_run(folder: Path) -> RunData:
    """The data of a run in any state; the folder is only read."""
    account = read_account(folder)
    asked = account.manifest.get("asked") or {}
    if asked.get("policy") == "auto":
        asked = {**asked, "policy": account.manifest.get("served") or "index"}
        asked["accounting"] = "metered" if account.metered else "reserved"
    views = account.requests.values()
    # A run that had ended may have been resumed.
    done = account.done and not any(view.in_flight for view in views)
    requests = [_request(account, view, done) for view in views]
    graded = bool(asked.get("gold")) or any(view.correct is not None for view in views)
    questions = dict(read_asked(folder / REQUESTS))
    stopped = str(account.summary.get("stopped") or "") if done else ""
    policy = Variant.of(asked).label("metered" if account.metered else None) if asked.get("policy") else ""
    return RunData(
        folder=folder,
        model=str(asked.get("model") or ""),
        policy=policy or ("metered" if account.metered else ""),
        created=str(account.manifest.get("created") or ""),
        metered=account.metered,
        by_index=account.metered and asked.get("policy") == "index",
        reclaim=bool(asked.get("reclaim", True)),
        done=done,
        rates=account.rates,
        prices=account.prices,
        budget=account.budget,
        spent=account.spent,
        beyond_grants=account.beyond_grants,
        usage=account.usage,
        balance=[(moment.spent, moment.reserved) for moment in account.course],
        clearings=account.rounds,
        clearing_starts=account.starts,
        requests=requests,
        asked=questions,
        total=_total(account),
        outcomes=Counter(row["outcome"] for row in requests),
        correct=sum(view.correct is True for view in views) if graded else None,
        failures=_failures(view for view, row in zip(views, requests, strict=True) if row["outcome"] == "failed"),
        uniform=uniform(account, questions, graded=graded) if done and not stopped else None,
        steps=_steps(account, graded),
        teacher=account.manifest.get("teacher") or {},
        stopped=stopped,
        warnings=[
            flag_in_words(flag, times)
            for flag, times in Counter(flag for view in views for flag in view.flags).most_common()
        ],
        files=account.manifest.get("files") or {},
        settings=_settings(account, asked),
        sandboxes=account.manifest.get("sandboxes") or (),
    )


def _total(account: Account) -> int | None:
    """How many requests the run has; None if the folder does not show it yet."""
    if account.summary:
        return int(account.summary["requests"])
    return len(account.requests) if any(view.forecast for view in account.requests.values()) else None


def _settings(account: Account, asked: Mapping[str, Any]) -> list[tuple[str, Any]]:
    names = {"input": "input, sha256", "gold": "gold, sha256"}
    rates, prices = account.rates, account.rates if account.rates.money else account.prices
    priced = {name: show(getattr(prices, name), prices) for name in ("input", "cached", "output")} if prices else {}
    return [
        ("run folder", account.path),
        ("started", account.manifest.get("created")),
        ("budget", show(account.budget, rates) + (", prompts included" if rates == ALL_TOKENS else "")),
        ("per million tokens", priced),
        *(
            (names.get(name, name.replace("_", " ")), ("no", "yes")[value] if isinstance(value, bool) else value)
            for name, value in asked.items()
            if name != "rates"
        ),
        ("programs ran in", ", ".join(account.manifest.get("sandboxes") or ())),
        ("shadowprice", account.manifest.get("shadowprice")),
    ]


# --- requests ----------------------------------------------------------------------------------


def _request(account: Account, view: RequestView, done: bool) -> Record:
    outcome = _outcome(view, done)
    chance, details = view.forecast.get("solve"), view.failure.details if view.failure else {}
    several = account.rates.priced  # kinds of tokens count
    return {
        "id": view.id,
        "outcome": outcome,
        "correct": None if view.correct is None else ("no", "yes")[view.correct],
        "why": _why(account, view, outcome),
        "forecast": view.forecast.get("tokens"),
        "chance": None if chance is None else 100 * chance,
        "price": details.get("price"),
        "attempts": len(view.attempts),
        "grant": _grant(view) if view.attempts else None,
        "cost": view.cost if view.attempts else None,
        "generated": view.usage.output if several and view.attempts else None,
        "read": view.usage.input + view.usage.cached if several and view.attempts else None,
        "tokens": view.usage.output,
    }


def _outcome(view: RequestView, done: bool) -> str:
    if not view.answered and (view.in_flight or (view.outcome == "not_sent" and view.attempts and not done)):
        return WAITING
    return view.outcome.replace("_", " ")


def _grant(view: RequestView) -> int:
    """The most units that the answer could have cost: the cost of its earlier chunks, and the last grant."""
    before = sum(attempt.cost for attempt in view.attempts[:-1] if attempt.end == "chunk")
    return before + view.grants[-1]


def _why(account: Account, view: RequestView, outcome: str) -> str:
    amount = partial(show, rates=account.rates)
    flags = f" (the server: {', '.join(view.flags)})" if view.flags else ""
    if outcome == WAITING:
        return _why_waiting(view.attempts[-1].end)
    if outcome in ("finished", "landed"):
        limit = "" if account.metered or account.rates.priced else f" of {_grant(view):,}" if view.attempts else ""
        how = "ended" if outcome == "finished" else "was asked for its final answer"
        several = len(view.attempts) > 1 and (account.manifest["asked"].get("samples") or 1) > 1
        samples = f", in {len(view.attempts):,} samples" if several else ""
        return f"{how} after {view.usage.output:,}{limit} tokens{samples}{flags}"
    if outcome == "truncated":
        return f"{_why_truncated(account, view)}{flags}"
    failure = view.failure
    if failure is None:
        return "not sent yet"
    if outcome == "failed":
        return f"{failure.code}: {failure.message}{flags}"
    why = failure.message
    if outcome == "declined" and failure.code == DECLINED:
        price = failure.details.get("price")
        at = f" at {price:.3g} per token" if isinstance(price, float) else ""
        why = f"its tokens were worth more elsewhere{at}"
    if any(attempt.end == "chunk" for attempt in view.attempts):
        return f"{why}; {view.usage.output:,} tokens of its answer are kept"
    return f"{why}; earlier attempts cost {amount(view.cost)}" if view.cost else why


def _why_truncated(account: Account, view: RequestView) -> str:
    if "not_continued" in view.flags:
        return "could not be continued"
    if not view.attempts or view.attempts[-1].end != "chunk":
        return "reached its limit"
    return "the budget was spent" if account.spent >= account.budget else "more tokens were not worth the price"


def _why_waiting(end: str | None) -> str:
    if end is None:
        return "in flight, or lost in a crash"
    if end == "chunk":
        return "paused until its next turn"
    lost = "lost in a crash: the whole grant was charged" if end == "lost" else "an attempt failed"
    return f"{lost}; will be retried"


_PARTICULAR = re.compile(r"'[^']*'?|\"[^\"]*\"?|\d+")


def _failures(views: Iterable[RequestView]) -> list[Record]:
    """Failures by cause: the backend's name for it, or else the message without its numbers and quotations."""
    causes: dict[tuple[str, str], Record] = {}
    for view in views:
        if view.failure is None:
            continue
        code, message = view.failure.code, view.failure.message
        named = str(view.failure.details.get("cause") or message)
        kind = named if named != message else _PARTICULAR.sub("", message)
        cause = causes.setdefault(
            (code, kind),
            {"count": 0, "code": code, "message": message, "fix": fix_for(code, message), "ids": []},
        )
        cause["count"] += 1
        cause["ids"].append(view.id)
    listed = sorted(causes.values(), key=lambda cause: -cause["count"])
    rest = listed[_MOST_CAUSES:]
    found = [{**cause, "requests": _some(cause["ids"])} for cause in listed[:_MOST_CAUSES]]
    if rest:
        count = sum(cause["count"] for cause in rest)
        found.append(
            {"count": count, "code": "others", "message": f"{len(rest):,} other causes", "requests": "", "fix": ""}
        )
    return found


def _some(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


# --- units -------------------------------------------------------------------------------------


def _steps(account: Account, graded: bool) -> list[Step]:
    """From all grants, or in metered accounting from the budget, to the cost of finished or correct answers."""
    if not account.attempts:
        return []
    parts: Counter[str] = Counter()
    for attempt in account.attempts:
        if attempt.end is None:
            parts["in flight or lost"] += attempt.grant
            continue
        if attempt.end != "chunk":  # what a sample left of its grant is granted to the next
            parts["returned"] += max(0, attempt.grant - attempt.cost)
        parts[_bought(attempt, account.requests.get(attempt.request), graded)] += attempt.cost
    total = "granted"
    if account.metered:
        parts["returned"] = max(0, account.budget - account.spent - parts["in flight or lost"])
        total = "budget" if account.spent <= account.budget else "spent"
    useful = "correct answers" if graded else "finished answers"
    always = ("failed attempts", "truncated answers", *(["wrong answers"] if graded else []))
    return [
        Step(total, sum(parts.values()), "total"),
        Step("never spent" if account.metered else "returned unused", parts["returned"], "returned"),
        *(Step(name, parts[name], kind) for name, kind in _OPTIONAL.items() if parts[name]),
        *(Step(name, parts[name]) for name in always),
        Step(useful, parts[useful], "useful"),
    ]


_OPTIONAL = {
    "in flight or lost": "returned",
    "the teacher's estimates": "lost",
    "answers not finished": "returned",
    "answers not graded": "returned",
}


def _bought(attempt: Attempt, view: RequestView | None, graded: bool) -> str:
    """What an attempt was paid for."""
    if is_estimate(attempt.request):
        return "the teacher's estimates"
    if attempt.end in ("nothing", "lost"):
        return "failed attempts"
    if view is None or not view.answered:
        return "answers not finished"
    if view.outcome not in ("finished", "landed"):
        return "truncated answers"
    if not graded:
        return "finished answers"
    return {True: "correct answers", False: "wrong answers", None: "answers not graded"}[view.correct]
