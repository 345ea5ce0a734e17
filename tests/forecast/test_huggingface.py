"""Libraries are silent inside, and as loud as before outside."""

import logging

import pytest

from shadowprice.forecast.huggingface import quiet


def test_log_levels_are_restored_also_after_an_error():
    loggers = [logging.getLogger(name) for name in ("datasets", "huggingface_hub", "transformers")]
    before = [logger.level for logger in loggers]
    with quiet():
        assert not any(logger.isEnabledFor(logging.ERROR) for logger in loggers)
    assert [logger.level for logger in loggers] == before
    with pytest.raises(RuntimeError), quiet():
        raise RuntimeError
    assert [logger.level for logger in loggers] == before


@pytest.mark.parametrize("enabled", [True, False])
def test_progress_bars_are_restored(enabled):
    datasets = pytest.importorskip("datasets", reason="the extra `datasets` is not installed")
    was_enabled = not datasets.are_progress_bars_disabled()
    try:
        (datasets.enable_progress_bars if enabled else datasets.disable_progress_bars)()
        with quiet():
            assert datasets.are_progress_bars_disabled()
        assert datasets.are_progress_bars_disabled() is not enabled
    finally:
        (datasets.enable_progress_bars if was_enabled else datasets.disable_progress_bars)()
