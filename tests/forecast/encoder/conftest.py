"""A small encoder, and one that is trained on real traces."""

import numpy as np
import pytest

from shadowprice import Request
from shadowprice.datasets.shipped import shipped_traces

TRAIN, EVAL = shipped_traces("train", "smollm2")[:500], shipped_traces("eval", "smollm2")[:300]


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch = pytest.importorskip("torch", reason="the extra `encoder` is not installed")
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # two that wait for each other on a busy machine take ten times as long
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    from .small import small_deberta

    return small_deberta(tmp_path_factory.mktemp("base"), [trace.prompt for trace in TRAIN])


def quick(base, **more):
    """Learns something within seconds."""
    from shadowprice.forecast.encoder import EncoderForecaster

    return EncoderForecaster(base, **{"max_length": 64, "epochs": 1, "learning_rate": 1e-3, **more})


@pytest.fixture(scope="session")
def trained(base):
    return quick(base, heads=("spread", "correct"), epochs=6).fit(TRAIN)


def asked(traces) -> list[Request]:
    return [Request(trace.id, trace.prompt) for trace in traces]


def same(one, other) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("tokens", "spread", "solve", "solved_tokens")
    )
