"""Whole lives of runs keep every promise, and the simulator would notice if they did not."""

import itertools
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest

from shadowprice.accounts.sqlite import Ledger

from .life import live, live_through
from .mutants import MUTANTS
from .story import ENDS, End, Story

SEEDS = 300
CAUGHT_WITHIN = 1000  # seeds
lived = cache(live)


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_no_life_violates_an_invariant(first):
    problems = {seed: ended.problem for seed in range(first, first + 50) if (ended := lived(seed)).problem}
    assert not problems


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_broken_variant_is_caught(name):
    with MUTANTS[name]():
        assert any(live(seed).problem for seed in range(CAUGHT_WITHIN))


@cache
def busy_life():
    """A story of one process with a hundred steps or more, and how many they are."""
    for seed in itertools.count():
        story = replace(Story.of(seed), ends=[], on_file=False, disk_error_rate=0.0)
        (steps,) = live_through(story).steps
        if 100 <= steps <= 200 and story.keeps_limits:
            break
    return story, steps


@pytest.mark.parametrize("kind", ENDS)
def test_a_life_may_end_at_any_step(kind):
    """At every await, every write and every request, one after the other; and once more after that."""
    story, steps = busy_life()
    for step in range(1, steps + 1):
        ended = live_through(replace(story, ends=[End(kind, step), End(kind, 7)]))
        assert not ended.problem, (story.seed, step)


def power_cuts_after_the_end(seeds):
    """On a real file, and before it is closed."""
    stories = (replace(Story.of(seed), on_file=True, ends=[End("power cut", 10**6)] * 3) for seed in seeds)
    return [ended.problem for story in stories if (ended := live_through(story)).problem]


def test_a_run_that_is_done_loses_nothing_to_a_power_cut():
    assert not power_cuts_after_the_end(range(30))
    with patch.object(Ledger, "wait", lambda self: None):
        assert power_cuts_after_the_end(range(30))


def test_a_seed_is_the_same_life_again_in_any_process():
    seeds = range(40)
    here = [lived(seed).digest for seed in seeds]
    assert here == [live(seed).digest for seed in seeds]
    script = f"from tests.simulator.life import live; print(*(live(seed).digest for seed in {seeds!r}))"
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": f"{root / 'src'}:{root}"}
    there = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert there.stdout.split() == here
    assert len(set(here)) == len(here)


def test_lives_meet_everything_that_they_should():
    """Faults that never happen prove nothing."""
    events = [event for seed in range(SEEDS) for event in lived(seed).events]
    beginnings = {" ".join(event.split()[:2]) for event in events}
    kinds = {event.split()[2] for event in events if event.startswith("row ")}
    outcomes = {event.split()[2] for event in events if event.startswith("result ")}
    assert {
        "ends: done",
        "ends: closed",
        "ends: killed",
        "ends: disk",
        "ends: cancelled",
        "executes again",
    } <= beginnings
    assert {"power cut"} <= beginnings
    assert {"reserve", "settle", "chunk", "orphan", "void", "free", "record", "note"} <= kinds
    assert {"finished", "truncated", "declined", "failed", "not_sent"} <= outcomes
    assert any(event.startswith("exceeds") for event in events)
