"""Killed at any moment, a run that is resumed ends as if nothing had happened."""

import asyncio
import json
import os
import random
import select
import signal
import sqlite3
import subprocess
import sys
import time
import zlib
from contextlib import closing

import pytest

from shadowprice.accounts.sqlite import Ledger

from .backends import hostile
from .conftest import read_jsonl, request_line

REQUESTS = [f"q{i}" for i in range(160)]
CAP = 24  # of every answer; a third of them is cut by it
CONCURRENCY = 8


async def tells_a_story(request, reply):
    """A greedy model: what it says, and how much, depends on the question alone."""
    seed = zlib.crc32(request.body["messages"][0]["content"].encode())
    length = 1 + seed % 36
    count = min(request.limit, length)
    await reply.head()
    for i in range(count):
        await reply.piece(f"{seed % (i + 7)} ")
        await asyncio.sleep(0.004)
    await reply.finish("length" if request.limit < length else "stop")
    await reply.usage(count)
    await reply.end()


# Importing everything takes a second, so one process does it once and forks one for each start.
STARTER = """
import json, os, sys
import shadowprice.backends.openai, shadowprice.cli.run
from shadowprice.cli import main

for line in sys.stdin:
    log, *arguments = json.loads(line)
    child = os.fork()
    if child == 0:
        printed = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(printed, 1), os.dup2(printed, 2)
        os._exit(main(arguments))
    print(child, flush=True)
    end = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # not reaped yet: nobody else gets its number
    print(end.si_status if end.si_code == os.CLD_EXITED else -end.si_status, flush=True)
    sys.stdin.readline()
    os.waitpid(child, 0)
"""


class Starter:
    """Starts the command, one process at a time."""

    def __init__(self):
        # Without a buffer, so that `select` tells whether there is a line.
        command, pipe = [sys.executable, "-c", STARTER], subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0)
        self.pid = None

    def start(self, log, arguments):
        if self.pid is not None:  # left by a test that failed
            self.kill(signal.SIGKILL)
            self.wait()
        self._tell(json.dumps([str(log), *map(str, arguments)]))
        self.pid = int(self.process.stdout.readline())

    @property
    def ended(self):
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def kill(self, how):
        os.kill(self.pid, how)

    def wait(self, timeout=120):
        assert select.select([self.process.stdout], [], [], timeout)[0], "it does not end"
        code = int(self.process.stdout.readline())
        self._tell("")
        self.pid = None
        return code

    def _tell(self, line):
        self.process.stdin.write(line.encode() + b"\n")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(60)


class Run:
    """A run of the command in a folder of its own, to be started, killed and resumed."""

    def __init__(self, folder, starter, server, budget, policy):
        folder.mkdir()
        self.folder, self.starter, self.server, self.budget = folder, starter, server, budget
        self.kills = self.kills_at_work = 0
        self.before = server.generated
        path = folder / "requests.jsonl"
        path.write_text("".join(json.dumps(request_line(q, f"Tell me about {q}.")) + "\n" for q in REQUESTS))
        self.arguments = [
            "run", path, "--budget", budget, "--policy", policy, "--max-tokens", CAP, "--quiet", "--concurrency",
            CONCURRENCY, "--base-url", server.url, "--model", "m", "--out", folder / "out", "--errors", folder / "err",
            "--run-folder", folder / "run",
        ]  # fmt: skip

    def start(self):
        resume = ["--resume"] if (self.folder / "run").exists() else []
        self.starter.start(self.folder / "log", [*self.arguments, *resume])

    def end(self):
        self.start()
        assert self.starter.wait() in (0, 3), (self.folder / "log").read_text()
        self.check_the_ledger()

    def disturb(self, rng, kills, kill):
        """Kills it so many times, or as often as it lasts, and lets it end."""
        while self.kills < kills:
            if self.killed(rng, kill):
                self.kills += 1
            else:
                self.check_the_ledger()
                return
        self.end()

    def killed(self, rng, kill):
        """Starts it and kills it some time later; False if it ended before."""
        asked, early = len(self.server.requests), not (self.folder / "run").exists() and rng.random() < 0.5
        self.start()
        # Most kills come while it works; half of the first ones while it makes its folder and its ledger.
        while not self.starter.ended:
            if (self.folder / "run").exists() if early else len(self.server.requests) > asked:
                break
            time.sleep(0.001)
        time.sleep(rng.uniform(0.0, 0.02 if early else 0.4))
        acknowledged = self.journal()
        self.starter.kill(kill)
        code, printed = self.starter.wait(), (self.folder / "log").read_text()
        under_way = self.check_that_nothing_is_lost(acknowledged)
        if code in (0, 3):
            return False
        self.kills_at_work += under_way > 0
        assert code == (-kill if kill == signal.SIGKILL else 130), printed
        assert "Traceback" not in printed
        return True

    def journal(self):
        """The rows of the ledger, read while another process writes them."""
        path = self.folder / "run" / "ledger.sqlite"
        if not path.exists():
            return []
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
            db.row_factory = sqlite3.Row
            return [dict(row) for row in db.execute("SELECT * FROM journal ORDER BY id")]

    def check_that_nothing_is_lost(self, acknowledged):
        """Returns the tokens of the attempts that were under way."""
        journal = self.journal()
        assert journal[: len(acknowledged)] == acknowledged
        ended = {row["reservation"] for row in journal}
        charged = sum(row["units"] for row in journal if row["kind"] in ("settle", "chunk", "orphan"))
        under_way = sum(row["units"] for row in journal if row["kind"] == "reserve" and row["id"] not in ended)
        assert self.server.generated - self.before <= charged + under_way <= self.budget
        return under_way

    def check_the_ledger(self):
        with Ledger.reopen(self.folder / "run" / "ledger.sqlite") as ledger:
            assert (ledger.reserved, ledger.overspent) == (0, 0)
            assert self.server.generated - self.before <= ledger.spent <= self.budget
            answered = [request for request, _ in ledger.results()]
            assert sum(e.kind == "orphan" for e in ledger.entries()) <= 2 * CONCURRENCY * self.kills
        out, errors = read_jsonl(self.folder / "out"), read_jsonl(self.folder / "err")
        assert sorted(line["custom_id"] for line in out + errors) == sorted(REQUESTS)
        assert sorted(answered) == sorted(line["custom_id"] for line in out)

    def answers(self):
        """What each request got: text, finish and tokens."""
        found = {}
        for line in read_jsonl(self.folder / "out"):
            (choice,) = line["response"]["body"]["choices"]
            own = line["shadowprice"]
            found[line["custom_id"]] = choice["message"]["content"], own["finish"], own["tokens"]
        return found


@pytest.fixture(scope="module")
def server():
    with hostile.Server(tells_a_story) as running:
        yield running


@pytest.fixture(scope="module")
def starter():
    with Starter() as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(starter, server, tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("undisturbed") / "run", starter, server, CAP * len(REQUESTS), "uniform")
    run.end()
    assert server.generated == sum(tokens for _, _, tokens in run.answers().values())
    assert {finish for _, finish, _ in run.answers().values()} == {"stop", "length"}
    return run.answers()


@pytest.fixture
def disturbed(starter, server, tmp_path):
    """Runs that were killed and resumed, as many as it takes to have `kills` of them in all."""

    def runs(kills, budget, policy, *, kill=signal.SIGKILL, each):
        rng, done, at_work = random.Random(f"{policy} {kill}"), 0, 0
        while done < kills:
            run = Run(tmp_path / f"after {done}", starter, server, budget, policy)
            run.disturb(rng, min(rng.choice(each), kills - done), kill)
            assert run.kills
            done, at_work = done + run.kills, at_work + run.kills_at_work
            yield run
        assert at_work > kills / 2  # most; the others hit it while it made its folder, or between two rounds

    return runs


def test_with_room_for_what_crashes_waste_answers_are_those_of_an_undisturbed_run(disturbed, undisturbed):
    budget = CAP * (len(REQUESTS) + 2 * CONCURRENCY * 12)
    for run in disturbed(32, budget, "uniform", each=[1, 4, 8, 12]):
        assert run.answers() == undisturbed


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_finishes_what_is_under_way_and_wastes_nothing(kill, starter, server, undisturbed, tmp_path):
    run = Run(tmp_path / "run", starter, server, CAP * len(REQUESTS), "uniform")
    rng = random.Random("ctrl-c")
    while run.kills < 5 and run.killed(rng, kill):
        run.kills += 1
    assert run.kills
    run.end()
    assert run.answers() == undisturbed
    assert "orphan" not in {row["kind"] for row in run.journal()}


def test_a_second_ctrl_c_stops_at_once(starter, tmp_path):
    async def is_slow(request, reply):
        await reply.head()
        await asyncio.sleep(60)

    with hostile.Server(is_slow) as slow:
        run = Run(tmp_path / "run", starter, slow, CAP * len(REQUESTS), "uniform")
        run.start()
        until(lambda: len(slow.requests) == CONCURRENCY)
        starter.kill(signal.SIGINT)
        until(lambda: "finishing requests in flight" in (run.folder / "log").read_text())
        starter.kill(signal.SIGINT)
        assert starter.wait(30) == 130
        assert run.check_that_nothing_is_lost([]) == CAP * CONCURRENCY
    assert "--resume continues" in (run.folder / "log").read_text()


def until(holds, seconds=30):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def test_with_a_tight_budget_answers_are_fewer_or_shorter_but_never_different(disturbed, undisturbed):
    wanted = sum(tokens for _, _, tokens in undisturbed.values())
    for run in disturbed(8, wanted, "expected", each=[3, 4]):
        answers = run.answers()
        assert 0 < len(answers) < len(REQUESTS)
        for name, (text, finish, tokens) in answers.items():
            whole, ending, most = undisturbed[name]
            assert whole.startswith(text)
            assert (text, ending, tokens) == (whole, "stop", most) if finish == "stop" else tokens <= most


@pytest.mark.parametrize("moment", ["pathlib.Path.rename", "shadowprice.runs.Ledger.create"])
def test_killed_while_its_folder_is_made_a_run_can_be_started_or_resumed(
    moment, starter, server, undisturbed, tmp_path
):
    run = Run(tmp_path / "run", starter, server, CAP * len(REQUESTS), "uniform")
    script = (
        "import os, pathlib, signal, sys, shadowprice.runs\n"
        "from shadowprice.cli import main\n"
        f"{moment} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", script, *map(str, run.arguments)]
    assert subprocess.run(command, timeout=60).returncode == -signal.SIGKILL
    assert not (run.folder / "run").exists()
    run.end()
    assert run.answers() == undisturbed


def test_killed_without_its_log_a_run_continues_only_if_the_loss_is_accepted(starter, server, undisturbed, tmp_path):
    budget = CAP * (2 * len(REQUESTS) + 2 * CONCURRENCY)
    run = Run(tmp_path / "run", starter, server, budget, "uniform")
    asked = len(server.requests)
    run.start()
    until(lambda: len(server.requests) > asked + 60)
    starter.kill(signal.SIGKILL)
    starter.wait()
    (run.folder / "run" / "ledger.sqlite-wal").unlink()
    asked = len(server.requests)
    run.start()
    assert starter.wait() == 2
    (printed,) = (run.folder / "log").read_text().splitlines()
    assert "had been confirmed: the last " in printed
    assert len(server.requests) == asked
    run.arguments.append("--accept-loss")
    run.end()
    assert run.answers() == undisturbed
