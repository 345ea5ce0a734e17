"""The figures of a reproduction: rows of results in, plots out.

`FIGURES` has one for every table of rows that can be drawn. Percentages are of the queries, budgets in tokens
per query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from shadowprice.lab.compare import Row
from shadowprice.report import line_plots, point_plots
from shadowprice.report.plot import Plot, write_figure
from shadowprice.report.rows import Rows, from_paper, grouped, printable


@dataclass(frozen=True)
class FigureSpec:
    title: str
    caption: str
    plots: Callable[[Rows], list[Plot]]


def write_figures(rows: Rows, folder: Path) -> list[Path]:
    """Every figure that the rows allow, as SVG and PNG; returns the SVG files."""
    written = []
    for name, plots in drawn(rows).items():
        write_figure(plots, FIGURES[name].title, folder / name)
        written.append(folder / f"{name}.svg")
    return written


def drawn(rows: Rows) -> dict[str, list[Plot]]:
    """The plots of every figure that has something to show."""
    tables = grouped(_drawable(row for row in rows if not from_paper(row)), "table")
    found = {name: figure.plots(tables[(name,)]) for name, figure in FIGURES.items() if (name,) in tables}
    return {name: plots for name, plots in found.items() if plots}


def _drawable(rows: Iterable[Row]) -> list[Row]:
    """Rows whose text is on one line and printable."""
    return [
        {name: " ".join(printable(value).split()) if isinstance(value, str) else value for name, value in row.items()}
        for row in rows
    ]


FIGURES = {
    "frontier": FigureSpec(
        "Correct answers against tokens spent",
        "Higher and further left is better. The oracle knows every length in advance, the clairvoyant also which "
        "answers are correct; neither can be run. Bands are 95% intervals.",
        line_plots.frontier,
    ),
    "main": FigureSpec(
        "Correct answers against the budget",
        "All queries of a stream share one budget, in reserved accounting. Bands are 95% intervals.",
        line_plots.main,
    ),
    "phase_transition": FigureSpec(
        "Phase transition: correct and declined against the budget",
        "When tokens are scarce CLEAR declines the long queries; the larger the budget, the fewer it declines.",
        line_plots.phase_transition,
    ),
    "s_curve": FigureSpec(
        "The S-curve: correct answers against one limit for all",
        "The paper's three phases: strict, where nothing is correct; surge; and ample, where more tokens add little.",
        line_plots.s_curve,
    ),
    "curves": FigureSpec(
        "The utility curves: surge, triangular and quadratic",
        "What a grant is worth to one query with the median forecast (dotted), at a budget of twice the mean forecast. "
        "Below the forecast a grant is worth nothing. All three curves peak at the same grant, and no query buys more "
        "than that.",
        line_plots.curves,
    ),
    "rollouts": FigureSpec(
        "Rollouts and the latent utility fitted to them",
        "Several answers to the same question by length: all of them, the correct ones, and the paper's utility curve "
        "fitted to the correct ones.",
        point_plots.rollouts,
    ),
    "stream_lengths": FigureSpec(
        "Lengths of the answers in each stream",
        "True lengths of the sampled answers, by tier; the last bar contains all longer ones.",
        point_plots.stream_lengths,
    ),
    "predictor": FigureSpec(
        "Forecast and true length",
        "On the dashed line the forecast is exact. CLEAR depends on the order of the forecasts, not on their level.",
        point_plots.predictor,
    ),
    "second_predictor": FigureSpec(
        "Forecast and true length, second model",
        "The same for the second model: on the dashed line the forecast is exact.",
        point_plots.predictor,
    ),
    "calibration": FigureSpec(
        "Calibration of the forecasts",
        "How often answers were correct for a given forecast chance, and how many lengths fell into the forecast "
        "intervals. On the dashed line the forecast is calibrated.",
        point_plots.calibration,
    ),
    "allocations": FigureSpec(
        "Allocations, scarce and ample",
        "Each point is a query; in brackets the budget, tokens per query. Above the dashed line a grant reaches the "
        "end of the answer.",
        point_plots.allocations,
    ),
    "beta": FigureSpec(
        "Sensitivity to the decay rate beta",
        "Fixed values of beta against the one CLEAR computes from the budget (star). Where tokens are scarce that is "
        "a million per token: such a star is drawn at the right edge.",
        line_plots.beta,
    ),
    "alpha": FigureSpec(
        "Scale of the initial velocity alpha",
        "Multiplying alpha multiplies the price and changes no grant.",
        line_plots.alpha,
    ),
    "noise": FigureSpec(
        "Robustness to noise in the forecast",
        "Every forecast is multiplied by log-normal noise; many draws. Bands are 95% intervals.",
        line_plots.noise,
    ),
    "index": FigureSpec(
        "Metered accounting: index against age",
        "The chance that the next tokens of a query bring a correct answer, per token they are expected to take, as "
        "forecast before the run. Five queries of the stream, named by their forecast length and chance. The query "
        "with the highest index generates next. A query stops at the cross, where its index falls below the price "
        "(dashed); one whose index starts below the price never starts, even if it would rise later.",
        line_plots.index,
    ),
    "landing_ages": FigureSpec(
        "Answers stopped at an age: cut, or asked for their final answer",
        "Percent correct if every answer is stopped at the same age.",
        line_plots.landing_ages,
    ),
    "landing": FigureSpec(
        "Landing: answers that would be cut are asked for their final answer",
        "The oracle pays every answer to its end. The clairvoyant also knows which answers are correct, and with "
        "landing the first age from which the final answer stays correct. Bands are 95% intervals.",
        line_plots.landing,
    ),
    "waterfall": FigureSpec(
        "Where the budget went",
        "From the budget to the tokens of correct answers.",
        point_plots.waterfalls,
    ),
}
