"""Run the commands of docs/guide.md and of the first screen of the README, and put what they print below them.

python scripts/guide.py           run all, on the model that the guide uses: some minutes
python scripts/guide.py --check   run those that need no model; exit 1 if one prints something else

A block begins with a line `$ command`; what follows is its output. From the mark <!-- with a model --> on, blocks of
the guide need one; that of the README does.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GUIDE, README = ROOT / "docs" / "guide.md", ROOT / "README.md"
_BLOCK = re.compile(r"```console\n\$ (.*?(?:\\\n.*?)*)\n(.*?)```", re.DOTALL)
_MODEL = "<!-- with a model -->"


def output_of(command: str, folder: str) -> str:
    shim = Path(folder, ".bin", "shadowprice")  # the command of this package, whatever else is installed
    shim.parent.mkdir(exist_ok=True)
    shim.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT / "src"}" exec "{sys.executable}" -m shadowprice "$@"\n')
    shim.chmod(0o755)
    path = f"{shim.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if "Traceback" in done.stdout:
        raise SystemExit(f"{command}\n{done.stdout}")
    return done.stdout


def filled_in(text: str, folder: str) -> str:
    """The text with the outputs of its commands, run in `folder`."""
    return _BLOCK.sub(lambda match: f"```console\n$ {match[1]}\n{output_of(match[1], folder)}```", text)


def regenerated(guide: str, *, model: bool) -> str:
    without, mark, with_model = guide.partition(_MODEL)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(ROOT / "examples" / "questions.csv", folder)
        without = filled_in(without, folder)
        return without + mark + (filled_in(with_model, folder) if model else with_model)


def regenerated_readme(readme: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "examples", Path(folder, "examples"))
        return filled_in(readme, folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check, guide = parser.parse_args().check, GUIDE.read_text()
    fresh = regenerated(guide, model=not check)
    if not check:
        GUIDE.write_text(fresh)
        README.write_text(regenerated_readme(README.read_text()))
    elif fresh != guide:
        print("docs/guide.md is not what the commands print: run scripts/guide.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
