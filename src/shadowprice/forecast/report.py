"""A report on a forecaster, for people: a table, and the paper's figure 4 for this forecaster."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from shadowprice.errors import MissingExtra
from shadowprice.forecast.evaluation import TIERS, Report, Scores, tiers_of
from shadowprice.forecast.training import Evaluation, sizes
from shadowprice.types import Forecast, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#0072b2", "#009e73", "#e69f00", "#d55e00")  # of the tiers
_MANY = 2000  # points; above this the figure stores them as an image

LEGEND = """\
- tokens, forecast: medians of the recorded and of the forecast lengths
- Spearman, Kendall: rank correlation (tau-b) of forecast and true length; error, RMSE: of the log length
- in 50%, in 80%, in 95%: share of true lengths inside the interval of that probability
- correct: share of correct answers; AUC: probability that a correct answer had a higher forecast than a wrong one;
  Brier: mean squared error of the forecast probability; ECE: expected calibration error, ten bins of equal count
- in brackets: 95% bootstrap interval; questions are resampled with all their traces
- truncated answers are longer than what was recorded: they rank as the longest, or are left out where their rank is
  unknown; they have no error; they count as inside an interval with the probability that the forecast gives them
- tiers are quartiles of the true length
"""


def as_files(evaluation: Evaluation, about: Mapping[str, Any] | None = None) -> dict[str, bytes]:
    """`report.json` and `report.md`; `about` is added to the JSON."""
    record = {
        **(about or {}),
        "kind": evaluation.kind,
        "trained_on": len(evaluation.training),
        "held_out": {"share": evaluation.share, "seed": evaluation.seed},
        "before_adapting": None if evaluation.base is None else asdict(evaluation.base.overall),
        **asdict(evaluation.report),
    }
    text = (
        f"# Quality of a forecaster\n\nKind {evaluation.kind}, trained on {sizes(evaluation.training)}; evaluated on "
        f"{sizes(evaluation.test)} that it was not trained on: {evaluation.share:.0%} of the questions, "
        f"seed {evaluation.seed}. The forecaster that was saved was trained on all of them.\n"
    )
    if evaluation.base is not None:
        before = evaluation.base.overall
        text += f"\nBefore it was adapted: {describe_length(before)}; {describe_correctness(before)}.\n"
    text += f"\n{as_markdown(evaluation.report)}"
    return {"report.json": (json.dumps(record, indent=2) + "\n").encode(), "report.md": text.encode()}


def figure_files(evaluation: Evaluation) -> dict[str, bytes]:
    """`report.svg` and `report.png`; raises MissingExtra without Matplotlib."""
    title = f"{evaluation.kind}: {sizes(evaluation.test)} held out"
    images = as_figure(evaluation.report, evaluation.forecast, evaluation.test, title)
    return {f"report.{kind}": image for kind, image in images.items()}


def describe_length(scores: Scores) -> str:
    """How good the forecasts of the length are, in one line."""
    ranks = f"Spearman {in_digits(scores.spearman, scores.spearman_range)}, Kendall {in_digits(scores.kendall)}"
    return f"{ranks}, error of the log {in_digits(scores.log_error)}"


def describe_correctness(scores: Scores) -> str:
    """How good the forecast probabilities of a correct answer are, in one line."""
    if not scores.graded:
        return "no trace is graded"
    area = f"AUC {in_digits(scores.auc, scores.auc_range)}, Brier {in_digits(scores.brier)}"
    return f"{area}, calibration error {in_digits(scores.calibration_error)}"


def as_markdown(report: Report) -> str:
    """A table with a row for all traces, each dataset and each tier, and what its columns mean."""
    rows = {"all": report.overall}
    rows |= {name or "no dataset": scores for name, scores in report.datasets.items()}
    rows |= {f"tier: {name}": scores for name, scores in report.tiers.items()}
    cells = [{"": name, **_cells(scores)} for name, scores in rows.items()]
    lines = [list(cells[0]), ["---", *["---:"] * (len(cells[0]) - 1)], *(list(row.values()) for row in cells)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{LEGEND}"


def _cells(scores: Scores) -> dict[str, str]:
    return {
        "traces": f"{scores.traces:,}",
        "truncated": f"{scores.truncated:,}",
        "tokens": f"{scores.median_tokens:,.0f}",
        "forecast": f"{scores.median_forecast:,.0f}",
        "Spearman": in_digits(scores.spearman, scores.spearman_range),
        "Kendall": in_digits(scores.kendall),
        "error": in_digits(scores.log_error),
        "RMSE": in_digits(scores.log_rmse),
        **{f"in {name}": f"{share:.0%}" for name, share in scores.coverage.items()},
        "correct": "-" if scores.correct is None else f"{scores.correct:.0%}",
        "AUC": in_digits(scores.auc, scores.auc_range),
        "Brier": in_digits(scores.brier),
        "ECE": in_digits(scores.calibration_error),
    }


def in_digits(value: float | None, bounds: tuple[float, float] | None = None) -> str:
    """`0.81`, `0.81 (0.78 to 0.84)`, or `-` for an unknown value."""
    if value is None:
        return "-"
    return f"{value:.2f}" if bounds is None else f"{value:.2f} ({bounds[0]:.2f} to {bounds[1]:.2f})"


def as_figure(report: Report, forecast: Forecast, traces: Sequence[Trace], title: str = "") -> dict[str, bytes]:
    """The figure as `svg` and `png`: forecast against true length, and both by tier."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("report", "the figure") from None
    with rc_context({"svg.hashsalt": "shadowprice", "font.size": 9}):
        figure = Figure(figsize=(9.6, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _scatter(left, forecast, traces)
        scores = report.overall
        left.set_title(f"Spearman {in_digits(scores.spearman)}, Kendall {in_digits(scores.kendall)}")
        _boxes(right, forecast, traces)
        right.set_title("by quartile of the true length")
        figure.suptitle(title)
        images = {}
        for kind, metadata in {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}.items():
            buffer = BytesIO()
            figure.savefig(buffer, format=kind, dpi=160, metadata=metadata)
            images[kind] = buffer.getvalue()
    return images


def _scatter(axes: Axes, forecast: Forecast, traces: Sequence[Trace]) -> None:
    tier, cut = tiers_of(traces), np.array([trace.truncated for trace in traces], dtype=bool)
    true = np.maximum(1.0, [trace.tokens for trace in traces])
    ends = min(true.min(), forecast.tokens.min()), max(true.max(), forecast.tokens.max())
    axes.plot(ends, ends, color="#888888", lw=0.8, ls="--", zorder=1)
    for i, name in enumerate(TIERS):
        for which, marker in ((tier == i) & ~cut, "o"), ((tier == i) & cut, ">"):
            axes.scatter(
                true[which], forecast.tokens[which], s=9, marker=marker, color=_COLOURS[i], alpha=0.45, lw=0, zorder=2,
                rasterized=len(traces) > _MANY,
            )  # fmt: skip
        if np.any(tier == i):
            x, y = np.median(true[tier == i]), np.median(forecast.tokens[tier == i])
            axes.scatter(x, y, s=90, marker="D", color=_COLOURS[i], edgecolors="black", label=name, zorder=3)
    if cut.any():
        axes.scatter([], [], s=14, marker=">", color="#555555", label="truncated: longer than that")
    axes.set(xscale="log", yscale="log", xlabel="true length, tokens", ylabel="forecast median, tokens")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.0f}")
    axes.legend(frameon=False, loc="upper left", title="diamonds: medians of a tier", title_fontsize="small")


def _boxes(axes: Axes, forecast: Forecast, traces: Sequence[Trace]) -> None:
    from matplotlib.patches import Patch

    tier, true = tiers_of(traces), np.maximum(1.0, [trace.tokens for trace in traces])
    present = [i for i in range(len(TIERS)) if np.any(tier == i)]
    kinds = {"true": (-0.19, true, "#bbbbbb"), "forecast": (0.19, forecast.tokens, "#ffffff")}
    for offset, values, face in kinds.values():
        axes.boxplot(
            [values[tier == i] for i in present], positions=[i + offset for i in present], widths=0.32, sym="",
            whis=(5, 95), patch_artist=True, boxprops={"facecolor": face}, medianprops={"color": "black"},
            manage_ticks=False,
        )  # fmt: skip
    axes.set(yscale="log", ylabel="tokens (whiskers: 5% to 95%)")
    axes.set_xticks(present, [TIERS[i] for i in present])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    boxes = [Patch(facecolor=face, edgecolor="black", label=name) for name, (_, _, face) in kinds.items()]
    axes.legend(handles=boxes, frameon=False, loc="upper left")
