import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice import InputError, Rates, Usage, parse_budget
from shadowprice.cost import ALL_TOKENS, TOKENS, prompt_bound, show


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("200000", 200_000),
        ("200k", 200_000),
        ("200K", 200_000),
        ("1.5M", 1_500_000),
        ("2G", 2_000_000_000),
        ("256/query", 2560),
        ("1.5k / query", 15_000),
        ("0.25/query", 2),
        ("1,000,000", 1_000_000),
        ("1_000", 1000),
        (" 7 ", 7),
        ("0", 0),
        (123, 123),
        (123.9, 123),
    ],
)
def test_what_a_budget_may_look_like(text, tokens):
    assert parse_budget(text, queries=10) == tokens


def test_no_float_rounds_a_budget_up():
    assert parse_budget("1.1k", 1) == 1100
    assert parse_budget("4.35M", 1) == 4_350_000


@pytest.mark.parametrize(
    "text", ["", "abc", "-5", "1e", "5 apples", "k", "1..5k", "10/hour", "1,00", "nan", "99999999G"]
)
def test_what_it_may_not(text):
    with pytest.raises(InputError, match="budget"):
        parse_budget(text, 10)


@pytest.mark.parametrize("text", ["200.000", "1.000", "12.500"])
def test_a_point_that_may_separate_thousands_is_asked_about(text):
    whole, _, decimals = text.partition(".")
    with pytest.raises(InputError, match=f"{whole}, or {whole}{decimals}"):
        parse_budget(text, 10)
    assert parse_budget("1.125k", 10) == 1125
    assert parse_budget("12.125/query", 16) == 194


class TestMoney:
    def test_the_largest_budget_is_named_in_its_unit(self):
        with pytest.raises(InputError, match=r"is above \$1,125,899"):
            parse_budget("$2M", 1, self.RATES)
        with pytest.raises(InputError, match=r"is above 1,125,899,906,842,624 tokens"):
            parse_budget("99999999G", 1)

    def test_one_that_a_shell_took_away_says_so(self):
        with pytest.raises(InputError, match="in quotes"):
            parse_budget("", 1)

    RATES = Rates.dollars(input="0.15", output="0.60", cached="0.075")

    def test_a_million_tokens_cost_what_the_price_list_says(self):
        assert self.RATES.cost(Usage(output=10**6)) == 600_000_000
        assert self.RATES.cost(Usage(input=10**6)) == 150_000_000
        assert self.RATES.cost(Usage(cached=10**6)) == 75_000_000

    def test_costs_are_rounded_up_to_whole_nano_dollars(self):
        rates = Rates.dollars(input="0.0125", output="0.0125")
        assert rates.cost(Usage(output=1)) == 13
        assert rates.cost(Usage(output=2)) == 25

    def test_budgets_of_money_are_nano_dollars(self):
        assert parse_budget("$5", 10, self.RATES) == 5 * 10**9
        assert parse_budget("$0.002/query", 10, self.RATES) == 20_000_000

    @given(nano=st.integers(0, 10**10), queries=st.integers(1, 10**5))
    def test_so_much_for_each_query_is_exact(self, nano, queries):
        text = f"${nano // 10**9}.{nano % 10**9:09d}/query"
        assert parse_budget(text, queries, self.RATES) == nano * queries

    @pytest.mark.parametrize(
        ("budget", "rates", "problem"), [("$5", TOKENS, "--rate-in 0.15 --rate-out 0.60"), ("200k", RATES, "dollars")]
    )
    def test_money_and_tokens_are_not_mixed(self, budget, rates, problem):
        with pytest.raises(InputError, match=problem):
            parse_budget(budget, 1, rates)

    @pytest.mark.parametrize("rates", [("-1", "1"), ("1", "0"), ("a", "1"), ("1", "1e30"), ("1", "1/0")])
    def test_invalid_rates(self, rates):
        with pytest.raises(InputError, match=r"rate of (in|out)put"):
            Rates.dollars(*rates)

    @given(
        prompt=st.integers(0, 10**6),
        used=st.integers(0, 10**6),
        cached=st.integers(0, 10**6),
        limit=st.integers(1, 10**6),
        generated=st.integers(0, 10**6),
    )
    def test_the_bound_is_never_below_the_cost(self, prompt, used, cached, limit, generated):
        usage = Usage(min(generated, limit), min(used, prompt), min(cached, prompt - min(used, prompt)))
        assert self.RATES.cost(usage) <= self.RATES.bound(prompt, limit)

    @given(prompt=st.integers(0, 10**6), units=st.integers(0, 10**12))
    def test_the_limit_is_the_largest_whose_bound_can_be_paid(self, prompt, units):
        limit = self.RATES.limit(prompt, units)
        assert limit == 0 or self.RATES.bound(prompt, limit) <= units
        assert self.RATES.bound(prompt, limit + 1) > units

    def test_an_amount_is_shown_in_its_currency(self):
        assert show(1234, TOKENS) == "1,234 tokens"
        assert show(1, TOKENS) == "1 token"
        assert show(1_234_500_000, self.RATES) == "$1.2345"
        assert show(12_345, self.RATES) == "$0.000012"
        assert show(1_234, self.RATES) == "$0.000001234"
        assert show(1_234, ALL_TOKENS) == "1,234 tokens"

    @given(text=st.text())
    def test_no_tokenizer_makes_more_tokens_than_the_bound_of_a_prompt(self, text):
        body = {"messages": [{"role": "user", "content": text}]}
        assert prompt_bound(body) >= len(text.encode("utf-8", "surrogatepass"))
