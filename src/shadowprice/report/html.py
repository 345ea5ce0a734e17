"""Pieces of a report: everything that comes from data is escaped, nothing is fetched from anywhere."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from shadowprice.report.rows import printable

_MOST_TEXT = 200  # characters in a cell of a long table


def text(value: Any) -> str:
    """A value as text that is safe in HTML, between tags and in quoted attributes."""
    return escape(printable("" if value is None else str(value)))


def number(value: Any, digits: int = 0) -> str:
    """1,234 or 0.0012; nothing for nothing."""
    if value is None or isinstance(value, bool):
        return ""
    if not isinstance(value, int | float):
        return text(value)
    if isinstance(value, float) and digits == 0 and 0 < abs(value) < 10 and value != round(value):
        return f"{value:.3g}"
    return f"{value:,.{digits}f}"


def section(name: str, title: str, *parts: str, about: str = "") -> str:
    lead = f'<p class="about">{about}</p>' if about else ""
    return f'<section id="{name}"><h2>{text(title)}</h2>{lead}{"".join(parts)}</section>'


def figure(content: str, caption: str, title: str = "") -> str:
    heading = f"<h3>{text(title)}</h3>" if title else ""
    return f"<figure>{heading}{content}<figcaption>{text(caption)}</figcaption></figure>"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A few numbers that matter, large."""
    return (
        '<dl class="facts">' + "".join(f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, v in pairs) + "</dl>"
    )


def definitions(pairs: Iterable[tuple[str, Any]]) -> str:
    """Names and values, one below the other; what is nested is told flat."""
    told = [(name, said) for name, value in pairs for said in _told(value)]
    rows = "".join(f"<tr><th>{text(name)}</th><td><code>{text(said)}</code></td></tr>" for name, said in told)
    return f'<div class="scroll"><table class="plain">{rows}</table></div>'


def _told(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [", ".join(f"{k} {v}" for k, v in value.items())] if value else []
    if isinstance(value, list | tuple):
        if any(isinstance(each, Mapping) for each in value):
            return [said for each in value for said in _told(each)]
        return [", ".join(map(str, value))]
    return [] if value is None else [str(value)]


@dataclass(frozen=True)
class Column:
    """A column of a table of records: its field, its title, and what is in it."""

    field: str
    title: str
    kind: str = "number"  # number, text, or tag: one of a few words
    digits: int = 0


def table(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], kind: str = "") -> str:
    """Rows as they are, without columns in which there is nothing. Of kind `stack`, on a phone cells are stacked."""
    columns = _filled(columns, rows)
    head = "".join(f'<th scope="col" class="of-{column.kind}">{text(column.title)}</th>' for column in columns)
    body = "".join(f"<tr>{''.join(_cell(column, row, most=1000) for column in columns)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _filled(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    return [column for column in columns if any(row.get(column.field) not in (None, "") for row in rows)]


def records(name: str, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], *, most: int = 5000) -> str:
    """A table to search, filter and sort; without scripts it is simply the table."""
    columns = _filled(columns, rows)
    head = "".join(
        f'<th scope="col" class="of-{column.kind}"><button type="button">{text(column.title)}</button></th>'
        for column in columns
    )
    body = "".join(f"<tr>{''.join(_cell(column, row) for column in columns)}</tr>" for row in rows[:most])
    left_out = f" The first {most:,} of {len(rows):,} are shown." if len(rows) > most else ""
    tags = [
        (
            place,
            column.title,
            sorted({str(row[column.field]) for row in rows[:most] if row.get(column.field) is not None}),
        )
        for place, column in enumerate(columns)
        if column.kind == "tag"
    ]
    choices = "".join(
        f'<label>{text(title)}<select data-column="{place}"><option value="">all</option>'
        + "".join(f"<option>{text(value)}</option>" for value in values)
        + "</select></label>"
        for place, title, values in tags
        if 1 < len(values) <= 40
    )
    return (
        f'<div class="records" id="{name}"><div class="tools"><label>search<input type="search" '
        f'placeholder="any words of a row" autocomplete="off"></label>{choices}'
        f'<output role="status">{min(most, len(rows)):,} rows</output></div>'
        f'<div class="scroll tall" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        f'</div><p class="about">Click a column to sort by it.{left_out}</p></div>'
    )


def _cell(column: Column, row: Mapping[str, Any], most: int = _MOST_TEXT) -> str:
    value = row.get(column.field)
    if column.kind == "number":
        sort = f' data-value="{value!r}"' if isinstance(value, int | float) else ""
        return f"<td{sort}>{number(value, column.digits)}</td>"
    if column.kind == "tag":
        return f'<td><span class="tag {_class(value)}">{text(value)}</span></td>'
    said = " ".join(str(value if value is not None else "").split())
    if len(said) > most:
        said = said[: most - 1] + "…"
    return f'<td class="of-text"><div>{text(said)}</div></td>'


def _class(value: Any) -> str:
    """The word as the name of a style; anything unusual has none."""
    return f"is-{value}" if re.fullmatch(r"[a-z]{1,20}", str(value)) else ""


def page(title: str, eyebrow: str, verdict: str, lead: str, body: str, footer: str) -> str:
    """The whole document. `verdict`, `lead` and `body` are HTML already."""
    here = files("shadowprice.report")
    style, script = ((here / name).read_text("utf-8") for name in ("report.css", "report.js"))
    # Whatever might slip through the escaping, a browser runs no script but ours and fetches nothing.
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{allowed}'"
    contents = "".join(
        f'<a href="#{name}">{heading}</a>'
        for name, heading in re.findall(r'<section id="([^"]+)"><h2>(.*?)</h2>', body)
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<header><p class="eyebrow">{text(eyebrow)}</p><h1>{verdict}</h1>{lead}<nav>{contents}</nav></header>\n'
        f"<main>\n{body}\n</main>\n<footer>{footer}</footer>\n<script>{script}</script>\n</body>\n</html>\n"
    )
