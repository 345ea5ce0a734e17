"""The journal: append-only, chained by digests, and adding up to balances that no entry can contradict."""

import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice.accounts.journal import (
    INSERT,
    NO_DIGEST,
    SCHEMA,
    Changed,
    Entry,
    check_tables,
    find_results,
    first_balances,
    read_chunks,
    read_entries,
    read_line,
    read_rows,
)
from shadowprice.accounts.sqlite import Ledger
from shadowprice.errors import LedgerError
from shadowprice.types import Usage

from .conftest import refused, state, tamper


class TestTheJournalIsAppendOnly:
    """Whoever writes to the file; a careless user of the `sqlite3` shell is stopped as well."""

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE journal SET units = 0 WHERE kind = 'settle'",
            "UPDATE journal SET result = NULL",
            "DELETE FROM journal WHERE id = 3",
            "DELETE FROM journal",
            "INSERT OR REPLACE INTO journal VALUES (3, 'settle', 'a', 2, 0, 0, 0, 0, randomblob(16), NULL)",
            "REPLACE INTO journal VALUES (1, 'budget', NULL, NULL, 1000, NULL, NULL, NULL, randomblob(16), NULL)",
            "INSERT INTO journal VALUES (4, 'note', 'b', NULL, 0, NULL, NULL, NULL, x'00', x'00')",
            "INSERT INTO journal VALUES (4, 'note', 'b', NULL, 0, NULL, NULL, NULL, NULL, x'00')",
            "INSERT INTO journal VALUES (9, 'reserve', 'b', NULL, 10, NULL, NULL, NULL, randomblob(16), NULL)",
            "INSERT INTO journal (kind, request, units, digest) VALUES ('reserve', 'b', 10, randomblob(16))",
            "INSERT INTO journal VALUES (4, 'record', 'b', NULL, 10, NULL, NULL, NULL, randomblob(16), x'00')",
            "INSERT INTO journal VALUES (4, 'record', 'b', NULL, 0, 1, 1, 1, randomblob(16), x'00')",
            "INSERT INTO journal VALUES (4, 'budget', NULL, NULL, 10, NULL, NULL, NULL, randomblob(16), NULL)",
        ],
    )
    def test_no_row_is_changed_removed_or_inserted_between_others(self, path, statement):
        with Ledger.create(path, 100) as ledger:
            ledger.settle(ledger.reserve("a", 60), 25, Usage(25), b"answer")
            before = state(ledger)
        with pytest.raises(sqlite3.IntegrityError):
            tamper(path, statement)
        with Ledger.reopen(path) as ledger:
            assert state(ledger) == before

    @pytest.mark.parametrize(
        "values",
        [
            "'settle', 'a', 2, 0, 0, 0, 0, randomblob(16), NULL",
            "'record', 'a', NULL, 0, NULL, NULL, NULL, randomblob(16), x'00'",
            "'note', 'a', NULL, 0, NULL, NULL, NULL, randomblob(16), x'00'",
            "'loss', NULL, NULL, 1, NULL, NULL, NULL, randomblob(16), NULL",
            "'reserve', 'b', NULL, 1, NULL, NULL, NULL, (SELECT digest FROM journal WHERE id = 3), NULL",
        ],
    )
    def test_a_row_that_others_appended_is_noticed(self, path, values):
        with Ledger.create(path, 100) as ledger:
            ledger.settle(ledger.reserve("a", 60), 25, Usage(25), b"answer")
        tamper(path, f"INSERT OR REPLACE INTO journal VALUES (4, {values})")
        assert refused(path).startswith("not a valid ledger: entry 4 was changed (--accept-loss keeps the first 3 ")


# --- entries and their digests -----------------------------------------------------------------

usages = st.none() | st.builds(Usage, st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
entries = st.builds(
    Entry, st.integers(1, 9), st.sampled_from(["reserve", "settle", "note"]), st.text(max_size=3), st.none(),
    st.integers(0, 99), usages,
)  # fmt: skip
lines = st.none() | st.binary(max_size=5)


@given(st.tuples(entries, lines), st.tuples(entries, lines), st.binary(min_size=16, max_size=16))
def test_a_digest_is_of_everything_in_a_row_and_of_all_rows_before_it(one, other, before):
    def digest(row, before):
        return row[0].row(before, row[1])[0]

    assert (digest(one, before) == digest(other, before)) == (one == other)
    assert digest(one, before) != digest(one, digest(one, before))
    assert len(digest(one, before)) == len(NO_DIGEST)


def test_a_name_that_looks_like_the_end_of_a_row_is_a_name():
    """Nothing in a row can be moved across the border of its fields."""
    names = ["a", "a'", "a', None", "a\\", "a0:"]
    digests = {
        Entry(2, "note", name, None, 0).row(NO_DIGEST, line)[0] for name in names for line in (b"", b"0:", b"1:x")
    }
    assert len(digests) == 15


@pytest.fixture
def db():
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        for statement in SCHEMA:
            db.execute(statement)
        yield db


WRITTEN = [
    (Entry(1, "budget", None, None, 100), None),
    (Entry(2, "reserve", "a", None, 10), None),
    (Entry(3, "chunk", "a", 2, 4, Usage(4, 7, 1)), b"Once "),
    (Entry(4, "note", "b", None, 0), b"failed"),
    (Entry(5, "reserve", "a", None, 10), None),
    (Entry(6, "settle", "a", 5, 9, Usage(9)), b"answer"),
    (Entry(7, "record", "b", None, 0), b"free"),
]


def written(db, rows=WRITTEN):
    digest = NO_DIGEST
    for entry, line in rows:
        digest, values = entry.row(digest, line)
        db.execute(INSERT, values)
    return digest


def test_what_is_written_is_read_back(db):
    last = written(db)
    rows = list(read_rows(db))
    expected = [entry._replace(answered=entry.id in (6, 7)) for entry, _ in WRITTEN]
    assert [row.entry for row in rows] == list(read_entries(db)) == expected
    assert [row.line for row in rows] == [line for _, line in WRITTEN]
    assert rows[-1].digest == last
    assert find_results(db) == {"a": 6, "b": 7}
    assert [read_line(db, number) for number in (6, 7, 3)] == [b"answer", b"free", b"Once "]
    assert list(read_chunks(db)) == [("a", b"Once ")]
    check_tables(db)


def test_rows_are_read_as_far_as_their_digests_are_right(db):
    digest = NO_DIGEST
    for place, (entry, line) in enumerate(WRITTEN):
        digest, values = entry.row(bytes(15) + b"x" if place == 4 else digest, line)
        db.execute(INSERT, values)
    rows = read_rows(db)
    assert [next(rows).entry.id for _ in range(4)] == [1, 2, 3, 4]
    with pytest.raises(Changed, match="entry 5 was changed"):
        next(rows)


# --- balances ----------------------------------------------------------------------------------


def balances_of(*entries, budget=100):
    found = first_balances(Entry(1, "budget", None, None, budget))
    for entry in entries:
        found.add(entry)
    return found


def test_balances_add_up():
    found = balances_of(*(entry._replace(answered=entry.id in (6, 7)) for entry, _ in WRITTEN[1:6]))
    assert (found.reserved, found.charged, found.spent, found.available) == (0, 13, 13, 87)
    assert (found.output, found.input, found.cached) == (13, 7, 1)
    assert (found.answered, found.noted, found.last) == ({"a": 6}, {"b": 4}, 6)
    found.add(Entry(7, "record", "b", None, 0, None, True))
    assert (found.answered, found.noted) == ({"a": 6, "b": 7}, {})


def test_what_exceeds_a_grant_is_counted_and_never_taken_from_other_reservations():
    found = balances_of(
        Entry(2, "reserve", "a", None, 40),
        Entry(3, "reserve", "b", None, 60),
        Entry(4, "settle", "a", 2, 70, Usage(70)),
    )
    assert (found.spent, found.reserved, found.available) == (40, 60, 0)
    assert (found.beyond_grants, found.committed) == (30, 130)


def test_a_free_attempt_and_a_loss():
    found = balances_of(
        Entry(2, "reserve", "a", None, 40), Entry(3, "free", "a", 2, 0), Entry(4, "loss", None, None, 25)
    )
    assert (found.spent, found.exposed, found.lost, found.reserved) == (25, 40, 25, 0)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (Entry(5, "note", "b", None, 0), "entry 4 is missing"),
        (Entry(3, "note", "b", None, 0), "entry 4 is missing"),
        (Entry(4, "note", None, None, 0), "entry 4 is about no request"),
        (Entry(4, "reserve", "b", None, 61), "entry 4 reserves more than was available"),
        (Entry(4, "settle", "b", 2, 1), "entry 4 does not fit its reservation"),
        (Entry(4, "orphan", "a", 2, 39), "entry 4 does not fit its reservation"),
        (Entry(4, "settle", "a", 3, 1), "no open reservation 3"),
        (Entry(4, "note", "done", None, 0), "entry 4 follows the result of request 'done'"),
        (Entry(4, "record", "done", None, 0, None, True), "entry 4 is a second result of request 'done'"),
    ],
)
def test_an_entry_that_no_ledger_would_have_written_is_refused(entry, message):
    found = balances_of(Entry(2, "reserve", "a", None, 40), Entry(3, "record", "done", None, 0, None, True))
    with pytest.raises(LedgerError, match=message):
        found.add(entry)


@pytest.mark.parametrize("entry", [None, Entry(1, "reserve", "a", None, 10)])
def test_a_journal_begins_with_its_budget(entry):
    with pytest.raises(LedgerError, match="it has no budget"):
        first_balances(entry)
