"""The mark says how far a journal had come, whatever moment its last write was cut off."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice.accounts.lock import beside
from shadowprice.accounts.mark import Mark, MarkFile, Point, read_mark

from .conftest import restart_the_machine

POINTS = [Point(i, bytes([i]) * 16, 10 * i) for i in range(1, 9)]


@pytest.fixture
def mark(path):
    """A mark at the first point, to be moved."""
    MarkFile.create(path, POINTS[0])
    file = MarkFile(path, read_mark(path), POINTS[0])
    yield file
    file.close(durable=False)


def test_a_new_mark_is_durable(path):
    MarkFile.create(path, POINTS[2])
    found = read_mark(path)
    assert (found.durable, found.written, found.required) == (POINTS[2], POINTS[2], POINTS[2])
    assert [each.name for each in path.parent.iterdir()] == ["ledger.db.mark"]


@given(moves=st.lists(st.tuples(st.sampled_from(POINTS), st.booleans()), min_size=1, max_size=6))
def test_it_is_read_as_it_was_moved_last(tmp_path_factory, moves):
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    MarkFile.create(path, POINTS[0])
    file = MarkFile(path, read_mark(path), POINTS[0])
    kept = POINTS[0]
    for point, durable in moves:
        file.move(point, durable=durable)
        kept = point if durable else kept
        found = read_mark(path)
        assert (found.written, found.durable) == (point, kept)
    file.close(durable=True)
    assert read_mark(path).durable == moves[-1][0]


def test_sums_may_exceed_64_bits(path, mark):
    large = Point(2**63 - 1, b"x" * 16, 2**100)
    mark.move(large, durable=True)
    assert read_mark(path).durable == large


def test_a_write_that_was_cut_off_leaves_the_one_before(path, mark):
    """Whichever slot is being written, the other is whole."""
    place = beside(path, ".mark")
    for before, point in pairwise(POINTS):
        old = place.read_bytes()
        mark.move(point, durable=True)
        new = place.read_bytes()
        first = next(i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
        place.write_bytes(new[: first + 1] + old[first + 1 :].ljust(len(new) - first - 1, b"\0"))
        assert read_mark(path).written == before
        place.write_bytes(new)
        assert read_mark(path).written == point


def test_one_damaged_byte_never_makes_another_mark(path, mark):
    place = beside(path, ".mark")
    mark.move(POINTS[1], durable=True)
    mark.move(POINTS[2], durable=False)
    whole, expected = place.read_bytes(), read_mark(path)
    older = expected._replace(number=expected.number - 1, written=POINTS[1])
    for at in range(len(whole)):
        place.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        assert read_mark(path)._replace(whole=True) in (expected, older), at


@pytest.mark.parametrize("content", [b"", b"x", bytes(1024), b"spmark 1".ljust(1024), random.Random(0).randbytes(1024)])
def test_what_is_no_mark_is_none(path, content):
    beside(path, ".mark").write_bytes(content)
    assert read_mark(path) is None


def test_no_file_is_no_mark(path):
    assert read_mark(path) is None
    beside(path, ".mark").mkdir()
    assert read_mark(path) is None


def test_after_a_restart_of_the_machine_only_the_durable_point_is_required(path, mark, monkeypatch):
    mark.move(POINTS[1], durable=True)
    mark.move(POINTS[2], durable=False)
    assert read_mark(path).required == POINTS[2]
    restart_the_machine(monkeypatch)
    assert read_mark(path).required == POINTS[1]


def test_where_the_machine_does_not_say_when_it_started_only_the_durable_point_is_required(monkeypatch):
    unknown = b" " * 36
    monkeypatch.setattr("shadowprice.accounts.mark.boot", lambda: unknown)
    assert Mark(1, unknown, POINTS[0], POINTS[1]).required == POINTS[0]
