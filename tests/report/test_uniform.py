"""What equal shares of the budget would have bought, from the answers of a run."""

from __future__ import annotations

import asyncio

import pytest

from shadowprice.accounts.view import read_account
from shadowprice.formats.asked import read_asked
from shadowprice.formats.forecasts import forecast_line
from shadowprice.report.run import run_report
from shadowprice.report.run_data import read_run
from shadowprice.report.uniform import uniform
from shadowprice.run_folder import RunFolder
from shadowprice.runs import Run
from shadowprice.types import Forecast, Usage

from ..run_folders import answer, note
from .conftest import BUDGET, GOLD, TRACES, Recorded, requests
from .helpers import Page


@pytest.fixture
def place(tmp_path):
    folder = RunFolder.create(tmp_path / "run", 100, {"policy": "clear"})
    yield folder
    folder.ledger.close()


def ended(folder, name, tokens, outcome="finished", correct=None):
    ledger = folder.ledger
    ledger.settle(ledger.reserve(name, tokens), tokens, Usage(tokens), answer(name, tokens, outcome, correct=correct))


def declined(folder, name):
    folder.ledger.note(name, note(name, "declined", "budget_abandoned", "declined"))


def of(folder, graded=False):
    return uniform(read_account(folder.path), dict(read_asked(folder.path / "requests.jsonl")), graded=graded)


def test_answers_within_an_equal_share_count_and_longer_ones_do_not(place):
    for name, tokens in (("a", 25), ("b", 26), ("c", 10)):
        ended(place, name, tokens)
    place.ledger.note("d", note("d", "failed", "request_refused", "no"))
    found = of(place)
    assert (found.share, found.good, found.cut, found.failed, found.unknown) == (25, 2, 1, 1, 0)
    assert found.total == 2


def test_graded_answers_count_with_their_grade(place):
    for name, correct in (("a", True), ("b", False), ("c", None), ("d", True)):
        ended(place, name, 10, correct=correct)
    assert of(place, graded=True).good == 2


def test_an_answer_that_was_cut_after_its_share_is_cut_and_before_it_unknown(place):
    ended(place, "a", 50, "truncated")
    ended(place, "b", 49, "truncated")
    found = of(place)
    assert (found.share, found.cut, found.unknown) == (50, 1, 1)


def test_requests_of_unknown_length_count_by_their_forecasts(place):
    declined(place, "a")
    declined(place, "b")
    forecast = Forecast([50.0, 50.0], 0.5, [0.8, 0.4])
    lines = [forecast_line(name, forecast, i) + b"\n" for i, name in enumerate("ab")]
    (place.path / "forecast.jsonl").write_bytes(b"".join(lines))
    assert of(place).likely == pytest.approx(1.0)  # the share is the median of both
    assert of(place, graded=True).likely == pytest.approx(0.6)


def test_without_forecasts_they_are_only_bounded(place):
    ended(place, "a", 10)
    declined(place, "b")
    place.save(done=True)
    assert of(place).likely is None
    text = Page(run_report(place.path)).words
    assert "would have bought at least 1 finished answer; this run has 1." in text
    assert "may have bought up to 2." in text


@pytest.mark.parametrize("settings", [{"policy": "clear", "reclaim": False}, {"policy": "index"}])
def test_it_is_close_to_what_a_run_of_uniform_gets(tmp_path, settings):
    """On recorded answers, whose lengths do not depend on the policy."""

    def correct(name, **settings):
        options = {"budget": BUDGET, "backend": Recorded(TRACES), "gold": GOLD, "folder": tmp_path / name}
        with Run(requests(60), **options, **settings) as run:
            return asyncio.run(run.execute()).correct

    if settings["policy"] == "index":
        settings = {**settings, "accounting": "metered"}
    real = correct("uniform", policy="uniform", reclaim=False)
    correct("run", **settings)
    found = read_run(tmp_path / "run").uniform
    assert found.good <= real <= found.good + found.unknown
    assert abs(found.total - real) <= 4


def test_the_page_says_how_it_was_computed(run_of):
    run = read_run(run_of("graded"))
    text = Page(run_report(run_of("graded"))).words
    assert f"would have bought about {run.uniform.total:.0f} correct answers; this run has {run.correct}." in text
    assert "simulated from the answers of this run" in text
    assert "gives each of 60 requests 20 tokens, once" in text
    assert f"The lengths of {run.uniform.unknown} other answers are unknown" in text


@pytest.mark.parametrize("name", ["samples", "failing"])
def test_samples_and_uniform_itself_are_not_compared(run_of, name):
    run = read_run(run_of(name))
    if name == "samples":
        assert run.uniform is None
    else:  # uniform with reclaiming is more than equal shares
        assert run.uniform is not None


def test_money_is_divided_too(run_of):
    run = read_run(run_of("money"))
    assert run.uniform.share == run.budget // 60
    assert run.uniform.good <= run.outcomes["finished"]


def test_a_run_under_way_is_not_compared(place):
    ended(place, "a", 10)
    assert read_run(place.path).uniform is None
