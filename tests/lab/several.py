"""Several made-up models on the same questions: a cheap one that fails at hard ones, and a dear one that does not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from shadowprice.types import Trace

ROUTES = """\
[[route]]
name = "cheap"
base_url = "http://127.0.0.1:9/v1"
rates = { input = 0.1, output = 0.1 }

[[route]]
name = "dear"
base_url = "http://127.0.0.1:9/v1"
rates = { input = 1, output = 1.2 }
"""


def questions(n: int, seed: int = 0) -> tuple[list[str], np.ndarray]:
    """Texts that show whether they are hard."""
    rng = np.random.default_rng(seed)
    hard = rng.random(n) < 0.5
    texts = [
        f"Prove that the integral of x^{i} converges for every prime {i}." if h else f"What is {i} plus {i % 7}?"
        for i, h in enumerate(hard)
    ]
    return texts, hard


def traces(n: int = 200, seed: int = 0) -> list[Trace]:
    texts, hard = questions(n, seed)
    rng = np.random.default_rng(seed + 1)
    found = []
    for model, chance in {"cheap": (0.9, 0.1), "dear": (0.95, 0.9)}.items():
        for i, (text, h) in enumerate(zip(texts, hard, strict=True)):
            tokens = int(rng.lognormal(5.5 if h else 4.5, 0.3))
            found.append(
                Trace(f"q{i}", text, tokens, bool(rng.random() < chance[int(h)]), model=model, max_tokens=2000)
            )
    return found


def write_outcomes(path: Path, n: int = 200, seed: int = 0) -> Path:
    texts, hard = questions(n, seed)
    rng = np.random.default_rng(seed + 2)
    lines = []
    for text, h in zip(texts, hard, strict=True):
        cheap = float(np.clip(rng.normal(0.4 if h else 0.9, 0.1), 0, 1))
        dear = float(np.clip(rng.normal(0.9, 0.1), 0, 1))
        cost = rng.lognormal(0, 0.2, 2)
        arms = {"cheap": {"reward": cheap, "cost": 1e-5 * cost[0]}, "dear": {"reward": dear, "cost": 1e-4 * cost[1]}}
        lines.append(json.dumps({"prompt": text, "arms": arms}))
    path.write_text("\n".join(lines) + "\n")
    return path
