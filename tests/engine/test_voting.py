"""The answers to a request that nobody grades: which one leads, and whether others would change that."""

import numpy as np

from shadowprice.engine.sites import Kept
from shadowprice.engine.voting import Voting
from shadowprice.market.votes import Votes
from shadowprice.types import Completion


def answer(text: str, chance: float = 0.6, finish: str = "stop", route: str = "a", sample: int = 0) -> Kept:
    return Kept(Completion(text, 5, finish, "server"), None, route, chance, sample)


def voting(*said: tuple[str, str | None]) -> Voting:
    made = Voting(Votes())
    for text, vote in said:
        made.add(0, answer(text), vote)
    return made


def adds(some: Voting, left: int = 3, chance: float = 0.6) -> bool:
    return bool(some.ahead([0], np.array([chance]), np.array([left]))[1].any())


def test_the_answer_that_most_agree_on_leads_and_agreement_is_counted():
    some = voting(("first", "x"), ("second", "y"), ("third", "y"))
    assert some.leading(0).answer.text == "second"
    assert some.votes(0) == 2
    assert 0.6 < some.leading(0).chance < 1


def test_of_equal_votes_the_likelier_leads_and_else_the_first():
    assert voting(("first", "x"), ("second", "y")).leading(0).answer.text == "first"
    some = voting(("first", "x"))
    some.add(0, answer("second", 0.7), "y")
    assert some.leading(0).answer.text == "second"


def test_of_equal_answers_the_likeliest_is_given():
    some = voting(("first", "x"))
    some.add(0, answer("second", 0.7), "x")
    assert some.leading(0).answer.text == "second"
    assert some.votes(0) == 2


def test_an_answer_that_says_nothing_final_does_not_vote_and_is_given_only_if_none_does():
    some = voting(("cut", None), ("said", "x"))
    assert (some.leading(0).answer.text, some.votes(0)) == ("said", 1)
    alone = Voting(Votes())
    alone.add(0, answer("part", finish="length"), None)
    alone.add(0, answer("whole"), None)
    assert (alone.leading(0).answer.text, alone.votes(0)) == ("whole", 0)


def test_an_ended_vote_is_forgotten():
    some = voting(("first", "x"), ("second", "y"))
    some.end(0)
    some.add(0, answer("third"), "z")
    assert (some.leading(0).answer.text, some.votes(0)) == ("third", 1)


def test_nothing_more_is_needed_once_nothing_can_change():
    assert adds(voting(("a", "x")))
    assert adds(voting(("a", "x")), left=2)
    assert not adds(voting(("a", "x")), left=1)
    assert adds(voting(("a", "x"), ("b", "y")), left=1)
    assert not adds(voting(("a", "x"), ("b", "x")), left=2)
    assert not adds(voting(("a", "x"), ("b", "x")), left=0)


def test_where_answers_have_nothing_final_no_more_are_bought():
    some = Voting(Votes())
    for place in range(8):
        some.add(place, answer("an essay"), None)
    assert some.pointless
    assert not adds(some)
    assert some.ahead([99], np.array([0.6]), np.array([3]))[1].any(), "a request without an answer still gets one"


def test_requests_are_looked_at_together_as_alone():
    some = voting(("a", "x"), ("b", "y"))
    some.add(1, answer("c"), "z")
    chance, left = np.array([0.6, 0.5, 0.4]), np.array([2, 3, 1])
    share, reach = some.ahead([0, 1, 2], chance, left)
    for at in range(3):
        alone = some.ahead([at], chance[[at]], left[[at]])
        for each, one in zip((share, reach), alone, strict=True):
            np.testing.assert_allclose(each[at, : one.shape[1]], one[0])
