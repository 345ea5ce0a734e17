"""Figures and their plots: written to a file as one image, or placed in a page one plot at a time.

In a file a figure has its title and one legend. In a page every plot is an inline SVG that flows with the text,
in the page's font and colours, and the legend is text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shadowprice.formats.files import replacing
from shadowprice.report.rows import shorten
from shadowprice.report.style import VARIABLES, drawing, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NARROW, WIDE, SMALL = (4.3, 3.0), (7.6, 3.3), (3.5, 2.7)  # inches
_FEW = 4  # plots; more are small


@dataclass(frozen=True)
class Plot:
    """One pair of axes. What `draw` labels goes into the legend, once for all plots of a figure."""

    title: str
    draw: Callable[[Axes], None]
    height: float = NARROW[1]


def combine(plots: Sequence[Plot], title: str) -> Figure:
    """All plots in one figure; call this, and save the figure, inside `drawing`."""
    columns = 1 if len(plots) == 1 else 3 if len(plots) > _FEW else 2
    rows = math.ceil(len(plots) / columns)
    height = max(plot.height for plot in plots)
    figure = new_figure({1: WIDE, 2: NARROW, 3: SMALL}[columns][0] * columns, height * rows + 0.8)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for plot, place in zip(plots, axes, strict=False):
        _fill(place, plot, figure.get_figwidth() / columns)
    for place in axes[len(plots) :]:
        place.set_visible(False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    if handles := _handles(axes):
        fitting = max(1, int(figure.get_figwidth() / (0.7 + 0.085 * max(map(len, handles)))))  # inches per letter
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(fitting, len(handles)))
    return figure


def write_figure(plots: Sequence[Plot], title: str, base: Path) -> None:
    """Writes `base`.svg and `base`.png."""
    with drawing():
        figure = combine(plots, title)
        for suffix in ("svg", "png"):
            with replacing([base.with_suffix(f".{suffix}")]) as (file,):
                metadata = {"Date": None, "Creator": None} if suffix == "svg" else {"Software": None}
                figure.savefig(file, format=suffix, dpi=160, metadata=metadata, facecolor="white")


def _fill(axes: Axes, plot: Plot, width: float) -> None:
    plot.draw(axes)
    axes.set_title(shorten(plot.title, int(9.5 * width)))  # letters per inch


def _handles(axes: Iterable[Axes]) -> dict[str, Any]:
    """Matplotlib's legend handles, each label once."""
    entries: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    return entries


# --- figures in a page -------------------------------------------------------------------------


@dataclass(frozen=True)
class PageFigure:
    """A figure as the templates need it."""

    title: str
    caption: str
    layout: str  # alone, few or many
    plots: Sequence[dict[str, str]]  # kind (wide, narrow or neither), view_box, description, content: SVG
    legend: Sequence[dict[str, Any]]  # label, colour, and as far as they apply alpha, dash, shape, filled


def page_figure(plots: Sequence[Plot], name: str, title: str, caption: str = "") -> PageFigure:
    """`name` keeps the ids of this figure apart from those of others; screen readers read the title."""
    inline = []
    handles: dict[str, Any] = {}
    # A plot alone fills the width of the page, and has a second version for narrow screens.
    sizes = {"wide": WIDE, "narrow": NARROW} if len(plots) == 1 else {"": SMALL if len(plots) > _FEW else NARROW}
    with drawing():
        for number, plot in enumerate(plots, start=1):
            for kind, (width, height) in sizes.items():
                figure = new_figure(width, max(height, plot.height))
                axes = figure.subplots()
                _fill(axes, plot, width)
                handles |= _handles([axes])
                about = {"kind": kind, "description": f"{title}: {plot.title}" if plot.title else title}
                inline.append(about | _inline(figure, f"{name}-{number}{kind[:1]}-"))
        legend = [{"label": label, **_swatch(handle)} for label, handle in handles.items()]
    layout = "alone" if len(plots) == 1 else "many" if len(plots) > _FEW else "few"
    return PageFigure(title, caption, layout, inline, legend)


_TAG = re.compile(r"<[^>]+>")
_LONG = re.compile(r"-?\d+\.\d{3,}")
_ID = re.compile(r'(\bid="|href="#|url\(#)')
_FONT = re.compile(r"font: (?:(\d{3}|bold) )?([\d.]+)px [^;\"]*")  # Matplotlib up to 3.10
_FAMILY = re.compile(r"font-family: [^;\"]*;? ?")  # and later
_OWN_ID = re.compile(r' id="([^"]+)"')
_USED = re.compile(r'(?:href="#|url\(#)([^")]+)')


def _inline(figure: Figure, prefix: str) -> dict[str, str]:
    file = BytesIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = file.getvalue().decode()
    box = re.search(r'viewBox="([^"]+)"', text)
    assert box is not None
    text = text[text.index(">", text.index("<svg")) + 1 : text.rindex("</svg>")]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|\n", "", text, flags=re.DOTALL)
    used = set(_USED.findall(text))
    text = _TAG.sub(lambda m: _adapted(m[0], prefix, used), text)  # only tags: text between them is not changed
    return {"view_box": box[1], "content": _shared_styles(text, prefix)}


def _adapted(tag: str, prefix: str, used: Container[str]) -> str:
    """A tag with unique ids if they are used, the page's colours and font, and no invisible digits."""
    tag = _OWN_ID.sub(lambda m: m[0] if m[1] in used else "", tag)
    tag = _ID.sub(rf"\g<1>{prefix}", tag)
    tag = _LONG.sub(lambda m: f"{float(m[0]):.2f}", tag)
    tag = _FONT.sub(lambda m: f"font-size: {m[2]}px" + (f"; font-weight: {m[1]}" if m[1] else ""), tag)
    tag = _FAMILY.sub("", tag)
    for colour, variable in VARIABLES.items():
        tag = tag.replace(colour, variable)
    return tag


def _shared_styles(text: str, prefix: str) -> str:
    """Hundreds of points share a style: it is written once."""
    styles = re.findall(r'<use [^>]*?style="([^"]*)"', text)
    for number, style in enumerate(dict.fromkeys(styles)):
        text = text.replace(f'style="{style}"', f'class="{prefix}{number}"')
        text += f"<style>.{prefix}{number} {{ {style} }}</style>"
    return text


_DASHES = {"-": "", "--": "5 3", "-.": "6 2.5 1.5 2.5", ":": "1.5 2.5"}
_SHAPES = {
    "o": "M12 3a3 3 0 1 0 .01 0Z",
    "s": "M9 3h6v6h-6Z",
    "^": "M12 2.5l3.5 6.5h-7Z",
    "v": "M12 9.5l3.5-6.5h-7Z",
    "D": "M12 2l4 4-4 4-4-4Z",
    "P": "M10.7 2h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7Z",
    "x": "M9 3l6 6M15 3l-6 6",
    "*": "M12 .5l1.5 3.8 4 .2-3.1 2.6 1 4L12 9l-3.4 2.1 1-4L6.5 4.5l4-.2Z",
}


def _swatch(handle: Any) -> dict[str, Any]:
    """How a line or an area looks."""
    from matplotlib.colors import to_hex

    if not hasattr(handle, "get_linestyle") or not hasattr(handle, "get_marker"):
        area = handle[0] if isinstance(handle, tuple) else handle  # bars come as a tuple
        colour = to_hex(area.get_facecolor())
        return {"colour": VARIABLES.get(colour, colour), "alpha": area.get_alpha() or 1.0}
    colour, marker = to_hex(handle.get_color()), str(handle.get_marker())
    line = {"dash": _DASHES.get(handle.get_linestyle()), "shape": _SHAPES.get(marker), "filled": marker != "x"}
    return {"colour": VARIABLES.get(colour, colour), **line}
