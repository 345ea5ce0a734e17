"""A job on a Ray cluster of two nodes that runs already, each node in a network namespace of its own (root, Linux).

    python scripts/ray_two_nodes.py [--rows 400] [--budget 6000]

The first node has the command, the ledger and a server that counts every token and notes who asks; the second is
reached through a virtual cable. Checked: with a wrong token the command names the fix; with the right one both nodes
have sent requests, what the server counted is within the budget, and every row is in the output once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from aiohttp import web

HEAD, OTHER = "sp-head", "sp-other"
ADDRESSES = {HEAD: "10.77.0.1", OTHER: "10.77.0.2"}
RAY_PORT, SERVER_PORT = 6399, 8399
ANSWER = 20  # tokens


def command(*words: str, inside: str | None = None) -> list[str]:
    return [*(("ip", "netns", "exec", inside) if inside else ()), *words]


def run(*words: str, inside: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(*words, inside=inside), text=True, capture_output=True)
    if check and done.returncode:
        raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def cable(stack: ExitStack) -> None:
    """Two namespaces and a cable between them, removed at the end."""
    for name in ADDRESSES:
        run("ip", "netns", "del", name, check=False)
        run("ip", "netns", "add", name)
        stack.callback(run, "ip", "netns", "del", name, check=False)
    run("ip", "link", "add", "sp0", "netns", HEAD, "type", "veth", "peer", "name", "sp1", "netns", OTHER)
    for (name, address), link in zip(ADDRESSES.items(), ("sp0", "sp1"), strict=True):
        run("ip", "addr", "add", f"{address}/24", "dev", link, inside=name)
        for each in ("lo", link):
            run("ip", "link", "set", each, "up", inside=name)


def ray_nodes(stack: ExitStack) -> None:
    ray = str(Path(sys.executable).with_name("ray"))
    head = f"{ADDRESSES[HEAD]}:{RAY_PORT}"
    started = {HEAD: ("--head", f"--port={RAY_PORT}", "--include-dashboard=false"), OTHER: (f"--address={head}",)}
    for name, words in started.items():
        node = ("start", *words, f"--node-ip-address={ADDRESSES[name]}", "--num-cpus=2", "--disable-usage-stats")
        stack.callback(run, ray, "stop", "--force", inside=name, check=False)
        run(ray, *node, inside=name)


def serve(path: str) -> None:
    """Answers of the same length; who asked for how many tokens goes to a file."""

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or ANSWER
        tokens = min(limit, ANSWER)
        await asyncio.sleep(0.05)
        with open(path, "a") as log:
            log.write(json.dumps({"from": request.remote, "tokens": tokens}) + "\n")
        message = {"role": "assistant", "content": "word " * tokens}
        choice = {"index": 0, "message": message, "finish_reason": "stop" if tokens == ANSWER else "length"}
        usage = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}
        return web.json_response({"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    web.run_app(app, host=ADDRESSES[HEAD], port=SERVER_PORT, print=None)


def job(folder: Path, rows: int, budget: int) -> int:
    questions, log, out = folder / "questions.jsonl", folder / "served.jsonl", folder / "answers.jsonl"
    questions.write_text(
        "".join(json.dumps({"id": f"q{i}", "question": f"What is {i} + {i}?"}) + "\n" for i in range(rows))
    )
    log.touch()
    server = subprocess.Popen(command(sys.executable, __file__, "--serve", str(log), inside=HEAD))
    try:
        time.sleep(2)
        words = [
            sys.executable, "-m", "shadowprice", "run", str(questions), "--budget", str(budget), "--out", str(out),
            "--base-url", f"http://{ADDRESSES[HEAD]}:{SERVER_PORT}/v1", "--model", "any", "--max-tokens", str(ANSWER),
            "--ray", f"{ADDRESSES[HEAD]}:{RAY_PORT}", "--workers", "4", "--concurrency", "4", "--policy", "uniform",
        ]  # fmt: skip
        refused = run("env", "RAY_AUTH_TOKEN=wrong", *words, inside=HEAD, check=False)
        done = run(*words, inside=HEAD, check=False)
    finally:
        server.kill()
    print(refused.stderr + done.stderr + done.stdout)
    served = [json.loads(line) for line in log.read_text().splitlines()]
    tokens, senders = sum(each["tokens"] for each in served), Counter(each["from"] for each in served)
    written = [json.loads(line) for path in folder.glob("answers*.jsonl") for line in path.read_text().splitlines()]
    ids = Counter(each["custom_id"] for each in written)
    checks = {
        f"both nodes sent requests: {dict(senders)}": set(senders) == set(ADDRESSES.values()),
        f"{tokens:,} tokens of {budget:,} by the server's count": tokens <= budget,
        f"{rows:,} rows, each in the output once": len(ids) == rows and max(ids.values()) == 1,
        "the command ended as it should": done.returncode in (0, 3),
        "a wrong token is an error with its fix": refused.returncode == 2 and "RAY_AUTH_TOKEN" in refused.stderr,
    }
    for check, held in checks.items():
        print(f"{'ok  ' if held else 'MISS'}  {check}")
    return 0 if all(checks.values()) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--budget", type=int, default=6000)
    parser.add_argument("--serve", metavar="LOG", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return 0
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}  # the same on all nodes
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cable(stack)
        ray_nodes(stack)
        return job(folder, options.rows, options.budget)


if __name__ == "__main__":
    sys.exit(main())
