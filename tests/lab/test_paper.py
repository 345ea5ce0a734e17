"""The paper's numbers were typed in without mistakes: what the paper computes from them comes out the same."""

import pytest

from shadowprice.lab import paper


def test_rows_are_marked_as_the_papers():
    rows = paper.main() + paper.second_model() + paper.variants() + paper.code_best_of_k() + paper.datasets()
    assert {row["source"] for row in rows} == {"paper"}


def test_gains_are_those_printed():
    """The bottom row of table 1, which was not typed in."""
    correct = {(r["stream"], r["budget"], r["policy"]): r["solved"] for r in paper.main()}
    printed = {
        "balanced": (11.6, 4.0, 1.4, 1.2),
        "mostly-easy": (24.0, 6.6, 2.0, 0.0),
        "mostly-hard": (5.2, 1.8, 1.4, 1.4),
        "u-shaped": (14.2, 4.8, 1.4, 0.4),
    }
    for stream, gains in printed.items():
        for budget, gain in zip((256, 512, 1024, 2048), gains, strict=True):
            assert correct[stream, budget, "clear"] - correct[stream, budget, "uniform"] == pytest.approx(gain)


def test_gains_of_the_second_model_are_those_printed():
    correct = {(r["stream"], r["budget"], r["policy"]): r["solved"] for r in paper.second_model()}
    gains = [
        round(correct[stream, budget, "clear"] - correct[stream, budget, "uniform"], 1)
        for stream in ("balanced", "mostly-easy", "mostly-hard", "u-shaped")
        for budget in (1024, 4096)
    ]
    assert gains == [2.4, 0.4, 0.8, 0.2, 2.2, 0.6, 0.6, 0.6]


def test_pass_rates_are_those_printed():
    printed = {"MATH 500": 70.8, "OlympiadBench": 13.0, "AMC-23": 47.5, "AIME 2024": 26.7, "Minerva": 12.9}
    for row in paper.datasets():
        if row["model"] == paper.SMALL and row["dataset"] in printed:
            assert row["solved"] == pytest.approx(printed[row["dataset"]], abs=0.06)
