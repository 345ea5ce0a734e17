"""Results along a line, on the shipped answers."""

import pytest

from shadowprice.lab.compare import Row


def grouped(rows: list[Row], *names: str) -> dict[tuple, list[Row]]:
    found: dict[tuple, list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


def test_the_frontier_of_hindsight_and_uniform_never_falls(results):
    lines = grouped(results.table("frontier"), "policy", "accounting")
    steady = {name: rows for name, rows in lines.items() if name[0] in ("oracle", "clairvoyant", "uniform")}
    assert {policy for policy, _ in steady} == {"oracle", "clairvoyant", "uniform"}
    for rows in steady.values():
        correct = [row["solved"] for row in sorted(rows, key=lambda row: row["budget"])]
        assert len(correct) > 1
        assert correct == sorted(correct)


def test_alpha_changes_only_the_price(results):
    assert results.table("alpha")
    for rows in grouped(results.table("alpha"), "budget").values():
        assert len({row["alpha"] for row in rows}) > 1
        assert len({row["solved"] for row in rows}) == 1
        ratios = [row["price"] / row["alpha"] for row in rows]
        assert ratios == pytest.approx([ratios[0]] * len(ratios), rel=1e-5)


def test_one_adaptive_beta_for_every_budget(results):
    assert results.table("beta")
    for rows in grouped(results.table("beta"), "budget").values():
        assert sum(row["adaptive"] for row in rows) == 1
        assert len({row["beta"] for row in rows if not row["adaptive"]}) == len(rows) - 1


def test_noise_changes_clear_and_not_uniform(results):
    assert {row["policy"] for row in results.table("noise")} > {"uniform"}
    for (policy, _), rows in grouped(results.table("noise"), "policy", "budget").items():
        assert (len({row["solved"] for row in rows}) == 1) == (policy == "uniform")


def test_the_waterfall_adds_up(results):
    rows = results.table("waterfall")
    assert {row["accounting"] for row in rows} == {"reserved", "reclaimed", "metered"}
    for row in rows:
        used = row["correct"] + row["wrong"] + row["truncated"]
        assert used + row["unused"] <= row["tokens"] + 4  # four roundings
        assert min(row["correct"], row["wrong"], row["truncated"], row["unused"]) >= 0
        assert row["reclaim"] == (row["accounting"] == "reclaimed")
