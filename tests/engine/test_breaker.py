"""Outages are noticed, waited out with few probes, and end a run only when its patience is over."""

from __future__ import annotations

import pytest

from shadowprice.engine.breaker import Breaker
from shadowprice.errors import Denied, Refused, Unavailable

BUSY = Unavailable("503: overloaded", tokens=0, cause="503")
LOST = Unavailable("502: bad gateway", tokens=None, cause="502")
REFUSED = Unavailable("no connection", tokens=0, cause="connection refused (127.0.0.1:8000)", sent=False)


def breaker(concurrency=8, patience=300.0, pause=0.5):
    return Breaker(concurrency, patience, pause)


def outage(b, error=BUSY, now=0.0):
    for request in range(3):
        b.failed(error, request, b.turn, now)
    return b


def probe_until(b, end, now=0.0, error=BUSY):
    """When the probes are sent that fail before `end`."""
    times = []
    while not b.reason:
        now += b.wait(now)
        if now >= end:
            break
        assert b.room(0, now) == 1
        times.append(now)
        b.failed(error, 0, b.turn, now)
    return times


class TestAnOutage:
    @pytest.mark.parametrize("error", [BUSY, LOST, REFUSED])
    def test_begins_after_three_failures_in_a_row(self, error):
        b = breaker()
        for request in range(2):
            b.failed(error, request, b.turn, 0.0)
            assert not b.open
        b.failed(error, 2, b.turn, 0.0)
        assert b.open
        assert (b.room(0, 0.0), b.room(0, 0.5), b.room(1, 0.5)) == (0, 1, 0)

    def test_is_noticed_within_one_wave(self):
        """Attempts that were sent before the first of them failed count as well."""
        b = breaker(64)
        for request in range(3):
            b.failed(BUSY, request, 0, 0.0)
        assert b.open

    def test_may_have_several_causes(self):
        """Servers behind one address fail differently, and some reasons are different every time."""
        for errors in ([BUSY, REFUSED, BUSY], [Unavailable("429", tokens=0, cause=f"429: {i}") for i in range(3)]):
            b = breaker()
            b.answered(b.turn)
            for request, error in enumerate(errors):
                b.failed(error, request, b.turn, 0.0)
            assert b.open

    def test_is_not_what_failures_between_answers_make(self):
        b = breaker()
        for request in range(10):
            b.failed(BUSY, request, b.turn, 0.0)
            b.answered(b.turn)
        assert not b.open

    def test_names_the_requests_that_failed_in_a_row(self):
        b = outage(breaker())
        assert b.failing == {0, 1, 2}
        b.answered(b.turn)
        assert b.failing == set()

    def test_is_probed_with_each_request_in_turn_once_all_have_failed(self):
        """Some of them may be at fault, and one that is not should be sent before they have used up all probes."""
        b, sent = outage(breaker()), []
        for now in range(100, 1000, 100):
            probe = next((request for request in range(3) if request not in b.failing), 0)
            sent.append(probe)
            b.failed(BUSY, probe, b.turn, now)
        assert sent == [0, 1, 2] * 3

    def test_is_not_what_one_request_makes_while_others_are_answered(self):
        b = breaker()
        b.answered(b.turn)
        for _ in range(9):
            b.failed(BUSY, 7, b.turn, 0.0)
        assert not b.open

    def test_is_what_one_request_makes_if_nobody_can_connect_or_nothing_was_ever_answered(self):
        b = breaker()
        for _ in range(3):
            b.failed(BUSY, 7, b.turn, 0.0)
        assert b.open
        b = breaker()
        b.answered(b.turn)
        for _ in range(3):
            b.failed(REFUSED, 7, b.turn, 0.0)
        assert b.open

    @pytest.mark.parametrize(("seconds", "probes"), [(1, 1), (10, 4), (60, 6)])
    def test_costs_few_probes(self, seconds, probes):
        assert len(probe_until(outage(breaker()), seconds)) == probes

    def test_ends_with_the_first_probe_that_is_answered(self):
        b = outage(breaker())
        b.answered(b.turn)
        assert (b.open, b.wait(0.0), b.describe(0.0)) == (False, 0.0, "")

    def test_does_not_end_with_an_answer_that_was_under_way_before(self):
        b = breaker()
        before = b.turn
        outage(b)
        b.answered(before)
        assert b.open

    def test_failures_of_what_was_under_way_before_do_not_prolong_it(self):
        b = breaker()
        before = b.turn
        outage(b)
        wait = b.wait(0.0)
        for request in range(20):
            b.failed(BUSY, request, before, 0.1)
        assert b.wait(0.0) == wait

    def test_waits_as_long_as_the_server_asks(self):
        b = outage(breaker(), Unavailable("busy", tokens=0, cause="429", delay=20.0))
        assert b.wait(0.0) == 20.0

    def test_ends_the_run_when_patience_is_over_and_is_probed_once_more_before(self):
        b = outage(breaker(patience=100.0))
        times = probe_until(b, 1e9)
        assert times[-1] == pytest.approx(100.0)
        assert b.reason == "the server has been unavailable for 100 s: 503: overloaded"
        assert b.room(0, 1e9) == 0

    def test_ends_the_run_early_where_every_probe_costs_an_unknown_amount(self):
        b = outage(breaker(), LOST)
        assert len(probe_until(b, 1e9, error=LOST)) == 8
        assert b.reason == "the server fails at an unknown cost: 502: bad gateway"

    def test_is_described_with_its_cause_and_the_time_of_the_next_probe(self):
        b = outage(breaker(pause=8.0))
        assert b.describe(0.0) == "server unavailable (503), retrying in 8 s"
        assert b.describe(8.0) == "server unavailable (503), retrying"


class TestTheWindow:
    def test_is_halved_once_for_a_wave_of_failures_that_cost_nothing(self):
        b = breaker(16)
        b.failed(BUSY, 1, b.turn, 0.0)
        b.failed(BUSY, 2, b.turn - 1, 0.0)
        assert b.room(0, 0.0) == 8

    def test_is_not_halved_by_failures_of_unknown_cost(self):
        b = breaker(16)
        b.failed(LOST, 1, b.turn, 0.0)
        assert b.room(0, 0.0) == 16

    def test_opens_wave_by_wave_after_an_outage(self):
        b = outage(breaker(16))
        widths = []
        for _ in range(8):
            widths.append(width := b.room(0, 1.0) or 1)
            for _ in range(width):
                b.answered(b.turn)
        assert widths[:5] == [1, 2, 4, 8, 16]
        assert b.room(0, 1.0) <= 16
        assert sorted(widths) == widths

    def test_is_never_wider_than_the_concurrency(self):
        b = breaker(4)
        for _ in range(100):
            b.answered(b.turn)
        assert b.room(0, 0.0) == 4


class TestRefusals:
    def test_that_every_request_shares_stop_the_run(self):
        b = breaker()
        for request in range(3):
            assert not b.reason
            b.failed(Denied("401: invalid api key"), request, b.turn, 0.0)
        assert b.reason == "the server refuses every request: 401: invalid api key"

    def test_of_some_requests_do_not(self):
        b = breaker()
        for request in range(30):
            b.failed(Denied("404: no such model"), request, b.turn, 0.0)
            b.answered(b.turn)
        assert not b.reason

    def test_of_single_requests_do_not(self):
        b = breaker()
        for request in range(30):
            b.failed(Refused("400: too long"), request, b.turn, 0.0)
        assert not b.reason
        assert not b.open


def test_a_repetition_never_waits_longer_than_the_patience():
    """A server may ask for any delay: Retry-After: inf."""
    b = breaker(patience=3.0)
    asked = Unavailable("429: slow down", tokens=0, cause="429", delay=300.0)
    assert b.pause(1, asked) == 3.0
    assert [b.pause(tried, BUSY) for tried in (1, 2, 9)] == [0.5, 1.0, 3.0]
    assert breaker().pause(1, asked) == 300.0
