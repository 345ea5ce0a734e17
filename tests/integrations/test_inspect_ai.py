"""Inspect AI, where it is installed: a whole eval on the embedded model."""

import asyncio
import re
from types import SimpleNamespace

import pytest


def test_an_eval_keeps_to_its_budget_and_its_log_has_every_sample(run_example):
    printed = run_example("inspect_budget.py", "inspect_ai", 400)
    status, answered, samples, used = re.search(
        r"(\w+): (\d+) of (\d+) samples answered, (\d+) tokens", printed
    ).groups()
    charged, budget, reserved = map(int, re.search(r"charged (\d+) of (\d+), reserved (\d+)", printed).groups())
    assert (status, int(samples)) == ("success", 20)
    assert 0 < int(answered) < 20
    assert int(used) <= charged <= budget == 400
    assert reserved == 0


@pytest.mark.parametrize(("variable", "value"), [("BUDGET", "4OO"), ("FORECASTER", "/nowhere")])
def test_with_a_mistake_in_its_settings_nothing_is_sent(monkeypatch, variable, value):
    pytest.importorskip("inspect_ai")
    from inspect_ai.util import LimitExceededError

    from shadowprice.integrations.inspect_ai import Budget

    monkeypatch.setenv("SHADOWPRICE_BUDGET", "400")
    monkeypatch.setenv(f"SHADOWPRICE_{variable}", value)
    monkeypatch.setattr(Budget, "purse", None)
    data = SimpleNamespace(config=SimpleNamespace(num_choices=None, max_tokens=None), input=[])
    with pytest.raises(LimitExceededError, match=value):  # Inspect logs all other errors, and goes on
        asyncio.run(Budget().on_before_model_generate(data))


def test_a_call_waits_while_others_hold_what_it_would_buy(monkeypatch):
    pytest.importorskip("inspect_ai")
    from shadowprice.integrations.inspect_ai import Budget

    monkeypatch.setenv("SHADOWPRICE_BUDGET", "400")
    monkeypatch.setattr(Budget, "purse", None)
    hook, end = Budget(), asyncio.Event()

    async def call():
        await hook.on_sample_start(None)
        config, message = SimpleNamespace(num_choices=None, max_tokens=300), SimpleNamespace(text="What is 2+2?")
        await hook.on_before_model_generate(SimpleNamespace(config=config, input=[message]))
        await end.wait()
        await hook.on_model_usage(SimpleNamespace(usage=SimpleNamespace(output_tokens=10)))
        return config.max_tokens

    async def main():
        await hook.on_run_start(None)
        hook.purse.samples = 2
        calls = [asyncio.create_task(call()) for _ in range(2)]
        await asyncio.sleep(0.2)
        assert hook.purse.spent + hook.purse.reserved <= 400
        end.set()
        return await asyncio.gather(*calls)

    assert min(asyncio.run(main())) > 200
    assert (hook.purse.spent, hook.purse.reserved) == (20, 0)
