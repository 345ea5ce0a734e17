"""What several answers are worth: limits, an urn of marbles, and a correlation that is found again."""

import numpy as np
import pytest

from shadowprice.errors import MarketError
from shadowprice.market import Expected, Surge
from shadowprice.market.options import Option
from shadowprice.market.samples import any_correct, correlation_of, majority_correct, sampled

CHANCES = np.linspace(0, 1, 11)


def urn(chance: float, correlation: float, samples: int, rng: np.random.Generator, draws: int) -> np.ndarray:
    """How many of several answers are correct, drawn from first principles."""
    odds = (1 - correlation) / correlation
    return rng.binomial(samples, rng.beta(chance * odds, (1 - chance) * odds, draws))


def test_independent_answers_multiply():
    np.testing.assert_allclose(any_correct(CHANCES, 4), 1 - (1 - CHANCES) ** 4, atol=1e-15)


@pytest.mark.parametrize("count", [any_correct, majority_correct])
def test_answers_that_repeat_each_other_are_one_answer(count):
    np.testing.assert_allclose(count(CHANCES, 5, 1.0), CHANCES, atol=1e-15)


@pytest.mark.parametrize("count", [any_correct, majority_correct])
def test_one_sample_is_one_answer(count):
    np.testing.assert_allclose(count(CHANCES, 1, 0.3), CHANCES, atol=1e-15)


@pytest.mark.parametrize("samples", [2, 3, 5])
def test_both_chances_are_those_of_an_urn(samples):
    found = urn(0.6, 0.25, samples, np.random.default_rng(0), 200_000)
    assert any_correct(0.6, samples, 0.25) == pytest.approx(np.mean(found > 0), abs=0.004)
    majority = np.mean(2 * found > samples) + np.mean(2 * found == samples) / 2
    assert majority_correct(0.6, samples, 0.25) == pytest.approx(majority, abs=0.004)


def test_the_correlation_is_found_again():
    rng = np.random.default_rng(1)
    grades = [np.arange(6) < correct for correct in urn(0.4, 0.5, 6, rng, 4000)]
    assert correlation_of(grades) == pytest.approx(0.5, abs=0.03)


def test_a_correlation_needs_two_answers_to_a_question():
    with pytest.raises(MarketError, match="two answers"):
        correlation_of([[True], [False]])


def test_an_option_of_three_samples_costs_three_times_as_much_and_never_promises_too_much():
    one = Option(Expected([200.0], 0.4, 0.5, None, 4000.0), 2.0, 10.0)
    three = sampled(one, 3, 0.2, verified=True)
    tokens = np.linspace(1, 4000, 50)
    assert three.cost(tokens) == pytest.approx(3 * one.cost(tokens))
    assert np.all(three.curves.value(tokens) <= any_correct(one.curves.value(tokens), 3, 0.2) + 1e-12)
    assert three.curves.value(1e9) == pytest.approx(any_correct(0.5, 3, 0.2))


def test_samples_need_chances():
    with pytest.raises(MarketError, match="chance"):
        sampled(Option(Surge([100.0])), 2, 0.0, verified=True)
