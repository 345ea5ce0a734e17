"""The figures of a reproduction: rows of results in, pictures out.

`FIGURES` has one for every table of rows that can be seen as a picture. Shares are in percent, budgets in
tokens per query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shadowprice.lab.compare import Row
from shadowprice.report import dotplots, lineplots
from shadowprice.report.panels import Panel, whole, write_figure
from shadowprice.report.rows import Rows, grouped, printable
from shadowprice.report.style import drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    title: str
    caption: str
    panels: Callable[[Rows], list[Panel]]


def figure(name: str, rows: Rows) -> Figure:
    """The figure of a table; to be saved inside `style.drawing`."""
    with drawing():
        return whole(FIGURES[name].panels(_safe(rows)), FIGURES[name].title)


def write_figures(rows: Rows, folder: Path) -> list[Path]:
    """Every figure that the rows allow, as SVG and PNG; returns the SVG files."""
    written = []
    for name, panels in drawn(rows).items():
        write_figure(panels, FIGURES[name].title, folder / name)
        written.append(folder / f"{name}.svg")
    return written


def drawn(rows: Rows) -> dict[str, list[Panel]]:
    """The panels of every figure that has something to show."""
    tables = grouped(_safe(row for row in rows if row.get("source") != "paper"), "table")
    found = {name: picture.panels(tables[(name,)]) for name, picture in FIGURES.items() if (name,) in tables}
    return {name: panels for name, panels in found.items() if panels}


def _safe(rows: Iterable[Row]) -> list[Row]:
    """Rows whose names can be drawn: in one line, and with nothing in them that no font has."""
    return [
        {name: " ".join(printable(value).split()) if isinstance(value, str) else value for name, value in row.items()}
        for row in rows
    ]


FIGURES = {
    "frontier": Picture(
        "Solved against tokens spent",
        "Higher and further left is better. The oracle knows every length beforehand, the clairvoyant also which "
        "answers are right; neither can be had. Bands are 95% intervals.",
        lineplots.frontier,
    ),
    "main": Picture(
        "Solved against the budget",
        "One budget for all queries of a stream, reserved in full. Bands are 95% intervals.",
        lineplots.main,
    ),
    "phase_transition": Picture(
        "Phase transition: solved and abandoned against the budget",
        "When tokens are scarce CLEAR abandons the long queries; the larger the budget, the fewer are left out.",
        lineplots.phase_transition,
    ),
    "s_curve": Picture(
        "The S-curve: solved against the limit of every answer",
        "The paper's three phases: strict, where nothing is solved; surge; and ample, where more tokens bring little.",
        lineplots.s_curve,
    ),
    "curves": Picture(
        "The utility curves: surge, tent and parabola",
        "What a grant is worth to one query, whose forecast (dotted) is the median one, at a budget of twice the mean "
        "forecast. Below the forecast nothing is gained; all three have their peak at the same place, and nobody buys "
        "more than that.",
        lineplots.curves,
    ),
    "rollouts": Picture(
        "Rollouts and the latent utility fitted to them",
        "Several answers to the same question by their length: how many there are, how many are right, and the "
        "paper's utility curve fitted to the right ones.",
        dotplots.rollouts,
    ),
    "stream_lengths": Picture(
        "Lengths of the answers in each stream",
        "True lengths of the answers drawn, by tier; the last bar holds all that are longer.",
        dotplots.stream_lengths,
    ),
    "predictor": Picture(
        "Forecast and true length",
        "On the dashed line the forecast is right. CLEAR lives on the order of the forecasts, not on their level.",
        dotplots.predictor,
    ),
    "second_predictor": Picture(
        "Forecast and true length, second model",
        "The same for the other model that is compared: on the dashed line the forecast is right.",
        dotplots.predictor,
    ),
    "calibration": Picture(
        "Calibration of the forecasts",
        "How often answers were right where such a chance was forecast, and how many lengths fell into the intervals "
        "forecast. On the dashed line the forecast can be believed.",
        dotplots.calibration,
    ),
    "allocations": Picture(
        "Who gets what, scarce and ample",
        "Each point is a query; in brackets the budget, tokens per query. Above the dashed line a grant reaches the "
        "end of the answer.",
        dotplots.allocations,
    ),
    "beta": Picture(
        "Sensitivity to the decay rate beta",
        "Fixed values of beta against the one CLEAR computes from the budget, starred. Where tokens are scarce that is "
        "a million per token: such a star stands at the right edge.",
        lineplots.beta,
    ),
    "alpha": Picture(
        "Scale of the initial velocity alpha",
        "Multiplying alpha multiplies the price and changes no grant.",
        lineplots.alpha,
    ),
    "noise": Picture(
        "Robustness to noise in the forecast",
        "Every forecast is multiplied by log-normal noise; many draws. Bands are 95% intervals.",
        lineplots.noise,
    ),
    "index": Picture(
        "Metered: age against index",
        "How likely the next tokens of a query are to bring a right answer, per token they are expected to take, as "
        "forecast before the run; five queries of the stream, named by the length and the chance to be right that are "
        "forecast. Whose index is highest generates next. A query that has not ended is left at the cross, where its "
        "index falls below the price (dashed); one whose index starts below it is not begun, even if it would rise "
        "later.",
        lineplots.index,
    ),
    "waterfall": Picture(
        "Where the budget went",
        "From the budget down to the tokens that bought right answers.",
        dotplots.waterfalls,
    ),
}
