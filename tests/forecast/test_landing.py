"""The worth of landings is learned from probed traces."""

from shadowprice import Forecast, Trace
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.forecast import default
from shadowprice.forecast.landing import fit_landing
from shadowprice.forecast.text import TextForecaster


def probed(place: int, known_from: int, tokens: int = 100, correct: bool = True) -> Trace:
    """An answer whose final answer can be asked for from an age on."""
    landed = {str(age): [correct and age >= known_from, 5, "1"] for age in (0, 25, 50, 75)}
    return Trace(f"q{place}", f"question {place}", tokens, correct=correct, extra={"landed": landed})


def test_the_share_of_answers_that_are_known_at_an_age():
    """A quarter is known at once, another half at half of the length; wrong answers are never right."""
    known_from = [0, 50, 50, 100]
    traces = [probed(i, known_from[i % 4], correct=i < 80) for i in range(100)]
    curve = fit_landing(Forecast([100.0] * 100), traces)
    share = dict(zip(curve.ages, curve.shares, strict=True))
    assert (share[0.0], share[0.25], share[0.5], share[0.9]) == (0.25, 0.25, 0.75, 0.75)
    assert 1.0 not in share  # all have ended: there is nothing to come
    assert curve.tokens == 5


def test_ages_are_relative_to_the_forecast():
    curve = fit_landing(Forecast([200.0] * 60), [probed(i, 50) for i in range(60)])
    share = dict(zip(curve.ages, curve.shares, strict=True))
    assert (share[0.1], share[0.25], share[0.4]) == (0.0, 1.0, 1.0)
    assert 0.5 not in share


def test_an_answer_that_becomes_wrong_does_not_make_the_curve_fall():
    spoiled = Trace("s", "spoiled", 100, correct=False, extra={"landed": {"0": [True, 3, "1"], "50": [False, 3, "2"]}})
    curve = fit_landing(Forecast([100.0] * 90), [*(probed(i, 50) for i in range(80)), *[spoiled] * 10])
    assert list(curve.shares) == sorted(curve.shares)


def test_the_curve_ends_where_few_correct_answers_are_to_come():
    """Landings of truncated answers count, where others are still to come."""
    long = [probed(i, 1000, tokens=1000) for i in range(30)]
    cut = [
        Trace(f"c{i}", f"cut {i}", 100, False, True, extra={"landed": {"0": [False, 3], "100": [True, 3]}})
        for i in range(15)
    ]
    curve = fit_landing(Forecast([100.0] * 75), [*long, *cut, *(probed(100 + i, 100) for i in range(30))])
    share = dict(zip(curve.ages, curve.shares, strict=True))
    assert (share[0.9], share[2.0]) == (0.0, 0.5)
    fewer = fit_landing(Forecast([100.0] * 64), [*long[:19], *cut, *(probed(100 + i, 100) for i in range(30))])
    assert fewer.ages[-1] == 0.9


def stating(place: int, stated: list[str], correct: bool) -> Trace:
    """An answer of 100 tokens that ends with 1, and what it stated at every tenth."""
    landed = {str(10 * i): [correct and text == "1", 5, text] for i, text in enumerate(stated)}
    return Trace(f"q{place}", f"question {place}", 100, correct=correct, extra={"landed": landed})


def test_an_answer_that_is_stated_twice_is_final_if_it_was_in_the_traces():
    """Half of the answers are known at 30 tokens; the others change until the end."""
    known, unknown = ["5", "6", "7", *"1111111"], [str(i) for i in range(10, 20)]
    traces = [stating(i, known if i % 2 else unknown, i % 5 > 0) for i in range(300)]
    evidence = fit_landing(Forecast([100.0] * 300), traces).evidence
    found = {age: each for age, *each in zip(evidence.ages, evidence.agree, evidence.left, strict=True)}
    assert found[0.3] == [0.0, 1.0]
    assert found[0.5][0] == 0.5
    assert found[0.5][1] < 0.1
    assert found[1.0] == [0.0, 1.0]  # all have ended
    few = fit_landing(Forecast([100.0] * 60), traces[:60]).evidence  # less is known from fewer
    assert found[0.5][1] < few.left[few.ages.index(0.5)] < 1


def test_probes_say_nothing_if_agreement_has_nothing_to_do_with_the_answer():
    """Half of the answers repeat a guess, the others change it; they are known at the end only."""
    traces = [stating(i, [str(2 + age * (i % 2)) for age in range(10)], i % 3 > 0) for i in range(300)]
    assert fit_landing(Forecast([100.0] * 300), traces).evidence is None


def test_the_same_recorded_probe_does_not_agree_with_itself():
    """Probed at two ages only, which any two steps in between would share."""
    traces = [stating(i, ["1", "1"] if i % 2 else ["2", "3"], correct=True) for i in range(100)]
    evidence = fit_landing(Forecast([50.0] * 100), traces).evidence
    assert evidence is not None
    assert [age for age, left in zip(evidence.ages, evidence.left, strict=True) if left < 1] == [0.2]


def test_without_enough_probes_nothing_is_known():
    traces = [probed(i, 0) for i in range(40)] + [Trace(f"n{i}", f"none {i}", 100, correct=True) for i in range(60)]
    assert fit_landing(Forecast([100.0] * 100), traces) is None


def test_a_forecaster_that_is_trained_on_probed_traces_keeps_the_curve(tmp_path):
    traces = shipped_traces("train", "qwen2.5-coder-1.5b")
    fitted = TextForecaster().fit(traces)
    assert fitted.anytime is not None
    fitted.save(tmp_path / "mine")
    assert TextForecaster.load(tmp_path / "mine").anytime == fitted.anytime
    others = shipped_traces("train", "smollm2")[:60]  # without probes: what was known before is kept
    assert fitted.adapt(others).anytime == fitted.anytime
    assert TextForecaster().fit(others).anytime is None


def test_the_forecaster_that_ships_knows_what_landings_are_worth():
    curve = default().anytime
    assert curve is not None
    assert 0.05 < curve.shares[0] < 0.5
