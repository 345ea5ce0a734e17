"""Whole runs whose routes continue cut answers: real servers, their own counts, and kill -9."""

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from shadowprice import Forecast
from shadowprice.backends.llamacpp import LlamaCppBackend
from shadowprice.backends.openai import OpenAIBackend
from shadowprice.cost import Rates
from shadowprice.engine.scheduler import TRIAL
from shadowprice.formats.routes import Route
from shadowprice.routing import Routing
from shadowprice.runs import Run

from ..backends import hostile

WORDS, PROMPT, READ, GENERATED = 60, 5, 100, 300  # nano-dollars of a token
N = 12


class Short:
    """Forecasts that are far too short, so that every answer is cut."""

    def predict(self, requests) -> Forecast:
        return Forecast(np.full(len(requests), 12.0), 0.02, 0.8)


def goes_on(*, starts_over: bool = False, pause: float = 0.0) -> hostile.Behaviour:
    """A server that continues an assistant message, or starts over; every answer has 60 different words."""

    async def behave(request: hostile.Request, reply: hostile.Reply) -> None:
        messages = request.body["messages"]
        tokens = [f" {messages[0]['content']}.{i:03d}" for i in range(WORDS)]
        printed = "".join(message["content"] for message in messages if message["role"] == "assistant")
        known = len(printed.split())
        rest = tokens if starts_over else hostile._after(tokens, printed)
        count = min(request.limit, len(rest))
        await asyncio.sleep(pause)
        await reply.head()
        for token in rest[:count]:
            await reply.piece(token)
        await reply.finish("length" if count < len(rest) else "stop")
        prompt = PROMPT + known + (9 if starts_over and printed else 0)
        reply.server.read = getattr(reply.server, "read", 0) + prompt  # type: ignore[attr-defined]
        await reply.usage(count, prompt_tokens=prompt)
        await reply.end()

    return behave


def run(url: str, folder: Path, budget: str = "$1", requests: int = N, **more) -> Run:
    route = Route("one", Rates.dollars(READ / 1000, GENERATED / 1000), url, model="m")
    routing = Routing([route], [OpenAIBackend(url, "m")], [Short()])
    texts = [f"q{i}" for i in range(requests)]
    return Run(texts, budget=budget, routes=routing, folder=folder, max_tokens=100, concurrency=4, **more)


def whole(place: int) -> str:
    return "".join(f" q{place}.{i:03d}" for i in range(WORDS))


def test_answers_are_continued_and_paid_by_the_servers_own_count(tmp_path):
    with hostile.Server(goes_on()) as server:
        one = run(server.url, tmp_path / "run")
        results = one.complete()
        assert [result.text for result in results] == [whole(i) for i in range(N)]
        assert {result.outcome for result in results} == {"finished"}
        assert server.generated == N * WORDS
        assert one.spent == READ * server.read + GENERATED * server.generated
        one.close()
    assert sum(result.extra["charged"]["one"] for result in results) == one.spent
    limits = [r.limit for r in server.requests if len(r.body["messages"]) > 1]
    assert limits[0] == TRIAL, "nobody knew whether it continues"
    assert sum(limit == TRIAL for limit in limits) == 1
    for result in results:
        assert result.completion.body["usage"]["completion_tokens"] == WORDS
        assert result.completion.body["usage"]["prompt_tokens"] == PROMPT, "counted once in the answer"
        assert result.usage.input > PROMPT, "and each time in what was used"


def test_a_server_that_starts_over_costs_one_short_piece(tmp_path):
    with hostile.Server(goes_on(starts_over=True)) as server:
        one = run(server.url, tmp_path / "run")
        results = one.complete()
        assert sum(len(r.body["messages"]) > 1 for r in server.requests) == 1
        assert one.spent >= READ * server.read + GENERATED * server.generated
        one.close()
    for i, result in enumerate(results):
        assert result.outcome == "truncated"
        assert result.text
        assert whole(i).startswith(result.text)


def test_a_scarce_budget_holds_by_the_servers_own_count(tmp_path):
    for number, budget in enumerate(("$0.00015", "$0.0003", "$0.0006")):
        with hostile.Server(goes_on()) as server:
            one = run(server.url, tmp_path / f"run{number}", budget)
            results = one.complete()
            paid = READ * getattr(server, "read", 0) + GENERATED * server.generated
            assert paid == one.spent <= one.budget
            one.close()
        assert len(results) == N


_SCRIPT = """
import sys
from pathlib import Path
from tests.engine.test_routed_continuing_run import run
run(sys.argv[1], Path(sys.argv[2]), requests=int(sys.argv[3])).complete()
"""


def test_a_run_that_is_killed_between_pieces_continues_from_them(tmp_path):
    requests = 40
    with hostile.Server(goes_on(pause=0.02)) as server:
        folder, root = tmp_path / "run", Path(__file__).parents[2]
        command = [sys.executable, "-c", _SCRIPT, server.url, str(folder), str(requests)]
        process = subprocess.Popen(command, cwd=root)
        try:
            end = time.monotonic() + 60
            while sum(len(r.body["messages"]) > 1 for r in server.requests) < requests / 2:
                assert time.monotonic() < end, "it did not begin in time"
                assert process.poll() is None
                time.sleep(0.005)
        finally:
            process.kill()
            process.wait()
        again = run(server.url, folder, requests=requests)
        results = again.complete()
        assert [result.text for result in results] == [whole(i) for i in range(requests)]
        sent = Counter(json.dumps([r.body["messages"], r.limit]) for r in server.requests)
        assert sum(sent.values()) - len(sent) <= 4, "only what was under way is sent again"
        assert again.spent >= READ * server.read + GENERATED * server.generated
        assert sum(result.cost for result in results) == again.spent
        again.close()


def test_a_real_model_continues_its_answers(tmp_path, gguf):
    questions = ["List ten animals.", "Explain what a river is."]
    bodies = [{"messages": [{"role": "user", "content": text}], "temperature": 0} for text in questions]
    route = Route("small", Rates.dollars("0.01", "0.02"), local="smollm2-135m")
    backend = LlamaCppBackend(gguf, slots=1, context=512, threads=1, exact=True)

    async def both() -> list[Run]:
        runs = []
        for number, forecaster in enumerate((Short(), Long())):
            routing = Routing([route], [backend], [forecaster])
            runs.append(Run(bodies, budget="$1", routes=routing, folder=tmp_path / f"{number}", max_tokens=60))
            await runs[-1].execute()
        await backend.close()
        return runs

    cut, whole = asyncio.run(both())
    assert [result.text for result in cut.results()] == [result.text for result in whole.results()]
    read = [one.ledger.usage.input + one.ledger.usage.cached for one in (cut, whole)]
    assert read[0] > 2 * read[1], "prompts and parts were read again"
    for one in (cut, whole):
        assert one.spent == sum(result.cost for result in one.results())
        one.close()


class Long:
    def predict(self, requests) -> Forecast:
        return Forecast(np.full(len(requests), 100.0), 0.5, 0.8)
