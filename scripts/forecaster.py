"""Train the forecaster that the package ships, and write its model card (docs/forecaster.md).

    python scripts/forecaster.py llama-3.1-8b-instruct.math-train.jsonl.gz zeroeval-12-models.gsm8k-mathl5.jsonl.gz

The files are trace files; the recorded answers of SmolLM2 that the package ships are added to them.
Figures in the card are for a fifth of the questions, left out of a first training; the forecaster that
ships is trained on all of them.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shadowprice.datasets.shipped import shipped_traces
from shadowprice.forecast import predict_all
from shadowprice.forecast.evaluation import Scores
from shadowprice.forecast.landing import fit_landing
from shadowprice.forecast.splits import held_out
from shadowprice.forecast.text import TextForecaster
from shadowprice.formats.traces import read_traces
from shadowprice.market.anytime import Anytime
from shadowprice.types import Request

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "src" / "shadowprice" / "forecast" / "default"
CARD = ROOT / "docs" / "forecaster.md"
BEGIN, END = "<!-- figures: scripts/forecaster.py -->\n", "<!-- end of figures -->\n"


def main(paths: Sequence[Path]) -> None:
    traces = [*(trace for path in paths for trace in read_traces(path)), *shipped_traces("train", "smollm2")]
    out = held_out(traces, 0.2)
    first = TextForecaster().fit([trace for trace, unseen in zip(traces, out, strict=True) if not unseen])
    report = first.evaluate([traces[i] for i in np.flatnonzero(out)], resamples=200)
    few, small = shipped_traces("train", "smollm2")[:100], shipped_traces("eval", "smollm2")
    shipped = TextForecaster().fit(traces)
    shipped.anytime = landings(shipped)
    shipped.save(PLACE)
    size = sum(file.stat().st_size for file in PLACE.iterdir())

    questions = len({trace.prompt for trace in traces})
    lines = [
        f"Trained on {len(traces):,} traces of {questions:,} questions; {size / 1e6:.1f} MB.",
        "",
        "| data | traces | sha256 |",
        "|---|---|---|",
        *(f"| {path.name} | {sum(1 for _ in read_traces(path)):,} | `{_sha256(path)[:16]}` |" for path in paths),
        f"| SmolLM2-135M-Instruct, shipped | {len(shipped_traces('train', 'smollm2')):,} | |",
        "",
        "| not trained on | traces | Spearman (95%) | Kendall | log error | AUC (95%) | Brier | ECE | 50/80/95% |",
        "|---|---|---|---|---|---|---|---|---|",
        _row("a fifth of all questions", report.overall),
        *(_row(name, scores) for name, scores in report.datasets.items() if scores.traces >= 1000),
        _row("SmolLM2 on generated tasks", first.evaluate(small, resamples=200).overall),
        _row("the same, adapted to 100 of its traces", first.adapt(few).evaluate(small, resamples=200).overall),
    ]
    before, rest = CARD.read_text().split(BEGIN)
    CARD.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + rest.split(END)[1])
    print("\n".join(lines))


def landings(forecaster: TextForecaster) -> Anytime | None:
    """What landings are worth: from the answers of Qwen2.5-Coder-1.5B, which were probed."""
    probed = shipped_traces("train", "qwen2.5-coder-1.5b")
    return fit_landing(predict_all(forecaster, [Request(trace.id, trace.prompt) for trace in probed]), probed)


def _row(name: str, s: Scores) -> str:
    covered = "/".join(f"{100 * share:.0f}" for share in s.coverage.values())
    return (
        f"| {name} | {s.traces:,} | {_ranged(s.spearman, s.spearman_range)} | {s.kendall or 0:.2f} | {s.log_error:.2f} "
        f"| {_ranged(s.auc, s.auc_range)} | {s.brier:.3f} | {s.calibration_error:.3f} | {covered} |"
    )


def _ranged(value: float | None, limits: tuple[float, float] | None) -> str:
    return "-" if value is None or limits is None else f"{value:.2f} ({limits[0]:.2f} to {limits[1]:.2f})"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
