"""The same grant for everybody: collecting traces, probing answers, asking a teacher."""

import pytest

from shadowprice import Request
from shadowprice.backends.base import LANDING, response
from shadowprice.engine.fixed import LANDING_TOKENS, Ages, Fixed
from shadowprice.engine.scheduler import Report
from shadowprice.errors import InputError, Refused, Unavailable
from shadowprice.types import Completion


def fixed(n=1, grant=50, **options):
    made = Fixed(grant, **options)
    made.add([Request(f"q{i}", "?", body={"prompt": "?"}) for i in range(n)])
    return made


def part(tokens, finish="stop", text=None):
    text = "x" * tokens if text is None else text
    form = response({"prompt": "?"}, name="r", model="m", text=text, finish=finish, tokens=tokens)
    return Completion(text, tokens, finish, "server", body=form)


def answered(made, work, tokens=20, finish="stop", text=None):
    return made.done(Report(work, tokens, part(tokens, finish, text)))


class TestGrants:
    def test_everybody_gets_the_same_in_order(self):
        made = fixed(3)
        assert [(work.place, work.grant) for work in (made.next(1000) for _ in range(3))] == [(0, 50), (1, 50), (2, 50)]
        assert made.next(1000) is None

    def test_a_callers_own_limit_is_not_exceeded(self):
        made = Fixed(50)
        made.add([Request("q", "?", max_tokens=9)])
        work = made.next(1000)
        assert (work.grant, work.bound) == (9, 9)

    def test_a_grant_that_is_not_there_is_not_made_smaller(self):
        made = fixed(2)
        assert made.next(50)
        assert made.next(49) is None

    def test_no_more_is_reserved_in_all_than_allowed(self):
        made = fixed(5, most=120)
        assert [made.next(1000) is None for _ in range(3)] == [False, False, True]

    def test_one_that_failed_is_tried_again_after_the_others(self):
        made = fixed(2)
        first = made.next(1000)
        assert made.done(Report(first, 50, error=Unavailable("lost", tokens=None))) is None
        assert [made.next(1000).place for _ in range(2)] == [1, 0]

    def test_a_refusal_is_final(self):
        made = fixed()
        result = made.done(Report(made.next(1000), 0, error=Refused("no", code="bad")))
        assert (result.outcome, result.failure.code) == ("failed", "bad")
        assert made.next(1000) is None


class TestGivingUp:
    """Where nobody of the first is answered, the others are not sent."""

    def test_the_others_wait_until_one_of_the_first_is_answered(self):
        made = fixed(5, give_up_after=2)
        first, second = made.next(1000), made.next(1000)
        assert made.next(1000) is None
        made.done(Report(first, 0, error=Refused("no")))
        assert made.next(1000) is None
        answered(made, second)
        assert [made.next(1000).place for _ in range(3)] == [2, 3, 4]

    def test_if_all_of_them_fail_nothing_more_is_sent(self):
        made = fixed(5, give_up_after=2)
        for work in [made.next(1000), made.next(1000)]:
            made.done(Report(work, 0, error=Unavailable("no", tokens=0)))
        assert made.next(1000) is None
        assert [result.outcome for result in made.close()] == ["failed", "failed", "declined", "declined", "declined"]


class TestProbes:
    def test_an_answer_is_probed_from_its_longest_beginning_to_its_shortest_one_at_a_time(self):
        """So that the server finds each beginning in what it has just read."""
        made = fixed(2, probe=Ages.parse("0,7,50%"))
        assert answered(made, made.next(1000), 20) is None
        ages = []
        for stated in ("3}", "2}", "1}"):
            work = made.next(1000)
            ages.append(work.so_far.tokens)
            assert (work.place, work.suffix, work.grant) == (0, LANDING, LANDING_TOKENS)
            other = made.next(1000)
            assert other is None or other.place == 1  # never two of the same answer
            result = answered(made, work, 2, text=stated)
        assert ages == [10, 7, 0]
        assert (result.outcome, result.completion.tokens, result.cost) == ("finished", 20, 26)
        assert result.extra["probes"] == {"10": ("3}", 2), "7": ("2}", 2), "0": ("1}", 2)}

    @pytest.mark.parametrize(("finish", "ages"), [("stop", [4]), ("length", [20, 4])])
    def test_the_end_of_an_answer_is_probed_only_where_it_was_cut(self, finish, ages):
        assert Ages.parse("4,20,100").of(part(20, finish)) == ages

    def test_an_answer_that_is_too_short_to_be_probed_is_a_result_at_once(self):
        made = fixed(probe=Ages.parse("64"))
        result = answered(made, made.next(1000), 10)
        assert (result.outcome, result.extra) == ("finished", {"probes": {}})

    def test_a_probe_that_fails_is_left_out(self):
        made = fixed(probe=Ages.parse("0,5"))
        answered(made, made.next(1000), 20)
        assert made.done(Report(made.next(1000), 16, error=Unavailable("lost", tokens=None))) is None
        result = answered(made, made.next(1000), 2, text="1}")
        assert (result.outcome, result.cost, result.extra["probes"]) == ("finished", 38, {"0": ("1}", 2)})

    def test_an_answer_is_kept_if_the_budget_ends_before_its_probes(self):
        made = fixed(probe=Ages.parse("0,5"))
        answered(made, made.next(50), 40)
        assert made.next(10) is None
        (result,) = made.close()
        assert (result.outcome, result.completion.tokens, result.cost) == ("finished", 40, 40)

    def test_after_a_crash_the_answer_is_kept_and_probed_again(self):
        made = fixed(2, probe=Ages.parse("0,5"))
        made.restore(0, part(20))
        made.restore(0, part(2, text="1}"), landing=True)
        first = made.next(1000)
        assert (first.place, first.so_far.tokens, first.suffix) == (0, 5, LANDING)
        answered(made, first, 2, text="2}")
        result = answered(made, made.next(1000), 2, text="1}")
        assert result.cost == 26
        assert set(result.extra["probes"]) == {"5", "0"}
        assert made.next(1000).place == 1

    @pytest.mark.parametrize("text", ["", "x", "-1", "5,-1", "101%", "5.5", "1,", "1,,2"])
    def test_ages_that_are_invalid_are_named(self, text):
        with pytest.raises(InputError, match="is not an age"):
            Ages.parse(text)
