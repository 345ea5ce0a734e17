"""What the gateway costs: beside LiteLLM's proxy, Portkey's, and aiohttp that only passes on, before one server.

    python benchmarks/gateway.py [--in-flight 1,4,16,64] [--rounds 3] [--requests 300]
    python benchmarks/gateway.py --memory 200000          the memory of the gateway over that many requests
    python benchmarks/gateway.py --parts                  what forecasts and decisions cost, alone and together

Budgets are on, in all that have them. Rounds are interleaved: each gateway is measured in turn, several times, so
that other work on the machine meets all of them. CPU is user and system time of all processes of a gateway, per
request: the smallest of the rounds. Latency is that of a request in a closed loop, over all rounds; what is added is
the difference to asking the server directly. LiteLLM and Portkey are left out where they are not installed (`make
build/litellm/bin/litellm build/portkey/node_modules/@portkey-ai/gateway`); LiteLLM runs on Granian, where it takes
less than on uvicorn, and gets a quarter of the requests; Portkey's gateway has no budgets. The exit code is 1 if an
aim is missed: CPU at most 1/20 of LiteLLM's and 4 times that of passing on, added p99 at most 1/10 of LiteLLM's.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import aiohttp
import numpy as np
from counting_server import counting_server
from gateways import LITELLM, PORTKEY, Running, litellm, pass_through, portkey, shadowprice

QUESTIONS = (
    "What is the sum of the first {} odd numbers?",
    "A train travels {} km in 3 hours. How far does it travel in 5 hours at the same speed? Explain step by step.",
    "Prove that there are infinitely many primes of the form 4k + 3, and find one above {}.",
    "How many ways are there to choose 3 of {} people?",
)
BUDGET = 10**12  # tokens a day: never declined, however fast the machine is
FEWER = 4  # times, for LiteLLM
AIMS = {"litellm": 1 / 20, "aiohttp": 4.0}


def body(number: int, stream: bool) -> dict:
    question = QUESTIONS[number % len(QUESTIONS)].format(number)
    more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    return {"model": "m", "messages": [{"role": "user", "content": question}], "max_tokens": 64, **more}


async def load(url: str, requests: int, in_flight: int, stream: bool, more: dict[str, str] | None = None) -> np.ndarray:
    """Seconds of each request, with a fixed number in flight."""
    seconds, numbers = [], iter(range(requests))
    headers = {"Authorization": "Bearer sk-any", **(more or {})}

    async def client(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            start = time.perf_counter()
            async with session.post(f"{url}/chat/completions", json=body(number, stream), headers=headers) as answer:
                content = await answer.read()
                assert answer.status == 200, content[:300]
            seconds.append(time.perf_counter() - start)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session) for _ in range(in_flight)))
    return np.array(seconds)


@contextmanager
def started(upstream: str, folder: Path) -> Iterator[dict[str, Running]]:
    with ExitStack() as stack:
        running = {
            "aiohttp": stack.enter_context(pass_through(upstream, folder / "aiohttp")),
            "shadowprice": stack.enter_context(shadowprice(upstream, f"{BUDGET}/day", folder / "shadowprice")),
        }
        if LITELLM.exists():
            running["litellm"] = stack.enter_context(litellm(upstream, BUDGET, folder / "litellm", fast=True))
        else:
            print("without LiteLLM: it is not installed", file=sys.stderr)
        if PORTKEY.exists() and shutil.which("node"):
            running["portkey"] = stack.enter_context(portkey(upstream, folder / "portkey"))
        else:
            print("without Portkey's gateway: it is not installed, or node is not", file=sys.stderr)
        yield running


def compare(in_flight: list[int], rounds: int, requests: int) -> bool:
    held = True
    with (
        counting_server() as server,
        tempfile.TemporaryDirectory() as folder,
        started(server.url, Path(folder)) as ways,
    ):
        print("| in flight | stream | gateway | CPU, ms a request | added p50, ms | added p99, ms | memory, MB |")
        print("|---|---|---|---|---|---|---|")
        for stream in (False, True):
            answering = {name: way for name, way in ways.items() if answers(name, way, stream)}
            for flying in in_flight:
                held &= row(server.url, answering, flying, stream, rounds, requests)
    return held


def answers(name: str, way: Running, stream: bool) -> bool:
    """Whether a gateway answers such a request at all; ours must."""
    try:
        asyncio.run(load(way.url, 1, 1, stream, way.headers))
    except AssertionError as error:
        if name == "shadowprice":
            raise
        print(f"without {name}{' for streams' if stream else ''}: {error}", file=sys.stderr)
        return False
    return True


def row(upstream: str, ways: dict[str, Running], flying: int, stream: bool, rounds: int, requests: int) -> bool:
    """Prints a line for each gateway; whether the aims are met."""
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    seconds: dict[str, list[np.ndarray]] = {name: [] for name in (*ways, "direct")}
    for turn in range(rounds + 1):
        seconds["direct"].append(asyncio.run(load(upstream, requests, flying, stream)))
        for name, way in ways.items():
            count = max(flying, requests // FEWER) if name == "litellm" else requests
            before = way.cpu()
            taken = asyncio.run(load(way.url, count, flying, stream, way.headers))
            if turn:  # the first round warms up
                cpu[name].append(1000 * (way.cpu() - before) / count)
                seconds[name].append(1000 * taken)
    direct = 1000 * np.concatenate(seconds.pop("direct"))
    added = {
        name: [float(np.quantile(np.concatenate(s), q) - np.quantile(direct, q)) for q in (0.5, 0.99)]
        for name, s in seconds.items()
    }
    for name, way in ways.items():
        p50, p99 = added[name]
        print(
            f"| {flying} | {'yes' if stream else 'no'} | {name} | {min(cpu[name]):.3f} | {p50:.2f} | {p99:.2f} "
            f"| {way.memory():.0f} |",
            flush=True,
        )
    own = min(cpu["shadowprice"])
    held = all(own <= aim * min(cpu[name]) for name, aim in AIMS.items() if name in ways)
    return held and ("litellm" not in ways or added["shadowprice"][1] <= added["litellm"][1] / 10)


def memory(requests: int) -> bool:
    """Whether memory stays flat: after the first tenth it grows by less than a tenth."""
    with ExitStack() as stack:
        server = stack.enter_context(counting_server())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        way = stack.enter_context(shadowprice(server.url, f"{BUDGET}/day", folder))
        megabytes = []
        print("| requests | memory, MB | requests a second |\n|---|---|---|")
        for part in range(10):
            start = time.perf_counter()
            asyncio.run(load(way.url, requests // 10, 64, bool(part % 2)))
            megabytes.append(way.memory())
            rate = requests / 10 / (time.perf_counter() - start)
            print(f"| {(part + 1) * requests // 10:,} | {megabytes[-1]:.1f} | {rate:,.0f} |", flush=True)
    return max(megabytes[1:]) < 1.1 * megabytes[1]


def parts() -> bool:
    """Microseconds of CPU of each part of admission."""
    from shadowprice.accounts.windows import parse_account
    from shadowprice.forecast import default
    from shadowprice.gateway.admission import Purse, Terms, decide
    from shadowprice.gateway.appraisal import appraise
    from shadowprice.types import Request

    predictor, terms = default(), Terms(None, 4096)
    texts = [QUESTIONS[i % len(QUESTIONS)].format(i) for i in range(64)]

    def measured(name: str, each: int, call: object, times: int = 200) -> float:
        call()  # type: ignore[operator]
        start = time.process_time()
        for _ in range(times):
            call()  # type: ignore[operator]
        microseconds = 1e6 * (time.process_time() - start) / times / each
        print(f"| {name} | {microseconds:.0f} |", flush=True)
        return microseconds

    print("| part | CPU, microseconds a request |\n|---|---|")
    alone = measured("forecast, alone", 1, lambda: predictor.predict([Request("", texts[0])]))
    measured("forecast and offers, alone", 1, lambda: appraise(predictor, texts[:1], [terms]))
    for together in (8, 64):
        measured(
            f"forecast and offers, {together} together",
            together,
            lambda some=texts[:together]: appraise(predictor, some, [terms] * len(some)),
            50,
        )
    (found,) = appraise(predictor, texts[:1], [terms])
    purses = [Purse(parse_account("all", "1M/day"), 10**6, 1e-4)]
    measured("decision", 1, lambda: decide(found.forecast, terms, purses, found.offers))
    return alone < 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in-flight", default="1,4,16,64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--memory", type=int, default=0, metavar="REQUESTS")
    parser.add_argument("--parts", action="store_true")
    options = parser.parse_args()
    if options.parts:
        return 0 if parts() else 1
    if options.memory:
        held = memory(options.memory)
        print(f"\n{'ok  ' if held else 'MISS'}  memory is flat")
        return 0 if held else 1
    held = compare([int(each) for each in options.in_flight.split(",")], options.rounds, options.requests)
    print(
        f"\n{'ok  ' if held else 'MISS'}  CPU at most 1/20 of LiteLLM's and 4 times aiohttp's, added p99 at most 1/10"
    )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
