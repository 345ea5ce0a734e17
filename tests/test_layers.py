"""Imports go one way: a module may use those listed before it, never one after it. Tests mirror modules."""

import ast
import re
from pathlib import Path

import pytest

import shadowprice

ROOT = Path(shadowprice.__file__).parent
LAYERS = [
    "redact",
    "errors",
    "arrays",
    "shape",
    "types",
    "cost",
    "formats",
    "market",
    "forecast",
    "backends",
    "grading",
    "accounts",
    "__init__",
    "engine",
    "routing",
    "datasets",
    "planning",
    "route_plans",
    "tale",
    "run_folder",
    "summary",
    "runs",
    "collect",
    "simulation",
    "lab",
    "report",
    "integrations",
    "gateway",
    "distributed",
    "cli",
    "__main__",
]
FILES = sorted(ROOT.rglob("*.py"))


def layer(module: str) -> str:
    """`shadowprice.market.curves` -> `market`; the package itself -> `__init__`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.append(node.module or "")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_only_from_lower_layers(path):
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert own in LAYERS, f"{own} has no place in the order of layers yet"
    if own == "__init__":  # the public names are looked up lazily, from anywhere
        return
    for module in imports(path):
        if module == "shadowprice" or module.startswith("shadowprice."):
            other = layer(module)
            assert LAYERS.index(other) <= LAYERS.index(own), f"{path} imports {module}, which stands above it"


@pytest.mark.parametrize("path", [p for p in FILES if "market" in p.parts], ids=lambda p: p.name)
def test_the_market_is_pure(path):
    allowed = {
        "__future__",
        "abc",
        "collections",
        "dataclasses",
        "functools",
        "inspect",
        "numpy",
        "scipy",
        "shadowprice",
        "typing",
    }
    assert {module.split(".")[0] for module in imports(path)} <= allowed
    assert "np.random" not in path.read_text()


@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name != "cli"], ids=lambda p: str(p.relative_to(ROOT)))
def test_only_the_command_prints(path):
    calls = [
        n.func.id
        for n in ast.walk(ast.parse(path.read_text()))
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    ]
    assert "print" not in calls


def test_no_file_needs_a_map():
    assert {p.name: n for p in FILES if (n := len(p.read_text().splitlines())) > 450} == {}


# Private modules, which begin with an underscore, are tested through their package.
@pytest.mark.parametrize(
    "path", [p for p in FILES if not p.name.startswith("_")], ids=lambda p: str(p.relative_to(ROOT))
)
def test_every_module_has_tests_in_the_mirrored_place(path):
    """`market/curves.py` has `tests/market/test_curves.py`; there are no exceptions."""
    place = Path(__file__).parent / path.relative_to(ROOT).with_name(f"test_{path.name}")
    assert place.exists(), f"{place} is missing"
    assert re.search(r"^\s*(async )?def test_", place.read_text(), re.MULTILINE), f"{place} has no tests"
