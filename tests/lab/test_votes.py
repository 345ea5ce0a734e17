"""Votes on recorded answers: they gain where money is ample, and are not bought where it is scarce."""

import importlib.util
from collections import defaultdict

import numpy as np
import pytest

from shadowprice.datasets.shipped import shipped_traces
from shadowprice.errors import InputError
from shadowprice.formats.routes import read_routes
from shadowprice.grading.agreement import Ballots
from shadowprice.lab.routes import forecast_folds
from shadowprice.lab.votes import counted, learned, recorded_votes, shuffled, vote_rows
from shadowprice.market.samples import correlation_of
from shadowprice.market.votes import AGREEMENT, CORRELATION, agreement_of
from shadowprice.types import Trace

from .several import ROUTES, questions

SAMPLES = 3


def traces(n: int = 240) -> list[Trace]:
    """Three answers of each model: the correct one is the number of the question, wrong ones are spread."""
    texts, hard = questions(n)
    rng, found = np.random.default_rng(1), []
    for model, chance in {"cheap": (0.85, 0.6), "dear": (0.9, 0.7)}.items():
        for i, (text, h) in enumerate(zip(texts, hard, strict=True)):
            for sample in range(SAMPLES):
                correct = bool(rng.random() < chance[int(h)])
                said = i if correct else 1000 + rng.integers(20)
                tokens, more = int(rng.lognormal(5, 0.3)), {"model": model, "sample": sample, "max_tokens": 2000}
                response = f"So.\nThe answer is {said}."
                found.append(Trace(f"q{i}", text, tokens, correct, response=response, **more))
    return found


@pytest.fixture(scope="module")
def routes(tmp_path_factory):
    path = tmp_path_factory.mktemp("routes") / "routes.toml"
    path.write_text(ROUTES)
    return read_routes(path)


@pytest.fixture(scope="module")
def pool(routes):
    return recorded_votes(traces(), routes[:1], SAMPLES)


def test_votes_gain_where_money_is_ample_and_are_not_bought_where_it_is_scarce(pool):
    answer = float(pool.cost.mean())
    rows = {(row["budget"], row["samples"]): row for row in vote_rows(pool, [answer / 2, 8 * answer], seeds=1)}
    assert set(rows) == {(budget, k) for budget in (answer / 2, 8 * answer) for k in (1, 2, 3)}
    assert all(row["dollars"] <= row["budget"] * (1 + 1e-9) for row in rows.values())
    assert rows[8 * answer, 3]["gain_low"] > 1
    assert rows[answer / 2, 3]["gain"] > -2
    assert rows[8 * answer, 1]["gain"] == 0


def test_answers_are_those_that_were_recorded_in_another_order(pool):
    other = shuffled(pool, 0)
    for place in range(len(pool)):
        said, again = (sorted(each.said[place][0] for each in [some, *some.more]) for some in (pool, other))
        assert said == again
    assert any(pool.said[place] != other.said[place] for place in range(len(pool)))
    assert other.sample(2) is other.more[1]


def test_a_majority_is_counted_and_the_market_comes_close_where_money_is_ample(pool):
    one, three = counted(pool, 1).mean(), counted(pool, 3).mean()
    assert one == pytest.approx(pool.correct.mean())
    assert three > one
    order = shuffled(pool, 0)
    (_, _, market) = vote_rows(pool, [8 * float(pool.cost.mean())], seeds=1)
    assert market["solved"] == pytest.approx(100 * counted(order, 3).mean(), abs=2)


def test_what_votes_are_worth_is_learned_from_the_other_folds(pool):
    found = learned(pool, forecast_folds(pool)[0])
    assert 0.02 < found["correlation"] < 0.4
    assert found["agreement"] == pytest.approx(1 / 20, abs=0.05)


@pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="needs math-verify")
def test_what_is_assumed_without_traces_is_what_the_recorded_answers_of_the_package_show():
    ballots, grades, wrong = Ballots(), defaultdict(list), defaultdict(list)
    for trace in shipped_traces("rollouts"):
        grades[trace.prompt].append(bool(trace.correct))
        if not trace.correct and not trace.truncated and (said := ballots.vote(trace.prompt, trace.response)):
            wrong[trace.prompt].append(said)
    assert agreement_of([*wrong.values()]) == pytest.approx(AGREEMENT, abs=0.01)
    assert correlation_of([*grades.values()]) == pytest.approx(CORRELATION, abs=0.01)


def test_traces_without_text_or_with_too_few_answers_are_refused(routes):
    with pytest.raises(InputError, match="0 questions have 4 answers of all routes"):
        recorded_votes(traces(), routes, SAMPLES + 1)
    silent = [Trace(t.id, t.prompt, t.tokens, t.correct, model=t.model, sample=t.sample) for t in traces()]
    with pytest.raises(InputError, match="without text"):
        recorded_votes(silent, routes, SAMPLES)
