"""The tree of budgets: any sequence of steps, crashes included, and processes that are killed."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shadowprice.accounts.owner import Shortage, SqliteOwner
from shadowprice.accounts.tree import Tree
from shadowprice.accounts.windows import Account, Window
from shadowprice.errors import LedgerError

ALL, TEAM, KEY = Account("all", 1000), Account("team", 600, Window("day")), Account("key", 300, Window("hour"))
PATH = (ALL, TEAM, KEY)


def crash(tree: Tree) -> None:
    """Ends a tree as kill -9 would: nothing is returned, and its lock is free."""
    tree._counters.close()


class Contract:
    """Subclasses have the fixture `place`: the address of an empty database."""

    @pytest.fixture
    def world(self, place, tmp_path):
        from .owners import open_owner

        now = SimpleNamespace(time=1e9)
        owners, made = [], []

        def tree():
            owners.append(open_owner(place))
            made.append(Tree(owners[-1], tmp_path / "workers", clock=lambda: now.time))
            return made[-1]

        yield SimpleNamespace(now=now, tree=tree)
        for owner in owners:
            owner.close()

    def test_reserved_in_every_account_or_in_none(self, world):
        tree = world.tree()
        tree.reserve(PATH, 250)
        with pytest.raises(Shortage) as short:
            tree.reserve(PATH, 51)
        assert short.value.account == "key"
        assert [tree.balance(account).available for account in PATH] == [750, 350, 50]
        assert tree.reserve(PATH[:2], 350)
        tree.close()

    def test_settled_by_what_was_used(self, world):
        tree = world.tree()
        tree.settle(tree.reserve(PATH, 200), 30)
        tree.void(tree.reserve(PATH, 200))
        tree.reserve(PATH, 100)
        assert tree.balance(KEY) == (300, 170, 100, 30)
        assert tree.available(KEY) == 170
        tree.close()

    def test_a_reservation_ends_once(self, world):
        tree = world.tree()
        held = tree.reserve(PATH, 200)
        tree.settle(held, 30)
        with pytest.raises(LedgerError, match="has ended"):
            tree.void(held)
        for wrong in (lambda: tree.reserve(PATH, -1), lambda: tree.settle(tree.reserve(PATH, 1), -1)):
            with pytest.raises(LedgerError):
                wrong()
        tree.close()

    def test_what_exceeds_its_reservation_is_charged_and_then_the_limit(self, world):
        tree = world.tree()
        tree.settle(tree.reserve(PATH, 10), 290)
        assert tree.balance(KEY).available == 10
        tree.settle(tree.reserve(PATH, 10), 60)
        assert tree.balance(KEY).available == -50
        with pytest.raises(Shortage):
            tree.reserve(PATH, 1)
        tree.charge((KEY,), 5)
        assert tree.balance(KEY).available == -55
        tree.close()

    def test_a_window_refills_and_units_belong_to_the_one_they_were_reserved_in(self, world):
        tree = world.tree()
        early = tree.reserve(PATH, 300)
        world.now.time += 3600
        late = tree.reserve(PATH, 200)
        tree.settle(early, 10)
        assert tree.balance(KEY).available == 100
        tree.trim()
        tree.settle(late, 0)
        assert tree.balance(TEAM).available == 590
        tree.close()

    def test_in_a_rolling_window_no_span_of_its_length_has_more(self, world):
        tree = world.tree()
        rolling = Account("rolling", 60, Window("minute", rolling=True))
        spent = []
        for _ in range(400):
            world.now.time += 1
            tree.trim()
            try:
                tree.settle(tree.reserve((rolling,), 7), 7)
                spent.append(world.now.time)
            except Shortage:
                pass
        assert len(spent) > 40
        for start in spent:
            assert 7 * sum(start <= time <= start + 60 for time in spent) <= 60
        tree.close()

    def test_what_one_process_holds_is_returned_when_another_needs_it(self, world):
        one, two = world.tree(), world.tree()
        big = Account("big", 64_000)
        one.settle(one.reserve((big,), 1000), 0)
        with pytest.raises(Shortage) as short:
            two.reserve((big,), 63_500)
        assert short.value.elsewhere == 1000
        one.trim()
        assert two.reserve((big,), 64_000)
        one.close()
        two.close()

    def test_closing_returns_everything_and_leaves_no_files(self, world, tmp_path):
        tree = world.tree()
        tree.settle(tree.reserve(PATH, 200), 30)
        tree.close()
        assert list((tmp_path / "workers").iterdir()) == []
        again = world.tree()
        assert again.balance(ALL).available == 970
        again.close()

    def test_after_a_crash_open_reservations_are_spent_and_the_rest_is_available(self, world):
        tree = world.tree()
        tree.settle(tree.reserve(PATH, 100), 30)
        tree.reserve(PATH, 50)
        crash(tree)
        again = world.tree()
        assert [again.balance(account).available for account in PATH] == [920, 520, 220]
        again.close()

    def test_a_process_that_is_alive_is_not_settled_by_another(self, world):
        tree = world.tree()
        held = tree.reserve(PATH, 100)
        other = world.tree()
        assert other.balance(KEY).available == 200
        tree.settle(held, 0)
        tree.close()
        assert other.balance(KEY).available == 300
        other.close()


class TestSqlite(Contract):
    @pytest.fixture
    def place(self, tmp_path):
        return str(tmp_path / "accounts.sqlite")

    def test_a_lost_file_of_counters_is_charged_in_full(self, world, tmp_path):
        tree = world.tree()
        tree.settle(tree.reserve((ALL,), 100), 30)
        crash(tree)
        for path in (tmp_path / "workers").iterdir():
            path.unlink()
        again = world.tree()
        assert again.balance(ALL).available == 900
        again.close()

    def test_trouble_of_the_database_reserves_nothing(self, world):
        tree = world.tree()
        tree.owner.close()
        with pytest.raises(LedgerError):
            tree.reserve(PATH, 10)
        crash(tree)


class AnySequence(RuleBasedStateMachine):
    """Two processes on one clock: the model is what each account was charged, by window."""

    @initialize()
    def start(self):
        import tempfile
        from pathlib import Path

        self.folder = tempfile.TemporaryDirectory()
        self.place = Path(self.folder.name)
        self.now = 1e9
        self.owners, self.trees, self.open, self.used = {}, {}, [], {}
        for name in "ab":
            self.begin(name)

    def begin(self, name):
        self.owners[name] = SqliteOwner(self.place / "accounts.sqlite")
        self.owners[name].run("PRAGMA synchronous = OFF")
        self.trees[name] = Tree(self.owners[name], self.place / "workers", clock=lambda: self.now)

    def count(self, path, units, at):
        for account in path:
            place = account, account.window.slot(at)
            self.used[place] = self.used.get(place, 0) + units

    @rule(name=st.sampled_from("ab"), path=st.sampled_from([PATH, PATH[:2], PATH[:1]]), units=st.integers(0, 200))
    def reserve(self, name, path, units):
        try:
            held = self.trees[name].reserve(path, units)
        except Shortage as short:
            held_elsewhere = short.elsewhere
            account = next(a for a in path if a.name == short.account)
            free = account.limit - self.used.get((account, account.window.slot(self.now)), 0)
            assert free < units or held_elsewhere > 0
            return
        self.count(path, units, self.now)
        self.open.append((name, held, path, units, self.now))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), share=st.sampled_from([0, 0.3, 1, 1.5]))
    def settle(self, data, share):
        name, held, path, units, at = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        self.trees[name].settle(held, int(share * units))
        self.count(path, int(share * units) - units, at)

    @rule(seconds=st.sampled_from([1, 600, 3600, 86400, -3600]))
    def wait(self, seconds):
        self.now += seconds

    @rule(name=st.sampled_from("ab"))
    def trim(self, name):
        self.trees[name].trim()

    @rule(name=st.sampled_from("ab"), clean=st.booleans())
    def restart(self, name, clean):
        if clean:
            self.trees[name].close()
        else:
            crash(self.trees[name])
        self.owners[name].close()
        self.open = [each for each in self.open if each[0] != name]
        self.begin(name)

    @invariant()
    def what_was_used_is_never_available(self):
        if not getattr(self, "trees", None):
            return
        for tree in self.trees.values():
            for account in PATH:
                used = self.used.get((account, account.window.slot(self.now)), 0)
                assert tree.balance(account).available <= account.limit - used

    def teardown(self):
        if not getattr(self, "trees", None):
            return
        for tree in self.trees.values():
            tree.close()
        # With everything returned, the owner has exactly what was charged.
        owner = self.owners["a"]
        for (account, slot), used in self.used.items():
            assert owner.used(account.name, slot, slot) == used
        for owner in self.owners.values():
            owner.close()
        self.folder.cleanup()


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

_SPENDING = """
import os, random, sys
from pathlib import Path
from shadowprice.accounts.owner import Shortage, SqliteOwner
from shadowprice.accounts.tree import Tree
from shadowprice.accounts.windows import Account
place, log = Path(sys.argv[1]), os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
tree = Tree(SqliteOwner(place / "accounts.sqlite"), place / "workers")
path = (Account("all", 100_000), Account("key", 90_000))
print("ready", flush=True)
open_ = []
while True:
    units = random.randrange(1, 60)
    try:
        open_.append((tree.reserve(path, units), units))
    except Shortage:
        break
    os.write(log, b"%d\\n" % units)  # sent: from now on it may be generated
    if len(open_) > 8:
        held, most = open_.pop(random.randrange(9))
        used = random.randrange(most + 1)
        os.write(log, b"%d\\n" % (used - most))  # its answer has ended
        tree.settle(held, used)
print("spent", flush=True)
"""


def test_killed_at_any_moment_it_never_spends_more_and_loses_no_more_than_was_open(tmp_path):
    log, rounds = tmp_path / "log", 0
    while rounds < 40:
        rounds += 1
        command = [sys.executable, "-c", _SPENDING, tmp_path, log]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            process.stdout.readline()
            try:
                process.wait(0.01 * (rounds % 7))
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
        if process.returncode == 0:
            break
    assert rounds > 3
    sent = sum(map(int, log.read_text().split()))
    owner = SqliteOwner(tmp_path / "accounts.sqlite")
    tree = Tree(owner, tmp_path / "workers")
    spent = owner.used("key", 0, 0)
    # Each killed process leaves at most one step that only the ledger has: 59 units, reserved or not yet returned.
    assert sent <= spent <= min(90_000, sent + 59 * rounds)
    assert owner.used("all", 0, 0) == pytest.approx(spent, abs=59 * rounds)
    tree.close()
    owner.close()
