"""`shadowprice.plan`: from requests and a budget to limits, in Python."""

import io
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shadowprice as sp
from shadowprice.cost import ALL_TOKENS, Rates, prompt_bound
from shadowprice.errors import MissingExtra
from shadowprice.forecast import PromptLength
from shadowprice.types import Forecast

from .conftest import read_jsonl, request_line


class Lengths:
    """Forecasts the number that each question consists of."""

    def predict(self, requests):
        return Forecast([float(request.text) for request in requests], spread=0.3, solve=0.9)


def planned(tmp_path, plan):
    plan.write(tmp_path / "planned.jsonl", errors=tmp_path / "declined.jsonl")
    return read_jsonl(tmp_path / "planned.jsonl"), read_jsonl(tmp_path / "declined.jsonl")


class TestAFile:
    def test_the_budget_goes_to_requests_that_are_worth_it(self, batch, tmp_path):
        path = batch([request_line("short", "300"), request_line("long", "9000"), request_line("middle", "900")])
        plan = sp.plan(path, budget=1500, forecaster=Lengths(), policy="clear")
        assert (plan.requests, plan.admitted, plan.declined) == (3, 2, 1)
        assert plan.granted == plan.budget == 1500
        assert plan.price > 0
        served, declined = planned(tmp_path, plan)
        assert [line["custom_id"] for line in served] == ["short", "middle"]
        assert [line["body"]["max_completion_tokens"] for line in served] == [450, 1050]
        (line,) = declined
        assert line["error"]["code"] == "budget_abandoned"
        assert line["error"]["forecast"] == {"tokens": 9000, "spread": 0.3, "solve": 0.9}
        assert line["error"]["price"] == plan.price
        assert line["shadowprice"]["outcome"] == "declined"

    def test_the_shipped_forecaster_is_the_default(self, batch):
        path = batch([request_line("a"), request_line("b", "Prove that the square root of 2 is irrational.")])
        assert np.all(sp.plan(path, "1k").forecast.tokens >= 1)

    def test_a_budget_per_request(self, batch):
        path = batch([request_line(name, "300") for name in "abcd"])
        assert sp.plan(path, "100/query", forecaster=Lengths()).budget == 400

    def test_answers_share_a_grant_and_a_caller_s_limit_holds(self, batch):
        path = batch([request_line("a", "50", n=4), request_line("b", "50", max_tokens=30), request_line("c", "50")])
        plan = sp.plan(path, 900, policy="uniform", forecaster=Lengths(), max_tokens=200)
        assert plan.limits.tolist() == [75, 30, 200]
        assert plan.grants.tolist() == [300, 30, 200]
        assert plan.granted == 530
        assert plan.forecast.tokens.tolist() == [200, 50, 50]

    def test_n_predict_is_a_caller_s_limit(self, batch, tmp_path):
        path = batch([request_line("a", "50", n_predict=70), request_line("b", "50", n_predict=900)])
        served, _ = planned(tmp_path, sp.plan(path, 200, policy="uniform", forecaster=Lengths()))
        assert [line["body"]["n_predict"] for line in served] == [70, 100]

    def test_a_plan_can_be_written_twice(self, batch, tmp_path):
        plan = sp.plan(batch([request_line("a", "30"), request_line("b", "90")]), 100, forecaster=Lengths())
        assert planned(tmp_path, plan) == planned(tmp_path, plan)

    def test_into_open_streams(self, batch):
        out, errors = io.BytesIO(), io.BytesIO()
        path = batch([request_line("a", "30")])
        sp.plan(path, 100, policy="uniform", forecaster=Lengths()).write(out, errors)
        assert json.loads(out.getvalue())["body"]["max_completion_tokens"] == 100
        assert errors.getvalue() == b""

    def test_one_file_for_both_kinds_of_lines_is_refused(self, batch, tmp_path):
        plan = sp.plan(batch([request_line("a", "30")]), 100, forecaster=Lengths())
        with pytest.raises(sp.InputError, match="cannot be written twice"):
            plan.write(tmp_path / "same", errors=tmp_path / "same")
        assert not (tmp_path / "same").exists()

    def test_a_pipe_is_read_into_memory(self, batch, tmp_path):
        content, pipe = batch([request_line("a", "30"), request_line("b", "40")]).read_bytes(), tmp_path / "pipe"
        os.mkfifo(pipe)
        sender = threading.Thread(target=lambda: pipe.write_bytes(content))
        sender.start()
        plan = sp.plan(pipe, "10k", forecaster=Lengths())
        sender.join()
        served, _ = planned(tmp_path, plan)
        assert [line["custom_id"] for line in served] == ["a", "b"]


def append(path):
    with path.open("a") as more:
        more.write(json.dumps(request_line("c")) + "\n")


class TestAFileThatChanges:
    def test_while_it_is_forecast(self, batch):
        path = batch([request_line("a"), request_line("b")])

        class Meddler(PromptLength):
            def predict(self, requests):
                append(path)
                return super().predict(requests)

        with pytest.raises(sp.InputError, match=r"requests\.jsonl: changed while it was being planned"):
            sp.plan(path, 1000, forecaster=Meddler())

    def test_before_it_is_written(self, batch, tmp_path):
        path = batch([request_line("a"), request_line("b")])
        plan = sp.plan(path, 1000, forecaster=PromptLength())
        append(path)
        with pytest.raises(sp.InputError, match="changed while it was being planned"):
            plan.write(tmp_path / "planned.jsonl", errors=tmp_path / "declined.jsonl")
        assert os.listdir(tmp_path) == ["requests.jsonl"]

    def test_before_it_becomes_a_table(self, batch):
        pytest.importorskip("pandas", reason="the extra `pandas` is not installed")
        path = batch([request_line("a"), request_line("b")])
        plan = sp.plan(path, 1000, forecaster=PromptLength())
        append(path)
        with pytest.raises(sp.InputError, match="changed"):
            plan.to_pandas()


class TestLists:
    def test_questions(self, tmp_path):
        plan = sp.plan(["300", "900", "4000"], budget=1500, forecaster=Lengths(), policy="clear")
        served, declined = planned(tmp_path, plan)
        assert [(line["custom_id"], line["body"]["max_completion_tokens"]) for line in served] == [
            ("request-1", 450),
            ("request-2", 1050),
        ]
        assert served[0]["body"]["messages"] == [{"role": "user", "content": "300"}]
        assert [line["custom_id"] for line in declined] == ["request-3"]

    def test_bodies_and_batch_lines(self, tmp_path):
        bodies = [{"prompt": "30", "max_tokens": 8}, {"input": "30"}, request_line("own", "30")]
        served, _ = planned(tmp_path, sp.plan(bodies, 300, policy="uniform", forecaster=Lengths()))
        assert [line["custom_id"] for line in served] == ["request-1", "request-2", "own"]
        assert served[0]["body"] == {"prompt": "30", "max_tokens": 8}
        assert served[1]["body"]["max_output_tokens"] == 100
        assert served[2]["body"]["max_completion_tokens"] == 100

    def test_changing_the_list_afterwards_changes_nothing(self, tmp_path):
        body = {"prompt": "30"}
        requests = [body, "30"]
        plan = sp.plan(requests, 300, forecaster=Lengths())
        requests.clear()
        body["prompt"] = "other"
        served, _ = planned(tmp_path, plan)
        assert len(served) == 2
        assert served[0]["body"]["prompt"] == "30"

    def test_an_iterator_is_enough(self):
        assert sp.plan((str(n) for n in (30, 40)), "10k", forecaster=Lengths()).requests == 2

    def test_no_requests(self):
        with pytest.raises(sp.InputError, match="requests: has no requests"):
            sp.plan([], 100)

    def test_a_bad_request_is_named_by_its_position(self):
        with pytest.raises(sp.InputError, match=r"^mine:2: max_tokens is -4 "):
            sp.plan(["a", {"prompt": "b", "max_tokens": -4}], 100, label="mine")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "magic"}, "unknown policy 'magic'"),
        ({"options": {"gamma": 1}}, "no option gamma"),
        ({"budget": "lots"}, "budget 'lots'"),
        ({"limit_field": "tokens"}, "limit field 'tokens'"),
        ({"max_tokens": 0}, "max_tokens is 0"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_read(arguments, message):
    with pytest.raises(sp.ShadowpriceError, match=message):
        sp.plan("no-such-file.jsonl", **{"budget": 100, **arguments})


def test_json_that_can_be_read_but_is_too_deep_to_be_edited(batch, tmp_path):
    """Reading follows only the question; writing steps over every value."""
    deep = json.dumps(request_line("a", "30")).replace('"model": "m"', '"metadata": ' + "[" * 1000 + "]" * 1000)
    plan = sp.plan(batch([request_line("b", "30"), deep]), 1000, forecaster=Lengths())
    with pytest.raises(sp.InputError, match=r"requests\.jsonl:2: nested too deeply"):
        plan.write(tmp_path / "planned.jsonl", errors=tmp_path / "declined.jsonl")


class TestPandas:
    def test_a_row_per_request(self, batch):
        pytest.importorskip("pandas", reason="the extra `pandas` is not installed")
        path = batch([request_line("a", "300"), request_line("b", "9000"), request_line("c", "45", n=2)])
        plan = sp.plan(path, 800, forecaster=Lengths())
        table = plan.to_pandas()
        assert table["id"].tolist() == ["a", "b", "c"]
        assert table["tokens"].tolist() == [300, 9000, 90]
        assert table["solve"].tolist() == [0.9] * 3
        assert table["grant"].sum() == plan.granted
        assert table["admitted"].tolist() == [True, False, True]
        assert set(table.columns) >= {"spread", "solved_tokens", "solved_spread"}

    def test_without_pandas_the_extra_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(MissingExtra, match=r"shadowprice\[pandas\]"):
            sp.plan(["30"], 100, forecaster=Lengths()).to_pandas()

    def test_planning_itself_does_not_import_it(self):
        code = "import sys, shadowprice as sp; sp.plan(['Why?'], 100); sys.exit('pandas' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_summary_is_plain_json_without_the_arrays():
    plan = sp.plan(["300", "900", "4000"], budget=1500, forecaster=Lengths())
    summary = json.loads(json.dumps(plan.summary()))
    assert summary["declined"] == 1
    assert summary["price"] == plan.price
    assert {"forecast", "limits", "grants"}.isdisjoint(summary)


class TestMoney:
    RATES = Rates.dollars("0.15", "0.60")

    @settings(max_examples=60, deadline=None)
    @given(data=st.data())
    def test_limits_and_prompts_never_cost_more_than_the_budget(self, data):
        lengths = data.draw(st.lists(st.integers(1, 3000), min_size=1, max_size=12))
        rates = data.draw(st.sampled_from([self.RATES, Rates.dollars("0.07", "3.33", "0.01"), ALL_TOKENS]))
        budget = data.draw(st.integers(0, 4_000_000 if rates.money else 20_000))
        policy = data.draw(st.sampled_from(["expected", "clear", "uniform", "auction"]))
        cap = data.draw(st.sampled_from([None, 50, 1000]))
        bodies = [{"messages": [{"role": "user", "content": str(each)}], "n": 1 + each % 2} for each in lengths]
        money = f"${budget / 1e9:.9f}" if rates.money else budget
        plan = sp.plan(bodies, money, policy=policy, forecaster=Lengths(), max_tokens=cap, rates=rates)
        bounds = [
            rates.bound(prompt_bound(body), int(grant))
            for body, grant in zip(bodies, plan.grants, strict=True)
            if grant
        ]
        assert sum(bounds) == plan.cost <= plan.budget == budget

    def test_it_buys_more_with_more(self):
        questions = [str(n) for n in range(100, 1000, 50)]
        plans = [sp.plan(questions, f"${d}", forecaster=Lengths(), rates=self.RATES) for d in ("0.001", "0.004")]
        assert 0 < plans[0].admitted < plans[1].admitted
        assert plans[1].cost > 0.9 * plans[1].budget
        assert plans[1].dollars == pytest.approx(plans[1].cost / 1e9)

    def test_a_prompt_without_a_bound_is_refused(self):
        image = {"type": "image_url", "image_url": {"url": "data:,"}}
        body = {"messages": [{"role": "user", "content": [image, {"type": "text", "text": "What is this?"}]}]}
        with pytest.raises(sp.InputError, match="more than text"):
            sp.plan([body], "$1", rates=self.RATES)
        assert sp.plan([body], 100).admitted == 1

    def test_prices_are_shown_beside_a_budget_of_tokens(self):
        plan = sp.plan(["300"], 400, forecaster=Lengths(), prices=self.RATES)
        assert (plan.budget, plan.cost, plan.granted) == (400, 400, 400)
        assert plan.dollars > 400 * 0.6e-6


def test_nobody_is_declined_where_the_budget_could_serve_all_up_to_their_limits():
    questions = [str(n) for n in (50, 400, 500, 600)]
    for policy in ("clear", "triangular", "quadratic", "heuristic", "auction", "expected"):
        plan = sp.plan(questions, 1000, policy=policy, forecaster=Lengths(), max_tokens=100)
        assert plan.declined == 0, policy
        assert plan.limits.tolist()[1:] == [100, 100, 100]
