"""The report of a run: what its budget bought, how it went down, and what became of every query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shadowprice.accounts.view import Account, Answer, Attempt, is_estimate, read_account
from shadowprice.report.html import Column, definitions, facts, figure, page, records, section, table, text
from shadowprice.report.panels import Panel, page_figure
from shadowprice.report.style import BLUE, MUTED, look
from shadowprice.report.waterfall import Step, waterfall

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_POINTS = 400
_COLUMNS = [
    Column("id", "query", "text"),
    Column("outcome", "outcome", "tag"),
    Column("why", "why", "text"),
    Column("forecast", "forecast, tokens"),
    Column("chance", "chance, %"),
    Column("price", "price"),
    Column("attempts", "attempts"),
    Column("grant", "grant, tokens"),
    Column("used", "used, tokens"),
    Column("answer", "answer", "text"),
]

_ROUNDS = [
    Column("round", "round"),
    Column("budget", "tokens to give"),
    Column("queries", "waiting"),
    Column("admitted", "admitted"),
    Column("granted", "granted"),
    Column("price", "price per token"),
    Column("status", "clearing", "text"),
]
_METERED_ROUNDS = [
    Column("round", "round"),
    Column("budget", "tokens left"),
    Column("queries", "waiting"),
    Column("admitted", "worth the price"),
    Column("granted", "tokens expected"),
    Column("price", "price per token"),
]


def run_report(folder: Path) -> str:
    """One self-contained HTML text. The folder is only read, whatever state the run is in."""
    account = read_account(folder)
    queries = query_rows(account)
    name = folder.resolve().name
    return page(
        title=f"{name}: a run of shadowprice",
        eyebrow=" · ".join(_eyebrow(account)),
        verdict=_verdict(account, queries),
        lead=_lead(account, queries),
        body="\n".join(_sections(account, queries)),
        footer=f"Made by <code>shadowprice report</code> from {text(folder)}, which was only read.",
    )


def _eyebrow(account: Account) -> list[str]:
    asked = account.manifest.get("asked") or {}
    policy = "metered accounting" if account.metered else f"policy {asked['policy']}" if asked.get("policy") else None
    said = [asked.get("model"), policy]
    return ["shadowprice run", *(str(each) for each in said if each), str(account.manifest.get("created", ""))]


# --- what became of the queries ----------------------------------------------------------------


def query_rows(account: Account) -> list[dict[str, Any]]:
    """A row for every query that was ever granted anything, then for those known to be abandoned."""
    attempts: dict[str, list[Attempt]] = {}
    for attempt in account.attempts:
        if not is_estimate(attempt.query):
            attempts.setdefault(attempt.query, []).append(attempt)
    rows = [_query_row(account, query, some) for query, some in attempts.items()]
    rows += [
        {"id": query, "attempts": 0, "outcome": "failed", "why": answer.text}
        for query, answer in account.answers.items()
        if query not in attempts and not is_estimate(query)
    ]
    known = {row["id"] for row in rows}
    rows += [_abandoned_row(line) for line in account.abandoned if line["custom_id"] not in known]
    return [{**_expected(account.forecasts.get(row["id"]) or {}), **row} for row in rows]


def _expected(forecast: Mapping[str, Any]) -> dict[str, Any]:
    chance = forecast.get("solve")
    return {"forecast": forecast.get("tokens"), "chance": None if chance is None else 100 * chance}


def _abandoned_row(line: Mapping[str, Any]) -> dict[str, Any]:
    error = line["error"]
    price = error.get("price")
    at = f" at {price:.3g} per token" if isinstance(price, float) else ""
    priced_out = error["code"] == "budget_abandoned"
    return {
        "id": line["custom_id"],
        "outcome": "abandoned",
        "why": f"its tokens bought more elsewhere{at}" if priced_out else error.get("message"),
        **_expected(error.get("forecast") or {}),
        "price": price,
        "attempts": 0,
    }


def _query_row(account: Account, query: str, attempts: list[Attempt]) -> dict[str, Any]:
    answer, last = account.answers.get(query), attempts[-1]
    before = sum(attempt.used for attempt in attempts[:-1] if attempt.end == "part")
    used = sum(attempt.used for attempt in attempts)
    row = {"id": query, "attempts": len(attempts), "grant": before + last.grant, "used": used}
    if answer is None:
        ended = account.done and last.end is not None
        return {**row, "outcome": "abandoned" if ended else "waiting", "why": _why_no_answer(last.end, ended)}
    flagged = f" (the server: {', '.join(answer.flags)})" if answer.flags else ""
    if answer.finish == "error":
        return {**row, "outcome": "failed", "why": answer.text}
    if answer.finish == "length":
        cut = _why_left(account, answer) if last.end == "part" else "cut at its limit"
        return {**row, "outcome": "truncated", "why": f"{cut}{flagged}", "answer": answer.text}
    back = f", {max(0, last.grant - last.used):,} tokens given back" if not account.metered else ""
    why = f"ended by itself after {before + last.used:,} tokens{back}{flagged}"
    return {**row, "outcome": "finished", "why": why, "answer": answer.text}


def _why_left(account: Account, answer: Answer) -> str:
    """Of an answer that was paused and never went on."""
    if answer.flags:
        return "left where it was"
    return "the budget was spent before its end" if account.spent >= account.budget else "more tokens promised nothing"


def _why_no_answer(end: str | None, ended: bool) -> str:
    if end is None:
        return "in flight, or lost in a crash"
    if end == "part":
        return "paused; it goes on when it is its turn"
    lost = "lost in a crash: the whole grant counts as used" if end == "lost" else "no answer, tokens used"
    return f"{lost}; {'nothing was left for another attempt' if ended else 'it competes again'}"


def _outcomes(account: Account, queries: list[dict[str, Any]]) -> Counter[str]:
    """How many queries ended how; a finished run has counted those that were abandoned."""
    counts = Counter(row["outcome"] for row in queries)
    if account.summary:
        counts["abandoned"] = account.summary["abandoned"]
    return counts


def _asked(account: Account) -> int | None:
    """How many queries the run has, as far as its folder tells."""
    if account.summary:
        return int(account.summary["queries"])
    if not account.rounds:
        return None
    # The rounds of a resumed run begin when some queries had their answers already.
    before = account.starts[0] if account.starts else 0
    ended = [attempt.query for attempt in account.attempts if attempt.end is not None][:before]
    answered = sum(query in account.answers and not is_estimate(query) for query in set(ended))
    return int(account.rounds[0]["queries"]) + answered


# --- the verdict -------------------------------------------------------------------------------


def _verdict(account: Account, queries: list[dict[str, Any]]) -> str:
    counts, asked = _outcomes(account, queries), _asked(account)
    answered = counts["finished"] + counts["truncated"]
    plural = "query" if (asked or answered) == 1 else "queries"
    told = f"{answered:,}{f' of {asked:,}' if asked else ''} {plural} answered"
    spent = f"{account.spent:,} of {account.budget:,} tokens"
    solved = account.manifest.get("solved")
    if not account.done:
        return f"Unfinished: <b>{told}</b> so far, {spent} spent."
    right = f" and {solved:,} of the answers right" if solved is not None else ""
    return f"<b>{told}</b>{right}, for {spent}."


def _lead(account: Account, queries: list[dict[str, Any]]) -> str:
    counts = _outcomes(account, queries)
    said = []
    if counts["truncated"]:
        cut = "left before the end" if account.metered else "cut at the limit"
        said.append(f"{_were(counts['truncated'], 'answer', 'answers')} {cut}")
    if counts["abandoned"]:
        said.append(f"{_were(counts['abandoned'], 'query', 'queries')} abandoned")
    if counts["failed"]:
        said.append(f"{counts['failed']:,} failed")
    if counts["waiting"]:
        said.append(f"{counts['waiting']:,} are in flight or wait for another attempt")
    sentence = f"{'; '.join(said)}." if said else "Every answer came to its end." if account.done else ""
    lead = f'<p class="lead">{sentence[:1].upper()}{sentence[1:]}</p>' if sentence else ""
    if not account.done:
        lead += (
            '<p class="warning">This run has not ended: it is still going on, or was interrupted. The same '
            "<code>shadowprice run</code> with <code>--resume</code> goes on where it stopped.</p>"
        )
    if stopped := account.summary.get("stopped"):
        lead += f'<p class="warning">Nothing more was sent: {text(stopped)}.</p>'
    if account.spent > account.budget:
        lead += (
            f'<p class="warning">{account.spent - account.budget:,} tokens were generated above the budget, by a '
            "server that did not keep to its limits.</p>"
        )
    flags = Counter(flag for answer in account.answers.values() for flag in answer.flags)
    for flag, times in flags.items():
        lead += f'<p class="warning">The server was caught at {text(flag)} {times:,} times.</p>'
    return lead + facts(_facts(account, counts))


def _were(count: int, one: str, many: str) -> str:
    return f"1 {one} was" if count == 1 else f"{count:,} {many} were"


def _facts(account: Account, counts: Counter[str]) -> list[tuple[str, str]]:
    cut = "left before the end" if account.metered else "cut at the limit"
    pairs = [("finished", f"{counts['finished']:,}"), (cut, f"{counts['truncated']:,}")]
    if account.done or counts["abandoned"]:
        pairs.append(("abandoned", f"{counts['abandoned']:,}"))
    if counts["failed"]:
        pairs.append(("failed", f"{counts['failed']:,}"))
    if account.budget:
        pairs.append(("of the budget spent", f"{100 * account.spent / account.budget:.1f}%"))
    prices = [each["price"] for each in account.rounds if each.get("price") is not None]
    if prices:
        pairs.append(("last price per token", f"{prices[-1]:.3g}"))
    if account.rounds:
        pairs.append(("clearings", f"{len(account.rounds):,}"))
    return pairs


# --- sections ----------------------------------------------------------------------------------


def _sections(account: Account, queries: list[dict[str, Any]]) -> list[str]:
    found = []
    if account.course:
        about = f"Tokens left after every {_served(account)[:-1]}"
        drawn = page_figure([Panel("", partial(_burn_down, account))], "burn", about)
        found.append(section("burn-down", "How the budget went down", figure(drawn, _burn_caption(account))))
    if account.rounds:
        found.append(section("price", "Price of every clearing", *_price(account)))
    if steps := run_steps(account):
        drawn = page_figure([Panel("", partial(waterfall, steps), height=2.8)], "waterfall", "Where the tokens went")
        caption = (
            "From the budget to the tokens of answers that came to their end. Tokens count when they are generated."
            if account.metered
            else "What was granted, in all rounds together, and what it became. What is given back is granted again."
        )
        found.append(section("waterfall", "Where the tokens went", figure(drawn, caption)))
    if queries:
        unlisted = _outcomes(account, queries)["abandoned"] - sum(row["outcome"] == "abandoned" for row in queries)
        about = "Every query that was granted anything, in order" + (
            ", and those that were abandoned." if account.abandoned else "."
        )
        if unlisted > 0:
            about += f" {unlisted:,} abandoned queries are not listed: they are in the run's error file."
        found.append(section("queries", "Every query", records("query-table", _columns(account), queries), about=about))
    found.append(section("made-from", "What this was made from", _made_from(account)))
    return found


def _served(account: Account) -> str:
    """What a query is given at a time."""
    return "stretches" if account.metered else "attempts"


def _columns(account: Account) -> list[Column]:
    return [replace(each, title=_served(account)) if each.field == "attempts" else each for each in _COLUMNS]


def _burn_caption(account: Account) -> str:
    said = (
        f"The ledger keeps no clock: {_served(account)} are in the order they ended. The band is reserved for those in "
        "flight."
    )
    return said + (" A dotted line is a new clearing." if len(account.starts) > 1 else "")


def _burn_down(account: Account, axes: Axes) -> None:
    places = np.unique(np.linspace(0, len(account.course), min(_MOST_POINTS, len(account.course) + 1)).astype(int))
    moments = [account.course[place - 1] if place else None for place in places]
    left = np.array([account.budget - (moment.spent if moment else 0) for moment in moments])
    free = left - np.array([moment.reserved if moment else 0 for moment in moments])
    axes.fill_between(places, free, left, color=BLUE, alpha=0.18, lw=0, step="post", label="reserved")
    axes.plot(places, left, color=BLUE, drawstyle="steps-post", label="not spent")
    for start in account.starts[1:]:
        axes.axvline(start, color=MUTED, lw=0.8, ls=":")
    axes.set(xlabel=f"{_served(account)} ended", ylabel="tokens", xlim=(0, max(1, len(account.course))))
    axes.set_ylim(min(0, left.min()), account.budget * 1.03 or 1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _price(account: Account) -> list[str]:
    columns = _METERED_ROUNDS if account.metered else _ROUNDS
    shown = table(columns, [{"round": at, **each} for at, each in enumerate(account.rounds, start=1)])
    priced = [(at, each["price"]) for at, each in enumerate(account.rounds, start=1) if each.get("price")]
    if len(priced) < 2:
        return [shown]
    unit = "right answers per token" if account.metered else "utility per token"
    drawn = page_figure([Panel("", partial(_price_line, priced, unit))], "price-line", "Price per token in every round")
    caption = (
        "The chance of a right answer per token at which the budget is expected to be used up. It is found anew "
        "whenever the answers that have ended correct the forecast of the others."
        if account.metered
        else "What one more token would buy. It falls as those who pay most are served and what they spare comes back."
    )
    return [shown, figure(drawn, caption)]


def _price_line(priced: list[tuple[int, float]], unit: str, axes: Axes) -> None:
    rounds, prices = [at for at, _ in priced], [price for _, price in priced]
    axes.plot(rounds, prices, "o-", color=BLUE)
    axes.set(xlabel="round", ylabel=unit)
    axes.set_ylim(0, max(prices) * 1.1)
    if len(rounds) <= 12:
        axes.set_xticks(rounds)


def run_steps(account: Account) -> list[Step]:
    """From all that was granted (metered: from the budget) to the tokens of answers that came to their end."""
    parts: Counter[str] = Counter()
    for attempt in account.attempts:
        if attempt.end is None:
            parts["open"] += attempt.grant
            continue
        parts["back"] += max(0, attempt.grant - attempt.used)
        parts[_bought(attempt, account.answers.get(attempt.query))] += attempt.used
    if not account.attempts:
        return []
    optional = [
        Step("in flight or lost", parts["open"], "back"),
        Step("the teacher's estimates", parts["teacher"]),
        Step("answers not finished yet", parts["begun"], "back"),
    ]
    total = "granted"
    if account.metered:
        parts["back"] = max(0, account.budget - account.spent - parts["open"])
        total = "budget" if account.spent <= account.budget else "spent"
    return [
        Step(total, sum(parts.values()), "total"),
        Step("never spent" if account.metered else "given back", parts["back"], "back"),
        *(step for step in optional if step.tokens),
        Step("failed attempts", parts["failed"]),
        Step("left before the end" if account.metered else "cut at the limit", parts["cut"]),
        Step("finished answers", parts["finished"], "good"),
    ]


def _bought(attempt: Attempt, answer: Answer | None) -> str:
    """What the tokens of an attempt that ended have become."""
    if is_estimate(attempt.query):
        return "teacher"
    if attempt.end in ("nothing", "lost"):
        return "failed"
    if answer is None:
        return "begun"
    return {"stop": "finished", "length": "cut"}.get(answer.finish, "failed")


def _made_from(account: Account) -> str:
    asked = dict(account.manifest.get("asked") or {})
    policy = asked.get("policy")
    if policy:
        asked["policy"] = f"{policy} ({look(policy).label})"
    kept = {"run folder": account.path, "started": account.manifest.get("created"), "budget": f"{account.budget:,}"}
    names = {"input": "input, sha256", "forecast": "forecast, sha256", "gold": "gold, sha256"}
    pairs = [*kept.items(), *((names.get(k, k.replace("_", " ")), v) for k, v in asked.items())]
    if teacher := account.manifest.get("teacher"):
        pairs.append(("teacher", teacher))
    pairs.append(("shadowprice", account.manifest.get("shadowprice")))
    return definitions((name, value) for name, value in pairs if value not in (None, {}, []))
