"""Money and prompts in a market: what is granted never costs more than there is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice import Forecast, allocate
from shadowprice.cost import ALL_TOKENS, TOKENS, Rates
from shadowprice.market.priced import allocate_units

RATES = {"dollars": Rates.dollars("0.15", "0.60"), "odd": Rates.dollars("0.07", "3.33", "0.01"), "tokens": ALL_TOKENS}


def test_where_prompts_are_free_it_is_the_market_itself():
    forecast, cap = Forecast([100.0, 300.0, 50.0]), np.full(3, np.inf)
    decided, grants = allocate_units(forecast, 400, "expected", cap, np.zeros(3), TOKENS)
    assert np.array_equal(grants, allocate(forecast, 400, "expected").tokens)
    assert decided.price == allocate(forecast, 400, "expected").price


@pytest.mark.parametrize("rates", RATES.values(), ids=RATES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_grants_and_prompts_never_cost_more_than_the_budget(rates, data):
    tokens = np.array(data.draw(st.lists(st.floats(1, 3000), min_size=1, max_size=12)))
    prompts = np.array(data.draw(st.lists(st.integers(1, 5000), min_size=tokens.size, max_size=tokens.size)))
    units = data.draw(st.integers(0, 10**8 if rates.money else 10**5))
    policy = data.draw(st.sampled_from(["expected", "clear", "uniform", "proportional", "auction"]))
    cap = np.full(tokens.size, data.draw(st.sampled_from([np.inf, 40.0, 1000.0])))
    entry = np.array([rates.entry(prompt) for prompt in prompts.tolist()])
    _, grants = allocate_units(Forecast(tokens), units, policy, cap, entry, rates)
    pairs = zip(prompts.tolist(), grants.tolist(), strict=True)
    assert sum(rates.bound(prompt, grant) for prompt, grant in pairs if grant) <= units
    assert np.all(grants <= cap)


def test_a_long_prompt_costs_a_request_its_place():
    """Two alike but for their prompts, and a budget for one."""
    rates = RATES["dollars"]
    entry = np.array([rates.entry(8000), rates.entry(100)])
    _, grants = allocate_units(Forecast([300.0, 300.0]), 400_000, "expected", np.full(2, np.inf), entry, rates)
    assert grants[0] == 0 < grants[1]
