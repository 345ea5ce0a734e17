"""Where a budget went: the parts of a waterfall add up to its total."""

from __future__ import annotations

import pytest

from shadowprice.report.waterfall import waterfall_steps


def test_the_tokens_of_a_waterfall_add_up_to_the_budget(results):
    rows = results.table("waterfall")
    assert {row["accounting"] for row in rows} == {"reserved", "reclaimed", "metered"}
    for row in rows:
        total, *parts = waterfall_steps(row)
        assert sum(step.tokens for step in parts) == pytest.approx(total.tokens, abs=3)
        assert parts[-1].tokens == row["right"] > 0
