"""Grants that were decided elsewhere."""

from shadowprice.engine.granted import Granted
from shadowprice.engine.scheduler import Report
from shadowprice.errors import Refused, Unavailable
from shadowprice.types import Completion, Request


def scheduler(*grants):
    made = Granted()
    made.add([Request(f"r{i}", "", max_tokens=grant) for i, grant in enumerate(grants)])
    return made


def test_requests_are_sent_in_order_with_their_grants():
    granted = scheduler(10, 20)
    assert [granted.next(100).grant for _ in range(2)] == [10, 20]
    assert granted.next(100) is None


def test_it_waits_for_its_units():
    granted = scheduler(10)
    assert granted.next(9) is None
    assert granted.next(10).grant == 10


def test_an_answer_ends_it_and_so_does_an_unknown_outcome():
    granted = scheduler(10, 10, 10)
    first, second, third = (granted.next(100) for _ in range(3))
    assert granted.done(Report(first, 4, Completion("yes", 4, "stop", "server"))).outcome == "finished"
    lost = granted.done(Report(second, 10, error=Unavailable("lost", tokens=None)))
    assert (lost.outcome, lost.cost) == ("failed", 10)
    assert granted.done(Report(third, 0, error=Refused("no"))).outcome == "failed"
    assert [*granted.close()] == []


def test_in_an_outage_it_waits_again():
    granted = scheduler(10)
    work = granted.next(100)
    assert granted.done(Report(work, 0, error=Unavailable("down", tokens=0), postponed=True)) is None
    assert granted.next(100).request.id == "r0"


def test_those_that_just_failed_come_last():
    granted = scheduler(10, 10)
    assert granted.next(100, avoid=[0]).request.id == "r1"


def test_what_was_not_sent_is_a_result_too():
    assert [result.outcome for result in scheduler(10, 10).close("stopped")] == ["not_sent"] * 2
