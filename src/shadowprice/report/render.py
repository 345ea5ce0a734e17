"""Templates to pages: everything that comes from data is escaped, nothing is fetched from anywhere."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from shadowprice.errors import MissingExtra
from shadowprice.formats.flags import flag_in_words
from shadowprice.lab.compare import Row
from shadowprice.report.rows import printable, shorten

if TYPE_CHECKING:
    from jinja2 import Environment

_MAX_CHOICES = 40


def render(template: str, **data: Any) -> str:
    """One self-contained page from `templates/TEMPLATE.html.j2`."""
    environment = _environment()
    folder = files("shadowprice.report") / "templates"
    style, script = ((folder / name).read_text("utf-8") for name in ("page.css", "page.js"))
    # If escaping ever failed, a browser would still run no script but ours and fetch nothing.
    script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment.get_template(f"{template}.html.j2")
    return page.render(style=style, script=script, script_hash=script_hash, contents=[], **data)


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise MissingExtra("report", "making a page") from None

    def finalize(value: Any) -> Any:
        if isinstance(value, Markup):
            return value
        return "" if value is None else printable(str(value))

    environment = Environment(
        loader=PackageLoader("shadowprice.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        extensions=["jinja2.ext.do"],
    )
    for function in (choices, filled, fixed, flag_in_words, number, one_line, signed, tag_class):
        environment.filters[function.__name__] = function
    return environment


# --- filters -----------------------------------------------------------------------------------


def number(value: Any, digits: int = 0) -> str:
    """1,234 or 0.0012; empty for None."""
    if value is None or isinstance(value, bool):
        return ""
    if not isinstance(value, int | float):
        return str(value)
    if isinstance(value, float) and digits == 0 and 0 < abs(value) < 10 and value != round(value):
        return f"{value:.3g}"
    return f"{value:,.{digits}f}"


def fixed(value: float, digits: int = 1) -> str:
    return f"{value:.{digits}f}".replace("-", "−")


def signed(value: float, digits: int = 1) -> str:
    """+1.5, −1.5, or ±0.0 if it rounds to zero."""
    rounded = round(value, digits)
    return f"{'+' if rounded > 0 else '−' if rounded < 0 else '±'}{abs(value):.{digits}f}"


def one_line(value: Any, limit: int) -> str:
    return shorten(" ".join(str("" if value is None else value).split()), limit)


def tag_class(value: Any) -> str:
    """The words as a CSS class; anything unusual has none."""
    return f"is-{value}".replace(" ", "_") if re.fullmatch(r"[a-z_ ]{1,20}", str(value)) else ""


# --- tables ------------------------------------------------------------------------------------


def filled(columns: Iterable[tuple[str, ...]], rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The columns (field, title, kind) that are not empty in all rows."""
    return [column for column in columns if any(row.get(column[0]) not in (None, "") for row in rows)]


def choices(rows: Sequence[Row], field: str) -> list[str]:
    """The values to filter a column by; none if there are too few or too many."""
    values = sorted({str(row[field]) for row in rows if row.get(field) is not None})
    return values if 1 < len(values) <= _MAX_CHOICES else []


def definitions(values: Iterable[tuple[str, Any]]) -> list[tuple[str, str]]:
    """Names and values as text; nested values are flattened, empty ones left out."""
    return [(name, text) for name, value in values if value not in (None, "", [], {}) for text in _flattened(value)]


def _flattened(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [", ".join(f"{k} {v}" for k, v in value.items())]
    if isinstance(value, list | tuple):
        if any(isinstance(item, Mapping) for item in value):
            return [text for item in value for text in _flattened(item)]
        return [", ".join(map(str, value))]
    return [str(value)]
