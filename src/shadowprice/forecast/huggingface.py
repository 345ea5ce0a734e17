"""Hugging Face's libraries without their log lines and progress bars."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Silences the libraries that are imported, and restores their settings afterwards."""
    with ExitStack() as restore:
        for name in ("datasets", "huggingface_hub", "transformers"):
            logger = logging.getLogger(name)
            restore.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        datasets, transformers = sys.modules.get("datasets"), sys.modules.get("transformers")
        if datasets and not datasets.are_progress_bars_disabled():
            datasets.disable_progress_bars()
            restore.callback(datasets.enable_progress_bars)
        if transformers and transformers.utils.logging.is_progress_bar_enabled():
            transformers.utils.logging.disable_progress_bar()
            restore.callback(transformers.utils.logging.enable_progress_bar)
        yield
