"""The embedded model, where it can be had."""

import importlib.util

import pytest

from shadowprice.backends.llamacpp import fetch_model
from shadowprice.errors import InputError


@pytest.fixture(scope="module")
def gguf():
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed (pip install 'shadowprice[local]')")
    try:
        return fetch_model()
    except InputError as error:
        pytest.skip(f"the model cannot be had here: {error}")
