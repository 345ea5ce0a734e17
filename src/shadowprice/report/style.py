"""How figures look: accessible colours, one look per policy, Matplotlib without its global state."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shadowprice.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by people who see colours differently. In a page each becomes the
# variable of its name, so that the page can lighten it on a dark background.
INK, MUTED, RULE = "#1f2328", "#6b7178", "#dcdfe3"
BLUE, VERMILLION, GREEN, SKY, PURPLE, ORANGE, GREY = (
    "#0072b2", "#d55e00", "#009e73", "#56b4e9", "#cc79a7", "#e69f00", "#80858b",
)  # fmt: skip
VARIABLES = {
    INK: "currentColor",
    MUTED: "var(--muted)",
    RULE: "var(--rule)",
    BLUE: "var(--blue)",
    VERMILLION: "var(--vermillion)",
    GREEN: "var(--green)",
    SKY: "var(--sky)",
    PURPLE: "var(--purple)",
    ORANGE: "var(--orange)",
    GREY: "var(--grey)",
}
CYCLE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, GREY, INK)
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v")


@dataclass(frozen=True)
class Look:
    label: str
    colour: str
    dash: str = "-"
    marker: str = "o"
    practical: bool = True  # could be used: it knows no answer beforehand
    short: str = ""  # where there is little room

    @property
    def name(self) -> str:
        return self.short or self.label


POLICIES = {
    "uniform": Look("uniform", GREY, "--", "s"),
    "proportional": Look("proportional", ORANGE, ":", "v"),
    "tale": Look("TALE-EP", PURPLE, ":", "v"),
    "heuristic": Look("CLEAR (heuristic)", SKY, "--", "^", short="heuristic"),
    "auction": Look("CLEAR (auction)", PURPLE, "--", "D", short="auction"),
    "clear": Look("CLEAR", BLUE),
    "triangular": Look("CLEAR, triangular", SKY, "-.", "^", short="triangular"),
    "quadratic": Look("CLEAR, quadratic", ORANGE, "-.", "D", short="quadratic"),
    "expected": Look("expected", GREEN),
    "metered": Look("metered index", VERMILLION),
    "oracle": Look("oracle (true lengths)", INK, ":", "", practical=False, short="oracle"),
    "clairvoyant": Look("clairvoyant bound", INK, "-.", "", practical=False, short="clairvoyant"),
}


def look(policy: str) -> Look:
    return POLICIES.get(policy, Look(policy, MUTED, "-.", "D"))


def nth(number: int) -> Look:
    """The look of the n-th of things that have no name of their own: colour, dash and marker all differ."""
    return Look("", CYCLE[number % 8], DASHES[number % 4], MARKERS[number % 5])


def order(policy: str) -> tuple[int, str]:
    """Sorts policies as they are listed above, others after them."""
    known = list(POLICIES)
    return (known.index(policy) if policy in known else len(known)), policy


_SETTINGS: Any = {  # Matplotlib's own type lists every name there is
    "svg.fonttype": "none",  # text stays text: small, searchable, in the reader's font
    "svg.hashsalt": "shadowprice",  # the same picture gives the same file
    "text.parse_math": False,  # names of data sets may hold dollar signs
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],  # comes with Matplotlib, and is wider than most: no other font overlaps
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
    """Inside, Matplotlib draws in our style; outside, nothing has changed."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise MissingExtra("plots", "drawing figures") from None
    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the reader's fonts may have it
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches; to be called and saved inside `drawing`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
