"""One budget that samples buy from as they arrive."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.integrations.purse import Purse
from shadowprice.types import Forecast


class ByWords:
    """Forecasts ten tokens per word."""

    def predict(self, requests):
        return Forecast([10.0 * len(request.text.split()) for request in requests], 0.4, 0.8)


texts = st.integers(1, 60).map(lambda words: "word " * words)


@given(
    st.integers(0, 2000),
    st.lists(st.tuples(texts, st.one_of(st.none(), st.integers(1, 500)), st.floats(0, 1)), max_size=20),
)
@settings(deadline=None, max_examples=50)
def test_what_is_spent_and_reserved_is_never_more_than_the_budget(budget, calls):
    purse, open_calls = Purse(budget, ByWords()), []
    purse.samples = len(calls)
    for text, limit, share in calls:
        purse.begun += 1
        reservation = purse.buy(text, limit)
        assert reservation.grant <= (budget if limit is None else limit)
        assert purse.spent + purse.reserved <= budget
        open_calls.append((reservation, share))
        if share > 0.5:
            done, used = open_calls.pop(0)
            purse.settle(done, int(done.grant * used))
    for done, _ in open_calls:
        purse.settle(done)
    assert purse.reserved == 0
    assert purse.spent <= budget


def test_under_a_scarce_budget_the_short_ones_are_served_and_the_budget_lasts():
    purse, random = Purse(4000, ByWords()), np.random.default_rng(0)
    purse.samples = 100
    words = random.permutation(np.repeat([5, 30], 50))  # 50 or 300 tokens: 17,500 in all
    served = []
    for count in words:
        purse.begun += 1
        bought = purse.buy("word " * count)
        served.append(bought.grant > 0)
        purse.settle(bought, min(bought.grant, 10 * int(count)))
    served = np.array(served)
    assert served[words == 5].mean() > 0.9
    assert served[words == 30].mean() < 0.4
    assert served[-20:].any()
    assert 0.9 * 4000 <= purse.spent <= 4000


@pytest.mark.parametrize(("budget", "served"), [(3000, 9), (200_000, 20)])
def test_calls_without_a_limit_that_are_made_together_share_the_budget(budget, served):
    purse = Purse(budget, ByWords())
    purse.samples = 20
    bought = []
    for _ in range(20):
        purse.begun += 1
        bought.append(purse.buy("word " * 20))  # 200 tokens, and 335 are enough for nine of ten
    assert sum(each.grant > 0 for each in bought) >= served
    assert purse.reserved <= budget
