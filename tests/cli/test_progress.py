"""The progress of a run in words."""

from collections import Counter

import pytest

from shadowprice.cli.live import _Log
from shadowprice.cli.progress import Meter
from shadowprice.cost import TOKENS, Rates
from shadowprice.engine.executor import Progress


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def meter(clock):
    return Meter(100, TOKENS, clock)


def state(spent=0, budget=1000, running=0, price=None, waiting="", tokens=0, generating=0, **outcomes):
    found = Progress(budget, spent, tokens, price, running=running, outcomes=Counter(outcomes), generating=generating)
    found.waiting = waiting
    return found


def test_before_anything_was_sent(meter, clock):
    clock.now += 65
    assert meter.lines() == ["forecasting 100 requests, 1:05"]


def test_a_frame_has_the_budget_the_requests_the_speed_and_the_price(meter, clock):
    meter.update(state())
    clock.now += 10
    meter.update(state(300, running=8, price=0.00123, finished=10, landed=1, truncated=4, declined=3, failed=2))
    bar, budget, requests = meter.lines()
    assert bar.startswith(" 30% ████████████░")
    assert bar.endswith("0:10, about 0:23 left")
    assert budget.strip() == "300 of 1,000 tokens used, 30 per second; price 0.00123"
    assert requests.strip() == "11 of 100 answered, 4 cut, 3 declined, 2 failed; 8 in flight"


def test_it_moves_while_no_answer_has_ended(meter, clock):
    meter.update(state(running=8))
    clock.now += 10
    meter.update(state(running=8, generating=200))
    bar, budget, requests = meter.lines()
    assert bar.startswith(" 20% ████████░")
    assert bar.endswith("0:10, about 0:40 left")
    assert budget.strip() == "200 of 1,000 tokens used, 20 per second"
    assert requests.strip() == "0 of 100 answered, 0 cut, 0 declined, 0 failed; 8 in flight"


def test_failures_and_cut_answers_are_not_answered(meter):
    meter.update(state(10, failed=5, truncated=3))
    assert "0 of 100 answered, 3 cut, 0 declined, 5 failed" in meter.line()


@pytest.mark.parametrize(
    ("spent", "ended", "left"),
    [(500, 10, 10.0), (10, 50, 10.0), (0, 0, None)],
)
def test_the_end_is_that_of_the_budget_or_of_the_requests(meter, clock, spent, ended, left):
    meter.update(state())
    clock.now += 10
    meter.update(state(spent, finished=ended))
    assert meter.left == left


def test_the_first_tokens_do_not_show_how_long_the_rest_will_take(meter, clock):
    meter.update(state(running=7))
    clock.now += 10
    meter.update(state(running=7, generating=1))
    assert "left" not in meter.line()
    clock.now += 10
    meter.update(state(running=7, generating=100))
    assert meter.left == pytest.approx(180)


def test_time_passes_while_nothing_happens(meter, clock):
    meter.update(state())
    clock.now += 10
    meter.update(state(100, finished=5))
    before = meter.lines()
    clock.now += 1
    assert meter.lines() != before
    assert meter.left > 90  # slower than it looked


def test_what_an_earlier_execution_did_is_not_speed(meter, clock):
    meter.update(state(500, finished=50))
    clock.now += 10
    meter.update(state(510, finished=51))
    assert meter.speed(1) == pytest.approx(1.0)
    assert meter.left == pytest.approx(490.0)


def test_the_speed_is_that_of_the_last_minutes(meter, clock):
    meter.update(state(budget=10**6))
    clock.now += 1
    meter.update(state(90_000, budget=10**6))
    for second in range(300):
        clock.now += 1
        meter.update(state(90_000 + second, budget=10**6))
    assert meter.speed(1) < 2


def test_waiting_for_a_server_is_shown(meter):
    meter.update(state(waiting="server unavailable (503), retrying in 8 s"))
    assert meter.lines()[-1].strip() == "waiting: server unavailable (503), retrying in 8 s"
    assert meter.line().endswith("; waiting: server unavailable (503), retrying in 8 s")


def test_what_is_waited_for_is_shown_in_full_at_80_columns(meter):
    waiting = "server unavailable (connection refused (127.0.0.1:18111)), retrying in 7 s"
    meter.update(state(waiting=waiting))
    lines = meter.lines(79)
    assert " ".join(line.strip() for line in lines[3:]) == f"waiting: {waiting}"
    assert max(map(len, lines)) < 80


def test_a_run_that_was_stopped_has_no_end_to_expect(meter, clock):
    meter.update(state())
    clock.now += 10
    stopped = state(100, finished=5)
    stopped.stop("interrupted")
    meter.update(stopped)
    assert "left" not in meter.line()


def test_money_is_in_dollars_and_speed_in_tokens(clock):
    meter = Meter(10, Rates.dollars("0.1", "0.5"), clock)
    meter.update(state(budget=5 * 10**9))
    clock.now += 10
    meter.update(state(10**9, budget=5 * 10**9, tokens=400))
    assert meter.lines()[1].strip() == "$1 of $5 spent, 40 tokens per second"


def test_large_numbers_fit_80_columns(clock):
    meter = Meter(1_000_000, TOKENS, clock)
    outcomes = {"finished": 400_000, "truncated": 99_999, "declined": 99_999, "failed": 9_999}
    meter.update(state(budget=10**10, price=4.51e-09))
    clock.now += 40_000
    meter.update(state(10**9, budget=10**10, price=4.51e-09, running=128, **outcomes))
    assert max(map(len, meter.lines())) < 80


def test_a_log_reports_at_once_that_the_server_is_unavailable(meter, clock, capsys):
    log = _Log(meter)
    for seconds, waiting, lines in [
        (0.1, "", 0),
        (0.1, "503", 1),
        (1, "503", 0),
        (1, "", 0),
        (1, "503", 0),
        (9, "", 1),
    ]:
        clock.now += seconds
        meter.update(state(waiting=waiting))
        log.event()
        assert capsys.readouterr().err.count("\n") == lines


def test_a_log_has_a_line_every_5_percent_or_every_ten_seconds(meter, clock, capsys):
    log = _Log(meter)

    def lines(seconds, spent):
        clock.now += seconds
        meter.update(state(spent))
        log.event()
        return capsys.readouterr().err.count("\n")

    assert lines(1, 0) == 0
    assert lines(1, 49) == 0
    assert lines(1, 50) == 1
    assert lines(0.1, 100) == 0  # not more than one a second
    assert lines(1, 101) == 1
    assert lines(9, 102) == 0
    assert lines(1, 103) == 1
    clock.now += 200
    assert lines(0, 103) == 1
    assert lines(30, 103) == 0
    assert lines(30, 103) == 1
