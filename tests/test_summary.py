"""What results add up to."""

from shadowprice.summary import Tally, causes_of
from shadowprice.types import Completion, Failure, Result


def answer(tokens, source="server", **more):
    return Completion("x", tokens, "stop", source, **more)


def failed(name, message, **details):
    return Result(name, "failed", failure=Failure("backend_unavailable", message, details))


def test_results_are_counted_by_outcome_grade_cause_and_flag():
    tally = Tally()
    tally.add(Result("a", "finished", completion=answer(5), correct=True))
    tally.add(Result("b", "truncated", completion=answer(7, flags=("usage_wrong",)), correct=False))
    tally.add(failed("c", "503: busy", cause="503"))
    assert tally.outcomes == {"finished": 1, "truncated": 1, "failed": 1}
    assert tally.grades == {True: 1, False: 1, None: 1}
    assert (tally.causes, tally.flags) == ({"503": 1}, {"usage_wrong": 1})
    assert (tally.generated, tally.counted) == (12, True)


def test_samples_and_the_requests_that_votes_decided_are_counted():
    tally = Tally()
    for samples, votes in ((3, 2), (1, 1), (4, 1)):
        tally.add(Result("a", "finished", completion=answer(5), extra={"samples": samples, "votes": votes}))
    tally.add(Result("b", "finished", completion=answer(5), extra={"samples": 2}))
    assert (tally.samples, tally.voted) == (10, 1)


def test_what_is_assumed_counts_as_generated_only_as_far_as_it_is_certain():
    tally = Tally()
    tally.add(Result("a", "finished", completion=answer(100, "assumed", least=30)))
    tally.add_answer(answer(50, "counted", least=20))
    tally.add_answer(answer(10))
    assert (tally.generated, tally.counted) == (60, False)


def test_answers_without_a_count_are_flagged_once_whatever_the_accounting():
    tally = Tally()
    tally.add(Result("a", "finished", completion=answer(100, "assumed", least=30)))
    tally.add(Result("b", "finished", completion=answer(100, "assumed", flags=("usage_wrong",))))
    tally.add(Result("c", "finished", completion=answer(100, "assumed", flags=("not_counted",))))
    assert tally.flags == {"not_counted": 2, "usage_wrong": 1}


def test_causes_are_the_most_frequent_first_and_messages_without_one():
    results = [failed("a", "lost"), failed("b", "x", cause="503"), failed("c", "y", cause="503")]
    assert [*causes_of([*results, Result("d", "declined")]).items()] == [("503", 2), ("lost", 1)]
