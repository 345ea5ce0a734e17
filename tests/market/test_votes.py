"""What votes are worth: agreement convinces, disagreement does not, and nobody pays for what cannot change a thing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from shadowprice.errors import MarketError
from shadowprice.market.votes import Standing, Votes, agreement_of

chances = st.floats(0.02, 0.98)
models = st.builds(Votes, st.floats(0.0, 0.95), st.floats(0.01, 0.9))
quick = settings(max_examples=60, deadline=None)


@st.composite
def histories(draw, most=5):
    """A model, and votes on one query: the group and the chance of each; None cannot vote."""
    votes, history, groups = draw(models), [], 0
    for _ in range(draw(st.integers(0, most))):
        group = draw(st.one_of(st.none(), st.integers(0, groups)))
        groups += group == groups
        history.append((group, draw(chances)))
    return votes, history


def standing(votes: Votes, history) -> Standing:
    found = Standing.empty(1)
    for group, chance in history:
        found = votes.add(found, chance, group)
    return found


@quick
@given(histories())
def test_posteriors_are_chances(case):
    votes, history = case
    found = standing(votes, history)
    assert np.all((found.posterior >= 0) & (found.posterior <= 1))
    assert found.posterior.sum() == pytest.approx(1)
    assert found.votes.sum() == sum(group is not None for group, _ in history)


@quick
@given(chances, st.floats(0.0, 0.8), st.floats(0.01, 0.9))
def test_a_single_answer_is_as_likely_correct_as_forecast(chance, correlation, agreement):
    found = standing(Votes(correlation, agreement), [(0, chance)])
    assert found.posterior[0, 1] == pytest.approx(chance, abs=3e-3)


@quick
@given(st.floats(0.5, 0.98), st.floats(0.0, 0.8), st.floats(0.01, 0.5), st.integers(1, 5))
def test_agreement_raises_the_chance_of_an_answer_and_disagreement_lowers_it(chance, correlation, agreement, equal):
    """Of a route that is mostly correct; those that are mostly wrong may agree on what is wrong."""
    votes = Votes(correlation, agreement)
    before = standing(votes, [(0, chance)] * equal)
    now = before.posterior[0, 1]
    assert votes.add(before, chance, 0).posterior[0, 1] >= now - 1e-9
    assert votes.add(before, chance, 1).posterior[0, 1] <= now + 1e-9
    assert votes.add(before, chance, None).posterior[0, 1] <= now + 1e-9


def test_the_agreement_of_routes_that_are_mostly_wrong_proves_little():
    equal = [(0, 0.1)] * 3
    assert standing(Votes(0.3, 0.05), equal).posterior[0, 1] > standing(Votes(0.3, 0.8), equal).posterior[0, 1]


@quick
@given(histories(), chances, st.integers(0, 6))
def test_further_answers_never_lose_and_their_worth_falls(case, chance, left):
    votes, history = case
    share, reach = votes.ahead(standing(votes, history), chance, left)
    assert np.all(share >= 0)
    assert np.all((reach >= 0) & (reach <= 1 + 1e-9))
    assert np.all(np.diff(share, axis=1) <= 1e-9)
    assert left or not reach.any()


@quick
@given(chances, st.floats(0.05, 0.9), st.floats(0.05, 0.5))
def test_the_first_answer_is_worth_its_chance_and_a_second_alone_nothing(chance, correlation, agreement):
    share, reach = Votes(correlation, agreement).ahead(Standing.empty(1), chance, 2)
    assert share[0, 0] == pytest.approx(1)
    assert reach[0].tolist() == [1, 0]


@quick
@given(chances, st.floats(0.05, 0.8), st.floats(0.05, 0.5))
def test_worth_vanishes_with_agreement(chance, correlation, agreement):
    votes = Votes(correlation, agreement)

    def worth(equal: int) -> float:
        share, reach = votes.ahead(standing(votes, [(0, chance)] * equal), chance, 3)
        return float((share * reach).sum())

    assert worth(2) <= worth(1) + 1e-9
    assert worth(4) == 0, "three more cannot change it"


@quick
@given(chances, st.floats(0.05, 0.8), st.floats(0.05, 0.5))
def test_buying_one_by_one_is_as_good_as_buying_three(chance, correlation, agreement):
    votes = Votes(correlation, agreement)
    one = standing(votes, [(0, chance)])
    bought = [votes.ahead(some, chance, left) for some, left in ((Standing.empty(1), 3), (one, 2))]
    (advance, later) = (chance * float((share * reach).sum()) for share, reach in bought)
    assert advance == pytest.approx(one.posterior[0, 1] + later, abs=3e-3)


@pytest.mark.parametrize(("chance", "correlation", "agreement"), [(0.6, 0.5, 0.2), (0.3, 0.3, 0.4), (0.8, 0.6, 0.1)])
def test_the_chance_of_a_majority_of_three_is_that_of_drawn_answers(chance, correlation, agreement):
    """From first principles: an easy or a hard query, and wrong answers that repeat each other by chance."""
    rng, n, r = np.random.default_rng(0), 200_000, np.sin(np.pi * correlation / 2)
    t = ndtr((ndtri(chance) + np.sqrt(r) * rng.standard_normal(n)) / np.sqrt(1 - r))
    correct = rng.random((n, 3)) < t[:, None]
    # What each says: 0 is correct; a wrong one repeats an earlier wrong one, or is new.
    new = 1 / agreement - 1
    said = np.zeros((n, 3), dtype=int)
    for at in range(3):
        wrong = ~correct[:, :at] if at else np.zeros((n, 0), dtype=bool)
        count = wrong.sum(1)
        repeats = rng.random(n) < count / (count + new)
        pick = (rng.random(n) * np.maximum(count, 1)).astype(int)
        order = np.cumsum(wrong, axis=1) - 1
        earlier = (said[:, :at] * (wrong & (order == pick[:, None]))).sum(1)
        said[:, at] = np.where(correct[:, at], 0, np.where(repeats, earlier, at + 1))
    same = (said[:, :, None] == said[:, None, :]).sum(2)
    majority = correct[np.arange(n), same.argmax(1)].mean()
    votes = Votes(correlation, agreement)
    share, reach = votes.ahead(Standing.empty(1), chance, 3)
    assert chance * (share * reach).sum() == pytest.approx(majority, abs=0.006)


def test_two_weak_votes_do_not_outvote_a_strong_one_but_three_do():
    votes = Votes()
    dear_first = [(0, 0.7)]
    assert standing(votes, [*dear_first, *[(1, 0.3)] * 2]).leader[0] == 0
    assert standing(votes, [*dear_first, *[(1, 0.3)] * 3]).leader[0] == 1


def test_of_equal_votes_the_first_leads():
    assert standing(Votes(), [(0, 0.6), (1, 0.6)]).leader[0] == 0
    assert standing(Votes(), [(0, 0.6), (1, 0.6), (1, 0.6), (0, 0.6)]).leader[0] == 0


def test_a_better_route_may_overrule_and_a_worse_one_cannot_alone():
    votes = Votes()
    cheap, dear = standing(votes, [(0, 0.4)]), standing(votes, [(0, 0.8)])
    assert votes.ahead(cheap, 0.8, 1)[1].any()
    assert not votes.ahead(dear, 0.4, 1)[1].any()


def test_queries_are_looked_at_together_as_alone():
    votes, p = Votes(), np.array([0.3, 0.6, 0.9])
    one = votes.add(Standing.empty(3), p, 0)
    share, reach = votes.ahead(one, p, np.array([2, 0, 3]))
    for at, left in enumerate((2, 0, 3)):
        alone = votes.ahead(one.take(np.array([at])), p[at], left)
        for all_, some in zip((share, reach), alone, strict=True):
            np.testing.assert_allclose(all_[at, : some.shape[1]], some[0])
            assert not all_[at, some.shape[1] :].any()


def test_agreement_is_the_share_of_pairs():
    assert agreement_of([["a", "a", "b"], ["c"], ["d", "d"]]) == pytest.approx(2 / 4)
    with pytest.raises(MarketError, match="two wrong answers"):
        agreement_of([["a"], []])
