"""What the page about a run shows, however a run is stored. `read_run` is the only place that knows the folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shadowprice.accounts.view import Account, Answer, Attempt, is_estimate, read_account
from shadowprice.report.labels import Variant
from shadowprice.report.waterfall import Step

Record = dict[str, Any]


@dataclass(frozen=True)
class RunData:
    folder: Path
    model: str
    policy: str  # the label; empty where the run does not name one
    created: str
    metered: bool
    done: bool
    budget: int
    spent: int
    balance: Sequence[tuple[int, int]]  # spent and reserved after every attempt
    clearings: Sequence[Mapping[str, Any]]  # budget, queries, admitted, granted, price, status
    clearing_starts: Sequence[int]  # attempts that had ended before each clearing
    requests: Sequence[Record]  # id, outcome, why, forecast, chance, price, attempts, grant, used, answer
    total: int | None  # requests of the run, where known
    outcomes: Counter[str]
    correct: int | None
    steps: Sequence[Step]
    stopped: str  # why nothing more was sent
    violations: Counter[str]  # what servers did against their limits
    settings: Sequence[tuple[str, Any]]

    @property
    def unlisted(self) -> int:
        """Declined requests that the folder does not name."""
        listed = [row for row in self.requests if row["outcome"] == "declined"]
        return self.outcomes["declined"] - len(listed)


def read_run(folder: Path) -> RunData:
    """Only reads the folder, in whatever state the run is."""
    account = read_account(folder)
    asked = account.manifest.get("asked") or {}
    requests = _requests(account)
    outcomes: Counter[str] = Counter(row["outcome"] for row in requests)
    if account.summary:
        outcomes["declined"] = account.summary["abandoned"]
    policy = Variant.of(asked).label("metered" if account.metered else None) if asked.get("policy") else ""
    return RunData(
        folder=folder,
        model=str(asked.get("model") or ""),
        policy=policy or ("metered" if account.metered else ""),
        created=str(account.manifest.get("created") or ""),
        metered=account.metered,
        done=account.done,
        budget=account.budget,
        spent=account.spent,
        balance=[(moment.spent, moment.reserved) for moment in account.course],
        clearings=account.rounds,
        clearing_starts=account.starts,
        requests=requests,
        total=_total(account),
        outcomes=outcomes,
        correct=account.manifest.get("solved"),
        steps=_steps(account),
        stopped=str(account.summary.get("stopped") or ""),
        violations=Counter(flag for answer in account.answers.values() for flag in answer.flags),
        settings=_settings(account, asked),
    )


def _total(account: Account) -> int | None:
    if account.summary:
        return int(account.summary["queries"])
    if not account.rounds:
        return None
    # The first clearing of a resumed run does not include the requests that were already answered.
    before = account.starts[0] if account.starts else 0
    ended = [attempt.query for attempt in account.attempts if attempt.end is not None][:before]
    answered = sum(query in account.answers and not is_estimate(query) for query in set(ended))
    return int(account.rounds[0]["queries"]) + answered


def _settings(account: Account, asked: Mapping[str, Any]) -> list[tuple[str, Any]]:
    names = {"input": "input, sha256", "forecast": "forecast, sha256", "gold": "gold, sha256"}
    return [
        ("run folder", account.path),
        ("started", account.manifest.get("created")),
        ("budget", f"{account.budget:,}"),
        *((names.get(name, name.replace("_", " ")), value) for name, value in asked.items()),
        ("teacher", account.manifest.get("teacher")),
        ("shadowprice", account.manifest.get("shadowprice")),
    ]


# --- requests ----------------------------------------------------------------------------------


def _requests(account: Account) -> list[Record]:
    """A row for every request that was ever granted anything, then for those known to be declined."""
    attempts: dict[str, list[Attempt]] = {}
    for attempt in account.attempts:
        if not is_estimate(attempt.query):
            attempts.setdefault(attempt.query, []).append(attempt)
    rows = [_request(account, name, some) for name, some in attempts.items()]
    rows += [
        {"id": name, "attempts": 0, "outcome": "failed", "why": answer.text}
        for name, answer in account.answers.items()
        if name not in attempts and not is_estimate(name)
    ]
    known = {row["id"] for row in rows}
    rows += [_declined(line) for line in account.abandoned if line["custom_id"] not in known]
    return [{**_forecast(account.forecasts.get(row["id"]) or {}), **row} for row in rows]


def _forecast(forecast: Mapping[str, Any]) -> Record:
    chance = forecast.get("solve")
    return {"forecast": forecast.get("tokens"), "chance": None if chance is None else 100 * chance}


def _declined(line: Mapping[str, Any]) -> Record:
    error = line["error"]
    price = error.get("price")
    at = f" at {price:.3g} per token" if isinstance(price, float) else ""
    by_price = error["code"] == "budget_abandoned"
    return {
        "id": line["custom_id"],
        "outcome": "declined",
        "why": f"its tokens were worth more elsewhere{at}" if by_price else error.get("message"),
        **_forecast(error.get("forecast") or {}),
        "price": price,
        "attempts": 0,
    }


def _request(account: Account, name: str, attempts: list[Attempt]) -> Record:
    answer, last = account.answers.get(name), attempts[-1]
    before = sum(attempt.used for attempt in attempts[:-1] if attempt.end == "part")
    used = sum(attempt.used for attempt in attempts)
    row = {"id": name, "attempts": len(attempts), "grant": before + last.grant, "used": used}
    if answer is None:
        ended = account.done and last.end is not None
        return {**row, "outcome": "declined" if ended else "waiting", "why": _why_no_answer(last.end, ended)}
    flags = f" (the server: {', '.join(answer.flags)})" if answer.flags else ""
    if answer.finish == "error":
        return {**row, "outcome": "failed", "why": answer.text}
    if answer.finish == "length":
        why = _why_not_continued(account, answer) if last.end == "part" else "reached its limit"
        return {**row, "outcome": "truncated", "why": f"{why}{flags}", "answer": answer.text}
    granted = "" if account.metered else f" of {last.grant:,}"
    why = f"ended after {before + last.used:,}{granted} tokens{flags}"
    return {**row, "outcome": "finished", "why": why, "answer": answer.text}


def _why_not_continued(account: Account, answer: Answer) -> str:
    if answer.flags:
        return "could not be continued"
    return "the budget was spent" if account.spent >= account.budget else "more tokens were not worth the price"


def _why_no_answer(end: str | None, ended: bool) -> str:
    if end is None:
        return "in flight, or lost in a crash"
    if end == "part":
        return "paused until its next turn"
    lost = "lost in a crash: the whole grant counts as used" if end == "lost" else "no answer, tokens used"
    return f"{lost}; {'no tokens were left to retry' if ended else 'will be retried'}"


# --- tokens ------------------------------------------------------------------------------------


def _steps(account: Account) -> list[Step]:
    """From everything that was granted (metered: from the budget) to the tokens of finished answers."""
    if not account.attempts:
        return []
    parts: Counter[str] = Counter()
    for attempt in account.attempts:
        if attempt.end is None:
            parts["open"] += attempt.grant
            continue
        parts["returned"] += max(0, attempt.grant - attempt.used)
        parts[_bought(attempt, account.answers.get(attempt.query))] += attempt.used
    total = "granted"
    if account.metered:
        parts["returned"] = max(0, account.budget - account.spent - parts["open"])
        total = "budget" if account.spent <= account.budget else "spent"
    optional = [
        Step("in flight or lost", parts["open"], "returned"),
        Step("the teacher's estimates", parts["teacher"]),
        Step("answers not finished yet", parts["started"], "returned"),
    ]
    return [
        Step(total, sum(parts.values()), "total"),
        Step("never spent" if account.metered else "returned unused", parts["returned"], "returned"),
        *(step for step in optional if step.tokens),
        Step("failed attempts", parts["failed"]),
        Step("truncated answers", parts["truncated"]),
        Step("finished answers", parts["finished"], "useful"),
    ]


def _bought(attempt: Attempt, answer: Answer | None) -> str:
    """What the tokens of an attempt were used for."""
    if is_estimate(attempt.query):
        return "teacher"
    if attempt.end in ("nothing", "lost"):
        return "failed"
    if answer is None:
        return "started"
    return {"stop": "finished", "length": "truncated"}.get(answer.finish, "failed")
