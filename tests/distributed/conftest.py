"""One Ray cluster for all tests, in a process and a network namespace of its own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_PATIENCE = 600.0  # seconds for one scenario, on a busy machine
ISOLATED = ["unshare", "--map-root-user", "--net", "--kill-child"]


def why_not() -> str:
    """Why Ray cannot be tested here; empty if it can."""
    if importlib.util.find_spec("ray") is None:
        return "Ray is not installed (pip install 'shadowprice[ray]')"
    try:
        done = subprocess.run([*ISOLATED, "ip", "link", "set", "lo", "up"], capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"Ray listens on all interfaces, and there are no network namespaces here: {error}"
    return "" if done.returncode == 0 else "Ray listens on all interfaces, and there are no network namespaces here"


class Cluster:
    def __init__(self, log) -> None:
        command = [*ISOLATED, sys.executable, "-m", "tests.distributed.scenarios"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, cwd=ROOT)
        assert self._read() == "ready"

    def __call__(self, name: str, **arguments):
        """What a scenario found."""
        self.process.stdin.write(json.dumps({"name": name, "arguments": arguments}) + "\n")
        self.process.stdin.flush()
        alarm = threading.Timer(_PATIENCE, self.process.kill)  # then there is nothing more to read
        alarm.start()
        reply = self._read()
        alarm.cancel()
        assert "error" not in reply, reply["error"]
        return reply["found"]

    def _read(self):
        for line in self.process.stdout:  # Ray prints there, too
            if line.startswith(('{"', '"ready"')):
                return json.loads(line)
        raise AssertionError("the cluster has ended")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    if reason := why_not():
        pytest.skip(reason)
    with open(tmp_path_factory.mktemp("ray") / "log", "w+") as log:
        found = Cluster(log)
        yield found
        found.process.stdin.close()
        found.process.stdout.close()
        found.process.wait(60)
