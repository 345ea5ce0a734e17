"""What tests of several commands share."""

import pytest

from shadowprice.datasets.shipped import shipped_traces

from ..conftest import request_line


@pytest.fixture
def asked(batch):
    return batch([request_line(trace.id, trace.prompt) for trace in shipped_traces("train", "smollm2")[:100]])
