"""What the documents say is what there is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from shadowprice.market import POLICIES

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_readme_and_its_figure_are_what_the_code_says():
    done = subprocess.run([sys.executable, "scripts/docs.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_paper_table_names_tests_and_names_that_exist():
    text = (ROOT / "docs" / "paper.md").read_text()
    code = "\n".join(p.read_text() for folder in ("src", "tests") for p in (ROOT / folder).rglob("*.py"))
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in code
    for name in re.findall(r"policy `(\w+)`", text):
        assert name in POLICIES
    for name in re.findall(r"`market\.(\w+)`", text):
        assert re.search(rf"(def|class) {name}\b", code)


def test_the_architecture_lists_every_module():
    text = (ROOT / "docs" / "architecture.md").read_text()
    for path in (ROOT / "src" / "shadowprice").iterdir():
        name = path.name.removesuffix(".py")
        if not name.startswith("_") and name != "py.typed":
            assert f"`{name}" in text, f"{name} is not in docs/architecture.md"
