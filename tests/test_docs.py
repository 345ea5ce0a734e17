"""What the documents say is what there is."""

import copy
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shadowprice.market import POLICIES

from .backends import hostile

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_every_promise_names_tests_and_they_exist():
    promises = (ROOT / "docs" / "promises.md").read_text()
    named = re.findall(r"`((?:\w+/)*\w+\.py)(?:::(\w+))?`", promises)
    for file, name in named:
        (path,) = [
            place
            for place in (ROOT / "tests" / file, ROOT / "src" / "shadowprice" / file, ROOT / file)
            if place.exists()
        ]
        assert not name or re.search(rf"(def|class) {name}\b", path.read_text()), f"{file} has no {name}"
    rows = re.findall(r"^\| (?!under|---)(.+) \|$", promises, re.MULTILINE)
    apart = re.findall(r"^\*\*[^*]+\*\*.*?(?=\n\n)", promises, re.MULTILINE | re.DOTALL)
    assert len(rows) > 10
    assert len(apart) == 4  # what is outside the fault model
    for promise in (*rows, *apart):
        assert "::test_" in promise or "::Test" in promise, promise


def test_the_readme_and_its_figure_are_what_the_code_says():
    done = subprocess.run([sys.executable, "scripts/docs.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def scripts(monkeypatch):
    """The module that writes and checks, and what it has recorded."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import docs

    return docs, json.loads(docs.RECORD.read_text())


@pytest.mark.parametrize(
    ("there", "wrong"),
    [
        (r"(\| CLEAR \| )[\d.]+", r"\g<1>99.9"),
        (r"(\| CLEAR \| [\d.]+) \([\d.]+", r"\1 (99.9"),
        (r"(\| policy \| )\d+", r"\g<1>99"),
        (r"`run --policy clear`", "`run`"),
        (r"(<!-- solved index metered -->)[\d.]+", r"\g<1>99.9"),
        (r"(<!-- meta questions -->)[\d,]+", r"\g<1>2,000"),
        (r"(\d+) hold\.", "15 hold."),
    ],
)
def test_a_number_in_the_readme_that_was_not_recorded_is_noticed(scripts, there, wrong):
    docs, record = scripts
    readme = docs.README.read_text()
    assert docs.filled_in(readme, record) == readme
    changed, times = re.subn(there, wrong, readme)
    assert times == 1
    assert docs.filled_in(changed, record) == readme


def test_a_record_of_other_code_or_data_is_noticed(scripts):
    docs, record = scripts
    other = copy.deepcopy(record)
    other["meta"] |= {"shadowprice": "0.0.1", "matplotlib": docs.frontier.mpl.__version__}
    other["meta"]["files"][0]["sha256"] = "ab12"
    scarce = other["meta"]["budgets"][1]
    (row,) = [r for r in other["rows"] if (r["policy"], r["accounting"], r["budget"]) == ("index", "metered", scarce)]
    row["solved"] += 5
    *found, recomputed = docs.frontier.drift(other, docs.FIGURE)
    assert found == [
        "it was recorded by version 0.0.1",
        "it was recorded on other traces than are shipped",
        "frontier.svg does not show what was recorded",
    ]
    assert recomputed.startswith(f"solved of index metered {scarce} is ")


def test_no_line_of_the_readme_begins_with_a_mark_that_would_end_its_paragraph():
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("<!--")]
    assert lines == ["<!-- table -->", "<!-- end of table -->", "<!-- findings -->", "<!-- end of findings -->"]


def test_the_paper_table_names_tests_and_names_that_exist():
    text = (ROOT / "docs" / "paper.md").read_text()
    code = "\n".join(p.read_text() for folder in ("src", "tests") for p in (ROOT / folder).rglob("*.py"))
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in code
    for name in re.findall(r"policy `(\w+)`", text):
        assert name in POLICIES
    for name in re.findall(r"`market\.(\w+)`", text):
        assert re.search(rf"(def|class) {name}\b", code)


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


# These need a server: the first is run below, the others in tests/integrations/ and tests/distributed/.
ON_A_SERVER = ("run_on_a_server", "inspect_budget", "lm_eval_budget", "ray_budget")


@pytest.mark.parametrize("path", [p for p in EXAMPLES if p.stem not in ON_A_SERVER], ids=lambda p: p.stem)
def test_an_example_runs(path):
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_example_for_a_server_runs_on_one():
    with hostile.Server(hostile.well_behaved) as server:
        arguments = [sys.executable, ROOT / "examples" / "run_on_a_server.py", server.url, "m"]
        done = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert re.search(r"spent \d+ of 200 tokens", done.stdout)


def test_the_architecture_is_short_enough_to_read():
    assert len((ROOT / "docs" / "architecture.md").read_text().splitlines()) <= 120


def test_the_architecture_lists_every_module():
    text = (ROOT / "docs" / "architecture.md").read_text()
    for path in (ROOT / "src" / "shadowprice").iterdir():
        name = path.name.removesuffix(".py")
        if not name.startswith("_") and name != "py.typed":
            assert f"`{name}" in text, f"{name} is not in docs/architecture.md"


def test_the_page_of_commands_has_every_command():
    done = subprocess.run([sys.executable, "-m", "shadowprice", "--help"], capture_output=True, text=True, check=True)
    commands = re.findall(r"^    (\w+)(?: |$)", done.stdout, re.MULTILINE)
    page = (ROOT / "docs" / "cli.md").read_text()
    assert sorted(re.findall(r"^## (\w+)$", page, re.MULTILINE)) == sorted(commands)
    assert len(commands) > 5
