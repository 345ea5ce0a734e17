"""One reproduction on the shipped answers, looked at table by table."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from shadowprice.datasets.shipped import shipped_traces
from shadowprice.lab.claims import CLAIMS, findings
from shadowprice.lab.config import Lab, LeftOut
from shadowprice.lab.experiments import EXPERIMENTS
from shadowprice.lab.figure_data import index, predictor, second_predictor
from shadowprice.lab.reproduction import Wishes, reproduce
from shadowprice.lab.results import Results
from shadowprice.lab.streams import STREAMS, draw
from shadowprice.market import allocate
from shadowprice.market.gittins import schedule
from shadowprice.report.figures import drawn
from shadowprice.types import Forecast

WISHES = Wishes(quick=True)


@pytest.fixture(scope="module")
def results() -> Results:
    return reproduce(shipped_traces("eval"), shipped_traces("train"), wishes=WISHES)


def grouped(rows, *names):
    found = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in names)].append(row)
    return found


def test_every_table_is_there_or_left_out_with_a_reason(results):
    assert {*results.tables, *results.meta["left_out"]} == set(EXPERIMENTS)
    assert all(results.meta["left_out"].values())
    assert not set(results.tables) & set(results.meta["left_out"])


def test_comparisons_carry_the_contract(results):
    contract = {
        "table", "stream", "budget", "policy", "accounting", "solved", "ci_low", "ci_high", "tokens_granted",
        "tokens_spent", "abandoned", "seeds", "model",
    }  # fmt: skip
    for name in ("main", "frontier", "phase_transition", "noise", "beta", "alpha", "variants"):
        for row in results.table(name):
            if row["source"] == "ours":
                assert contract <= set(row)


def test_the_meta_says_what_it_was_made_from(results):
    meta = results.meta
    assert meta["questions"] == len(shipped_traces("eval"))
    assert meta["seeds"] == [0, 1]
    assert list(meta["streams"]) == list(STREAMS)
    assert meta["forecasts"].startswith(f"trained on {len(shipped_traces('train')):,} traces")
    assert {"shadowprice", "numpy", "scipy", "python", "budgets", "cap", "median_tokens"} <= set(meta)


def test_a_frontier_never_falls_for_those_who_know_the_lengths(results):
    for (policy, _), rows in grouped(results.table("frontier"), "policy", "accounting").items():
        if policy in ("oracle", "clairvoyant", "uniform"):
            solved = [row["solved"] for row in sorted(rows, key=lambda row: row["budget"])]
            assert solved == sorted(solved)


def test_the_s_curve_rises_to_what_the_model_can_do(results):
    for rows in grouped(results.table("s_curve"), "dataset").values():
        solved = [row["solved"] for row in rows]
        assert solved == sorted(solved)
    whole = [row for row in results.table("s_curve") if row["dataset"] == "all"]
    best = np.mean([bool(trace.correct) and not trace.truncated for trace in shipped_traces("eval")])
    assert whole[-1]["solved"] == pytest.approx(100 * best)
    assert whole[0]["solved"] == 0


def test_streams_have_all_their_queries_in_the_histogram(results):
    for rows in grouped(results.table("stream_lengths"), "stream").values():
        assert sum(row["count"] for row in rows) == results.meta["queries"]


def test_alpha_moves_the_price_only(results):
    for rows in grouped(results.table("alpha"), "budget").values():
        assert len({row["solved"] for row in rows}) == 1
        ratios = [row["price"] / row["alpha"] for row in rows]
        assert ratios == pytest.approx([ratios[0]] * len(ratios), rel=1e-6)


def test_one_adaptive_beta_for_every_budget(results):
    for rows in grouped(results.table("beta"), "budget").values():
        assert sum(row["adaptive"] for row in rows) == 1
        assert len({row["beta"] for row in rows if not row["adaptive"]}) == len(rows) - 1


def test_noise_is_put_on_clear_and_not_on_uniform(results):
    for (policy, _), rows in grouped(results.table("noise"), "policy", "budget").items():
        assert (len({row["solved"] for row in rows}) == 1) == (policy == "uniform")


def test_the_waterfall_adds_up(results):
    for row in results.table("waterfall"):
        used = row["right"] + row["wrong"] + row["truncated"]
        assert used + row["unused"] <= row["tokens"] + 4  # four roundings
        assert min(row["right"], row["wrong"], row["truncated"], row["unused"]) >= 0


def test_calibration_is_within_its_own_interval(results):
    rows = results.table("calibration")
    assert {row["kind"] for row in rows} == {"solve", "length"}
    assert all(row["ci_low"] <= row["observed"] <= row["ci_high"] for row in rows)
    assert sum(row["queries"] for row in rows if row["kind"] == "solve") == results.meta["questions"]


def test_every_curve_is_drawn_with_the_peak_that_its_policy_buys(results):
    rows = grouped(results.table("curves"), "policy")
    assert set(rows) == {("clear",), ("triangular",), ("quadratic",)}
    for (policy,), points in rows.items():
        threshold, surplus = points[0]["threshold"], points[0]["budget"] / 2
        bought = allocate(Forecast([threshold]), 10**6, policy, beta=1 / surplus).tokens[0]
        peak = max(points, key=lambda row: row["utility"])
        assert peak["tokens"] == pytest.approx(bought, abs=1)
        assert peak["utility"] == pytest.approx(2 * surplus / np.e)
        assert all(row["utility"] == 0 for row in points if row["tokens"] <= threshold)


def test_the_second_model_has_forecasts_of_its_own_to_look_at(pool):
    other = replace(pool, model="other", forecast=replace(pool.forecast, tokens=pool.forecast.tokens[::-1]))
    first, second = (table(Lab([pool, other], [pool], quick=True)) for table in (predictor, second_predictor))
    assert (first[0]["model"], second[0]["model"]) == (pool.model, "other")
    assert first[0]["spearman"] > 0.5 > second[0]["spearman"]
    assert set(drawn(first + second)) == {"predictor", "second_predictor"}
    with pytest.raises(LeftOut):
        second_predictor(Lab([pool], [pool]))


class TestTheIndex:
    def test_queries_are_left_where_it_falls_below_the_price(self, results):
        queries = grouped(results.table("index"), "query")
        assert len(queries) == 5
        for rows in queries.values():
            price, stop = rows[0]["price"], rows[0]["stop"]
            assert price > 0
            begun = [row for row in rows if row["age"] < stop]
            after = [row for row in rows if row["age"] >= max(1, stop)]
            assert all(row["index"] >= price for row in begun)
            assert after[0]["index"] <= price * 1.05  # ages between which a query may be left are some tokens apart
        stops = [rows[0]["stop"] for rows in queries.values()]
        assert 0 in stops
        assert max(stops) > 0

    def test_they_are_told_apart_from_short_to_long(self, results):
        tokens = [rows[0]["forecast_tokens"] for rows in grouped(results.table("index"), "query").values()]
        assert tokens == sorted(set(tokens))

    def test_the_price_is_where_the_expected_cost_meets_the_budget(self, results, pool):
        row = results.table("index")[0]
        places = draw(pool, row["stream"], 500, 0)
        plan = schedule(pool.forecast.take(places), pool.cap)
        cost = plan.cost[plan.index > row["price"]].sum()
        assert cost <= row["budget"] * 500 < cost + plan.cost[plan.index == row["price"]].sum()

    def test_ample_tokens_have_no_price_and_everyone_is_begun(self, pool):
        lab = Lab([pool], [pool], budgets=[10**6], quick=True)
        rows = index(lab)
        assert {row["price"] for row in rows} == {0.0}
        assert all(row["stop"] > 0 for row in rows)
        assert drawn(rows)["index"]


class TestQueries:
    def test_are_those_of_the_cell_named(self, results):
        cell = results.meta["queries_are_of"]
        assert len(results.queries) == results.meta["queries"]
        assert sum(row["grant"] for row in results.queries) <= cell["budget"] * len(results.queries)
        one = reproduce(
            shipped_traces("eval"),
            shipped_traces("train"),
            wishes=Wishes(quick=True, seeds=1, streams=["balanced"], policies=["uniform", "clear"], budgets=["0.5x"]),
        )
        (row,) = [
            row
            for row in one.table("main")
            if row["source"] == "ours" and (row["policy"], row["accounting"]) == ("clear", "reserved")
        ]
        solved = np.mean([query["outcome"] == "solved" for query in one.queries])
        assert row["solved"] == pytest.approx(100 * solved)

    def test_say_what_happened_and_why(self, results):
        for row in results.queries:
            if row["outcome"] == "abandoned":
                assert row["grant"] == 0
            elif row["outcome"] == "cut":
                assert 0 < row["grant"] <= row["length"]
            else:
                assert row["grant"] >= row["length"] == row["spent"]
            assert row["why"]
        assert {row["outcome"] for row in results.queries} == {"solved", "wrong", "cut", "abandoned"}


def test_the_same_command_gives_the_same_rows(results):
    again = reproduce(shipped_traces("eval"), shipped_traces("train"), wishes=WISHES)
    assert again.rows == results.rows
    assert again.queries == results.queries
    assert again.meta == results.meta


class TestFindings:
    def held(self, rows, pool) -> dict[str, str]:
        lab = Lab([pool], [pool], found=list(rows))
        return {row["claim"]: row["held"] for row in findings(lab)}

    def test_one_for_every_claim(self, results):
        rows = results.table("findings")
        assert [row["claim"] for row in rows] == [claim for claim, _, _ in CLAIMS]
        assert {row["held"] for row in rows} <= {"yes", "no", "not tested"}
        assert all(row["measured"] for row in rows)

    def test_follow_from_the_rows(self, results, pool):
        """The rows with uniform and CLEAR exchanged turn what they say of them."""
        claim = "When tokens are scarce CLEAR solves at least 3 times as much as uniform"
        scarce = min(results.meta["budgets"])

        def with_solved(**solved):
            return [
                {**row, "solved": solved[row["policy"]]}
                if row["table"] == "main" and row["budget"] == scarce and row["policy"] in solved
                else row
                for row in results.rows
            ]

        assert self.held(with_solved(clear=9.0, uniform=3.0), pool)[claim] == "yes"
        assert self.held(with_solved(clear=8.9, uniform=3.0), pool)[claim] == "no"
        assert self.held(with_solved(clear=1.0, uniform=0.0), pool)[claim] == "yes"
        rows = with_solved(clear=9.0, uniform=3.0)
        lost = [
            {**row, "solved": 8.0} if row.get("stream") == "u-shaped" and row.get("solved") == 9.0 else row
            for row in rows
        ]
        assert self.held(lost, pool)[claim] == "no"  # one stream is enough

    def test_a_loss_around_the_median_is_said(self, results, pool):
        claim = "CLEAR is not below uniform around the median length"

        def with_gain(gain):
            return [
                {**row, "gain": gain if row["policy"] == "clear" else 0.0, "gain_high": gain + 1}
                if row["table"] == "phase_transition"
                else row
                for row in results.rows
            ]

        assert self.held(with_gain(0.1), pool)[claim] == "yes"
        assert self.held(with_gain(-0.1), pool)[claim] == "no"

    def test_what_was_not_measured_is_not_judged(self, pool):
        assert set(self.held([], pool).values()) == {"not tested"}

    @pytest.mark.parametrize("gone", ["clear", "uniform", "oracle", "expected", "proportional"])
    def test_a_policy_that_was_not_asked_for_is_no_failure(self, results, pool, gone):
        rows = [row for row in results.rows if row.get("policy") != gone]
        if gone == "uniform":
            rows = [{n: v for n, v in row.items() if not n.startswith("gain")} for row in rows]
        assert "not tested" in self.held(rows, pool).values()
