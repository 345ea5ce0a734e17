"""How figures look: accessible colours, one look per policy, Matplotlib without its global state."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shadowprice.errors import MissingExtra
from shadowprice.report.labels import Variant

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, safe for colour-blind readers. In a page each becomes a CSS variable of the same
# name, so that the page can lighten it on a dark background.
INK, MUTED, RULE = "#1f2328", "#6b7178", "#dcdfe3"
BLUE, VERMILLION, GREEN, SKY, PURPLE, ORANGE, GREY = (
    "#0072b2", "#d55e00", "#009e73", "#56b4e9", "#cc79a7", "#e69f00", "#80858b",
)  # fmt: skip
VARIABLES = {
    INK: "currentColor", MUTED: "var(--muted)", RULE: "var(--rule)", BLUE: "var(--blue)", SKY: "var(--sky)",
    VERMILLION: "var(--vermillion)", GREEN: "var(--green)", PURPLE: "var(--purple)", ORANGE: "var(--orange)",
    GREY: "var(--grey)",
}  # fmt: skip
CYCLE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, GREY, INK)
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v")


@dataclass(frozen=True)
class Look:
    colour: str
    dash: str = "-"
    marker: str = "o"


POLICIES = {
    "uniform": Look(GREY, "--", "s"),
    "proportional": Look(ORANGE, ":", "v"),
    "tale": Look(PURPLE, ":", "v"),
    "heuristic": Look(SKY, "--", "^"),
    "auction": Look(PURPLE, "--", "D"),
    "clear": Look(BLUE),
    "triangular": Look(SKY, "-.", "^"),
    "quadratic": Look(ORANGE, "-.", "D"),
    "expected": Look(GREEN),
    "index": Look(VERMILLION),
    "oracle": Look(INK, ":", ""),
    "clairvoyant": Look(INK, "-.", ""),
}


def look(variant: Variant) -> Look:
    """A policy that reclaims has its own marker, one that lands its own line."""
    chosen = POLICIES.get(variant.policy, Look(MUTED, "-.", "D"))
    chosen = replace(chosen, marker="P") if variant.reclaim else chosen
    return replace(chosen, dash="--") if variant.landing else chosen


def nth(number: int) -> Look:
    """The look of the n-th of several unnamed things: colour, dash and marker all differ."""
    return Look(CYCLE[number % 8], DASHES[number % 4], MARKERS[number % 5])


_SETTINGS: Any = {  # Matplotlib's own type is a Literal of every setting
    "svg.fonttype": "none",  # text stays text: small, searchable, in the reader's font
    "svg.hashsalt": "shadowprice",  # the same figure gives the same file
    "text.parse_math": False,  # names of datasets may contain dollar signs
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],  # ships with Matplotlib; wider than most, so text in other fonts fits too
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlecolor": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.7,
    "lines.markersize": 4,
}


@contextmanager
def drawing() -> Iterator[None]:
    """Matplotlib draws in our style inside this context; its global settings stay as they were."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise MissingExtra("report", "drawing figures") from None
    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the reader's fonts may have it
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches; create and save it inside `drawing`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
