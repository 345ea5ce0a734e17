"""Figures made of panels: side by side in a file, one below the other on a phone.

In a file a figure is whole, with its title and one legend. In a page every panel is a picture of its own
that flows with the text, in the page's font and colours, and the legend is text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shadowprice.formats.files import replacing
from shadowprice.report.rows import short
from shadowprice.report.style import VARIABLES, drawing, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NARROW, WIDE, SMALL = (4.3, 3.0), (7.6, 3.3), (3.5, 2.7)  # inches
_FEW = 4  # panels; more are small


@dataclass(frozen=True)
class Panel:
    """One pair of axes. What `draw` labels goes into the legend, once for all panels."""

    title: str
    draw: Callable[[Axes], None]
    height: float = NARROW[1]


def whole(panels: Sequence[Panel], title: str) -> Figure:
    """All panels in one figure; to be called and saved inside `drawing`."""
    columns = 1 if len(panels) == 1 else 3 if len(panels) > _FEW else 2
    rows = math.ceil(len(panels) / columns)
    height = max(panel.height for panel in panels)
    figure = new_figure({1: WIDE, 2: NARROW, 3: SMALL}[columns][0] * columns, height * rows + 0.8)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, place in zip(panels, axes, strict=False):
        _fill(place, panel, figure.get_figwidth() / columns)
    for place in axes[len(panels) :]:
        place.set_visible(False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    if entries := _legend(axes):
        most = max(1, int(figure.get_figwidth() / (0.7 + 0.085 * max(map(len, entries)))))  # about a letter's width
        figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=min(most, len(entries)))
    return figure


def write_figure(panels: Sequence[Panel], title: str, base: Path) -> None:
    """Writes `base`.svg and `base`.png."""
    with drawing():
        figure = whole(panels, title)
        for suffix in ("svg", "png"):
            with replacing([base.with_suffix(f".{suffix}")]) as (file,):
                metadata = {"Date": None, "Creator": None} if suffix == "svg" else {"Software": None}
                figure.savefig(file, format=suffix, dpi=160, metadata=metadata, facecolor="white")


def page_figure(panels: Sequence[Panel], name: str, about: str) -> str:
    """The figure as HTML: a legend and inline pictures; `name` keeps their ids apart from those of other figures."""
    pictures: list[str] = []
    legends: dict[str, Any] = {}
    # A panel alone has the whole width of a page, and another picture for a narrow one.
    sizes = {"wide": WIDE, "narrow": NARROW} if len(panels) == 1 else {"": SMALL if len(panels) > _FEW else NARROW}
    with drawing():
        for number, panel in enumerate(panels, start=1):
            for kind, (width, height) in sizes.items():
                figure = new_figure(width, max(height, panel.height))
                axes = figure.subplots()
                _fill(axes, panel, width)
                legends |= _legend([axes])
                spoken = f"{about}: {panel.title}" if panel.title else about
                svg = _inline(figure, f"{name}-{number}{kind[:1]}-", spoken)
                pictures.append(f'<div class="panel {kind}">{svg}</div>')
    entries = "".join(f"<li>{_swatch(handle)}{escape(label)}</li>" for label, handle in legends.items())
    legend = f'<ul class="legend">{entries}</ul>' if entries else ""
    kind = "alone" if len(panels) == 1 else "many" if len(panels) > _FEW else "few"
    return f'{legend}<div class="panels {kind}">{"".join(pictures)}</div>'


def _fill(axes: Axes, panel: Panel, width: float) -> None:
    panel.draw(axes)
    axes.set_title(short(panel.title, int(9.5 * width)))  # about as many letters as there is room for


def _legend(axes: Iterable[Axes]) -> dict[str, Any]:
    """What is drawn how, each label once."""
    found: dict[str, Any] = {}
    for each in axes:
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return found


# --- Matplotlib's SVG into a page --------------------------------------------------------------

_TAG = re.compile(r"<[^>]+>")
_LONG = re.compile(r"-?\d+\.\d{3,}")
_ID = re.compile(r'(\bid="|href="#|url\(#)')
_FONT = re.compile(r"font: (?:(\d{3}|bold) )?([\d.]+)px [^;\"]*")  # Matplotlib up to 3.10
_FAMILY = re.compile(r"font-family: [^;\"]*;? ?")  # and since
_USED = re.compile(r'(?:href="#|url\(#)([^")]+)')


def _inline(figure: Figure, prefix: str, about: str) -> str:
    file = BytesIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = file.getvalue().decode()
    box = re.search(r'viewBox="([^"]+)"', text)
    assert box is not None
    text = text[text.index(">", text.index("<svg")) + 1 :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|\n", "", text, flags=re.DOTALL)
    used = set(_USED.findall(text))
    text = re.sub(r' id="([^"]+)"', lambda m: m[0] if m[1] in used else "", text)
    text = _TAG.sub(lambda m: _for_a_page(m[0], prefix), text)  # what stands between tags is the reader's
    return f'<svg viewBox="{box[1]}" role="img" aria-label="{escape(about)}">{_short_styles(text, prefix)}'


def _for_a_page(tag: str, prefix: str) -> str:
    """A tag with ids of its own, the page's colours and font, and no more digits than can be seen."""
    tag = _ID.sub(rf"\g<1>{prefix}", tag)
    tag = _LONG.sub(lambda m: f"{float(m[0]):.2f}", tag)
    tag = _FONT.sub(lambda m: f"font-size: {m[2]}px" + (f"; font-weight: {m[1]}" if m[1] else ""), tag)
    tag = _FAMILY.sub("", tag)
    for colour, variable in VARIABLES.items():
        tag = tag.replace(colour, variable)
    return tag


def _short_styles(text: str, prefix: str) -> str:
    """Hundreds of points share a style: it is written once."""
    styles = re.findall(r'<use [^>]*?style="([^"]*)"', text)
    for number, style in enumerate(dict.fromkeys(styles)):
        text = text.replace(f'style="{style}"', f'class="{prefix}{number}"')
        text = text.replace("</svg>", f"<style>.{prefix}{number} {{ {style} }}</style></svg>")
    return text


# --- legends as text ---------------------------------------------------------------------------

_DASHES = {"-": "", "--": "5 3", "-.": "6 2.5 1.5 2.5", ":": "1.5 2.5"}
_SHAPES = {
    "o": "M12 3a3 3 0 1 0 .01 0Z",
    "s": "M9 3h6v6h-6Z",
    "^": "M12 2.5l3.5 6.5h-7Z",
    "v": "M12 9.5l3.5-6.5h-7Z",
    "D": "M12 2l4 4-4 4-4-4Z",
    "x": "M9 3l6 6M15 3l-6 6",
    "*": "M12 .5l1.5 3.8 4 .2-3.1 2.6 1 4L12 9l-3.4 2.1 1-4L6.5 4.5l4-.2Z",
}


def _swatch(handle: Any) -> str:
    """How a line or an area looks."""
    from matplotlib.colors import to_hex

    if not hasattr(handle, "get_linestyle") or not hasattr(handle, "get_marker"):
        area = handle[0] if isinstance(handle, tuple) else handle  # bars come as a tuple
        colour, alpha = _variable(to_hex(area.get_facecolor())), area.get_alpha() or 1.0
        return _picture(f'<path d="M4 1h16v10h-16Z" fill="{colour}" fill-opacity="{alpha:g}"/>')
    colour = _variable(to_hex(handle.get_color()))
    parts = []
    if handle.get_linestyle() in _DASHES:
        dash = _DASHES[handle.get_linestyle()]
        parts.append(f'<path d="M1 6h22" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>')
    if shape := _SHAPES.get(str(handle.get_marker())):
        fill = "none" if handle.get_marker() == "x" else colour
        parts.append(f'<path d="{shape}" fill="{fill}" stroke="{colour}"/>')
    return _picture("".join(parts))


def _variable(colour: str) -> str:
    return VARIABLES.get(colour, colour)


def _picture(content: str) -> str:
    return f'<svg class="swatch" viewBox="0 0 24 12" aria-hidden="true">{content}</svg>'
