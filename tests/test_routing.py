"""Routes in Python: a backend and a forecaster for each, and one run over all of them."""

from dataclasses import replace

import numpy as np
import pytest

import shadowprice as sp
from shadowprice.backends.recorded import RecordedBackend
from shadowprice.cost import Rates
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.errors import InputError
from shadowprice.forecast import PromptLength
from shadowprice.forecast.text import TextForecaster
from shadowprice.formats.routes import Route, read_routes
from shadowprice.market.votes import AGREEMENT
from shadowprice.routing import Routing, open_routing

TRACES = shipped_traces("eval", "smollm2")[:60]
SMALL = Route("small", Rates.dollars("0.1", "0.1"), "http://127.0.0.1:9/v1", model="small")
LARGE = Route("large", Rates.dollars("1", "1.2"), "http://127.0.0.1:9/v1", model="large", max_concurrency=2)


class Counting(RecordedBackend):
    """Counts prompts, as a server does."""

    async def complete(self, body, limit, **options):
        return replace(await super().complete(body, limit, **options), input_tokens=20)


def routing(**more) -> Routing:
    backends = [Counting(TRACES), Counting(TRACES)]
    return Routing([SMALL, LARGE], backends, [PromptLength(), PromptLength()], **more)


def test_a_run_with_routes_answers_within_its_money(tmp_path):
    questions = [trace.prompt for trace in TRACES]
    with sp.Run(questions, budget="$0.0005", routes=routing(), folder=tmp_path / "run", max_tokens=200) as run:
        results = run.complete()
        summary = run.summary()
    assert len(results) == len(questions)
    assert summary.spent <= 500_000
    assert summary.overspent == 0
    assert (
        sum(route["units"] for route in summary.routes.values())
        == summary.spent
        == sum(result.cost for result in results)
    )
    assert {result.extra["route"] for result in results if result.completion} <= {"small", "large"}
    with sp.Run(questions, budget="$0.0005", routes=routing(), folder=tmp_path / "run", max_tokens=200) as again:
        assert [result.id for result in again.complete()] == [result.id for result in results]
        assert again.spent == summary.spent


def test_a_run_has_a_backend_or_routes():
    with pytest.raises(InputError, match="a backend or routes"):
        sp.Run(["hi"], budget="$1")
    with pytest.raises(InputError, match="a backend or routes"):
        sp.Run(["hi"], budget="$1", backend=Counting(TRACES), routes=routing())


def test_routes_are_not_combined_with_landings():
    with pytest.raises(InputError, match="routes cannot be combined"):
        sp.Run(["hi"], budget="$1", routes=routing(), landing="math")
    with pytest.raises(InputError, match="is in tokens, and rates are in dollars"):
        sp.Run(["hi"], budget="200k", routes=routing())


def test_routes_are_opened_from_a_file_and_nothing_is_sent(tmp_path):
    path = tmp_path / "routes.toml"
    path.write_text(
        '[[route]]\nname = "a"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\n'
        "rates = { input = 0.1, output = 0.2 }\n"
    )
    opened = open_routing(read_routes(path), forecaster=PromptLength(), name="mine")
    assert opened.model == "a"
    assert [each["name"] for each in opened.described()] == ["a"]
    assert opened.described()[0]["forecaster"] == "mine"
    assert list(opened.channels) == ["a"]


def test_a_shared_forecaster_is_asked_once():
    class Counted(PromptLength):
        calls = 0

        def predict(self, requests):
            type(self).calls += 1
            return super().predict(requests)

    shared = Counted()
    both = Routing([SMALL, LARGE], [Counting(TRACES)] * 2, [shared, shared])
    first, second = both.predict([sp.Request("a", "What is 2 + 2?")])
    assert Counted.calls == 1
    np.testing.assert_array_equal(first.tokens, second.tokens)


def test_every_route_needs_a_backend_and_a_forecaster():
    with pytest.raises(InputError, match="one backend and one forecaster per route"):
        Routing([SMALL, LARGE], [Counting(TRACES)], [PromptLength()])
    with pytest.raises(InputError, match="one backend and one forecaster per route"):
        Routing([], [], [])


def test_keys_are_not_in_what_a_folder_keeps(monkeypatch):
    monkeypatch.setenv("LARGE_KEY", "sk-secret-123")
    route = Route("large", LARGE.rates, "http://127.0.0.1:9/v1", api_key_env="LARGE_KEY")
    opened = open_routing([route], forecaster=PromptLength())
    assert "sk-secret-123" not in str(opened.described())


def test_a_mistake_names_its_route_and_is_found_before_a_model_is_loaded(monkeypatch):
    monkeypatch.setenv("LARGE_KEY", "one line\nand another")
    here = Route("here", SMALL.rates, local="smollm2-135m")
    there = Route("there", LARGE.rates, "http://127.0.0.1:9/v1", api_key_env="LARGE_KEY")
    loaded = []
    with pytest.raises(InputError, match="route there: the API key contains characters"):
        open_routing([here, there], forecaster=PromptLength(), local=loaded.append)
    assert not loaded
    monkeypatch.setenv("LARGE_KEY", "key")
    opened = open_routing([here, there], forecaster=PromptLength(), local=lambda route: Counting(TRACES))
    assert isinstance(opened.backends[0], Counting), "backends are in the order of the routes"


def test_what_votes_are_worth_is_learned_with_the_forecasters_or_what_the_package_knows(tmp_path):
    one = Route("one", Rates.dollars("1", "1"), "http://127.0.0.1:9/v1")
    assert open_routing([one], forecaster=PromptLength()).agreement == AGREEMENT
    TextForecaster().fit(TRACES).save(tmp_path / "one")
    (tmp_path / "revisers.json").write_text('{"correlation": 0.3, "agreement": 0.4}')
    opened = open_routing([replace(one, forecaster=str(tmp_path / "one"))])
    assert (opened.correlation, opened.agreement) == (0.3, 0.4)
