"""A mirror of the hub, and a cache of our own."""

import pytest

from .published import HUB, publish


@pytest.fixture(scope="module", autouse=True)
def _a_cache_of_our_own(tmp_path_factory):
    datasets = pytest.importorskip("datasets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        yield


@pytest.fixture(scope="module")
def mirror(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    for path, configs in HUB.items():
        publish(folder, path, configs)
    return folder
