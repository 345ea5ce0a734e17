"""The budget on a real model: what llama.cpp itself counts never exceeds it."""

import asyncio

import pytest

from shadowprice.backends.llamacpp import LlamaCppServer
from shadowprice.backends.openai import OpenAIBackend
from shadowprice.backends.recorded import RecordedBackend
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.forecast import PromptLength, default
from shadowprice.runs import Run
from shadowprice.types import Trace

from .conftest import request_line


@pytest.fixture(scope="module")
def server(gguf):
    with LlamaCppServer(gguf) as running:
        yield running


@pytest.fixture
def backend(server):
    return OpenAIBackend(server.base_url, server.model, api_key="none")


def asking(traces):
    return [request_line(f"q{i}", each.prompt, temperature=0) for i, each in enumerate(traces)]


def executed(run, backend):
    async def go():
        try:
            return await run.execute()
        finally:
            await backend.close()

    return asyncio.run(go())


def test_200_requests_at_once_that_want_far_more_than_the_budget(server, backend, tmp_path):
    traces = shipped_traces("eval", "smollm2")[:200]
    budget = sum(trace.tokens for trace in traces) // 40  # in full they would take forty times as much
    before = server.tokens_predicted()
    with Run(
        asking(traces), budget=budget, backend=backend, forecaster=default(), folder=tmp_path / "run", concurrency=200
    ) as run:
        summary = executed(run, backend)
    counted = server.tokens_predicted() - before
    assert counted <= summary.spent <= budget
    assert summary.overspent == 0
    assert summary.count("finished") > 0
    assert summary.count("declined") > 0


def test_a_real_teacher_is_asked_and_paid_from_the_budget(server, backend):
    """TALE-EP: the model estimates its own answers, then gives them; all of it within one budget."""
    budget, n = 160, 4
    before = server.tokens_predicted()
    run = Run(
        asking(shipped_traces("eval", "smollm2")[:n]),
        budget=budget,
        backend=backend,
        forecaster=PromptLength(),
        policy="tale",
    )
    with run:
        summary = executed(run, backend)
    counted = server.tokens_predicted() - before
    assert run.teaching["asked"] == n
    assert run.teaching["fell_back"] < n  # this small model gives most, if not all, of the numbers in the right form
    assert 0 < run.teaching["tokens"] < counted <= summary.spent <= budget
    assert summary.count("finished", "truncated") == n


def test_a_recorded_answer_at_a_smaller_limit_is_what_the_model_gives(backend):
    """Token for token: greedy decoding is deterministic, so that a recorded answer is exact, not a simulation.

    Recorded here and now: another machine may round in another way than the one that recorded ours.
    """
    longer = (trace for trace in sorted(shipped_traces("eval", "smollm2"), key=lambda t: t.tokens) if trace.tokens >= 8)
    prompts = [trace.prompt for trace, _ in zip(longer, range(30), strict=False)]

    async def both():
        gate = asyncio.Semaphore(8)

        async def ask(prompt, limit):
            async with gate:
                return await backend.complete(chat(prompt), limit)

        try:
            full = await asyncio.gather(*(ask(prompt, 128) for prompt in prompts))
            limits = [max(1, done.tokens * 2 // 3) for done in full]
            return full, limits, await asyncio.gather(*map(ask, prompts, limits))
        finally:
            await backend.close()

    full, limits, again = asyncio.run(both())
    recorded = RecordedBackend(
        Trace(f"t{i}", prompt, done.tokens, response=done.text, truncated=done.finish == "length")
        for i, (prompt, done) in enumerate(zip(prompts, full, strict=True))
    )
    for prompt, limit, done, live in zip(prompts, limits, full, again, strict=True):
        replayed = asyncio.run(recorded.complete(chat(prompt), limit))
        assert (live.tokens, live.finish) == (replayed.tokens, replayed.finish)
        assert done.text.startswith(live.text)


def chat(prompt):
    return {"messages": [{"role": "user", "content": prompt}], "temperature": 0}
