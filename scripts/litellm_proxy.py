"""LiteLLM's proxy in front of the embedded model: are usage and limits exact behind it?

python -m venv build/litellm && build/litellm/bin/pip install 'litellm[proxy]'
python scripts/litellm_proxy.py --litellm build/litellm/bin/litellm     (`make litellm` does both)

Runs examples/questions.csv through the proxy in several ways, and compares the ledger with what the model's own server
counted. Exits with 1 if a token is missing on either side, or if an answer is longer than its limit. What the proxy
itself loses (it answers 500 where the model's server has just closed a connection that it wanted to use again) is
charged in full, and shown apart.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.llamacpp import LlamaCppServer, fetch_model
from shadowprice.cli import main as shadowprice
from shadowprice.formats.results import parse_result

ROOT = Path(__file__).resolve().parent.parent
QUESTIONS = ROOT / "examples" / "questions.csv"
WAYS = {
    "index, metered": [],
    "uniform, metered": ["--policy", "uniform", "--accounting", "metered"],
    "expected, reserved": ["--policy", "expected"],
    "CLEAR, reserved": ["--policy", "clear", "--no-reclaim"],
}
_CONFIG = """\
model_list:
  - model_name: small
    litellm_params: {{model: openai/small, api_base: "{url}", api_key: none}}
litellm_settings: {{num_retries: 0}}
"""


@contextlib.contextmanager
def proxy(litellm: str, upstream: str, folder: Path) -> Iterator[str]:
    """The base URL of a proxy for `upstream`; its key is in $OPENAI_API_KEY meanwhile."""
    (folder / "config.yaml").write_text(_CONFIG.format(url=upstream))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    key = f"sk-{secrets.token_hex(16)}"
    environment = {**os.environ, "LITELLM_MASTER_KEY": key, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    command = [
        os.path.abspath(litellm),
        "--config",
        "config.yaml",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--telemetry",
        "False",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    before = os.environ.get("OPENAI_API_KEY")
    try:
        _wait(f"http://127.0.0.1:{port}/health/liveliness", process, folder / "log")
        os.environ["OPENAI_API_KEY"] = key
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(timeout=60)
        os.environ.pop("OPENAI_API_KEY", None)
        if before is not None:
            os.environ["OPENAI_API_KEY"] = before


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(600):
        if process.poll() is not None:
            raise SystemExit(f"LiteLLM did not start:\n{log.read_text()[-2000:]}")
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            direct.open(url, timeout=5).close()
            return
        time.sleep(0.5)
    raise SystemExit("LiteLLM did not start in time")


def run(url: str, folder: Path, budget: int, more: list[str]) -> dict[str, Any]:
    """The summary of a run; with the answers that are longer than what was reserved, and what was charged for none."""
    arguments = ["run", QUESTIONS, "--budget", budget, "--base-url", url, "--model", "small", "--temperature", "0"]
    arguments += ["--out", folder / "answers.jsonl", "--quiet", "--json", *more]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        shadowprice([str(argument) for argument in arguments])
    summary: dict[str, Any] = json.loads(printed.getvalue())
    with Ledger.reopen(folder / "answers.jsonl.run" / "ledger.sqlite") as ledger:
        reserved = {entry.id: entry.units for entry in ledger.entries() if entry.kind == "reserve"}
        ends = [entry for entry in ledger.entries() if entry.kind in ("settle", "chunk")]
        summary["longer"] = sum(entry.units > reserved[entry.reservation or 0] for entry in ends)
        summary["charged_for_none"] = sum(entry.units for entry in ends if not (entry.usage and entry.usage.output))
        results = [parse_result(line) for _, line in ledger.results()]
    summary["sources"] = sorted({result.completion.usage_source for result in results if result.completion})
    return summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--litellm", default=shutil.which("litellm"), metavar="PATH", help="the executable of LiteLLM")
    parser.add_argument("--budget", type=int, default=2000, metavar="TOKENS", help="(default: 2000)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of the model (default: 1)")
    options = parser.parse_args()
    if options.litellm is None:
        raise SystemExit("LiteLLM is not installed: see the top of this file")
    exact = True
    print("| way | finished | spent | counted by the model's server | lost by the proxy | longer than their limit |")
    print("|---|---|---|---|---|---|")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(LlamaCppServer(fetch_model(), threads=options.threads, cache=512))
        url = stack.enter_context(proxy(options.litellm, server.base_url, folder))
        for number, (name, more) in enumerate(WAYS.items()):
            before = server.tokens_predicted()
            (place := folder / str(number)).mkdir()
            totals = run(url, place, options.budget, more)
            counted = server.tokens_predicted() - before
            spent, lost, finished = totals["spent"], totals["charged_for_none"], totals["outcomes"].get("finished", 0)
            print(f"| {name} | {finished} | {spent:,} | {counted:,} | {lost} | {totals['longer']} |", flush=True)
            exact &= spent - lost <= counted <= spent and not totals["longer"] and not totals["flags"]
            exact &= totals["sources"] == ["server"]
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
