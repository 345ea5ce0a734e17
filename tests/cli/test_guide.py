"""The guide shows what its commands print."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_guide_is_what_its_commands_print():
    done = subprocess.run([sys.executable, "scripts/guide.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
