"""The page about a run: what its budget bought, how it was spent, and the outcome of every request."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shadowprice.accounts.view import LEDGER, whole_answers
from shadowprice.cost import show_dollars
from shadowprice.report.plot import Plot, page_figure
from shadowprice.report.render import definitions, render
from shadowprice.report.run_data import OUTCOMES, RunData, read_run
from shadowprice.report.shown import Shown, shown
from shadowprice.report.style import BLUE, MUTED
from shadowprice.report.waterfall import waterfall

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_POINTS = 400


def run_report(folder: Path) -> str:
    """One self-contained HTML page about a run in any state. The folder is only read."""
    run = read_run(folder)
    with whole_answers(folder) as answer:
        return run_page(run, shown(run.requests, run.asked, answer))


def run_page(run: RunData, requests: Shown) -> str:
    attempts = "chunks" if run.metered else "attempts"
    clearings = [{**clearing, "number": number} for number, clearing in enumerate(run.clearings, start=1)]
    priced = [(clearing["number"], clearing["price"]) for clearing in clearings if clearing.get("price")]
    worth = "correct answers per token" if run.by_index else "utility per token"
    unit = "dollars" if run.rates.money else "tokens"
    balance = Plot("", partial(_draw_balance, run, f"{attempts} ended", unit))
    prices = Plot("", partial(_draw_prices, priced, worth))
    parts = Plot("", partial(waterfall, run.steps, show=partial(_plain, run), unit=unit), height=2.8)
    return render(
        "run",
        run=run,
        show=run.show,
        name=run.folder.resolve().name,
        unit=unit,
        spent_of_budget=f"{_plain(run, run.spent)} of {run.show(run.budget)}",
        dollars=show_dollars(run.usage, run.prices) if run.prices else "",
        shown=requests,
        everything=_everything(run),
        attempts=attempts,
        facts=_facts(run),
        clearings=clearings,
        burn_down=page_figure([balance], "burn", f"Budget left after every {attempts[:-1]}") if run.balance else None,
        prices=page_figure([prices], "price-line", "Price per token at every clearing") if len(priced) > 1 else None,
        waterfall=page_figure([parts], "waterfall", f"Where the {unit} went") if run.steps else None,
        settings=definitions(run.settings),
    )


def _plain(run: RunData, units: float) -> str:
    """An amount where the unit is given beside it: `1,234` or `$0.0123`."""
    return run.show(units) if run.rates.money else f"{units:,.0f}"


def _everything(run: RunData) -> list[str]:
    """The files that hold all results: a page has no room for some."""
    return [path for path in run.files.values() if path] or [str(run.folder / LEDGER)]


def _facts(run: RunData) -> list[tuple[str, str]]:
    always = ("finished", "truncated", "declined") if run.done else ("finished", "truncated")
    facts = [(name, f"{run.outcomes[name]:,}") for name in OUTCOMES if name in always or run.outcomes[name]]
    if run.correct is not None:
        facts.append(("correct", f"{run.correct:,}"))
    if run.budget:
        facts.append(("of the budget spent", f"{100 * run.spent / run.budget:.1f}%"))
    if run.prices:
        facts.append(("dollars", show_dollars(run.usage, run.prices)))
    if run.rates.priced or run.prices:
        facts.append(("tokens generated", f"{run.usage.output:,}"))
        facts.append(("tokens read", f"{run.usage.input + run.usage.cached:,}"))
    if prices := [clearing["price"] for clearing in run.clearings if clearing.get("price") is not None]:
        facts.append(("last price per token", f"{prices[-1]:.3g}"))
    if run.clearings:
        facts.append(("clearings", f"{len(run.clearings):,}"))
    return facts


def _draw_balance(run: RunData, xlabel: str, unit: str, axes: Axes) -> None:
    balance = np.array([(0, 0), *run.balance])
    shown = np.unique(np.linspace(0, len(run.balance), min(_MAX_POINTS, len(balance))).astype(int))
    left = run.budget - balance[shown, 0]
    axes.fill_between(
        shown, left - balance[shown, 1], left, color=BLUE, alpha=0.18, lw=0, step="post", label="reserved"
    )
    axes.plot(shown, left, color=BLUE, drawstyle="steps-post", label="not spent")
    for start in run.clearing_starts[1:]:
        axes.axvline(start, color=MUTED, lw=0.8, ls=":")
    axes.set(xlabel=xlabel, ylabel=unit, xlim=(0, len(run.balance)))
    axes.set_ylim(min(0, left.min()), run.budget * 1.03 or 1)
    axes.yaxis.set_major_formatter(lambda value, _: _plain(run, value))


def _draw_prices(priced: list[tuple[int, float]], unit: str, axes: Axes) -> None:
    numbers, prices = [number for number, _ in priced], [price for _, price in priced]
    axes.plot(numbers, prices, "o-", color=BLUE)
    axes.set(xlabel="clearing", ylabel=unit)
    axes.set_ylim(0, max(prices) * 1.1)
    if len(numbers) <= 12:
        axes.set_xticks(numbers)
