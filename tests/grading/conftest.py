"""Machines with less than this one."""

import json
import os

import pytest

from shadowprice.grading import levels


@pytest.fixture
def without_a_sandbox(monkeypatch):
    """As on a machine that has neither bubblewrap nor namespaces."""
    whole = levels._outcome

    def outcome(command, job, seconds):
        if json.loads(os.pread(job, 1 << 20, 0).split(b"\n")[0])["level"] != "process":
            raise levels.SandboxError("Operation not permitted")
        return whole(command, job, seconds)

    monkeypatch.setattr(levels, "_outcome", outcome)
    levels.problem_of.cache_clear()
    yield
    levels.problem_of.cache_clear()
