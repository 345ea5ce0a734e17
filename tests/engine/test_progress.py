"""Progress: what a stopped execution says, and what another one starts from."""

from shadowprice.engine.progress import USUAL, Progress, Tolerance


def test_the_first_reason_to_stop_is_kept():
    progress = Progress(100)
    progress.stop("interrupted")
    progress.stop("the server is down")
    assert progress.stopped == "interrupted"


def test_a_restart_forgets_what_was_under_way_and_keeps_what_was_spent():
    progress = Progress(100, spent=40, running=3, generating=7, waiting="server unavailable", stopped="interrupted")
    progress.outcomes["finished"] = 2
    progress.restart()
    assert (progress.running, progress.generating, progress.waiting, progress.stopped) == (0, 0, "", "")
    assert not progress.outcomes
    assert progress.spent == 40


def test_usual_faults_are_tolerated_for_minutes_and_a_tenth_of_the_budget():
    assert Tolerance(patience=300.0, pause=0.5, exposure=0.1) == USUAL
