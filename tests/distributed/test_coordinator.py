"""The owner of the ledger: a request is taken once, a settlement counts once."""

import pytest

from shadowprice.accounts.sqlite import Ledger
from shadowprice.distributed.coordinator import SHORT, TAKEN, Coordinator, Message, Settled
from shadowprice.formats.results import parse_result, result_line
from shadowprice.types import Completion, Failure, Result, Usage


@pytest.fixture
def path(tmp_path):
    Ledger.create(tmp_path / "ledger.sqlite", 100).close()
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def start(path):
    made = []

    def again(**options):
        for each in made:
            each._ledger._store.close()  # as a killed process leaves it
        made.append(Coordinator(path, **options))
        return made[-1]

    yield again
    for each in made:
        each._ledger._store.close()


def answer(name, reservation, units=10):
    body = {"choices": [{"message": {"content": "yes"}}]}
    result = Result(name, "finished", Usage(units), units, Completion("yes", units, "stop", "server", body=body))
    return Settled(name, reservation, units, Usage(units), result_line(result), "result")


def failure(name, reservation, units, exposed=0):
    line = result_line(Result(name, "failed", cost=units, failure=Failure("backend_unavailable", "no")))
    return Settled(name, reservation, units, Usage(), line, "note", exposed)


def take(coordinator, *wanted, settled=(), again=False):
    return coordinator.exchange([Message(settled, wanted, again)])[0].taken


def test_what_is_taken_is_reserved_and_what_is_settled_is_charged(start):
    coordinator = start()
    a, b = take(coordinator, ("a", 30), ("b", 20))
    assert coordinator.balance()[:4] == (100, 50, 50, 0)
    take(coordinator, settled=[answer("a", a), failure("b", b, 20)])
    assert coordinator.balance()[:4] == (100, 70, 0, 30)


def test_a_part_of_an_answer_is_kept_and_its_request_can_be_taken_again(start):
    coordinator = start()
    (first,) = take(coordinator, ("a", 30))
    part = Settled("a", first, 30, Usage(30), b"{}", "chunk")
    (second,) = take(coordinator, ("a", 10), settled=[part])
    assert second > first
    assert coordinator.parts({"a"}) == [("a", b"{}", False)]
    (third,) = take(start(), ("a", 10))
    assert third == second
    assert start().balance()[:4] == (100, 60, 10, 30)


def test_a_result_that_was_put_together_from_parts_costs_nothing_more(start):
    coordinator = start()
    whole = answer("a", 0, 0)
    for _ in range(2):
        take(coordinator, settled=[whole])
    assert coordinator.parts({"a"}) == [("a", whole.line, True)]
    assert coordinator.balance().spent == 0


def test_a_request_is_taken_once(start):
    coordinator = start()
    (a,) = take(coordinator, ("a", 30))
    assert take(coordinator, ("a", 30)) == [TAKEN]
    take(coordinator, settled=[answer("a", a)])
    assert take(coordinator, ("a", 30)) == [TAKEN]
    assert take(start(), ("a", 30), again=True) == [TAKEN]


def test_what_is_not_affordable_is_not_taken(start):
    assert take(start(), ("a", 60), ("b", 60), ("c", 40))[1] == SHORT


def test_a_settlement_counts_once(start):
    coordinator = start()
    (a,) = take(coordinator, ("a", 30))
    for _ in range(2):
        take(coordinator, settled=[answer("a", a)])
    take(start(), settled=[answer("a", a)])
    assert start().balance().spent == 10


def test_started_again_it_gives_a_worker_what_it_took_already(start):
    taken = take(start(), ("a", 30), ("b", 20))
    coordinator = start()
    assert take(coordinator, ("a", 30), ("b", 20)) == taken
    assert take(coordinator, ("a", 30)) == [TAKEN]  # not to a second one
    take(coordinator, settled=[answer("a", taken[0])])
    assert coordinator.balance()[:4] == (100, 70, 20, 10)


def test_what_a_dead_worker_took_is_given_to_nobody(start):
    take(start(), ("a", 30))
    coordinator = start()
    assert take(coordinator, ("a", 30), again=True) == [TAKEN]
    assert coordinator.charge_lost()[:4] == (100, 70, 0, 30)


def test_what_is_lost_has_a_result_that_says_so(start, path):
    coordinator = start()
    take(coordinator, ("a", 30))
    coordinator.charge_lost()
    coordinator.close()
    with Ledger.reopen(path) as ledger:
        result = parse_result(ledger.line("a"))
    assert (result.outcome, result.cost, result.failure.code) == ("failed", 30, "worker_lost")


def test_a_later_job_tries_what_failed_for_nothing_and_not_what_was_paid(start):
    coordinator = start()
    a, b = take(coordinator, ("a", 30), ("b", 20))
    take(coordinator, settled=[failure("a", a, 0), failure("b", b, 20)])
    last = coordinator._ledger.last
    assert take(start(), ("a", 30)) == [TAKEN]  # the same job
    numbers = take(start(since=last), ("a", 30), ("b", 20))
    assert numbers[0] > 0
    assert numbers[1] == TAKEN


def test_many_messages_wait_for_the_disk_once(start):
    coordinator = start()
    replies = coordinator.exchange([Message([], [(f"r{i}", 5)]) for i in range(10)])
    assert len({reply.taken[0] for reply in replies}) == 10
    assert coordinator.balance().reserved == 50


def test_the_word_of_servers_is_taken_up_to_a_share_of_the_budget(start):
    coordinator = start(exposure=0.1)
    for i in range(3):
        (number,) = take(coordinator, (f"r{i}", 20))
        reply = coordinator.exchange([Message([failure(f"r{i}", number, 0, exposed=20)], [])])[0]
    assert "more than --exposure allows" in reply.stop
    assert take(coordinator, ("z", 5)) == [SHORT]


def test_started_again_it_knows_what_servers_were_believed(start):
    (number,) = take(start(), ("a", 20))
    take(start(), settled=[failure("a", number, 0, exposed=20)])
    (number,) = take(start(), ("b", 20))
    reply = start(exposure=0.1).exchange([Message([failure("b", number, 0, exposed=20)], [])])[0]
    assert "worth 40 tokens" in reply.stop


def test_a_message_that_arrives_twice_counts_once(start):
    coordinator = start()
    (number,) = take(coordinator, ("a", 20))
    twice = Message([answer("a", number)], [])
    coordinator.exchange([twice, twice])
    assert coordinator.balance().spent == 10


def test_a_reason_to_stop_reaches_every_worker(start):
    coordinator = start()
    coordinator.stop("enough")
    assert [reply.stop for reply in coordinator.exchange([Message([], []), Message([], [])])] == ["enough"] * 2
