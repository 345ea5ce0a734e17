"""Measures of quality: against brute force, known answers, and under changes that must not matter."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from scipy.stats import kendalltau, mannwhitneyu, spearmanr

from shadowprice import Forecast, MarketError
from shadowprice.forecast.evaluation import COVERAGES, TIERS, evaluate, tiers_of
from shadowprice.forecast.intervals import interval, quantile
from shadowprice.types import Trace

KINDS = ("sums", "stories")


def traces_of(lengths, *, correct=None, truncated=None, questions=None):
    n = len(lengths)
    correct, truncated = correct if correct is not None else [None] * n, truncated or [False] * n
    questions = questions if questions is not None else range(n)
    return [
        Trace(f"t{i}", f"question {q}", int(tokens), grade, cut, dataset=KINDS[i % 2])
        for i, (tokens, grade, cut, q) in enumerate(zip(lengths, correct, truncated, questions, strict=True))
    ]


@pytest.fixture(scope="module")
def some():
    """Forecasts that know something, for traces with ties, several samples per question and missing grades."""
    random = np.random.default_rng(7)
    median, chance = np.round(random.lognormal(4, 1, 120)), np.round(random.random(120), 1)
    lengths = np.maximum(1, np.round(median * random.lognormal(0, 0.6, 120) / 5) * 5)
    correct = [bool(random.random() < p) if random.random() < 0.9 else None for p in chance]
    return Forecast(median, random.uniform(0.3, 0.8, 120), chance), traces_of(
        lengths, correct=correct, questions=np.arange(120) // 3
    )


def flat(value, name="report"):
    """All numbers of a report, by their path."""
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in flat(item, f"{name}.{key}").items()}
    if isinstance(value, tuple):
        return {k: v for i, item in enumerate(value) for k, v in flat(item, f"{name}[{i}]").items()}
    return {name: value}


def numbers(report):
    return flat(asdict(report))


class TestAgainstOthers:
    def test_ranks_are_those_of_scipy(self, some):
        forecast, traces = some
        found, true = evaluate(forecast, traces).overall, [t.tokens for t in traces]
        assert found.spearman == pytest.approx(spearmanr(forecast.tokens, true).statistic)
        assert found.kendall == pytest.approx(kendalltau(forecast.tokens, true).statistic)

    def test_kendall_counts_pairs(self):
        found = evaluate(Forecast([1, 2, 3, 4]), traces_of([10, 30, 20, 40])).overall
        assert found.kendall == pytest.approx((5 - 1) / 6)

    def test_auc_counts_pairs(self, some):
        forecast, traces = some
        correct, wrong = (forecast.solve[[t.correct is answer for t in traces]] for answer in (True, False))
        pairs = [(a > b) + 0.5 * (a == b) for a in correct for b in wrong]
        found = evaluate(forecast, traces).overall.auc
        assert found == pytest.approx(np.mean(pairs))
        assert found == pytest.approx(mannwhitneyu(correct, wrong).statistic / len(pairs))

    def test_errors_and_brier_by_hand(self):
        traces = traces_of([10, 20, 40], correct=[True, False, None])
        found = evaluate(Forecast([20, 20, 10], solve=[0.8, 0.4, 0.1]), traces).overall
        assert found.log_error == pytest.approx(np.log(2) * (1 + 0 + 2) / 3)
        assert found.log_rmse == pytest.approx(np.log(2) * np.sqrt(5 / 3))
        assert found.brier == pytest.approx((0.2**2 + 0.4**2) / 2)
        assert (found.traces, found.graded, found.correct) == (3, 2, 0.5)

    def test_calibration_error_by_hand(self):
        # 100 traces of ten chances: ten bins, each a chance of its own.
        chance = np.repeat(np.linspace(0.05, 0.95, 10), 10)
        correct = np.tile(np.arange(10) < 5, 10)  # half of every bin
        traces = traces_of(range(1, 101), correct=correct.tolist())
        found = evaluate(Forecast(np.full(100, 9.0), solve=chance), traces).overall
        assert found.calibration_error == pytest.approx(np.abs(np.linspace(0.05, 0.95, 10) - 0.5).mean())

    def test_equal_chances_are_one_bin(self):
        traces = traces_of(range(1, 51), correct=[i < 20 for i in range(50)])
        found = evaluate(Forecast(np.full(50, 9.0), solve=0.4), traces).overall
        assert found.calibration_error == pytest.approx(0.0)
        assert found.auc == 0.5

    def test_coverage_counts_lengths_inside(self, some):
        forecast, traces = some
        found = evaluate(forecast, traces).overall.coverage
        for share, name in zip(COVERAGES, ("50%", "80%", "95%"), strict=True):
            low, high = interval(forecast, share)
            assert found[name] == np.mean([a <= t.tokens <= b for a, b, t in zip(low, high, traces, strict=True)])

    def test_ranges_are_those_of_a_plain_bootstrap_by_question(self, some):
        forecast, traces = some
        true, random, found = np.array([t.tokens for t in traces]), np.random.default_rng(1), []
        for _ in range(2000):
            rows = (3 * random.integers(40, size=40)[:, None] + np.arange(3)).ravel()
            found.append(spearmanr(forecast.tokens[rows], true[rows]).statistic)
        assert evaluate(forecast, traces, resamples=2000).overall.spearman_range == pytest.approx(
            tuple(np.quantile(found, [0.025, 0.975])), abs=0.02
        )


class TestWhatDoesNotMatter:
    def test_the_order_of_traces(self, some):
        forecast, traces = some
        order = np.random.default_rng(3).permutation(len(traces))
        other = evaluate(forecast.take(order), [traces[i] for i in order])
        assert numbers(other) == pytest.approx(numbers(evaluate(forecast, traces)), rel=1e-9)

    def test_the_unit_of_length(self, some):
        forecast, traces = some
        longer = [replace(t, tokens=t.tokens * 8) for t in traces]
        one, other = evaluate(forecast, traces), evaluate(replace_tokens(forecast, forecast.tokens * 8), longer)
        lengths = {name for name in numbers(one) if "median" in name}
        assert {k: v for k, v in numbers(other).items() if k not in lengths} == pytest.approx(
            {k: v for k, v in numbers(one).items() if k not in lengths}
        )

    def test_any_rising_change_of_a_forecast_leaves_ranks(self, some):
        forecast, traces = some
        one, other = (evaluate(f, traces).overall for f in (forecast, replace_tokens(forecast, forecast.tokens**2)))
        assert (other.spearman, other.kendall, other.auc) == (one.spearman, one.kendall, one.auc)
        assert other.log_error > one.log_error

    def test_the_seed_decides(self, some):
        assert evaluate(*some) == evaluate(*some)
        assert evaluate(*some).overall.auc_range != evaluate(*some, seed=1).overall.auc_range


def replace_tokens(forecast, tokens):
    return Forecast(tokens, forecast.spread, forecast.solve, forecast.tail)


class TestTruncated:
    def test_an_answer_cut_at_the_cap_ranks_as_the_longest(self):
        traces = traces_of([10, 20, 30, 50, 50], truncated=[False, False, False, True, True])
        assert evaluate(Forecast([1, 2, 3, 9, 9]), traces).overall.spearman == pytest.approx(1.0)
        assert evaluate(Forecast([1, 2, 3, 0.5, 0.5]), traces).overall.spearman < 0

    def test_an_answer_that_ended_at_the_cap_is_shorter_than_one_that_was_cut_there(self):
        traces = traces_of([10, 50, 50], truncated=[False, False, True])
        assert evaluate(Forecast([1, 2, 3]), traces).overall.spearman == pytest.approx(1.0)

    def test_one_cut_before_others_ended_has_no_rank_and_no_tier(self):
        traces = traces_of([10, 20, 30, 15], truncated=[False, False, False, True])
        found = evaluate(Forecast([1, 2, 3, 0.1]), traces).overall
        assert found.spearman == pytest.approx(1.0)
        assert tiers_of(traces).tolist()[-1] == -1

    def test_it_has_no_error(self):
        traces = traces_of([10, 20, 30], truncated=[False, False, True])
        assert evaluate(Forecast([10, 20, 9000]), traces).overall.log_error == pytest.approx(0.0)

    def test_an_interval_that_ends_before_the_cut_has_missed(self):
        traces = traces_of([500, 500], truncated=[True, True])
        assert evaluate(Forecast([20, 20], 0.5), traces).overall.coverage == {"50%": 0, "80%": 0, "95%": 0}

    def test_one_cut_long_before_the_interval_counts_as_the_forecast_says(self):
        found = evaluate(Forecast([5000, 5000], 0.5), traces_of([2, 2], truncated=[True, True])).overall.coverage
        assert found == pytest.approx({"50%": 0.5, "80%": 0.8, "95%": 0.95})

    @pytest.mark.parametrize("tail", [None, 3.0])
    @pytest.mark.parametrize("ended", [0.3, 0.8])
    def test_correct_forecasts_are_found_correct_under_any_cap(self, tail, ended):
        random = np.random.default_rng(11)
        forecast = Forecast(1000 * random.lognormal(5, 1, 4000), 0.8, tail=tail)
        length, cap = quantile(forecast, random.random(4000)), quantile(forecast, ended)
        cut = length > cap
        traces = traces_of(np.where(cut, cap, length), truncated=cut.tolist())
        found = evaluate(forecast, traces, resamples=1).overall.coverage
        assert found == pytest.approx({"50%": 0.5, "80%": 0.8, "95%": 0.95}, abs=0.02)
        # Leaving out what was cut would bias it: of the answers that ended, other shares are inside.
        alone = evaluate(forecast.take(~cut), [t for t in traces if not t.truncated], resamples=1).overall.coverage
        assert alone["80%"] == pytest.approx((min(ended, 0.9) - 0.1) / ended, abs=0.02)


class TestGroups:
    def test_tiers_are_quartiles_of_the_true_length(self):
        traces = traces_of(range(1, 101))
        found = evaluate(Forecast(np.arange(1, 101)), traces).tiers
        assert list(found) == list(TIERS)
        assert [scores.traces for scores in found.values()] == [25, 25, 25, 25]
        assert [scores.median_tokens for scores in found.values()] == [13, 38, 63, 88]

    def test_equal_lengths_are_in_one_tier(self):
        tiers = tiers_of(traces_of([5] * 60 + [9] * 40))
        assert len(set(tiers[:60])) == len(set(tiers[60:])) == 1
        assert tiers[0] < tiers[60]

    def test_each_dataset_is_measured_by_itself(self, some):
        forecast, traces = some
        found = evaluate(forecast, traces).datasets
        assert set(found) == set(KINDS)
        for k, kind in enumerate(KINDS):
            alone = evaluate(forecast.take(np.arange(k, 120, 2)), traces[k::2]).overall
            assert flat(asdict(found[kind])) == pytest.approx(flat(asdict(alone)))


class TestNothingToMeasure:
    def test_what_is_unknown_is_none(self):
        found = evaluate(Forecast([10, 10]), traces_of([5, 7])).overall
        assert (found.spearman, found.kendall, found.auc, found.brier, found.calibration_error) == (None,) * 5
        assert (found.spearman_range, found.auc_range, found.correct) == (None,) * 3
        assert found.log_error is not None

    def test_all_truncated(self):
        found = evaluate(Forecast([10, 20]), traces_of([50, 50], truncated=[True, True])).overall
        assert (found.spearman, found.log_error, found.log_rmse) == (None,) * 3

    def test_one_trace(self):
        found = evaluate(Forecast([10]), traces_of([0], correct=[True])).overall
        assert (found.traces, found.median_tokens, found.auc, found.correct) == (1, 1.0, None, 1.0)

    def test_forecasts_for_other_traces_are_refused(self):
        with pytest.raises(MarketError, match="one forecast per trace"):
            evaluate(Forecast([1, 2]), traces_of([1]))
        with pytest.raises(MarketError, match="one forecast per trace"):
            evaluate(Forecast([]), [])
