"""No policy exceeds the budget by a token; each does what its definition says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice import Forecast, MarketError, PolicyError, ShadowpriceError, allocate
from shadowprice.market import POLICIES, Surge, algorithm1
from shadowprice.market.policies import options_of, serve_rest

MARKETS = ["clear", "triangular", "quadratic", "expected"]


def hindsight(policy: str, lengths: np.ndarray) -> dict[str, np.ndarray]:
    truth = {"lengths": lengths, "correct": np.arange(lengths.size) % 3 > 0}
    return {name: truth[name] for name in options_of(policy) if name in truth}


@pytest.fixture(scope="module")
def forecast() -> Forecast:
    rng = np.random.default_rng(0)
    return Forecast(rng.lognormal(6, 0.8, 300), rng.uniform(0.3, 1, 300), rng.uniform(0.05, 1, 300))


@pytest.mark.parametrize("policy", POLICIES)
class TestContract:
    @settings(max_examples=60, deadline=None)
    @given(data=st.data())
    def test_whole_tokens_within_the_budget_and_the_caps(self, policy, data):
        tokens = np.array(data.draw(st.lists(st.floats(0.01, 1e5), max_size=12)))
        budget = data.draw(st.integers(0, 100_000))
        cap = data.draw(st.one_of(st.none(), st.integers(0, 5000)))
        caps = cap if data.draw(st.booleans()) or cap is None else np.arange(tokens.size) * 100.0 + cap
        result = allocate(Forecast(tokens), budget, policy, caps, **hindsight(policy, np.ceil(tokens)))
        assert result.tokens.dtype == np.int64
        assert result.tokens.shape == tokens.shape
        assert np.all(result.tokens >= 0)
        assert result.total <= budget
        if caps is not None:
            assert np.all(result.tokens <= caps)

    def test_permuting_queries_permutes_grants(self, policy, forecast):
        """Up to the tokens that rounding hands out."""
        order = np.random.default_rng(1).permutation(len(forecast))
        shuffled = Forecast(forecast.tokens[order], forecast.spread[order], forecast.solve[order])
        lengths = np.ceil(forecast.tokens)
        one = allocate(forecast, 60_000, policy, **hindsight(policy, lengths)).tokens[order]
        truth = {name: values[order] for name, values in hindsight(policy, lengths).items()}
        two = allocate(shuffled, 60_000, policy, **truth).tokens
        assert np.abs(one - two).max() <= 1

    def test_zero_queries_and_zero_tokens(self, policy, forecast):
        assert allocate(Forecast([]), 100, policy, **hindsight(policy, np.zeros(0))).tokens.size == 0
        assert allocate(forecast, 0, policy, **hindsight(policy, forecast.tokens)).total == 0

    def test_an_unknown_option_is_an_error_that_lists_the_known(self, policy, forecast):
        with pytest.raises(PolicyError, match="options are: " + (", ".join(options_of(policy)) or "none")):
            allocate(forecast, 100, policy, colour=3)


class TestBaselines:
    def test_uniform_is_the_floor_of_the_mean(self):
        assert allocate(Forecast([10, 20, 30]), 100, "uniform").tokens.tolist() == [33, 33, 33]

    @pytest.mark.parametrize("policy", ["proportional", "tale"])
    def test_proportional_spends_everything_in_proportion(self, policy):
        result = allocate(Forecast([100, 200, 700]), 500, policy)
        assert result.tokens.tolist() == [50, 100, 350]

    @pytest.mark.parametrize("policy", ["proportional", "tale"])
    def test_the_minimum_is_kept_without_overspending(self, policy):
        result = allocate(Forecast([1, 1, 998]), 500, policy)
        assert result.tokens.tolist() == [32, 32, 436]
        scarce = allocate(Forecast([1, 1, 998]), 60, policy)  # not even the minimum for all
        assert scarce.tokens.tolist() == [20, 20, 20]

    def test_what_a_cap_leaves_goes_to_the_others(self):
        result = allocate(Forecast([100, 100, 700]), 900, "proportional", max_tokens=400)
        assert result.tokens.tolist() == [250, 250, 400]

    def test_a_teacher_that_estimates_nothing_is_an_error(self):
        with pytest.raises(MarketError, match="estimates"):
            allocate(Forecast([1, 1]), 400, "tale", estimates=[0, 300])

    def test_tale_takes_a_teachers_estimates(self):
        assert allocate(Forecast([1, 1]), 400, "tale", estimates=[100, 300]).tokens.tolist() == [100, 300]

    def test_heuristic_drops_the_longer_half_when_scarce(self):
        scarce = allocate(Forecast([100, 200, 300, 400]), 500, "heuristic")
        assert scarce.tokens.tolist() == [200, 300, 0, 0]
        ample = allocate(Forecast([100, 200, 300, 400]), 1200, "heuristic")
        assert ample.tokens.tolist() == [150, 250, 350, 450]

    def test_heuristic_flattens_until_everyone_has_the_minimum(self):
        result = allocate(Forecast([100, 500, 501, 502]), 90, "heuristic")
        assert result.tokens.tolist() == [32, 58, 0, 0]

    def test_auction_admits_the_shortest_that_fit(self):
        result = allocate(Forecast([400, 100, 300, 200]), 660, "auction")
        assert result.tokens.tolist() == [0, 120, 320, 220]

    def test_nobody_fits_the_auction(self):
        assert allocate(Forecast([400, 500]), 100, "auction").total == 0


class TestMarkets:
    @pytest.mark.parametrize("policy", MARKETS)
    def test_reports_its_price_and_its_certificate(self, policy, forecast):
        result = allocate(forecast, 60_000, policy)
        assert result.price > 0
        assert result.utility > 0
        assert result.bound - result.utility < 0.01 * result.bound
        assert result.total > 0.99 * 60_000

    @pytest.mark.parametrize("policy", MARKETS[:3])
    @pytest.mark.parametrize("mean_budget", [1, 20, 100, 400, 700, 3000])
    def test_rounding_leaves_nobody_below_the_threshold(self, policy, mean_budget, forecast):
        """Repair 4: floor(tau + 1e-6) would fall below tau and be worth nothing."""
        result = allocate(forecast, f"{mean_budget}/query", policy)
        assert np.all(result.tokens[result.admitted] >= forecast.tokens[result.admitted])

    def test_rounding_costs_little_utility(self, forecast):
        for mean_budget in (600, 700, 1500):
            result = allocate(forecast, mean_budget * len(forecast), "clear")
            utility = Surge(forecast.tokens, 2.0, result.beta).value(result.tokens).sum()
            assert utility >= 0.995 * result.utility

    def test_clear_reproduces_the_printed_algorithm_when_ample(self, forecast):
        for share in (1.05, 1.5, 4):
            for cap in (np.inf, 2000.0):
                budget = int(share * forecast.tokens.sum())
                printed, _ = algorithm1(forecast.tokens, budget, max_tokens=cap)
                ours = allocate(forecast, budget, "clear", max_tokens=cap)
                short = forecast.tokens < min(cap, 1e9)  # the printed one grants caps below the threshold too
                if cap == np.inf:
                    assert np.abs(printed - ours.tokens)[short].max() <= 1
                else:
                    assert np.all(ours.tokens[short] >= printed[short] - 1)

    def test_the_adaptive_decay_rate_is_the_papers(self, forecast):
        mean = forecast.tokens.mean()
        assert allocate(forecast, f"{int(mean) // 2}/query").beta == pytest.approx(1e6)
        ample = allocate(forecast, 2000 * len(forecast))
        assert ample.beta == pytest.approx(1 / (2000 - mean))
        assert allocate(forecast, 2000 * len(forecast), beta=0.01).beta == 0.01

    @pytest.mark.parametrize("alpha", [1e-12, 1.0, 1e12])
    def test_alpha_changes_no_grant_and_scales_the_price(self, alpha, forecast):
        for budget in (60_000, 400_000):
            one, two = allocate(forecast, budget), allocate(forecast, budget, alpha=alpha)
            assert np.array_equal(one.tokens, two.tokens)
            assert two.price == pytest.approx(one.price * alpha / 2, rel=1e-9)

    def test_variants_with_the_same_peak_admit_nearly_the_same_queries(self, forecast):
        clear, tent, parabola = (allocate(forecast, 60_000, policy).admitted for policy in MARKETS[:3])
        assert np.mean(clear != tent) < 0.02
        assert np.mean(clear != parabola) < 0.02

    def test_expected_prefers_the_likelier_of_two_alike(self):
        result = allocate(Forecast([300, 300], 0.5, [0.9, 0.2]), 450, "expected")
        assert result.tokens.tolist() == [450, 0]

    @pytest.mark.parametrize("policy", MARKETS[:3])
    @pytest.mark.parametrize(
        ("tokens", "budget", "cap", "grants"),
        [
            ([412.3, 600.5], 1014, [413, 601], [413, 601]),
            ([412.3] * 3, 826, 413, [413, 413, 0]),
            ([412.3] * 3, 413, None, [413, 0, 0]),
            ([300, 300], 300, None, [300, 0]),
            ([39.6, 36.3], 85, 40, [40, 40]),
        ],
    )
    def test_a_budget_that_just_suffices_is_not_wasted(self, policy, tokens, budget, cap, grants):
        result = allocate(Forecast(tokens), budget, policy, cap)
        assert result.admitted.tolist() == [g > 0 for g in grants]
        assert np.all(result.tokens[result.admitted] >= np.array(tokens)[result.admitted])

    def test_a_query_whose_threshold_exceeds_its_cap_is_left_out(self):
        result = allocate(Forecast([300, 300]), 5000, "clear", max_tokens=[200, 1000])
        assert result.tokens[0] == 0
        assert result.tokens[1] >= 300


class TestHindsight:
    def test_oracle_fills_shortest_first_with_exact_lengths(self):
        result = allocate(Forecast([1, 1, 1]), 550, "oracle", lengths=[400, 100, 300])
        assert result.tokens.tolist() == [0, 100, 300]

    def test_no_policy_has_more_correct_than_clairvoyant(self, forecast):
        rng = np.random.default_rng(3)
        lengths = np.ceil(forecast.tokens * rng.lognormal(0, 0.5, 300))
        correct = rng.random(300) < forecast.solve
        truth = {"lengths": lengths, "correct": correct}
        for budget in (5_000, 50_000, 200_000):
            correct_by = {}
            for policy in POLICIES:
                options = {name: truth[name] for name in options_of(policy) if name in truth}
                grants = allocate(forecast, budget, policy, **options).tokens
                correct_by[policy] = int(np.sum((grants >= lengths) & correct))
            assert correct_by["clairvoyant"] == max(correct_by.values())

    def test_hindsight_is_required(self, forecast):
        with pytest.raises(PolicyError, match="needs lengths"):
            allocate(forecast, 100, "oracle")
        with pytest.raises(MarketError, match="one value per query"):
            allocate(forecast, 100, "oracle", lengths=[1, 2])


class TestBadInput:
    def test_an_unknown_policy_lists_the_known(self, forecast):
        with pytest.raises(PolicyError, match="known are uniform, proportional, tale"):
            allocate(forecast, 100, "magic")

    @pytest.mark.parametrize("budget", [-1, "-1", "lots", "", "1e5x", float("nan"), float("inf"), None, "1k/a", 2**60])
    def test_an_invalid_budget(self, budget, forecast):
        with pytest.raises(ShadowpriceError, match="budget"):
            allocate(forecast, budget)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"tokens": [1, np.nan]},
            {"tokens": [1, 0]},
            {"tokens": [1, -5]},
            {"tokens": [1, np.inf]},
            {"tokens": [1, 2], "solve": [0.5, 1.5]},
            {"tokens": [1, 2], "spread": [0.5, 0.0]},
            {"tokens": [1, 2], "spread": [0.5, 0.5, 0.5]},
            {"tokens": ["long"]},
        ],
    )
    def test_an_invalid_forecast(self, wrong):
        with pytest.raises(MarketError, match=r"tokens|solve|spread"):
            Forecast(**wrong)

    def test_a_wrong_number_of_caps(self, forecast):
        with pytest.raises(MarketError, match="max_tokens"):
            allocate(forecast, 100, max_tokens=[1, 2])

    def test_options_are_checked(self, forecast):
        for option in ({"alpha": -1.0}, {"beta": 0.0}, {"beta": [1, 2]}, {"epsilon": np.nan}):
            with pytest.raises(MarketError, match=next(iter(option))):
                allocate(forecast, 100, "clear", **option)


class TestTheRest:
    def test_serves_caps_the_cheapest_first_and_never_more_than_there_is(self):
        grants, caps = np.array([50, 0, 0, 0]), np.array([100.0, 30, np.inf, 20])
        for rest, served in ((0, [50, 0, 0, 0]), (25, [50, 0, 0, 20]), (49, [50, 0, 0, 20]), (50, [50, 30, 0, 20])):
            assert serve_rest(grants, caps, caps, rest).tolist() == served
        assert grants.tolist() == [50, 0, 0, 0]
