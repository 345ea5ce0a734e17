"""The data of figures, on the shipped answers."""

from dataclasses import replace

import numpy as np
import pytest

from shadowprice.datasets.shipped import shipped_traces
from shadowprice.lab.config import Lab, NotPossible
from shadowprice.lab.figure_data import index, predictor, query_table, rollouts, second_predictor
from shadowprice.lab.pools import recorded
from shadowprice.lab.simulations import Queries, Setup, outcome_of
from shadowprice.lab.streams import draw
from shadowprice.market import allocate
from shadowprice.market.gittins import schedule
from shadowprice.report.figures import drawn
from shadowprice.types import Forecast, Trace

from .test_sweeps import grouped


def test_the_s_curve_rises_to_what_the_model_can_do(results):
    for rows in grouped(results.table("s_curve"), "dataset").values():
        correct = [row["solved"] for row in rows]
        assert correct == sorted(correct)
    whole = [row for row in results.table("s_curve") if row["dataset"] == "all"]
    best = np.mean([bool(trace.correct) and not trace.truncated for trace in shipped_traces("eval", "smollm2")])
    assert whole[-1]["solved"] == pytest.approx(100 * best, rel=1e-5)
    assert whole[0]["solved"] == 0


def test_streams_have_all_their_queries_in_the_histogram(results):
    for rows in grouped(results.table("stream_lengths"), "stream").values():
        assert sum(row["count"] for row in rows) == results.meta["queries"]


def test_rollouts_count_all_answers_of_a_question():
    answers = [Trace("q", "Why?", 20 + 3 * i, i % 3 > 0, sample=i, model="m") for i in range(12)]
    rows = rollouts(Lab([], recorded(answers)))
    assert sum(row["total"] for row in rows) == 12
    assert sum(row["correct"] for row in rows) == 8
    assert {row["id"] for row in rows} == {"q"}


@pytest.mark.parametrize(("answers", "why"), [(7, "8 answers"), (8, "correct answers of three")])
def test_rollouts_need_several_answers_and_some_of_them_correct(answers, why):
    traces = [Trace("q", "Why?", 20 + i, False, sample=i, model="m") for i in range(answers)]
    with pytest.raises(NotPossible, match=why):
        rollouts(Lab([], recorded(traces)))


class TestForecasts:
    def test_the_second_model_has_its_own(self, pool):
        other = replace(pool, model="other", forecast=replace(pool.forecast, tokens=pool.forecast.tokens[::-1]))
        first, second = (table(Lab([pool, other], [pool], quick=True)) for table in (predictor, second_predictor))
        assert (first[0]["model"], second[0]["model"]) == (pool.model, "other")
        assert first[0]["spearman"] > 0.5 > second[0]["spearman"]
        assert set(drawn(first + second)) == {"predictor", "second_predictor"}

    def test_without_a_second_model_there_are_none(self, pool):
        with pytest.raises(NotPossible):
            second_predictor(Lab([pool], [pool]))

    def test_calibration_has_every_query_and_holds_what_was_observed(self, results):
        rows = results.table("calibration")
        assert {row["kind"] for row in rows} == {"solve", "length"}
        assert all(row["ci_low"] <= row["observed"] <= row["ci_high"] for row in rows)
        assert sum(row["queries"] for row in rows if row["kind"] == "solve") == results.meta["questions"]

    def test_calibration_intervals_are_wilsons(self, results):
        """Their ends are where the observed share is 1.96 standard errors away."""
        for row in results.table("calibration"):
            if row["kind"] == "solve":
                ends = np.array([row["ci_low"], row["ci_high"]]) / 100
                away = np.abs(row["observed"] / 100 - ends)
                assert away == pytest.approx(1.959964 * np.sqrt(ends * (1 - ends) / row["queries"]), rel=1e-3)


def test_every_curve_peaks_where_its_policy_buys(results):
    rows = grouped(results.table("curves"), "policy")
    assert set(rows) == {("clear",), ("triangular",), ("quadratic",)}
    for (policy,), points in rows.items():
        threshold, surplus = points[0]["threshold"], points[0]["budget"] / 2
        bought = allocate(Forecast([threshold]), 10**6, policy, beta=1 / surplus).tokens[0]
        peak = max(points, key=lambda row: row["utility"])
        assert peak["tokens"] == pytest.approx(bought, abs=1)
        assert peak["utility"] == pytest.approx(2 * surplus / np.e, rel=1e-5)
        assert all(row["utility"] == 0 for row in points if row["tokens"] <= threshold)


class TestTheIndex:
    def test_queries_stop_where_it_falls_below_the_price(self, results):
        queries = grouped(results.table("index"), "query")
        assert len(queries) == 5
        for rows in queries.values():
            price, stop = rows[0]["price"], rows[0]["stop"]
            assert price > 0
            before = [row for row in rows if row["age"] < stop]
            after = [row for row in rows if row["age"] >= max(1, stop)]
            # Ages at which a query may stop are up to a fifth apart.
            assert all(row["index"] >= 0.95 * price for row in before)
            assert after[0]["index"] <= 1.25 * price
        stops = [rows[0]["stop"] for rows in queries.values()]
        assert 0 in stops
        assert max(stops) > 0

    def test_queries_are_ordered_by_forecast_length(self, results):
        tokens = [rows[0]["forecast_tokens"] for rows in grouped(results.table("index"), "query").values()]
        assert tokens == sorted(set(tokens))

    def test_the_price_is_where_the_expected_cost_meets_the_budget(self, pool):
        row = index(Lab([pool], [pool], budgets=[round(0.5 * pool.median)], quick=True))[0]
        places = draw(pool, row["stream"], 500, 0)
        plan = schedule(pool.forecast.take(places), pool.cap)
        cost = plan.cost[plan.index > row["price"]].sum()
        assert cost <= row["budget"] * 500 < cost + plan.cost[plan.index == row["price"]].sum()

    def test_at_an_ample_budget_the_price_is_zero_and_every_query_starts(self, pool):
        lab = Lab([pool], [pool], budgets=[10**6], quick=True)
        rows = index(lab)
        assert {row["price"] for row in rows} == {0.0}
        assert all(row["stop"] > 0 for row in rows)
        assert drawn(rows)["index"]


class TestQueries:
    def test_are_those_of_the_cell_named(self, pool):
        lab = Lab([pool], [pool], budgets=[round(0.5 * pool.median)])
        rows, cell = query_table(lab)
        queries = Queries.of(pool, draw(pool, cell["stream"], 500, cell["seed"]))
        outcome = outcome_of(Setup(cell["policy"], cell["accounting"]), queries, cell["budget"] * len(queries))
        assert [row["outcome"] == "correct" for row in rows] == outcome.correct.tolist()
        assert [row["grant"] for row in rows] == outcome.granted.tolist()

    def test_say_what_happened_and_why(self, results):
        for row in results.queries:
            if row["outcome"] == "declined":
                assert row["grant"] == 0
            elif row["outcome"] == "truncated":
                assert 0 < row["grant"] <= row["length"]
            else:
                assert row["grant"] >= row["length"] == row["spent"]
            assert row["why"]
        assert {row["outcome"] for row in results.queries} == {"correct", "wrong", "truncated", "declined"}
