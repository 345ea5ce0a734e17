"""The embedded model, where it can be fetched."""

import importlib.util

import pytest

from shadowprice.backends.models import fetch_model
from shadowprice.errors import InputError


@pytest.fixture(scope="session")
def gguf():
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed (pip install 'shadowprice[local]')")
    try:
        return fetch_model()
    except InputError as error:
        pytest.skip(f"the model cannot be fetched here: {error}")


@pytest.fixture
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
