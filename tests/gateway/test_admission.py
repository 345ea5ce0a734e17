import pytest

from shadowprice.accounts.windows import parse_account
from shadowprice.cost import Rates
from shadowprice.gateway.admission import Purse, Terms, decide, decide_reading, offers_of
from shadowprice.types import Forecast, Usage

FORECAST = Forecast([300.0], 0.6, 0.6, solved_tokens=[200.0], solved_spread=[0.4])
TOKENS, MONEY = parse_account("all", "1M/day"), parse_account("all", "$5/day")
RATES = Rates.dollars(1, 2)  # 1,000 nano-dollars for a token that is read, 2,000 for one that is generated


def decision(price=0.0, available=10**6, purses=None, **given):
    terms = Terms(**{"own": None, "cap": 4096, **given})
    offers = {money: offers_of(FORECAST, [terms], money) for money in (False, True)}
    return decide(FORECAST, terms, purses or [Purse(TOKENS, available, price)], offers)


def test_at_price_0_everybody_gets_what_they_ask_for():
    assert (decision().kind, decision().grant) == ("granted", 4096)
    assert decision(own=100).grant == 100
    assert decision(own=9000).grant == 4096


def test_a_price_shrinks_and_then_declines():
    grants = [decision(price=price).grant for price in (0, 1e-5, 1e-4, 1e-3, 1e-2)]
    assert grants == sorted(grants, reverse=True)
    assert 200 < grants[3] < 1000
    assert grants[1] < 4096
    assert decision(price=1e-2).kind == "declined"
    assert decision(price=1e-3).kind == "shrunk"


def test_a_higher_value_buys_more():
    assert decision(price=1e-2, value=10).grant == decision(price=1e-3).grant
    assert decision(price=1e-3, value=0).kind == "declined"


def test_no_more_than_is_left_for_all_answers():
    assert decision(available=1000, answers=3).grant <= 333
    assert decision(available=15).kind == "exhausted"
    assert decision(available=15, own=10).grant == 10


@pytest.mark.parametrize("own", [None, 1, 50])
def test_its_own_limit_is_never_raised(own):
    for price in (0, 1e-4, 1e-3):
        assert decision(price=price, own=own).grant <= (own or 4096)


def test_one_request_does_not_keep_all_others_out():
    assert 200 < decision(available=5000).grant < 1000
    assert decision(available=5000, own=300).grant == 300
    assert decision(available=30_000).grant == 30_000 // 8


class TestSeveralAccounts:
    team = parse_account("team a", "10k/day")

    def test_the_highest_price_counts_and_is_named(self):
        both = decision(purses=[Purse(TOKENS, 10**6, 1e-4), Purse(self.team, 10**5, 1e-3)])
        assert both.grant == decision(price=1e-3).grant
        assert both.price == 1e-3
        assert "team a day" in both.why

    def test_each_learns_what_the_others_would_let_it_buy(self):
        both = decision(purses=[Purse(TOKENS, 10**6, 1e-4), Purse(self.team, 10**5, 1e-3)])
        assert both.others == (decision(price=1e-3).grant, decision(price=1e-4).grant)
        used_up = decision(purses=[Purse(TOKENS, 10**6, 0.0), Purse(self.team, 0, 0.0)])
        assert (used_up.kind, used_up.others) == ("exhausted", (0, 4096))
        assert "team a day" in used_up.why


class TestMoney:
    def terms(self, **given):
        return Terms(**{"own": None, "cap": 4096, "prompt": 1000, "rates": RATES, **given})

    def test_the_bound_has_the_prompt_and_the_grant(self):
        assert self.terms().bound(MONEY, 500) == 1000 * 1000 + 500 * 2000
        assert self.terms().bound(TOKENS, 500) == 500
        assert self.terms(answers=2).bound(MONEY, 500) == 1000 * 1000 + 1000 * 2000

    def test_the_cost_is_that_of_what_was_used(self):
        usage = Usage(10, 20, 0)
        assert self.terms().cost(MONEY, usage) == 20 * 1000 + 10 * 2000
        assert self.terms().cost(TOKENS, usage) == 10

    def test_the_grant_is_within_what_is_left_after_the_prompt(self):
        left = 1000 * 1000 + 300 * 2000
        found = decision(purses=[Purse(MONEY, left, 0.0)], prompt=1000, rates=RATES)
        assert self.terms().bound(MONEY, found.grant) <= left
        assert decision(purses=[Purse(MONEY, 10**6, 0.0)], prompt=1000, rates=RATES).kind == "exhausted"

    def test_prices_per_nano_dollar_and_per_token_buy_the_same(self):
        """Where the prompt costs nothing, money is tokens in another unit."""
        free = Rates.dollars(0, 2)
        in_money = decision(purses=[Purse(MONEY, 10**12, 1e-3 / 2000)], rates=free)
        assert in_money.grant == decision(price=1e-3).grant
        assert in_money.price == pytest.approx(1e-3)


def test_embeddings_are_read_whole_or_not_at_all():
    terms = Terms(None, 4096, prompt=1000, rates=RATES, reads=True)
    assert decide_reading(terms, [Purse(TOKENS, 1000, 9.0), Purse(MONEY, 10**6, 9.0)]).kind == "granted"
    assert decide_reading(terms, [Purse(TOKENS, 999, 0.0)]).kind == "exhausted"
    assert decide_reading(terms, [Purse(MONEY, 999_999, 0.0)]).kind == "exhausted"
    assert (terms.cost(TOKENS, Usage(0, 700)), terms.cost(MONEY, Usage(0, 700))) == (700, 700_000)
