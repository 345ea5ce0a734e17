"""Plots with lines: what happens as a budget, a parameter or noise grows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from shadowprice.lab.compare import Row
from shadowprice.report.labels import Variant, accounting_of, by_accounting, by_variant
from shadowprice.report.plot import Plot
from shadowprice.report.rows import Rows, describe, grouped, known, shorten, words
from shadowprice.report.style import INK, MUTED, VERMILLION, Look, look, nth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

HEADLINE = ("uniform", "clear", "expected", "index")
_CURVES = ("triangular", "quadratic")  # too close to CLEAR's own line to be seen: they have a table


def _line(axes: Axes, rows: Rows, x: str, how: Look, label: str, y: str = "solved", *, band: bool = True) -> None:
    """A line through the rows in the order of `x`, with its 95% interval where there is one."""
    rows = sorted(known(rows, x, y), key=lambda row: row[x])
    at = [row[x] for row in rows]
    banded = known(rows, "ci_low", "ci_high")
    if band and y == "solved" and banded:
        low, high = [row["ci_low"] for row in banded], [row["ci_high"] for row in banded]
        axes.fill_between([row[x] for row in banded], low, high, color=how.colour, alpha=0.12, lw=0)
    axes.plot(at, [row[y] for row in rows], how.dash, color=how.colour, marker=how.marker, label=label)


def _policies(x: str, label: str, rows: Rows, axes: Axes) -> None:
    """A line for each. Only the most important have a band: more than a few cannot be distinguished."""
    for variant, of_variant in by_variant(rows).items():
        if variant.policy not in _CURVES:
            _line(axes, of_variant, x, look(variant), variant.label(), band=variant.policy in HEADLINE)
    if x == "noise":
        axes.set_xlabel(label)
    else:
        token_axis(axes.xaxis, (row[x] for row in rows), label)
    _percent(axes)


def _percent(axes: Axes) -> None:
    axes.set_ylabel("correct, % of queries")
    axes.set_ylim(bottom=0)


def token_axis(axis: Axis, values: Iterable[float], label: str) -> None:
    """A log scale with ticks at the values themselves where they are few, otherwise at powers of two."""
    values = sorted({float(value) for value in values if value is not None and value > 0})
    axis.set_label_text(label)
    if len(values) < 2:
        return
    axis.set_ticks([])
    log_scale(axis)
    widest = np.log2(values[-1] / values[0])
    if len(values) > 6 or np.diff(np.log2(values)).min() < widest / 9:
        step = max(1, round(widest / 4))
        powers = range(round(np.log2(values[0])), int(np.ceil(np.log2(values[-1]))) + 1, step)
        values = [2.0**power for power in powers]
    axis.set_ticks(values, labels=[f"{value:,.0f}" if value >= 10 else f"{value:.3g}" for value in values])


def log_scale(axis: Axis) -> None:
    """A log scale whose ticks read 0.001, 1e-08, 100."""
    scale = axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale
    scale("log")
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.axes.minorticks_off()


def frontier(rows: Rows) -> list[Plot]:
    rows = known(_one_stream(rows), "tokens_spent", "solved")
    return [
        Plot(
            f"{words(accounting)} accounting" if accounting else "",
            partial(_policies, "tokens_spent", "tokens spent per query", of_accounting),
        )
        for accounting, of_accounting in by_accounting(rows).items()
    ]


def _one_stream(rows: Rows) -> list[Row]:
    """The rows of the balanced stream, or of the first: a frontier is about one stream."""
    streams = grouped(rows, "stream")
    return streams.get(("balanced",)) or next(iter(streams.values()), [])


def per_stream(rows: Rows, draw: Callable[[Rows, Axes], None]) -> list[Plot]:
    streams = grouped(rows, "stream")
    return [Plot(words(stream) if stream else "", partial(draw, of_stream)) for (stream,), of_stream in streams.items()]


def main(rows: Rows) -> list[Plot]:
    reserved = [row for row in rows if accounting_of(row) in (None, "reserved")]
    return per_stream(reserved, partial(_policies, "budget", "budget, tokens per query"))


def phase_transition(rows: Rows) -> list[Plot]:
    def draw(some: Rows, axes: Axes) -> None:
        for variant, line in by_variant(some).items():
            _line(axes, line, "budget", look(variant), f"correct, {variant.label()}")
            if variant.policy == "clear":
                declined = Look(VERMILLION, ":", "P" if variant.reclaim else "x")
                _line(axes, line, "budget", declined, f"declined by {variant.label()}", y="abandoned")
        token_axis(axes.xaxis, (row["budget"] for row in some), "budget, tokens per query")
        axes.set_ylabel("% of queries")
        axes.set_ylim(0, 102)

    return per_stream([row for row in rows if row.get("policy") in ("uniform", "clear")], draw)


def landing(rows: Rows) -> list[Plot]:
    """CLEAR without landings is not drawn: it is in the table, and far below."""
    shown = [row for row in rows if row.get("policy") != "clear" or row.get("landing")]
    return per_stream(shown, partial(_policies, "budget", "budget, tokens per query"))


def landing_ages(rows: Rows) -> list[Plot]:
    def draw(axes: Axes) -> None:
        for number, ((stopped,), of_kind) in enumerate(grouped(rows, "stopped").items()):
            _line(axes, of_kind, "tokens", nth(number), words(stopped))
        axes.set_xlabel("age at which every answer is stopped, tokens")
        _percent(axes)

    return [Plot("", draw)]


def s_curve(rows: Rows) -> list[Plot]:
    def draw(axes: Axes) -> None:
        for number, ((dataset,), of_dataset) in enumerate(grouped(rows, "dataset").items()):
            _line(axes, of_dataset, "budget", nth(number), shorten(words(dataset or "all")))
        token_axis(axes.xaxis, (row["budget"] for row in rows), "limit of every answer, tokens")
        _percent(axes)

    return [Plot("", draw)]


def noise(rows: Rows) -> list[Plot]:
    label = "noise added to the forecast, sigma of its log"
    return [
        Plot(describe(stream, budget), partial(_policies, "noise", label, of_cell))
        for (stream, budget), of_cell in grouped(rows, "stream", "budget").items()
    ]


def beta(rows: Rows) -> list[Plot]:
    def draw(some: Rows, axes: Axes) -> None:
        most = max((row["beta"] for row in some if not row.get("adaptive")), default=1.0)
        for number, ((budget,), line) in enumerate(grouped(some, "budget").items()):
            fixed = [row for row in line if not row.get("adaptive")]
            _line(axes, fixed, "beta", nth(number), f"{budget:,g} tokens per query")
            for star in known((row for row in line if row.get("adaptive")), "beta", "solved"):
                at = min(star["beta"], 3 * most)
                axes.plot(at, star["solved"], "*", color=nth(number).colour, ms=13, mec="white", mew=0.8)
        axes.plot([], [], "*", color=INK, ms=9, label="chosen by CLEAR itself")
        axes.set_xlabel("decay rate beta, per token")
        log_scale(axes.xaxis)
        _percent(axes)

    return per_stream(known(rows, "beta"), draw)


def alpha(rows: Rows) -> list[Plot]:
    def draw(field: str, axes: Axes) -> None:
        for number, ((stream, budget), of_cell) in enumerate(grouped(rows, "stream", "budget").items()):
            _line(axes, of_cell, "alpha", nth(number), describe(stream, budget), y=field)
        axes.set(xlabel="initial velocity alpha, utility per token", ylabel="price, utility per token")
        log_scale(axes.xaxis)
        if field == "price":
            log_scale(axes.yaxis)
        else:
            _percent(axes)

    plots = [Plot("correct: does not change", partial(draw, "solved"))]
    if known(rows, "price"):
        plots.append(Plot("price: proportional", partial(draw, "price")))
    return plots


def curves(rows: Rows) -> list[Plot]:
    def draw(axes: Axes) -> None:
        for (policy,), of_policy in grouped(rows, "policy").items():
            how, curve = look(Variant(policy)), "surge (CLEAR)" if policy == "clear" else policy
            tokens, utility = ([row[field] for row in of_policy] for field in ("tokens", "utility"))
            axes.plot(tokens, utility, how.dash, color=how.colour, label=curve)
        axes.axvline(rows[0]["threshold"], color=MUTED, lw=0.9, ls=":")
        axes.set(xlabel="grant, tokens", ylabel="utility (its scale is free)")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)

    return [Plot("", draw)] if rows else []


def index(rows: Rows) -> list[Plot]:
    rows = [row for row in known(rows, "age", "index") if row["index"] > 0]
    if not rows:
        return []
    price, most, least = rows[0]["price"], max(row["index"] for row in rows), min(row["index"] for row in rows)

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import LogLocator

        for number, of_query in enumerate(grouped(rows, "query").values()):
            one, how = of_query[0], nth(number)
            end = f"stops at {one['stop']:,}" if one["stop"] else "never starts"
            label = f"{one['forecast_tokens']:,.0f} tokens, {100 * one['forecast_solve']:.0f}%: {end}"
            axes.plot(
                [r["age"] for r in of_query], [r["index"] for r in of_query], how.dash, color=how.colour, label=label
            )
            for row in of_query:
                if row["age"] == max(1, row["stop"]):  # on a log scale ages begin with 1
                    axes.plot(row["age"], row["index"], "x", color=how.colour, ms=8, mew=2.2)
        if price > 0:
            axes.axhline(price, color=INK, lw=1.2, ls="--", label=f"price, {price:.2g} per token")
        token_axis(axes.xaxis, (row["age"] for row in rows), "age: tokens generated so far")
        axes.set_ylabel("index, correct answers per token")
        log_scale(axes.yaxis)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.set_ylim(max(least, (price or most) / 60) / 1.5, most * 1.5)  # smaller values do not matter

    return [Plot(describe(rows[0]["stream"], rows[0]["budget"]), draw, height=3.4)]
