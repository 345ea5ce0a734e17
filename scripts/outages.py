"""What outages cost: real runs against a server on 127.0.0.1 that is down for a while.

    python scripts/outages.py [--seconds 1,10,60] [--faults 503,429,html,refused]

The server answers 200 questions with 10 to 120 tokens each and counts every token that it generates; the budget covers
a part of them. A second into the run it is down: it answers 503 or 429 or with a login page, or refuses connections.
Each row compares a run with an undisturbed one. Exits with 1 if a token is charged that was not generated, or if more
than 2% fewer answers are correct. Takes about five minutes; outages of the same length are tried at the same time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

N, CONCURRENCY, START, BUDGET = 200, 8, 1.0, 8_000
SPEED = 200  # tokens a second, of each answer
ACCOUNTINGS = {
    "reserved": ["--policy", "expected", "--accounting", "reserved"],
    "metered": ["--policy", "index", "--accounting", "metered"],
}
BODIES = {
    "503": (503, "application/json", b'{"error": {"message": "overloaded"}}'),
    "429": (429, "application/json", b'{"error": {"message": "slow down"}}'),
    "html": (200, "text/html", b"<html><body>Please log in.</body></html>"),
}


# --- the server --------------------------------------------------------------------------------


@dataclass
class Server:
    """Answers question i with `length(i)` words, the last of which is the correct answer."""

    fault: str
    seconds: float
    generated: int = 0
    failed: int = 0
    port: int = 0
    down: bool = False
    started: bool = False
    listening: asyncio.Server | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> Server:
        await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
        if self.listening:
            self.listening.close()

    async def _listen(self) -> None:
        self.listening = await asyncio.start_server(self._connected, "127.0.0.1", self.port, backlog=256)
        self.port = self.listening.sockets[0].getsockname()[1]

    async def _outage(self) -> None:
        await asyncio.sleep(START)
        self.down = True
        if self.fault == "refused" and self.listening:
            self.listening.close()
        await asyncio.sleep(self.seconds)
        if self.fault == "refused":
            await self._listen()
        self.down = False

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.started and self.seconds:
            self.started = True
            self.tasks.add(asyncio.create_task(self._outage()))
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            body = await reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))
            if self.down and self.fault in BODIES:
                self.failed += 1
                await self._send(writer, *BODIES[self.fault])
            else:
                await self._send(writer, 200, "text/event-stream", b"")
                await self._answer(json.loads(body), writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _send(self, writer: asyncio.StreamWriter, status: int, kind: str, body: bytes) -> None:
        writer.write(f"HTTP/1.1 {status} -\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n".encode() + body)
        await writer.drain()

    async def _answer(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        messages, limit = request["messages"], request["max_completion_tokens"]
        i = int(messages[0]["content"].split()[1])
        done = len(messages[-1]["content"].split()) if messages[-1]["role"] == "assistant" else 0
        words = answer(i)[done : done + limit]
        for word in words:
            self.generated += 1
            await self._event(writer, {"content": word + " "}, None)
        await asyncio.sleep(len(words) / SPEED)
        usage = {"prompt_tokens": 9 + done, "completion_tokens": len(words), "total_tokens": 9 + done + len(words)}
        finish = "stop" if done + len(words) == len(answer(i)) else "length"
        await self._event(writer, {}, finish, usage=usage)
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()

    async def _event(
        self, writer: asyncio.StreamWriter, delta: dict[str, str], finish: str | None, **more: Any
    ) -> None:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        writer.write(b"data: " + json.dumps({"id": "x", "model": "m", "choices": choices, **more}).encode() + b"\n\n")
        await writer.drain()


def answer(i: int) -> list[str]:
    return ["step"] * (random.Random(i).randint(10, 120) - 1) + [f"\\boxed{{{i}}}"]


# --- the runs ----------------------------------------------------------------------------------


def write_questions(folder: Path) -> None:
    noise = random.Random(0)
    with open(folder / "questions.jsonl", "w") as questions, open(folder / "forecast.jsonl", "w") as forecast:
        for i in range(N):
            name = f"q{i}"
            questions.write(json.dumps({"id": name, "question": f"Question {i} ?", "answer": str(i)}) + "\n")
            tokens = len(answer(i)) * noise.lognormvariate(0, 0.3)
            forecast.write(json.dumps({"custom_id": name, "tokens": tokens, "spread": 0.3, "solve": 0.9}) + "\n")


@dataclass
class Ended:
    correct: int
    spent: int
    generated: int
    failed: int  # attempts during the outage
    unfinished: int  # requests that failed or were not sent


async def run(folder: Path, fault: str, seconds: float, accounting: str) -> Ended:
    async with Server(fault, seconds) as server:
        command = ["-m", "shadowprice", "run", "questions.jsonl", "--forecast", "forecast.jsonl"]
        command += ["--base-url", f"http://127.0.0.1:{server.port}/v1", "--model", "m", "--budget", str(BUDGET)]
        command += ["--concurrency", str(CONCURRENCY), "--max-tokens", "120", "--quiet", "--json"]
        command += ["--out", f"{fault}-{seconds}-{accounting}.jsonl", *ACCOUNTINGS[accounting]]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, cwd=folder, stdout=pipe, stderr=pipe, env={**os.environ, "OPENAI_API_KEY": ""}
        )
        out, errors = await process.communicate()
        if process.returncode not in (0, 3):
            raise SystemExit(errors.decode())
        summary = json.loads(out)
    unfinished = sum(summary["outcomes"].get(outcome, 0) for outcome in ("failed", "not_sent"))
    return Ended(summary["correct"], summary["spent"], server.generated, server.failed, unfinished)


async def compare(faults: list[str], lengths: list[float]) -> bool:
    holds = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_questions(folder)
        for accounting in ACCOUNTINGS:
            undisturbed = await run(folder, "none", 0.0, accounting)
            print(f"\n{accounting}, undisturbed: {undisturbed.correct} of {N} correct, {undisturbed.spent:,} tokens")
            print("| outage | seconds | failed attempts | charged for nothing | correct | fewer |")
            print("|---|---|---|---|---|---|")
            for seconds in lengths:
                runs = await asyncio.gather(*(run(folder, fault, seconds, accounting) for fault in faults))
                for fault, ended in zip(faults, runs, strict=True):
                    wasted = ended.spent - ended.generated
                    fewer = 1 - ended.correct / undisturbed.correct
                    holds &= wasted == 0 and fewer <= 0.02 and not ended.unfinished
                    print(f"| {fault} | {seconds:g} | {ended.failed} | {wasted} | {ended.correct} | {fewer:.1%} |")
    return holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", default="1,10,60")
    parser.add_argument("--faults", default="503,429,html,refused")
    options = parser.parse_args()
    holds = asyncio.run(compare(options.faults.split(","), [float(each) for each in options.seconds.split(",")]))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
