"""Made-up traces, so that it is known what can be learned from them."""

import numpy as np

from shadowprice import Request
from shadowprice.types import Trace

# question -> median length, spread of its log, chance of a correct answer
KINDS = {
    "Add {} and {}.": (20, 0.2, 0.9),
    "Name {} of {}.": (60, 0.3, 0.6),
    "Explain at length why {} is not {}.": (300, 0.6, 0.2),
}


def stories(count, seed=0, *, factor=1.0, cap=None, model="m", chance=None):
    """Questions of three kinds; `factor` makes the model more verbose, `cap` cuts its answers."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        text, (median, spread, usual) = list(KINDS.items())[rng.integers(3)]
        tokens = int(factor * median * rng.lognormal(0, spread)) + 1
        correct = bool(rng.random() < (usual if chance is None else chance))
        cut = cap is not None and tokens > cap
        prompt = text.format(*rng.integers(1, 99999, 2))
        found.append(Trace(f"t{i}", prompt, cap if cut else tokens, correct and not cut, cut, model=model))
    return found


def queries(traces):
    return [Request(trace.id, trace.prompt) for trace in traces]
