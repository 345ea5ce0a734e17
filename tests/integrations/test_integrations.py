"""The package itself needs neither tool."""

import subprocess
import sys


def test_importing_it_loads_neither_tool():
    code = "import sys, shadowprice.integrations; sys.exit('inspect_ai' in sys.modules or 'lm_eval' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
