"""Scenarios on a real Ray cluster, in a process of their own: Ray listens on all interfaces, so it gets a network
namespace in which there is only the loopback interface.

    unshare -rn python -m tests.distributed.scenarios

reads {"name": ..., "arguments": {...}} from standard input, one a line, and writes what each scenario found.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import zlib
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np

import shadowprice as sp
from shadowprice.backends.openai import OpenAIBackend
from shadowprice.forecast import PromptLength
from shadowprice.run_folder import RunFolder
from tests.backends import hostile

CPUS, STORE = 3, 200 * 2**20
FORECASTER = PromptLength()


def length_of(question: str) -> int:
    return 1 + zlib.crc32(question.encode()) % 40


def answers(pause: float):
    """A model whose answer depends on the question alone; a piece for every token."""

    async def behave(request, reply):
        length = length_of(request.body["messages"][0]["content"])
        count = min(request.limit, length)
        await reply.head()
        for i in range(count):
            await reply.piece(f"w{i} ")
            if i % 8 == 0:
                await asyncio.sleep(pause / 5)
        await reply.finish("length" if count < length else "stop")
        await reply.usage(count)
        await reply.end()

    return behave


def asked(server) -> Counter[str]:
    return Counter(request.body["messages"][0]["content"] for request in server.requests)


def found(run, server, rows: int) -> dict:
    """What became of the rows, beside what the server counted."""
    results = [*run.results()]
    summary = run.summary
    return {
        "rows": len(results),
        "ids": len({result.id for result in results}),
        "outcomes": summary.outcomes,
        "budget": summary.budget,
        "spent": summary.spent,
        "overspent": summary.overspent,
        "lost": summary.lost,
        "lost rows": sum(bool(r.failure and r.failure.code == "worker_lost") for r in results),
        "generated": server.generated,
        "sent twice": sum(count > 1 for count in asked(server).values()),
        "sent": len(server.requests),
        "stopped": summary.stopped,
        "order kept": [result.id for result in results] == [f"r{i}" for i in range(rows)],
    }


def questions(count: int) -> list[dict]:
    return [{"id": f"r{i}", "question": f"What is {i} + {i}?"} for i in range(count)]


# --- scenarios ---------------------------------------------------------------------------------


def plans(rows: int, budget: int) -> dict:
    """The same plan on one node, in shards, and without Ray."""
    import ray

    dataset = ray.data.from_items(questions(rows))
    one = sp.ray.plan(dataset, budget, forecaster=FORECASTER, max_tokens=300)
    many = sp.ray.plan(dataset, budget, forecaster=FORECASTER, max_tokens=300, gather=0)
    texts = [f"What is {i} + {i}?" for i in range(rows)]
    plain = sp.plan(texts, budget, forecaster=FORECASTER, max_tokens=300)
    limited = one.to_dataset().take_all()
    return {
        "prices": [one.price, many.price, plain.price],
        "admitted": [one.admitted, many.admitted, plain.admitted],
        "granted": [one.granted, many.granted, plain.granted],
        "limits equal": np.concatenate(one.limits).tolist() == plain.limits.tolist(),
        "limited": [row["max_tokens"] for row in limited] == plain.limits.tolist(),
        "columns": sorted(limited[0]),
    }


def commands(rows: int, budget: int) -> dict:
    """`shadowprice run *.parquet --ray`, and the example."""
    import pyarrow
    import pyarrow.parquet

    from shadowprice.cli import main as command

    with tempfile.TemporaryDirectory() as place, hostile.Server(answers(0.0)) as server:
        every = questions(rows)
        for at, part in enumerate((every[: rows // 3], every[rows // 3 :])):
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(part), f"{place}/part-{at}.parquet")
        arguments = [
            "run", f"{place}/part-0.parquet", f"{place}/part-1.parquet", "--budget", budget, "--base-url", server.url,
            "--model", "m", "--ray", "--out", f"{place}/out.jsonl", "--max-tokens", "50", "--no-reclaim",
        ]  # fmt: skip
        printed, spoken = io.StringIO(), io.StringIO()
        with redirect_stdout(printed), redirect_stderr(spoken):
            code = command([*map(str, arguments)])
        generated, sent_twice = server.generated, sum(count > 1 for count in asked(server).values())
        again = io.StringIO()
        with redirect_stdout(again), redirect_stderr(io.StringIO()):
            command([*map(str, arguments), "--resume", "--json"])
        lines = [json.loads(line) for line in Path(place, "out.jsonl").read_text().splitlines()]
        declined = next(Path(place).glob("*declined*"))
        unchanged = server.generated == generated
        named = runpy.run_path("examples/ray_budget.py")
        example = io.StringIO()
        with redirect_stdout(example):
            named["main"](server.url, "m", "900")
        return {
            "code": code,
            "printed": printed.getvalue(),
            "spoken": spoken.getvalue(),
            "answers": [line["custom_id"] for line in lines],
            "declined": [json.loads(line)["custom_id"] for line in declined.read_text().splitlines()],
            "generated": generated,
            "sent twice": sent_twice,
            "resumed": json.loads(again.getvalue()[again.getvalue().index("{") :]),
            "resumed for nothing": unchanged,
            "example": example.getvalue(),
        }


def killed(
    who: str, seed: int, workers: int, rows: int = 240, kills: int = 1, concurrency: int = 8, policy: str = "expected"
) -> dict:
    """kill -9 of a worker or of the coordinator at random moments."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as place, hostile.Server(answers(0.05)) as server:
        job = _job(place, server.url, rows, workers, concurrency)
        job.policy = policy
        begun = threading.Event()
        job.on_event = lambda progress: begun.set()
        victims = []

        def kill() -> None:
            import ray

            while not server.requests:
                time.sleep(0.005)
            for number in range(kills):
                time.sleep(chance.uniform(0.0, 0.5))
                coordinator = who == "coordinator" or (who == "both" and number % 2)
                actor = job.coordinator if coordinator else chance.choice(job.actors)
                try:
                    pid = ray.get(actor.pid.remote(), timeout=20)
                    os.kill(pid, signal.SIGKILL)
                    victims.append("coordinator" if coordinator else "worker")
                except Exception:  # it is being started again, or the job has ended
                    continue

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        job.run()
        killer.join()
        outcome = found(sp.ray.RayRun(job), server, rows)
        return {**outcome, "killed": len(victims), "most lost": victims.count("worker") * concurrency}


def speed(workers: int, rows: int, concurrency: int, pause: float) -> dict:
    """Rows a second after start-up, with answers that take `pause` seconds."""

    async def behave(request, reply):
        await asyncio.sleep(pause)
        await reply.head()
        await reply.piece("yes")
        await reply.finish()
        await reply.usage(1)
        await reply.end()

    with tempfile.TemporaryDirectory() as place, hostile.Server(behave) as server:
        job = _job(place, server.url, rows, workers, concurrency, block=max(1, rows // (8 * workers)))
        times = []

        def watch() -> None:
            while not server.requests:
                time.sleep(0.001)
            while len(server.requests) < workers * concurrency:  # all workers have started
                time.sleep(0.001)
            times.append((time.perf_counter(), len(server.requests)))
            while len(server.requests) < rows:
                time.sleep(0.001)
            times.append((time.perf_counter(), len(server.requests)))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        start = time.perf_counter()
        job.run()
        whole = time.perf_counter() - start
        watcher.join()
        (begun, before), (end, after) = times
        return {"rows a second": (after - before) / (end - begun), "seconds in all": whole}


def prices(rows: int, block: int, shard: int, budget: float, one: bool) -> dict:
    """The price of random forecasts in shards, in several processes; and in one process, if asked for."""
    import ray

    from shadowprice.cost import TOKENS
    from shadowprice.distributed import demand

    demand._SHARD = shard
    made = [ray.remote(_random_numbers).remote(seed, block) for seed in range(rows // block)]
    ray.wait(made, num_returns=len(made))
    nobody = [np.zeros(block, dtype=bool) for _ in made]
    start = time.perf_counter()
    sharded = demand.Sharded(made, [block] * len(made), TOKENS)
    ray.get([actor.ask.remote("describe", ()) for actor in sharded._actors])
    started = time.perf_counter() - start
    start = time.perf_counter()
    grants, cleared = sharded.divide(int(budget), "expected", {}, nobody)
    found = {
        "seconds to start": started,
        "seconds": time.perf_counter() - start,
        "price": cleared.price,
        "admitted": cleared.admitted,
        "granted": cleared.granted,
        "memory of the driver": _peak_memory(),
        "memory of the shards": max(map(_peak_memory, ray.get([actor.pid.remote() for actor in sharded._actors]))),
    }
    for actor in sharded._actors:
        ray.kill(actor)
    del sharded, grants
    if one:
        start = time.perf_counter()
        gathered = demand.Gathered(made, TOKENS)
        found["seconds to gather"] = time.perf_counter() - start
        start = time.perf_counter()
        _, whole = gathered.divide(int(budget), "expected", {}, nobody)
        found |= {
            "one: seconds": time.perf_counter() - start,
            "one: price": whole.price,
            "one: admitted": whole.admitted,
        }
        found["one: memory of the driver"] = _peak_memory()
    return found


def _random_numbers(seed: int, rows: int):
    import pyarrow

    from shadowprice.distributed.tables import forecast_columns

    rng = np.random.default_rng(seed)
    forecast = sp.Forecast(rng.lognormal(6, 0.8, rows), rng.uniform(0.2, 1, rows), rng.uniform(0.05, 1, rows))
    numbers = {"cap": np.full(rows, 4096.0), "prompt": np.zeros(rows), "name": rng.integers(0, 2**63, rows, np.uint64)}
    return pyarrow.table({**forecast_columns(forecast), **numbers})


def _peak_memory(process: int | str = "self") -> int:
    """The most bytes that a process has had so far."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) * 1024


def _backend(url: str):
    return lambda: OpenAIBackend(url, "m", api_key="none", timeout=20)


def _job(place: str, url: str, rows: int, workers: int, concurrency: int, block: int = 60):
    """A job on tables made here, without Ray Data: its start takes seconds."""
    import pyarrow
    import ray

    from shadowprice.distributed.demand import Gathered
    from shadowprice.distributed.jobs import Job
    from shadowprice.distributed.prepared import Table
    from shadowprice.distributed.tables import Prepare, Reading
    from shadowprice.distributed.worker import Terms

    whole = Prepare(Reading(max_tokens=50), FORECASTER)(pyarrow.Table.from_pylist(questions(rows)))
    parts = [whole.slice(first, block) for first in range(0, rows, block)]
    table = Table([ray.put(part) for part in parts], [part.num_rows for part in parts])
    terms = Terms(budget=50 * rows, concurrency=concurrency)
    folder = RunFolder.create(Path(place, "run"), terms.budget, {"input": "scenario"})
    return Job(table, Gathered(table.blocks, terms.rates), terms.budget, folder, _backend(url), workers, terms)


SCENARIOS = {each.__name__: each for each in (plans, commands, killed, speed, prices)}


def main() -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    from shadowprice.distributed.cluster import connect, load_data

    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # Ray's sockets need a short path
    store = int(os.environ.get("STORE", STORE))
    ray = connect(num_cpus=CPUS, object_store_memory=store, _temp_dir=folder)
    load_data().DataContext.get_current().enable_progress_bars = False
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        start = time.perf_counter()
        try:
            reply = {"found": SCENARIOS[task["name"]](**task["arguments"])}
        except BaseException:
            reply = {"error": traceback.format_exc()}
        print(json.dumps({**reply, "seconds": round(time.perf_counter() - start, 2)}), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
