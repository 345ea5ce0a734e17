"""Plots with points and bars: single queries, and distributions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shadowprice.lab.compare import Row
from shadowprice.report.labels import Variant, accounting_of, row_label
from shadowprice.report.line_plots import HEADLINE, per_stream, token_axis
from shadowprice.report.plot import Plot
from shadowprice.report.rows import Rows, grouped, known, shorten, words
from shadowprice.report.style import BLUE, GREY, MUTED, VERMILLION, Look, nth
from shadowprice.report.waterfall import waterfall, waterfall_steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_POINTS = 300  # in a plot; more are thinned out evenly
_MAX_ROLLOUTS = 6


def _thinned(rows: Rows) -> list[Row]:
    every = -(-len(rows) // _MAX_POINTS)
    return list(rows[::every]) if rows else []


def rollouts(rows: Rows) -> list[Plot]:
    def draw(bins: Rows, axes: Axes) -> None:
        low, high = (np.array([row[end] for row in bins], dtype=float) for end in ("bin_low", "bin_high"))
        correct = np.array([row["correct"] for row in bins], dtype=float)
        for field, colour, label in (("total", GREY, "answers"), ("correct", BLUE, "correct answers")):
            if heights := [row[field] for row in known(bins, field)]:
                axes.bar(low, heights, (high - low) * 0.94, align="edge", color=colour, alpha=0.35, label=label)
        if (threshold := bins[0].get("threshold")) is not None:
            at = np.linspace(low.min(), high.max(), 160)
            over = np.maximum(0.0, at - threshold)
            curve = over * np.exp(-bins[0]["beta"] * over)
            if curve.max() > 0:  # the utility has no unit: it is drawn as high as the bars
                curve *= correct.max(initial=1.0) / curve.max()
            axes.plot(at, curve, color=VERMILLION, label="fitted latent utility (height is free)")
        axes.set(xlabel="length of the answer, tokens", ylabel="answers")

    queries = list(grouped(rows, "id").items())[:_MAX_ROLLOUTS]
    return [Plot(shorten(query), partial(draw, bins)) for (query,), bins in queries]


def stream_lengths(rows: Rows) -> list[Plot]:
    def draw(some: Rows, axes: Axes) -> None:
        floor: dict[float, float] = {}
        for number, ((tier,), bars) in enumerate(grouped(some, "tier").items()):
            at, until = np.array([row["bin_low"] for row in bars]), np.array([row["bin_high"] for row in bars])
            below = np.array([floor.get(row["bin_low"], 0.0) for row in bars])
            count = np.array([row["count"] for row in bars], dtype=float)
            name = words(tier) if tier is not None else "queries"
            axes.bar(at, count, until - at, bottom=below, align="edge", color=nth(number).colour, label=name)
            floor |= dict(zip(at.tolist(), (below + count).tolist(), strict=True))
        axes.set(xlabel="true length of the answer, tokens", ylabel="queries")

    return per_stream(rows, draw)


def predictor(rows: Rows) -> list[Plot]:
    points = [row for row in known(rows, "forecast", "length") if row["length"] > 0]
    if not points:
        return []
    tiers = sorted(grouped(points, "tier"), key=str)
    scored = next((row for row in rows if row.get("spearman") is not None), None)

    def scatter(axes: Axes) -> None:
        for number, tier in enumerate(tiers):
            of_tier = _thinned([row for row in points if row.get("tier") == tier[0]])
            _dots(axes, of_tier, "length", "forecast", nth(number), _tier(tier[0]))
        _diagonal(axes, points, "length", "forecast")
        axes.set(xlabel="true length, tokens", ylabel="forecast (median), tokens")

    def boxes(axes: Axes) -> None:
        for offset, field, colour, label in (
            (-0.18, "length", BLUE, "true length"),
            (0.18, "forecast", VERMILLION, "forecast"),
        ):
            for place, tier in enumerate(tiers):
                values = [row[field] for row in points if row.get("tier") == tier[0]]
                low, first, middle, third, high = np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95])
                at = place + offset
                axes.plot([at, at], [low, high], color=colour, lw=1)
                axes.plot([at, at], [first, third], color=colour, lw=7, solid_capstyle="butt", alpha=0.55)
                axes.plot([at], [middle], marker="D", color=colour, ls="", ms=4, label=label if place == 0 else None)
        axes.set_xticks(range(len(tiers)), [_tier(tier[0]) for tier in tiers])
        axes.set_xlim(-0.6, len(tiers) - 0.4)
        axes.set_xlabel("tier of the question")
        token_axis(axes.yaxis, np.geomspace(*_ends(points, "length", "forecast"), 9), "tokens")

    ranks = f"Spearman {scored['spearman']:.2f}" if scored else ""
    if scored and scored.get("kendall") is not None:
        ranks += f", Kendall {scored['kendall']:.2f}"
    return [Plot(ranks, scatter), Plot("5, 25, 50, 75, 95% of the lengths", boxes)]


def _tier(tier: Any) -> str:
    names = ("easy", "moderate", "hard", "very hard")
    return names[tier] if isinstance(tier, int) and 0 <= tier < len(names) else shorten(words(tier), 20)


def _dots(axes: Axes, rows: Rows, x: str, y: str, how: Look, label: str | None) -> None:
    at, value = [row[x] for row in rows], [row[y] for row in rows]
    axes.plot(at, value, how.marker, color=how.colour, ms=3, mew=0.6, alpha=0.6, label=label)


def _diagonal(axes: Axes, rows: Rows, *fields: str) -> None:
    """Both axes in tokens, on a log scale, with the line where they are equal."""
    ends = _ends(rows, *fields)
    axes.plot(ends, ends, color=MUTED, lw=0.9, ls="--")
    for axis in (axes.xaxis, axes.yaxis):
        token_axis(axis, np.geomspace(*ends, 9), "")


def _ends(rows: Rows, *fields: str) -> tuple[float, float]:
    values = [row[field] for row in rows for field in fields if row[field] > 0]
    return min(values), max(max(values), 2 * min(values))


def allocations(rows: Rows) -> list[Plot]:
    rows = [row for row in known(rows, "length", "grant") if row["length"] > 0]

    def draw(of_group: Rows, axes: Axes) -> None:
        served = [row for row in of_group if row["grant"] > 0]
        enough = [row for row in served if row["grant"] >= row["length"]]
        too_small = [row for row in served if row["grant"] < row["length"]]
        floor = _ends(rows, "length", "grant")[0] * 0.6
        declined = [{**row, "grant": floor} for row in of_group if row["grant"] <= 0]
        _dots(axes, _thinned(enough), "length", "grant", Look(BLUE), "grant reaches the answer's end")
        _dots(axes, _thinned(too_small), "length", "grant", Look(GREY, marker="^"), "grant ends before it")
        _dots(axes, _thinned(declined), "length", "grant", Look(VERMILLION, marker="x"), "declined: no grant")
        _diagonal(axes, rows, "length", "grant")
        axes.set(xlabel="true length, tokens", ylabel="grant, tokens")

    groups = grouped(rows, "regime", "policy", "budget", "reclaim")
    return [
        Plot(f"{regime} ({budget:,g}): {row_label(of_group[0])}", partial(draw, of_group), height=2.7)
        for (regime, _, budget, _), of_group in groups.items()
    ]


def calibration(rows: Rows) -> list[Plot]:
    def draw(some: Rows, names: tuple[str, str], axes: Axes) -> None:
        some = sorted(some, key=lambda row: row["forecast"])
        axes.plot([0, 100], [0, 100], color=MUTED, lw=0.9, ls="--", label="perfect")
        forecast, observed = [row["forecast"] for row in some], [row["observed"] for row in some]
        if len(known(some, "ci_low", "ci_high")) == len(some):
            low, high = [row["ci_low"] for row in some], [row["ci_high"] for row in some]
            axes.vlines(forecast, low, high, color=BLUE, lw=1.2, alpha=0.5)
        axes.plot(forecast, observed, "o-", color=BLUE, label="observed")
        axes.set(xlabel=names[0], ylabel=names[1], xlim=(-2, 102), ylim=(-2, 102))

    kinds = grouped(known(rows, "forecast", "observed"), "kind")
    named = {
        "solve": ("chance of a correct answer", ("chance forecast, %", "answers correct, %")),
        "length": ("intervals of the length", ("interval forecast, % of answers", "answers inside, %")),
    }
    return [Plot(named[kind][0], partial(draw, kinds[(kind,)], named[kind][1])) for kind in named if (kind,) in kinds]


def waterfalls(rows: Rows) -> list[Plot]:
    shown = known(rows, "tokens", "correct", "wrong", "truncated")
    shown = [row for row in shown if Variant.of(row).policy in HEADLINE]
    shown.sort(key=lambda row: (accounting_of(row) != "reserved", Variant.of(row).order))
    return [Plot(row_label(row), partial(waterfall, waterfall_steps(row)), height=2.5) for row in shown]
