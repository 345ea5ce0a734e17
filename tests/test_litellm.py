"""LiteLLM's proxy in front of the embedded model, where both are installed: `make litellm`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLACES = [os.environ.get("LITELLM"), "build/litellm/bin/litellm", shutil.which("litellm")]  # relative, as make does
LITELLM = next((place for place in PLACES if place and os.access(ROOT / place, os.X_OK)), None)


@pytest.mark.slow
@pytest.mark.skipif(LITELLM is None, reason="no LiteLLM here (make litellm, or its path in $LITELLM)")
def test_usage_and_limits_are_exact_behind_a_proxy(gguf):
    command = [sys.executable, "scripts/litellm_proxy.py", "--litellm", LITELLM, "--budget", "400"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n") == 6
