"""What `run` prints at the end: outcomes, cost, and what more budget would have bought."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shadowprice.cli.common import about, count, lost_in_words, shown, where_programs_ran
from shadowprice.cost import Rates, prompts_in_words, show, show_beside, show_spent
from shadowprice.formats.fixes import fix_for, fix_for_route
from shadowprice.formats.flags import flag_in_words

if TYPE_CHECKING:
    from shadowprice.distributed.outcomes import RayRun
    from shadowprice.runs import Run
    from shadowprice.summary import Summary

_PRICED = ("index", "expected")  # policies whose price is in correct answers, which can be counted


def verdict(run: Run | RayRun, summary: Summary, *, out: str, errors: str, folder: str) -> list[str]:
    """The lines of the summary."""
    rates = run.settings.rates
    landed = f"{summary.count('landed'):,} of them landed, " if summary.count("landed") else ""
    rows = [
        f"{count(summary.requests, 'request')}, {show(summary.budget, rates)}, policy {run.policy}",
        f"  answered   {count(summary.count('finished', 'landed'), 'request')}, "
        f"{landed}{summary.count('truncated'):,} more cut short -> {shown(out)}",
        f"  unanswered {summary.count('declined'):,} declined, {summary.count('failed'):,} failed, "
        f"{summary.count('not_sent'):,} not sent -> {shown(errors)}",
    ]
    for cause, times in summary.causes.items():
        fix = "" if summary.stopped else f" ({fix_for('', cause)})"  # what stopped the run has a line of its own
        rows.append(f"  failed     {count(times, 'request')}: {cause}{fix}")
    if summary.graded:
        where = where_programs_ran(summary.sandbox)
        rows.append(f"  correct    {summary.correct:,} of {summary.graded:,} graded{where}")
    spent = show_spent(summary.spent, summary.budget, rates)
    if summary.failed:
        spent += f", of which {show(summary.failed, rates)} for failed requests: the server may have generated them"
    rows.append(f"  spent      {spent}{show_beside(summary.usage, rates, run.prices)}; details in {folder}")
    if summary.routes:
        rows += [f"  route      {line}" for line in _of_routes(summary, rates)]
    if run.settings.policy == "routes" and run.settings.samples > 1:
        rows.append(f"  samples    {_of_samples(summary)}")
    if summary.lost:
        rows.append(f"  lost       {lost_in_words(summary.lost, rates)}")
    if run.teaching:
        rows.append(f"  teacher    {_of_teacher(run.teaching)}")
    if rates.priced and summary.count("declined") == summary.requests:
        rows.append(f"  prompts    {prompts_in_words()}")
    elif run.policy in _PRICED and (worth := _worth_of_more(summary, rates)):
        rows.append(f"  price      {worth}")
    return rows


def _of_routes(summary: Summary, rates: Rates) -> Iterator[str]:
    """What each route answered and was paid."""
    for name, route in sorted(summary.routes.items(), key=lambda item: -item[1]["units"]):
        yield f"{name}: {count(route['answers'], 'answer')}, {show(route['units'], rates)}"


def _of_samples(summary: Summary) -> str:
    """How many answers were bought, and what votes decided."""
    text = f"{count(summary.samples, 'answer')} bought; votes decided {count(summary.voted, 'request')}"
    if summary.unvaried:
        text += f"; {count(summary.unvaried, 'request')} at temperature 0, where all answers are the same: one each"
    return text


def warnings(summary: Summary, rates: Rates) -> Iterator[str]:
    """What was wrong with servers and answers, what it cost, and what to do."""
    for name, reason in summary.dropped.items():
        yield f"route {name} was left out: {reason} ({fix_for_route(reason)})"
    for flag, times in summary.flags.items():
        yield flag_in_words(flag, times)
    if summary.beyond_grants:
        yield _of_ignored_limits(summary, rates)
    if summary.stopped:
        yield stopped_in_words(summary.stopped)


def _of_ignored_limits(summary: Summary, rates: Rates) -> str:
    """What is known of a server that generated more than it was granted."""
    parts = [f"at least {show(summary.generated)} generated"]
    charged = summary.spent + summary.overspent
    if not rates.priced:
        parts[0] += f", {max(0, summary.generated - summary.budget):,} of them beyond the budget"
    if charged != summary.generated or rates.priced:
        parts.append(f"{show(charged, rates)} charged" + " by estimate" * (not summary.counted))
    if not summary.counted:
        parts.append("the server's own count is unknown")
    return "; ".join(parts)


def stopped_in_words(reason: str) -> str:
    """Why nothing more was sent, and what to do about it."""
    return f"{reason.rstrip('.')}; nothing more was sent ({fix_for('', reason)})"


def _worth_of_more(summary: Summary, rates: Rates) -> str:
    """What a little more would have bought, at the price of the last clearing.

    The price holds only for the next tokens, so "a little" is 1,000 tokens or a tenth of the budget, whichever is less.
    No more answers can be bought than there are requests that the budget left without one.
    """
    waiting = summary.count("declined", "truncated")
    served = not summary.count("declined") and summary.spent < summary.budget  # what was cut has limits of its own
    if not waiting or served or not summary.price or summary.stopped:
        return ""
    units = max(1, summary.budget // 10)
    if not rates.money:
        units = min(1000, units)
    tokens = units * 10**6 / rates.output
    answers = min(tokens * summary.price, waiting)
    return f"{show(units, rates).replace(' token', ' more token')} would buy {about(answers)} correct answers"


def _of_teacher(teacher: dict[str, Any]) -> str:
    """A summary of the teacher's estimates."""
    whose = "of this budget" if teacher["charged"] else "not of this budget"
    flags = "".join(f"; {flag_in_words(flag, times)}" for flag, times in teacher["flags"].items())
    return (
        f"{count(teacher['asked'], 'request')} asked about, {teacher['retried']:,} of them twice, "
        f"{teacher['fell_back']:,} fell back on the forecast; {count(teacher['tokens'], 'token')}, {whose}{flags}"
    )
