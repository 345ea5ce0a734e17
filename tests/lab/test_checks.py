"""Whether a claim holds follows from the rows of the other tables, and from nothing else."""

import pytest

from shadowprice.lab.claims import CLAIMS, claims
from shadowprice.lab.config import Lab


def held(rows, pool) -> dict[str, str]:
    lab = Lab([pool], [pool], rows=list(rows))
    return {row["claim"]: row["held"] for row in claims(lab)}


def one_claim(words: str) -> str:
    (claim,) = [claim.text for claim in CLAIMS if words in claim.text]
    return claim


def test_a_claim_fails_if_one_stream_does(results, pool):
    claim = one_claim("at least 3 times as many correct answers")
    scarce = min(results.meta["budgets"])

    def with_correct(**percent):
        return [
            {**row, "solved": percent[row["policy"]]}
            if row["table"] == "main" and row["budget"] == scarce and row["policy"] in percent
            else row
            for row in results.rows
        ]

    assert held(with_correct(clear=9.0, uniform=3.0), pool)[claim] == "yes"
    assert held(with_correct(clear=8.9, uniform=3.0), pool)[claim] == "no"
    assert held(with_correct(clear=1.0, uniform=0.0), pool)[claim] == "yes"
    rows = with_correct(clear=9.0, uniform=3.0)
    lost = [
        {**row, "solved": 8.0} if row.get("stream") == "mostly-hard" and row.get("solved") == 9.0 else row
        for row in rows
    ]
    assert held(lost, pool)[claim] == "no"


def test_a_loss_around_the_median_is_found(results, pool):
    claim = one_claim("around the median length")

    def with_gain(gain):
        return [
            {**row, "gain": gain if row["policy"] == "clear" else 0.0, "gain_high": gain + 1}
            if row["table"] == "phase_transition"
            else row
            for row in results.rows
        ]

    assert held(with_gain(0.1), pool)[claim] == "yes"
    assert held(with_gain(-0.1), pool)[claim] == "no"


@pytest.mark.parametrize(("points", "verdict"), [(0.4, "yes"), (0.6, "no")])
def test_the_index_may_be_half_a_point_below_in_a_cell(results, pool, points, verdict):
    rows = [
        {**row, "solved": 50.0 - (points if row["policy"] == "index" else 0.0)}
        if row["table"] == "main" and row["accounting"] == "metered"
        else row
        for row in results.rows
    ]
    assert held(rows, pool)[one_claim("the index is nowhere")] == verdict


def test_claims_are_about_one_accounting(results, pool):
    """Rows of other accountings change nothing."""
    others = [{**row, "solved": 0.0} if row.get("accounting") == "reclaimed" else row for row in results.rows]
    assert held(others, pool) == held(results.rows, pool)


def test_without_rows_no_claim_is_tested(pool):
    assert set(held([], pool).values()) == {"not tested"}


@pytest.mark.parametrize("gone", ["clear", "uniform", "oracle", "expected", "proportional", "index"])
def test_without_a_policy_its_claims_are_not_tested(results, pool, gone):
    rows = [row for row in results.rows if row.get("policy") != gone]
    if gone == "uniform":
        rows = [{n: v for n, v in row.items() if not n.startswith("gain")} for row in rows]
    before, after = held(results.rows, pool), held(rows, pool)
    assert {after[claim] for claim in before if after[claim] != before[claim]} == {"not tested"}


@pytest.mark.parametrize(("gains", "verdict"), [((5, 4, 2, 1), "yes"), ((9, 9, -0.1, 1), "no"), ((4, 3, 2, 1), "no")])
def test_landings_have_to_gain_where_tokens_are_scarce_and_to_lose_nowhere(results, pool, gains, verdict):
    claim = one_claim("Landings never lower")
    assert held(results.rows, pool)[claim] == "not tested"
    cell = {"table": "landing", "policy": "index", "landing": True}
    rows = [
        {**cell, "budget_times_median": times, "gain": gain}
        for times, gain in zip((0.25, 0.5, 0.75, 1), gains, strict=True)
    ]
    rows.append({**cell, "budget_times_median": 2, "gain": 0})
    assert held([*results.rows, *rows], pool)[claim] == verdict
