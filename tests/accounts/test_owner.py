"""What every owner promises: the same tests for SQLite and PostgreSQL (`test_postgres` runs them there)."""

import threading

import pytest

from shadowprice.accounts.owner import Shortage, Want
from shadowprice.errors import LedgerError

from .owners import open_owner


class Contract:
    """Subclasses have the fixture `place`: the address of an empty database."""

    @pytest.fixture
    def owner(self, place):
        owner = open_owner(place)
        yield owner
        owner.close()

    @staticmethod
    def want(account="a", need=10, like=10, *, limit=100, slot=5, first=5, cell=0):
        return Want(account, limit, slot, first, need, like, cell)

    def test_a_block_is_leased_in_all_accounts_or_in_none(self, owner):
        owner.lease("w", [self.want("a", 60, 60)])
        with pytest.raises(Shortage) as short:
            owner.lease("w", [self.want("b", 50, 50), self.want("a", 50, 50)])
        assert (short.value.account, short.value.free, short.value.elsewhere) == ("a", 40, 0)
        assert owner.used("b", 0, 9) == 0
        assert owner.used("a", 0, 9) == 60

    def test_it_is_as_large_as_liked_if_there_is_enough(self, owner):
        assert owner.lease("w", [self.want(need=1, like=70)]) == [(70, 30)]
        assert owner.lease("w", [self.want(need=1, like=70)]) == [(30, 0)]

    def test_with_several_processes_blocks_become_smaller_as_less_is_left(self, owner):
        owner.lease("w", [self.want(need=20, like=20)])
        assert owner.lease("v", [self.want(need=1, like=70)]) == [(20, 60)]
        with pytest.raises(Shortage) as short:
            owner.lease("v", [self.want(need=61, like=61)])
        assert short.value.elsewhere == 20
        assert owner.wanted() == {"a"}

    def test_only_slots_that_count_are_counted(self, owner):
        owner.lease("w", [self.want(need=100, like=100, slot=4, first=4)])
        assert owner.lease("w", [self.want(need=100, like=100, slot=5, first=5)]) == [(100, 0)]
        with pytest.raises(Shortage):
            owner.lease("w", [self.want(need=1, slot=6, first=4)])

    def test_what_is_given_back_is_available_again(self, owner):
        owner.lease("w", [self.want(need=100, like=100)])
        owner.give_back("w", [("a", 5, 30, False)])
        assert owner.used("a", 5, 5) == 70
        assert [lease.units for lease in owner.leases("w")] == [70]
        owner.give_back("w", [("a", 5, 20, True)])
        assert owner.used("a", 5, 5) == 50
        assert owner.workers() == []

    def test_used_units_can_be_charged_beyond_the_limit(self, owner):
        owner.force("w", "a", 5, 0, 150)
        with pytest.raises(Shortage) as short:
            owner.lease("w", [self.want(need=1)])
        assert short.value.free == -50

    def test_a_process_that_ended_is_charged_what_it_used(self, owner):
        owner.lease("w", [self.want("a", 50, 50, cell=3), self.want("b", 40, 40, cell=4)])
        owner.recover("w", {3: 12, 4: 0})
        assert (owner.used("a", 5, 5), owner.used("b", 5, 5), owner.workers()) == (12, 0, [])

    def test_if_that_is_unknown_it_is_charged_all_it_held(self, owner):
        owner.lease("w", [self.want("a", 50, 50)])
        owner.recover("w", None)
        assert (owner.used("a", 5, 5), owner.workers()) == (50, [])

    def test_after_a_restart_of_the_machine_counters_are_not_trusted(self, owner):
        owner.lease("w", [self.want("a", 50, 50, cell=3)])
        owner.run("UPDATE leases SET boot = 'another'")
        owner.recover("w", {3: 12})
        assert owner.used("a", 5, 5) == 50

    def test_an_error_leaves_nothing_of_a_transaction(self, owner):
        def fail():
            with owner.transaction():
                owner.run("INSERT INTO used VALUES ('a', 5, 7)")
                owner.run("INSERT INTO nowhere VALUES (1)")

        with pytest.raises(LedgerError):
            fail()
        assert owner.used("a", 5, 5) == 0

    def test_many_processes_never_lease_more_than_the_limit(self, place):
        owners = [open_owner(place) for _ in range(4)]
        leased = []

        def take(number):
            while True:
                try:
                    leased.append(owners[number].lease(f"w{number}", [self.want(need=1, like=7, limit=300)])[0].units)
                except Shortage:
                    return

        threads = [threading.Thread(target=take, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(leased) == owners[0].used("a", 5, 5) == 300
        for owner in owners:
            owner.close()

    def test_a_name_is_claimed_once(self, owner):
        assert owner.keep("n", "digest", "w") is None
        assert owner.keep("n", "digest", "v") == ("digest", "w", None)
        owner.answered("n", "text")
        assert owner.keep("n", "digest", "v") == ("digest", "w", "text")
        owner.answered("n", None)
        assert owner.keep("n", "other", "v") is None


class TestSqlite(Contract):
    @pytest.fixture
    def place(self, tmp_path):
        return str(tmp_path / "accounts.sqlite")

    def test_a_file_that_is_no_database_is_refused(self, tmp_path):
        path = tmp_path / "accounts.sqlite"
        path.write_bytes(b"something else" * 100)
        with pytest.raises(LedgerError, match=r"accounts\.sqlite: cannot be used"):
            open_owner(str(path))

    def test_leases_wait_for_the_disk(self, owner):
        assert owner.run("PRAGMA synchronous") == [(2,)]
