"""vLLM in this process, on an engine of the same interface; `scripts/vllm_offline.py` tries the real one."""

import asyncio
import sys

import pytest

from shadowprice import Run
from shadowprice.backends.vllm_offline import VllmOfflineBackend
from shadowprice.errors import MissingExtra, Refused, Unavailable
from shadowprice.forecast import PromptLength

from . import fake_vllm
from .hostile import WORDS


@pytest.fixture
def backend(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", fake_vllm)
    return VllmOfflineBackend(fake_vllm.LLM())


def chat(text="hello"):
    return {"messages": [{"role": "user", "content": text}], "temperature": 0}


def test_each_prompt_has_its_own_limit_in_one_list(backend):
    async def main():
        return await asyncio.gather(*(backend.complete(chat(), limit) for limit in (3, 7, 400)))

    found = asyncio.run(main())
    assert [each.tokens for each in found] == [3, 7, len(WORDS)]
    assert [each.finish for each in found] == ["length", "length", "stop"]
    assert backend._llm.lists == [3]
    assert found[0].usage_source == "server"
    assert found[0].input_tokens > 0


def test_requests_that_arrive_meanwhile_are_the_next_list(backend):
    async def main():
        first = asyncio.create_task(backend.complete(chat(), 5))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.gather(first, *(backend.complete(chat(), 5) for _ in range(4)))

    asyncio.run(main())
    assert backend._llm.lists == [1, 4]


def test_an_engine_that_fails_has_cost_what_was_granted(backend):
    backend._llm.fault = RuntimeError("out of memory")
    with pytest.raises(Unavailable, match="vLLM failed: RuntimeError: out of memory") as failed:
        asyncio.run(backend.complete(chat(), 5))
    assert failed.value.tokens is None


def test_what_does_not_fit_into_the_context_is_refused_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", fake_vllm)
    backend = VllmOfflineBackend("fake", max_model_len=20)

    async def main():
        found = await asyncio.gather(
            backend.complete(chat("word " * 30), 5), backend.complete(chat(), 400), return_exceptions=True
        )
        await backend.close()
        return found

    long, short = asyncio.run(main())
    assert isinstance(long, Refused)
    assert "too long for the context of 20" in str(long)
    assert (short.finish, short.tokens) == ("length", 20 - 3)
    assert "context_full" in short.flags


def test_a_run_keeps_to_its_budget(backend):
    run = Run(
        [f"question {i}" for i in range(20)], budget=100, backend=backend, forecaster=PromptLength(), concurrency=16
    )
    results = run.complete()
    assert run.spent == backend._llm.generated <= 100
    assert len(results) == 20


def test_without_vllm_the_error_gives_the_line_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtra, match=r"shadowprice\[vllm\]"):
        VllmOfflineBackend("m")
