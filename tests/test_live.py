"""The budget on a real model: what llama.cpp itself counts never passes it."""

import asyncio
import importlib.util

import pytest

from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.recorded import ReplayBackend
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.errors import InputError
from shadowprice.forecast import PromptLength
from shadowprice.forecast.text import Text
from shadowprice.formats.batch import read_requests
from shadowprice.runner import Settings, run, write_results
from shadowprice.tale import BudgetAware, Taught, ask, estimates_in
from shadowprice.types import Trace

from .conftest import request_line

pytestmark = pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="needs the extra [local]")


@pytest.fixture(scope="module")
def server():
    from shadowprice.backends.llamacpp import LocalServer, fetch_model

    try:
        path = fetch_model()
    except InputError as error:
        pytest.skip(f"the model cannot be had: {error}")
    with LocalServer(path) as running:
        yield running


def backend(server):
    from shadowprice.backends.openai import OpenAIBackend

    return OpenAIBackend(server.base_url, server.model, api_key="none")


def asking(batch, traces):
    return list(
        read_requests(batch([request_line(f"q{i}", each.prompt, temperature=0) for i, each in enumerate(traces)]))
    )


def test_200_queries_at_once_that_want_far_more_than_five_times_the_budget(server, tmp_path, batch):
    traces = shipped_traces("eval")[:200]
    budget = sum(trace.tokens for trace in traces) // 20  # run in full they would take twenty times as much
    requests = asking(batch, traces)
    before = server.tokens_predicted()

    async def go():
        client = backend(server)
        try:
            return await run(requests, ledger, client, Text().fit(shipped_traces("train")), Settings(concurrency=200))
        finally:
            await client.close()

    with Ledger.create(tmp_path / "ledger.sqlite", budget) as ledger:
        progress = asyncio.run(go())
        summary = write_results(requests, ledger, progress, out=tmp_path / "out", errors=tmp_path / "err")
        counted = server.tokens_predicted() - before
        assert counted <= ledger.spent <= budget
        assert ledger.overspent == 0
        assert summary.finished > 0
        assert summary.abandoned > 0


def test_a_real_teacher_is_asked_and_paid_from_the_budget(server, tmp_path, batch):
    """TALE-EP: the model estimates its own answers, then gives them; all of it within one budget."""
    budget, n = 300, 6
    requests = asking(batch, shipped_traces("eval")[:n])
    before = server.tokens_predicted()

    async def go():
        client = backend(server)
        try:
            await ask(requests, ledger, client, Settings(), most=budget // 2)
            asked = estimates_in(ledger, requests)
            await run(requests, ledger, BudgetAware(client), Taught(PromptLength(), asked.found), Settings("tale"))
            return asked
        finally:
            await client.close()

    with Ledger.create(tmp_path / "ledger.sqlite", budget) as ledger:
        found = asyncio.run(go())
        counted = server.tokens_predicted() - before
        assert found.asked == n
        assert found.found  # this small model gives most, if not all, of the numbers in the form asked for
        assert 0 < found.tokens < counted <= ledger.spent <= budget
        assert all(ledger.has_result(request.query.id) for request in requests)


def test_replaying_a_trace_at_a_smaller_cap_is_what_the_model_does(server):
    """Token for token: greedy decoding is deterministic, so a replay is exact, not a simulation.

    Recorded here and now: another machine may round in another way than the one that recorded ours.
    """
    prompts = [trace.prompt for trace in sorted(shipped_traces("eval"), key=lambda t: t.tokens) if trace.tokens >= 8][
        :100
    ]

    async def both():
        client, gate = backend(server), asyncio.Semaphore(8)

        async def ask(prompt, cap):
            async with gate:
                return await client.complete(chat(prompt), cap)

        try:
            full = await asyncio.gather(*(ask(prompt, 128) for prompt in prompts))
            caps = [max(1, done.tokens * 2 // 3) for done in full]
            return full, caps, await asyncio.gather(*map(ask, prompts, caps))
        finally:
            await client.close()

    full, caps, again = asyncio.run(both())
    replay = ReplayBackend(
        Trace(f"t{i}", prompt, done.tokens, response=done.text, truncated=done.finish == "length")
        for i, (prompt, done) in enumerate(zip(prompts, full, strict=True))
    )
    for prompt, cap, done, lived in zip(prompts, caps, full, again, strict=True):
        replayed = asyncio.run(replay.complete(chat(prompt), cap))
        assert (lived.tokens, lived.finish) == (replayed.tokens, replayed.finish)
        assert done.text.startswith(lived.text)


def chat(prompt):
    return {"messages": [{"role": "user", "content": prompt}], "temperature": 0}
