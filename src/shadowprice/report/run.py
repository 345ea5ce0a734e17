"""The page about a run: what its budget bought, how it was spent, and what became of every request."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shadowprice.report.plot import PageFigure, Plot, page_figure
from shadowprice.report.render import Column, Table, definitions, render, table
from shadowprice.report.run_data import RunData, read_run
from shadowprice.report.style import BLUE, MUTED
from shadowprice.report.waterfall import waterfall

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_POINTS = 400
_REQUESTS = [
    Column("id", "request", "text"),
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
_CLEARINGS = [
    Column("number", "clearing"),
    Column("budget", "tokens available"),
    Column("queries", "waiting"),
    Column("admitted", "admitted"),
    Column("granted", "granted"),
    Column("price", "price per token"),
    Column("status", "status", "text"),
]
_METERED_CLEARINGS = [
    Column("number", "clearing"),
    Column("budget", "tokens left"),
    Column("queries", "waiting"),
    Column("admitted", "worth the price"),
    Column("granted", "tokens expected"),
    Column("price", "price per token"),
]


def run_report(folder: Path) -> str:
    """One self-contained HTML page. The folder is only read, whatever state the run is in."""
    return run_page(read_run(folder))


def run_page(run: RunData) -> str:
    clearings = [{**each, "number": number} for number, each in enumerate(run.clearings, start=1)]
    return render(
        "run",
        run=run,
        name=run.folder.resolve().name,
        attempts=_attempts(run),
        facts=_facts(run),
        burn_down=_burn_down(run),
        clearings=table(_METERED_CLEARINGS if run.metered else _CLEARINGS, clearings),
        prices=_prices(run),
        waterfall=_waterfall(run),
        requests=_requests(run),
        settings=definitions(run.settings),
    )


def _attempts(run: RunData) -> str:
    """What a request is served in."""
    return "chunks" if run.metered else "attempts"


def _facts(run: RunData) -> list[tuple[str, str]]:
    always = ("finished", "truncated", "declined") if run.done else ("finished", "truncated")
    shown = [name for name in ("finished", "truncated", "declined", "failed") if name in always or run.outcomes[name]]
    facts = [(name, f"{run.outcomes[name]:,}") for name in shown]
    if run.budget:
        facts.append(("of the budget spent", f"{100 * run.spent / run.budget:.1f}%"))
    if prices := [each["price"] for each in run.clearings if each.get("price") is not None]:
        facts.append(("last price per token", f"{prices[-1]:.3g}"))
    if run.clearings:
        facts.append(("clearings", f"{len(run.clearings):,}"))
    return facts


def _requests(run: RunData) -> Table:
    columns = [replace(each, title=_attempts(run)) if each.field == "attempts" else each for each in _REQUESTS]
    return table(columns, run.requests)


# --- figures -----------------------------------------------------------------------------------


def _burn_down(run: RunData) -> PageFigure | None:
    if not run.balance:
        return None
    attempts = _attempts(run)
    caption = (
        f"The ledger has no clock: {attempts} are in the order they ended. The band is reserved for those in flight."
    )
    if len(run.clearing_starts) > 1:
        caption += " A dotted line is a new clearing."
    plot = Plot("", partial(_draw_balance, run))
    return page_figure([plot], "burn", f"Tokens left after every {attempts[:-1]}", caption=caption)


def _draw_balance(run: RunData, axes: Axes) -> None:
    balance = np.array([(0, 0), *run.balance])
    shown = np.unique(np.linspace(0, len(run.balance), min(_MAX_POINTS, len(balance))).astype(int))
    left = run.budget - balance[shown, 0]
    axes.fill_between(
        shown, left - balance[shown, 1], left, color=BLUE, alpha=0.18, lw=0, step="post", label="reserved"
    )
    axes.plot(shown, left, color=BLUE, drawstyle="steps-post", label="not spent")
    for start in run.clearing_starts[1:]:
        axes.axvline(start, color=MUTED, lw=0.8, ls=":")
    axes.set(xlabel=f"{_attempts(run)} ended", ylabel="tokens", xlim=(0, len(run.balance)))
    axes.set_ylim(min(0, left.min()), run.budget * 1.03 or 1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _prices(run: RunData) -> PageFigure | None:
    priced = [(number, each["price"]) for number, each in enumerate(run.clearings, start=1) if each.get("price")]
    if len(priced) < 2:
        return None
    unit = "correct answers per token" if run.metered else "utility per token"
    caption = (
        "The chance of a correct answer per token at which the budget is expected to be used up. It is computed again "
        "whenever finished answers correct the forecasts of the others."
        if run.metered
        else "What one more token would buy. It falls as the requests that pay most are served and return what they "
        "did not use."
    )
    plot = Plot("", partial(_draw_prices, priced, unit))
    return page_figure([plot], "price-line", "Price per token at every clearing", caption=caption)


def _draw_prices(priced: list[tuple[int, float]], unit: str, axes: Axes) -> None:
    numbers, prices = [number for number, _ in priced], [price for _, price in priced]
    axes.plot(numbers, prices, "o-", color=BLUE)
    axes.set(xlabel="clearing", ylabel=unit)
    axes.set_ylim(0, max(prices) * 1.1)
    if len(numbers) <= 12:
        axes.set_xticks(numbers)


def _waterfall(run: RunData) -> PageFigure | None:
    if not run.steps:
        return None
    caption = (
        "From the budget to the tokens of finished answers. Tokens count when they are generated."
        if run.metered
        else "What was granted in all clearings together, and what it became. Returned tokens are granted again."
    )
    plot = Plot("", partial(waterfall, run.steps), height=2.8)
    return page_figure([plot], "waterfall", "Where the tokens went", caption=caption)
