"""Known answers are graded, the others vote where several may come."""

from shadowprice.grading.referee import Referee
from shadowprice.types import Completion, Request


def answer(text: str, finish: str = "stop") -> Completion:
    return Completion(text, 5, finish, "server")


REQUESTS = [Request("known", ""), Request("open", ""), Request("cold", "", body={"temperature": 0})]
GOLD = {"known": ("12", "numeric")}


def test_what_is_known_is_graded_and_does_not_vote():
    referee = Referee(REQUESTS, GOLD, votes=True)
    assert referee.grade("known", answer("12")) is True
    assert referee.grade("known", answer("13")) is False
    assert referee.grade("open", answer("12")) is None
    assert referee.vote("known", answer("12")) is None


def test_the_others_vote_unless_their_answers_are_all_the_same_or_cut():
    referee = Referee(REQUESTS, GOLD, votes=True)
    assert (referee.voted, referee.unvaried) == ({"open"}, 1)
    assert referee.vote("open", answer("12")) == "12"
    assert referee.vote("open", answer("12.0")) == "12"
    assert referee.vote("open", answer("12", "length")) is None
    assert referee.vote("cold", answer("12")) is None


def test_nobody_votes_on_single_answers():
    referee = Referee(REQUESTS, None, votes=False)
    assert not referee.voted
    assert referee.unvaried == 0
