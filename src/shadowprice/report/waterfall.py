"""Waterfall plots: where a budget of tokens went, part by part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shadowprice.report.style import BLUE, GREY, VERMILLION

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_COLOURS = {"total": (GREY, 0.75), "returned": (GREY, 0.4), "lost": (VERMILLION, 0.7), "useful": (BLUE, 1.0)}


@dataclass(frozen=True)
class Step:
    """A bar of a waterfall: the total, then the parts that are subtracted from it one by one.

    A part was returned (not used), lost (used for nothing), or is the useful rest.
    """

    label: str
    tokens: float
    kind: str = "lost"  # total, returned, lost, useful


def waterfall(
    steps: Sequence[Step], axes: Axes, *, show: Callable[[float], str] = "{:,.0f}".format, unit: str = "tokens"
) -> None:
    """Bars from top to bottom; each part starts where the one before it ended."""
    left, most = 0.0, max((step.tokens for step in steps), default=0) or 1
    for place, step in enumerate(steps):
        end = step.tokens if step.kind in ("total", "useful") else left
        left = end if step.kind == "total" else end - step.tokens
        colour, alpha = _COLOURS[step.kind]
        axes.barh(place, step.tokens, left=end - step.tokens, height=0.62, color=colour, alpha=alpha)
        axes.text(end + most * 0.015, place, show(step.tokens), va="center", fontsize=8.5)
    axes.set_yticks(range(len(steps)), [step.label for step in steps])
    axes.invert_yaxis()
    axes.set_xlim(0, most * 1.2)
    axes.set_xlabel(unit)
    axes.xaxis.set_major_formatter(lambda value, _: show(value))
    axes.locator_params(axis="x", nbins=4)
    axes.grid(visible=False, axis="y")


def waterfall_steps(row: Mapping[str, Any]) -> list[Step]:
    """From the budget to the tokens of correct answers."""
    unused = max(0, row["tokens"] - row["correct"] - row["wrong"] - row["truncated"])
    idle = min(unused, row.get("unused") or 0)
    return [
        Step("budget", row["tokens"], "total"),
        Step("never spent", unused - idle, "returned"),
        Step("granted, not used", idle, "returned"),
        Step("truncated answers", row["truncated"]),
        Step("wrong answers", row["wrong"]),
        Step("correct answers", row["correct"], "useful"),
    ]
