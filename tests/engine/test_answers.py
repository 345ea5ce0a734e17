"""What requests of several routes have while they wait: the best answer, its charges, and what more would gain."""

import numpy as np
import pytest

from shadowprice import Forecast, Request
from shadowprice.cost import Rates
from shadowprice.engine.answers import Answers
from shadowprice.engine.scheduler import Batch
from shadowprice.engine.sites import Site
from shadowprice.formats.routes import Route
from shadowprice.types import Completion

WHOLE = Completion("42", 30, "stop", "server", body={"choices": []})
CUT = Completion("4", 20, "length", "server", body={"choices": []})


def made(samples: int = 1, voted=None) -> tuple[Answers, list[Site]]:
    """Two requests and two routes; the second route is more often correct."""
    batch = Batch(100)
    batch.add([Request("a", "", body={"prompt": "a"}), Request("b", "", body={"prompt": "b"})], Forecast([20.0, 20.0]))
    sites = []
    for name, solve in (("cheap", 0.4), ("dear", 0.9)):
        forecast = Forecast([20.0, 20.0], 0.5, solve)
        none = np.zeros((3, 2), dtype=np.int64)
        route = Route(name, Rates.dollars("1", "1"))
        sites.append(Site(route, forecast, forecast, np.full(2, 100.0), none[0], none[1] > 0, none[2]))
    answers = Answers(batch, sites, {}, samples, 0.5, 0.2)
    answers.add(2, voted)
    return answers, sites


def test_an_answer_is_final_where_nothing_revises_or_repeats_it():
    answers, (cheap, _) = made()
    answers.charge(0, cheap, 77)
    answers.keep(0, cheap, WHOLE, None, None)
    result = answers.settled(0)
    assert (result.outcome, result.text, result.extra) == (
        "finished",
        "42",
        {"route": "cheap", "charged": {"cheap": 77}},
    )
    assert not answers.kept


def test_a_wrong_answer_waits_for_another_sample_and_a_correct_one_does_not():
    answers, (cheap, _) = made(samples=2)
    answers.keep(0, cheap, WHOLE, False, None)
    assert answers.settled(0) is None
    assert cheap.taken.tolist() == [1, 0]
    answers.keep(0, cheap, WHOLE, True, None)
    assert answers.settled(0).extra["sample"] == 1
    assert cheap.cap[0] == 0


def test_a_whole_answer_replaces_a_cut_one_and_not_the_reverse():
    for order in ([CUT, WHOLE], [WHOLE, CUT]):
        answers, sites = made()
        for site, answer in zip(sites, order, strict=True):
            answers.keep(0, site, answer, None, None)
        assert answers.chosen(0).completion == WHOLE


def test_only_what_an_answer_adds_to_the_one_at_hand_counts():
    answers, (cheap, dear) = made()
    both = np.arange(2)
    assert answers.gains(dear.forecast, both) is dear.forecast
    answers.keep(0, cheap, WHOLE, None, None)
    answers.kept[0] = answers.kept[0]._replace(chance=0.4)
    np.testing.assert_allclose(answers.gains(dear.forecast, both).solve, [0.5, 0.9])
    np.testing.assert_allclose(answers.gains(cheap.forecast, both).solve, [0.0, 0.4])


def test_later_samples_are_needed_only_after_wrong_ones():
    answers, (cheap, _) = made(samples=3)
    share, reach = answers.further(cheap, np.arange(2), cheap.forecast)
    assert reach[:, 0] == pytest.approx(1.0)
    assert np.all(np.diff(reach, axis=1) < 0)
    answers.keep(0, cheap, WHOLE, False, None)
    after, _ = answers.further(cheap, np.arange(2), cheap.forecast)
    assert after[0, 0] < share[0, 0] == after[1, 0]
