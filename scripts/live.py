"""Live equals simulated: under a budget a model does what the simulator says, request by request.

    python scripts/live.py build/live                       # 60 questions, about an hour on two idle cores
    python scripts/live.py build/live --questions 8 --in-parts 12 --cap 256

Records greedy answers of `--model` to the first `--questions` evaluation questions in the package, with `--exact`, so
that they depend on nothing else; then runs each policy live under `--budget` and simulates it on the recorded answers.
Both have to agree on every outcome, on the tokens of every request, and on prices. It also counts, on the first
`--in-parts` questions, how many answers in four parts of `--part` tokens equal the answer in one piece. Stop it and run
it again: it continues.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import shadowprice as sp
from shadowprice.backends.base import join
from shadowprice.backends.llamacpp import LlamaCppBackend
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.forecast.text import TextForecaster
from shadowprice.formats.templates import TEMPLATES, prompted
from shadowprice.formats.traces import read_traces, write_traces
from shadowprice.types import Completion, Request, Trace

_PARTS = 4  # in which an answer is generated again
WAYS = (
    {"policy": "clear", "reclaim": False},
    {"policy": "expected"},
    {"policy": "index", "accounting": "metered"},
)


def asked(traces: list[Trace]) -> list[Request]:
    body = {trace.id: {"messages": [{"role": "user", "content": trace.prompt}], "temperature": 0} for trace in traces}
    return [Request(trace.id, trace.prompt, body=prompted(body[trace.id], TEMPLATES["math"])) for trace in traces]


async def record(requests: list[Request], backend: LlamaCppBackend, whole: int, cap: int, part: int, path: Path) -> int:
    """Writes answers as traces, the first `whole` of them up to the cap; returns how many are the same in parts."""
    known = {trace.id: trace for trace in read_traces(path)} if path.exists() else {}
    for number, request in enumerate(requests, start=1):
        if request.id in known:
            continue
        limit = cap if number <= whole else _PARTS * part
        answer = await backend.complete(request.body, limit)
        known[request.id] = Trace(
            request.id,
            request.text,
            answer.tokens,
            correct=False,  # not graded: outcomes and tokens are compared
            truncated=answer.finish == "length",
            model=backend.model,
            max_tokens=limit,
            response=answer.text,
            extra={"same_in_parts": _is_prefix(await in_parts(backend, request, part), answer)},
        )
        write_traces(path, known.values())
        same = sum(bool(trace.extra["same_in_parts"]) for trace in known.values())
        print(f"{number} of {len(requests)} recorded, {same} the same in parts", file=sys.stderr, flush=True)
    return sum(bool(trace.extra["same_in_parts"]) for trace in known.values())


async def in_parts(backend: LlamaCppBackend, request: Request, part: int) -> Completion:
    answer = await backend.complete(request.body, part)
    while answer.finish == "length" and answer.tokens < _PARTS * part:
        answer = join(answer, await backend.complete(request.body, part, continue_from=answer))
    return answer


def _is_prefix(part: Completion, whole: Completion) -> bool:
    if part.finish == "stop" or part.tokens >= whole.tokens:
        return (part.text, part.tokens, part.finish) == (whole.text, whole.tokens, whole.finish)
    return whole.text.startswith(part.text)


async def compare(
    requests: list[Request], traces: list[Trace], backend: LlamaCppBackend, budget: str, cap: int, folder: Path
) -> int:
    """Prints a line per policy; returns how many requests differ."""
    forecaster = TextForecaster().fit(shipped_traces("train"))
    differ = 0
    for way in WAYS:
        settings = {**way, "max_tokens": cap, "concurrency": 1}
        place = folder / str(way["policy"])
        with sp.Run(requests, budget=budget, backend=backend, folder=place, forecaster=forecaster, **settings) as run:
            summary = await run.execute()
            live = {result.id: result for result in run.results()}
        simulated = sp.simulate(traces, budget, forecaster=forecaster, **settings)
        other = [each for each in simulated.results if not _agree(live[each.id], each)]
        differ += len(other)
        print(
            f"{way['policy']}: {len(live) - len(other)} of {len(live)} requests agree; "
            f"spent {summary.spent:,} live, {simulated.spent:,} simulated; price {summary.price} and {simulated.price}"
        )
    return differ


def _agree(live: sp.Result, simulated: sp.Result) -> bool:
    return (live.outcome, live.cost, live.usage.output) == (simulated.outcome, simulated.cost, simulated.usage.output)


async def run(options: argparse.Namespace) -> int:
    count, in_all = options.questions, max(options.questions, options.in_parts)
    requests = asked(shipped_traces("eval", options.model)[:in_all])
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / "traces.jsonl"
    backend = LlamaCppBackend(options.model, exact=True, slots=1, cache=512, threads=options.threads)
    async with backend:
        same = await record(requests, backend, count, options.cap, options.part, path)
        print(f"{same} of {in_all} answers in {_PARTS} parts of {options.part} tokens equal the answer in one piece")
        traces = list(read_traces(path))[:count]
        differ = await compare(requests[:count], traces, backend, options.budget, options.cap, options.folder)
    return 1 if differ or same < in_all else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--in-parts", type=int, default=100)
    parser.add_argument("--cap", type=int, default=512)
    parser.add_argument("--part", type=int, default=32)
    parser.add_argument("--budget", default="150/query")
    parser.add_argument("--threads", type=int, default=2)
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
