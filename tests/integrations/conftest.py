"""Runs an example in a process of its own, against the embedded model."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def run_example(gguf):
    from shadowprice.backends.llamacpp import LlamaCppServer

    def run(name: str, package: str, budget: int) -> str:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1", "PYTHONPATH": str(ROOT / "src")}
        server = LlamaCppServer(gguf, slots=4, threads=1)
        try:
            command = [sys.executable, str(ROOT / "examples" / name), f"{server.url}/v1", server.model, str(budget)]
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
        finally:
            server.close()
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run
