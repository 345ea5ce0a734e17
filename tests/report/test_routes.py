"""The page about routes shows the frontier and where the dollars went."""

from shadowprice.lab.results import Results
from shadowprice.report.routes import dollars, report


def row(policy, budget, solved, **more):
    return {
        "table": "routes", "policy": policy, "budget": budget, "solved": solved, "ci_low": solved - 1,
        "ci_high": solved + 1, "gain": solved - 60, "dollars": 0.9 * budget, "dollars_a<b": 0.6 * budget,
        "dollars_c": 0.3 * budget, **more,
    }  # fmt: skip


def test_the_page_has_both_sections_and_escapes_names():
    rows = [
        row(policy, budget, 60 + 5 * (policy == "scouts"))
        for policy in ("static mix", "scouts")
        for budget in (1e-5, 2e-3)
    ]
    page = report(Results(rows, {"command": "shadowprice reproduce --routes r.toml"}))
    assert "Where the dollars went" in page
    assert "a&lt;b" in page
    assert "a<b" not in page
    assert "66.7%" in page
    assert "10.0%" in page
    assert "+5.0 points against the best static mix" in page


def test_small_amounts_are_readable():
    assert dollars(0.00023) == "$0.00023"
    assert dollars(0.000083) == "$0.000083"
    assert dollars(5) == "$5"
