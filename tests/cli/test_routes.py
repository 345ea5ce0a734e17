"""`run --routes`: two servers, one budget in money that neither can exceed, and mistakes that cost nothing."""

import json
import shutil
from collections import Counter

import numpy as np
import pytest

from shadowprice.accounts.sqlite import Ledger
from shadowprice.accounts.view import read_account
from shadowprice.cli import main
from shadowprice.errors import InputError
from shadowprice.forecast import load, predict_all
from shadowprice.forecast.routes import half_folder
from shadowprice.formats.routes import read_routes
from shadowprice.formats.traces import write_traces
from shadowprice.routing import open_routing
from shadowprice.types import Request

from ..backends import hostile
from ..conftest import read_jsonl, request_line
from ..lab.several import traces
from ..talking import talks

PROMPT = 5  # tokens that the server counts for every prompt
CHEAP, DEAR = (100, 100), (1000, 1200)  # nano-dollars of a token read and generated


def route(name: str, url: str, rates: tuple[int, int], more: str = "") -> str:
    return (
        f'[[route]]\nname = "{name}"\nbase_url = "{url}"\nmodel = "m"\n'
        f"rates = {{ input = {rates[0] / 1000}, output = {rates[1] / 1000} }}\n{more}\n"
    )


@pytest.fixture
def run(tmp_path, batch):
    def command(routes: str, *more, requests=40) -> int:
        (tmp_path / "routes.toml").write_text(routes)
        path = batch([request_line(f"q{i}", f"What is {i} + {i}? Explain it.") for i in range(requests)])
        arguments = [
            "run", path, "--quiet", "--routes", tmp_path / "routes.toml", "--max-tokens", 200, "--force",
            "--out", tmp_path / "out", "--errors", tmp_path / "err", "--run-folder", tmp_path / "run", *more,
        ]  # fmt: skip
        return main([str(argument) for argument in arguments])

    return command


def spent(folder) -> int:
    with Ledger.reopen(folder / "run" / "ledger.sqlite") as ledger:
        return ledger.spent


def cost(server, rates) -> int:
    return rates[0] * PROMPT * len(server.requests) + rates[1] * server.generated


def test_two_servers_share_one_budget_which_is_kept_by_their_own_counts(run, tmp_path, capsys):
    with hostile.Server(talks(60)) as cheap, hostile.Server(talks(60)) as dear:
        routes = route("cheap", cheap.url, CHEAP) + route("dear", dear.url, DEAR)
        assert run(routes, "--budget", "$0.0009") in (0, 3)
        paid = cost(cheap, CHEAP) + cost(dear, DEAR)
        assert spent(tmp_path) == paid <= 900_000
    assert cheap.requests or dear.requests
    printed = capsys.readouterr().out
    assert "policy routes" in printed
    answered = [line["shadowprice"] for line in read_jsonl(tmp_path / "out")]
    by_route = Counter()
    for line in answered:
        by_route.update(line["charged"])
    assert by_route["cheap"] == cost(cheap, CHEAP)
    assert by_route["dear"] == cost(dear, DEAR)
    for name, units in by_route.items():
        assert f"{name}: " in printed
        assert f"${units / 1e9:.6f}".rstrip("0") in printed


def test_a_dead_route_is_left_out_and_the_other_answers_everything(run, tmp_path, capsys):
    with hostile.Server(talks(20)) as alive:
        routes = route("alive", alive.url, DEAR) + route("dead", "http://127.0.0.1:9/v1", CHEAP)
        assert run(routes, "--budget", "$1") == 0
    printed = capsys.readouterr()
    assert len(read_jsonl(tmp_path / "out")) == 40
    assert "warning: route dead was left out: " in printed.err
    assert "(is the server up at the base_url of the route? then --resume)" in printed.err


def test_the_sums_by_route_that_are_printed_are_all_that_was_spent(run, tmp_path, capsys):
    """One server breaks off every answer, which costs the whole bound, and the other gets what is left."""
    with hostile.Server(talks(20)) as whole, hostile.Server(hostile.hangs_up_in_mid_stream) as broken:
        routes = route("whole", whole.url, DEAR) + route("broken", broken.url, CHEAP)
        run(routes, "--budget", "$0.0006", "--concurrency", "1", requests=20)
    lines = [line["shadowprice"] for name in ("out", "err") for line in read_jsonl(tmp_path / name)]
    by_route = Counter()
    for line in lines:
        by_route.update(line.get("charged", {}))
    assert by_route.total() == spent(tmp_path)
    assert by_route["broken"] > 0
    printed = capsys.readouterr().out
    for name, units in by_route.items():
        assert f"{name}: " in printed
        assert f"${units / 1e9:.6f}".rstrip("0") in printed
    assert set(read_account(tmp_path / "run").requests) == {f"q{i}" for i in range(20)}


def test_a_run_is_resumed_and_pays_for_nothing_twice(run, tmp_path, capsys):
    with hostile.Server(talks(30)) as cheap, hostile.Server(talks(30)) as dear:
        routes = route("cheap", cheap.url, CHEAP) + route("dear", dear.url, DEAR)
        assert run(routes, "--budget", "$1", requests=10) == 0
        first = cost(cheap, CHEAP) + cost(dear, DEAR)
        assert run(routes, "--budget", "$1", "--resume", requests=10) == 0
        assert cost(cheap, CHEAP) + cost(dear, DEAR) == first == spent(tmp_path)
        capsys.readouterr()
        assert run(routes.replace("1.0,", "2.0,"), "--budget", "$1", "--resume", requests=10) == 2
        assert "was started with another routes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "arguments", "problem"),
    [
        ("colour = 3", (), "unknown key 'colour'"),
        ("context = 100", (), "its context of 100 tokens is too short for every prompt"),
        ('api_key_env = "SHADOWPRICE_UNSET"', (), "the environment variable SHADOWPRICE_UNSET is not set"),
        ("", ("--budget", "200k"), "is in tokens, and rates are in dollars"),
        ("", ("--rate-in", "1"), "--rate-in with --routes"),
        ("", ("--policy", "clear"), "--policy with --routes"),
        ("", ("--samples", "0"), "samples and concurrency must be at least 1"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_sent(run, tmp_path, capsys, more, arguments, problem):
    with hostile.Server(talks(20)) as server:
        budget = () if "--budget" in arguments else ("--budget", "$1")
        assert run(route("one", server.url, CHEAP, more), *budget, *arguments) == 2
        assert not server.requests
    printed = capsys.readouterr().err
    assert problem in printed
    assert len(printed.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_the_summary_as_json_has_the_units_of_each_route(run, tmp_path, capsys):
    with hostile.Server(talks(20)) as cheap, hostile.Server(talks(20)) as dear:
        routes = route("cheap", cheap.url, CHEAP) + route("dear", dear.url, DEAR)
        assert run(routes, "--budget", "$1", "--json", requests=8) == 0
        summary = json.loads(capsys.readouterr().out)
    assert sum(each["units"] for each in summary["routes"].values()) == summary["spent"]
    assert summary["dropped"] == {}


def test_a_report_shows_a_run_with_routes(run, tmp_path, capsys):
    with hostile.Server(talks(20)) as cheap:
        assert run(route("cheap", cheap.url, CHEAP), "--budget", "$1", requests=8) == 0
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")]) == 0
    assert "routes" in (tmp_path / "page.html").read_text()


def test_forecast_has_a_line_for_every_request_and_route(tmp_path, batch, capsys):
    (tmp_path / "routes.toml").write_text(
        route("a", "http://127.0.0.1:9/v1", CHEAP) + route("b", "http://127.0.0.1:9/v1", DEAR)
    )
    path = batch([request_line(f"q{i}") for i in range(3)])
    assert main(["forecast", str(path), "--routes", str(tmp_path / "routes.toml"), "--quiet"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["custom_id"], line["route"]) for line in lines] == [(f"q{i}", r) for i in range(3) for r in "ab"]
    assert all(line["tokens"] > 0 for line in lines)


def test_train_makes_a_forecaster_for_each_model(tmp_path, capsys):
    write_traces(tmp_path / "traces.jsonl", traces(80))
    assert main(["train", str(tmp_path / "traces.jsonl"), "--routes", "--out", str(tmp_path / "f"), "--quiet"]) == 0
    printed = capsys.readouterr().out
    for model in ("cheap", "dear"):
        folder = tmp_path / "f" / model
        assert f'forecaster = "{folder}"  # {model}' in printed
        assert (folder / "forecaster.json").exists()
    (tmp_path / "routes.toml").write_text(
        route("x", "http://127.0.0.1:9/v1", CHEAP, 'forecaster = "f/cheap"')
        + route("y", "http://127.0.0.1:9/v1", DEAR, 'forecaster = "f/dear"')
    )
    opened = open_routing(read_routes(tmp_path / "routes.toml"), scouts=True)
    assert set(opened.revisers) == {("x", "x"), ("x", "y"), ("y", "x"), ("y", "y")}
    prompts = [Request("q", "What is 3 plus 4?")]
    fitted = load(half_folder(tmp_path / "f" / "dear"))  # what revisers were fitted to
    revised = opened.predict_revised(prompts)
    assert revised[1].tokens == pytest.approx(fitted.predict(["What is 3 plus 4?"]).tokens)
    assert open_routing(read_routes(tmp_path / "routes.toml")).predict_revised(prompts) is None
    shutil.rmtree(half_folder(tmp_path / "f" / "dear"))
    with pytest.raises(InputError, match="make them again with `shadowprice train --routes`"):
        open_routing(read_routes(tmp_path / "routes.toml"), scouts=True)
    assert main(["train", str(tmp_path / "traces.jsonl"), "--routes", "--from", "default", "--out", "g"]) == 2


def test_forecasts_of_models_that_were_trained_together_are_compared_everywhere_alike(tmp_path, batch, capsys):
    write_traces(tmp_path / "traces.jsonl", traces(120))
    assert main(["train", str(tmp_path / "traces.jsonl"), "--routes", "--out", str(tmp_path / "f"), "--quiet"]) == 0
    path = tmp_path / "routes.toml"
    path.write_text(
        route("x", "http://127.0.0.1:9/v1", CHEAP, 'forecaster = "f/cheap"')
        + route("y", "http://127.0.0.1:9/v1", DEAR, 'forecaster = "f/dear"')
    )
    file = batch([request_line(f"q{i}", f"What is {i} plus 3?") for i in range(4)])
    capsys.readouterr()
    assert main(["forecast", str(file), "--routes", str(path), "--quiet"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    opened = open_routing(read_routes(path))
    requests = [Request(f"q{i}", f"What is {i} plus 3?") for i in range(4)]
    each = opened.predict(requests)
    expected = [float(forecast.solve[i]) for i in range(4) for forecast in each]
    assert [line["solve"] for line in lines] == pytest.approx(expected, abs=1e-3)
    alone = predict_all(opened.forecasters[0], requests)
    assert np.abs(alone.solve - each[0].solve).max() > 1e-3
    names = [route["forecaster"] for route in opened.described()]
    (tmp_path / "f" / "revisers.json").write_text('{"pairs": []}')
    again = open_routing(read_routes(path))
    np.testing.assert_array_equal(again.predict(requests)[0].solve, alone.solve)
    assert [route["forecaster"] for route in again.described()] != names, "a run with other forecasts is not resumed"


def test_plan_writes_a_batch_file_for_each_route(tmp_path, batch, capsys):
    (tmp_path / "routes.toml").write_text(
        route("a", "http://127.0.0.1:9/v1", CHEAP) + route("b", "http://127.0.0.1:9/v1", DEAR)
    )
    path = batch([request_line(f"q{i}") for i in range(30)])
    arguments = ["--routes", str(tmp_path / "routes.toml"), "--out", str(tmp_path / "p.jsonl"), "--quiet"]
    errors = ["--errors", str(tmp_path / "err")]
    assert main(["plan", str(path), "--budget", "$0.001", "--max-tokens", "500", *arguments, *errors]) in (0, 3)
    printed = capsys.readouterr().out
    lines = [line for name in "ab" for line in read_jsonl(tmp_path / f"p.{name}.jsonl")]
    assert len(lines) + len(read_jsonl(tmp_path / "err")) == 30
    assert "policy routes" in printed
    assert main(["plan", str(path), "--budget", "$1", *arguments, *errors]) == 2
    assert "exists" in capsys.readouterr().err
    assert main(["plan", str(path), "--budget", "200k", "--force", *arguments, *errors]) == 2
    assert "is in tokens, and rates are in dollars" in capsys.readouterr().err


def test_two_routes_are_never_planned_into_one_file(tmp_path, batch, capsys):
    names = route("org/m", "http://127.0.0.1:9/v1", CHEAP) + route("org-m", "http://127.0.0.1:9/v1", DEAR)
    (tmp_path / "routes.toml").write_text(names)
    path = batch([request_line("q0")])
    arguments = ["--routes", str(tmp_path / "routes.toml"), "--out", str(tmp_path / "p.jsonl")]
    assert main(["plan", str(path), "--budget", "$1", *arguments]) == 2
    message = capsys.readouterr().err
    assert "routes 'org/m' and 'org-m' would be written to the same file" in message
    assert message.count("\n") == 1
    assert not [*tmp_path.glob("p.*")]
