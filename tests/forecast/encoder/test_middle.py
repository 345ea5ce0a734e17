"""What is read of a transformer's middle layers, and what is kept of it."""

import numpy as np
import pytest

from .conftest import TRAIN
from .small import small_deberta

torch = pytest.importorskip("torch", reason="the extra `encoder` is not installed")

from shadowprice.forecast.encoder.middle import MiddleLayers  # noqa: E402

TEXTS = [trace.prompt for trace in TRAIN[:20]]


@pytest.fixture(scope="module")
def middle(tmp_path_factory):
    base = small_deberta(tmp_path_factory.mktemp("base"), [trace.prompt for trace in TRAIN])
    return MiddleLayers.from_base(str(base), 0, 64)


def test_rows_are_means_over_the_tokens_of_two_layers(middle):
    """Of two layers, the first is at a half of the depth and at two thirds."""
    found = middle.outputs(TEXTS[:1], 1)
    inputs = middle.padded(middle.pieces(TEXTS[:1]))
    with torch.inference_mode():
        states = middle.model(**inputs, output_hidden_states=True).hidden_states
    assert len(states) == 2  # embeddings and one of two layers: the other one is not kept
    expected = states[1][0].mean(0).numpy()
    assert found.shape == (1, middle.width)
    np.testing.assert_allclose(found[0], np.concatenate([expected, expected]), rtol=1e-4, atol=1e-5)


def test_padding_does_not_count(middle):
    together = middle.outputs([*TEXTS, "A far longer text. " * 20], 32)
    for place in (0, 7):
        np.testing.assert_allclose(together[place], middle.outputs([TEXTS[place]], 1)[0], rtol=1e-3, atol=1e-4)


def test_what_is_saved_is_what_is_loaded(middle, tmp_path):
    middle.save(tmp_path)
    again = MiddleLayers.load(tmp_path, middle.padding, middle.max_length)
    np.testing.assert_array_equal(again.outputs(TEXTS, 8), middle.outputs(TEXTS, 8))
    weights = sum(each.numel() for each in middle.model.parameters())
    assert (tmp_path / "model.safetensors").stat().st_size < 2.2 * weights + 10_000  # in half precision
