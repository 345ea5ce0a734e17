"""A run answers what the budget allows, loses nothing, and never spends a token too many."""

import asyncio
import json
import sys

import numpy as np
import pytest

from shadowprice import Forecast, InputError
from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.recorded import ReplayBackend
from shadowprice.cli import main
from shadowprice.errors import Refused, Unavailable
from shadowprice.formats.batch import read_requests
from shadowprice.formats.traces import read_traces
from shadowprice.runner import Settings, run, write_results
from shadowprice.types import Completion, Trace

from .backends import hostile
from .conftest import read_jsonl, request_line


def talks(words, pause=0.0):
    """An honest server that has this much to say."""

    async def behave(request, reply):
        count = min(request.limit, words)
        await reply.head()
        for _ in range(count):
            await reply.piece("word ")
            await asyncio.sleep(pause)
        await reply.finish("length" if request.limit < words else "stop")
        await reply.usage(count)
        await reply.end()

    return behave


class Known:
    """Forecasts that are right, up to a factor."""

    def __init__(self, lengths, factor=1.0):
        self.lengths, self.factor = lengths, factor

    def predict(self, queries):
        return Forecast([self.lengths[query.id] * self.factor for query in queries])


class World:
    """A batch, recorded answers to it, and a ledger."""

    def __init__(self, tmp_path, batch, n=40, budget=4000, seed=0):
        rng = np.random.default_rng(seed)
        self.lengths = {f"q{i}": int(rng.integers(10, 300)) for i in range(n)}
        traces = [
            Trace(name, f"Question {name}?", tokens, response="x" * tokens) for name, tokens in self.lengths.items()
        ]
        self.path = batch([request_line(name, f"Question {name}?") for name in self.lengths])
        self.requests = list(read_requests(self.path))
        self.backend = ReplayBackend(traces)
        self.ledger = Ledger.create(tmp_path / "ledger.sqlite", budget)
        self.folder = tmp_path

    def run(self, backend=None, forecaster=None, **settings):
        settings.setdefault("patience", 0.01)
        progress = asyncio.run(
            run(
                self.requests,
                self.ledger,
                backend or self.backend,
                forecaster or Known(self.lengths),
                Settings(**settings),
            )
        )
        return write_results(self.requests, self.ledger, progress, out=self.folder / "out", errors=self.folder / "err")

    def files(self):
        return read_jsonl(self.folder / "out"), read_jsonl(self.folder / "err")


@pytest.fixture
def world(tmp_path, batch):
    made = World(tmp_path, batch)
    yield made
    made.ledger.close()


class TestARun:
    @pytest.mark.parametrize("policy", ["clear", "uniform", "expected", "proportional", "auction"])
    def test_every_query_ends_in_one_file_and_the_budget_holds(self, world, policy):
        summary = world.run(policy=policy)
        out, errors = world.files()
        assert sorted([line["custom_id"] for line in out + errors]) == sorted(world.lengths)
        order = list(world.lengths)
        for lines in (out, errors):
            names = [line["custom_id"] for line in lines]
            assert names == sorted(names, key=order.index)
        assert summary.spent <= 4000
        assert summary.spent == sum(line["response"]["body"]["usage"]["completion_tokens"] for line in out)
        assert world.ledger.reserved == 0
        assert summary.finished + summary.truncated + summary.abandoned + summary.failed == summary.queries

    def test_perfect_forecasts_spend_on_whole_answers_only(self, world):
        summary = world.run()
        assert summary.truncated == 0
        assert summary.finished > 0
        assert all(line["error"]["code"] == "budget_abandoned" for line in world.files()[1])

    def test_what_is_not_used_is_offered_to_the_abandoned(self, tmp_path, batch):
        """Forecasts twice too long leave half of every grant; later clearings use it."""
        answered = {}
        for reclaim in (False, True):
            folder = tmp_path / str(reclaim)
            folder.mkdir()
            world = World(folder, batch)
            summary = world.run(forecaster=Known(world.lengths, 2.0), reclaim=reclaim)
            answered[reclaim] = summary.finished
            assert (len(summary.rounds) > 1) == reclaim
            assert summary.spent <= 4000
            world.ledger.close()
        assert answered[True] > 1.3 * answered[False]

    def test_a_finished_run_is_not_paid_for_again(self, world):
        first = world.run()
        before = list(world.ledger.entries())
        second = world.run()
        assert (second.finished, second.spent) == (first.finished, first.spent)
        assert list(world.ledger.entries()) == before

    def test_several_answers_to_one_request_are_refused(self, tmp_path, batch):
        requests = list(read_requests(batch([request_line("a", n=2)])))
        with Ledger.create(tmp_path / "l", 100) as ledger, pytest.raises(InputError, match="several answers"):
            asyncio.run(run(requests, ledger, ReplayBackend([]), Known({"a": 5}), Settings()))


class Flaky:
    """A backend that fails as told, and otherwise answers with ten tokens."""

    def __init__(self, *failures):
        self.failures, self.calls = list(failures), 0

    async def complete(self, body, limit):
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return Completion("ok", min(10, limit), "stop", "server", body={"usage": {"completion_tokens": 10}})


class TestFailures:
    def one(self, tmp_path, batch, backend, budget=100, **settings):
        world = World(tmp_path, batch, n=1, budget=budget)
        world.lengths = {"q0": 30}
        summary = world.run(backend=backend, policy="uniform", max_tokens=30, **settings)
        world.ledger.close()
        return summary, world.ledger

    def test_an_attempt_that_generated_nothing_is_tried_again_for_nothing(self, tmp_path, batch):
        backend = Flaky(Unavailable("busy", tokens=0, delay=0.001), Unavailable("busy", tokens=0))
        summary, _ = self.one(tmp_path, batch, backend)
        assert (summary.finished, summary.spent, backend.calls) == (1, 10, 3)

    def test_an_unknown_outcome_is_charged_in_full_before_another_try(self, tmp_path, batch):
        backend = Flaky(Unavailable("lost", tokens=None))
        summary, _ = self.one(tmp_path, batch, backend)
        assert (summary.finished, summary.spent) == (1, 30 + 10)

    def test_unknown_outcomes_never_add_up_to_more_than_the_budget(self, tmp_path, batch):
        backend = Flaky(*[Unavailable("lost", tokens=None)] * 9)
        summary, ledger = self.one(tmp_path, batch, backend, budget=70, attempts=10)
        assert summary.finished == 0
        assert summary.spent <= 70
        assert ledger.overspent == 0

    def test_attempts_are_bounded(self, tmp_path, batch):
        backend = Flaky(*[Unavailable("busy", tokens=0, delay=0.0)] * 99)
        summary, _ = self.one(tmp_path, batch, backend, attempts=3)
        assert (backend.calls, summary.failed, summary.spent) == (3, 1, 0)
        assert read_jsonl(tmp_path / "err")[0]["error"]["code"] == "backend_unavailable"

    def test_a_refusal_is_final(self, tmp_path, batch):
        backend = Flaky(Refused("no such model", code="model_not_found"))
        summary, _ = self.one(tmp_path, batch, backend)
        assert (backend.calls, summary.failed) == (1, 1)
        assert read_jsonl(tmp_path / "err")[0]["error"]["code"] == "model_not_found"


class Scripted:
    """Answers in turn, each of so many tokens."""

    def __init__(self, *answers):
        self.answers, self.limits = list(answers), []

    async def complete(self, body, limit):
        self.limits.append(limit)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        text, tokens, *flags = answer
        cut = tokens > limit
        usage = {"usage": {"completion_tokens": min(tokens, limit)}, "choices": [{"text": text}]}
        finish = "length" if cut else "stop"
        return Completion(text, min(tokens, limit), finish, "server", tuple(flags), body=usage)


class TestBestOfK:
    """A query's grant is shared by its samples, in sequence."""

    def one(self, tmp_path, batch, backend, samples=4):
        requests = list(read_requests(batch([request_line("q", "Well?")])))
        with Ledger.create(tmp_path / "ledger", 100) as ledger:
            settings = Settings(policy="uniform", samples=samples, attempts=1)
            verify = lambda name, found: found.text == "right"  # noqa: E731
            asyncio.run(run(requests, ledger, backend, Known({"q": 5}), settings, verify=verify))
            (line,) = dict(ledger.results()).values()
            return json.loads(line), ledger.spent

    def test_a_sample_that_passes_stops_the_rest(self, tmp_path, batch):
        backend = Scripted(("wrong", 30), ("right", 20), ("never asked", 10))
        line, spent = self.one(tmp_path, batch, backend)
        assert line["response"]["body"]["choices"][0]["text"] == "right"
        assert (spent, backend.limits) == (50, [100, 70])

    def test_samples_end_with_the_grant(self, tmp_path, batch):
        backend = Scripted(("wrong", 60), ("wrong too", 60))
        line, spent = self.one(tmp_path, batch, backend)
        assert (spent, backend.limits) == (100, [100, 40])
        assert line["shadowprice"]["finish"] == "stop"  # the first came to its end

    def test_what_a_failed_sample_may_have_cost_is_charged(self, tmp_path, batch):
        backend = Scripted(("wrong", 30), Unavailable("lost", tokens=None))
        _, spent = self.one(tmp_path, batch, backend)
        assert spent == 100

    def test_what_was_wrong_with_any_sample_is_told(self, tmp_path, batch):
        line, _ = self.one(tmp_path, batch, Scripted(("first", 30), ("second", 30, "odd"), ("third", 30, "odd")), 3)
        assert line["response"]["body"]["choices"][0]["text"] == "first"
        assert line["shadowprice"]["flags"] == ["odd"]

    def test_grants_are_never_passed(self, tmp_path, batch):
        backend = Scripted(*[("wrong", 33)] * 9)
        _, spent = self.one(tmp_path, batch, backend, samples=9)
        assert spent == 100


class TestGold:
    def test_the_verdict_tells_how_many_are_solved(self, tmp_path, batch, capsys):
        path = batch([request_line("a"), request_line("b")])
        gold = batch(
            [
                {"custom_id": "a", "gold": "word word", "grader": "exact"},
                {"custom_id": "b", "gold": "7", "grader": "numeric"},
            ],
            "gold.jsonl",
        )
        with hostile.Server(talks(2)) as server:
            arguments = run_command(path, tmp_path, "--base-url", server.url, "--model", "m", "--gold", gold, "--json")
            assert main(arguments[3:]) == 0
        assert json.loads(capsys.readouterr().out)["solved"] == 1

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ({"gold": "1"}, ":1: no custom_id"),
            ({"custom_id": "a", "gold": "1", "grader": "taste"}, ":1: unknown grader 'taste'"),
            ("{", ":1: not JSON"),
        ],
    )
    def test_gold_that_is_none(self, tmp_path, batch, capsys, line, said):
        gold = batch([line], "gold.jsonl")
        arguments = run_command(
            batch([request_line("a")]), tmp_path, "--base-url", "http://127.0.0.1:9/v1", "--gold", gold
        )
        assert main(arguments[3:]) == 2
        assert f"{gold}{said}" in capsys.readouterr().err


class TestCollect:
    def test_traces_of_every_sample_graded_and_resumable(self, tmp_path, batch, capsys):
        questions = batch(
            [
                {"id": f"q{i}", "problem": f"Say {i}", "gold": "word", "dataset": "d", "grader": "exact"}
                for i in range(5)
            ]
        )
        out = tmp_path / "traces.jsonl.gz"
        with hostile.Server(talks(1)) as server:
            arguments = ["collect", questions, "--out", out, "--base-url", server.url, "--model", "m", "--samples", 2,
                         "--max-tokens", 9, "--temperature", 0.5, "--quiet"]  # fmt: skip
            assert main([str(a) for a in arguments]) == 0
            asked = len(server.requests)
            assert main([str(a) for a in [*arguments, "--resume"]]) == 0
            assert len(server.requests) == asked == 10
        traces = list(read_traces(out))
        assert [(t.id, t.sample) for t in traces] == [(f"q{i}", s) for i in range(5) for s in range(2)]
        assert all(t.correct and t.tokens == 1 and not t.truncated and t.max_tokens == 9 for t in traces)
        assert "100.0% solved" in capsys.readouterr().out

    def test_an_answer_that_was_cut_is_not_graded_as_if_it_were_whole(self, tmp_path, batch):
        questions = batch([{"id": "q", "problem": "Say it", "gold": "word", "grader": "exact"}])
        out = tmp_path / "traces.jsonl"
        with hostile.Server(talks(5)) as server:
            main(
                ["collect", str(questions), "--out", str(out), "--base-url", server.url, "--max-tokens", "1", "--quiet"]
            )
        (trace,) = read_traces(out)
        assert (trace.correct, trace.truncated, trace.response) == (False, True, "word ")


def test_a_hundred_queries_at_once_against_a_server_with_a_fifth_of_what_they_want(tmp_path, batch):
    """Real HTTP; the server counts what it generates."""
    path = batch([request_line(f"q{i}", "Go on.") for i in range(100)])
    with hostile.Server(talks(50)) as server:
        code = main(
            ["run", str(path), "--budget", "1000", "--base-url", server.url, "--model", "m", "--policy", "auction",
             "--concurrency", "100", "--out", str(tmp_path / "out"), "--errors", str(tmp_path / "err"), "--quiet"]
        )  # fmt: skip
        assert code == 3
        assert 0 < server.generated <= 1000


def run_command(path, folder, *more):
    return [
        sys.executable, "-m", "shadowprice", "run", str(path), "--budget", "6000", "--policy", "expected", "--quiet",
        "--out", str(folder / "out"), "--errors", str(folder / "err"),
        "--run-folder", str(folder / "run"), *map(str, more),
    ]  # fmt: skip


def overshoots(by):
    """A server that says more than it may, and says so."""

    async def behave(request, reply):
        await reply.head()
        await reply.piece("word ", tokens=request.limit + by)
        await reply.finish("length")
        await reply.usage(request.limit + by)
        await reply.end()

    return behave


async def knows_only_max_tokens(request, reply):
    heeded = {"max_tokens": request.body.get("max_tokens", 30)}
    await talks(30)(hostile.Request(request.path, request.headers, heeded), reply)


class TestAServerThatIgnoresItsLimits:
    """What it generates cannot be bounded, so that it is sent nothing more."""

    def run(self, path, folder, server, *more, budget="6000", concurrency=4):
        command = run_command(path, folder, "--base-url", server.url, "--model", "m", "--concurrency", concurrency)
        return main([*command[3:], "--budget", budget, "--policy", "uniform", "--max-tokens", "20", *more])

    def accounts(self, folder):
        with Ledger.reopen(folder / "run" / "ledger.sqlite") as ledger:
            return ledger.spent, ledger.overspent

    def test_is_charged_what_it_took_and_sent_nothing_more(self, tmp_path, batch, capsys):
        names = [f"q{i}" for i in range(60)]
        with hostile.Server(overshoots(5)) as server:
            assert self.run(batch([request_line(name) for name in names]), tmp_path, server) == 3
            assert len(server.requests) <= 4
            assert self.accounts(tmp_path) == (server.generated, 0)
        said = capsys.readouterr().err
        assert f"limit_ignored {len(server.requests)} times" in said
        assert f"{5 * len(server.requests)} tokens beyond what was granted; the budget still holds" in said
        assert f"{server.url}/ ignored a limit of 20 tokens: 25; nothing more was sent to it" in said
        out, errors = read_jsonl(tmp_path / "out"), read_jsonl(tmp_path / "err")
        assert sorted(line["custom_id"] for line in out + errors) == sorted(names)
        assert len(out) == len(server.requests)
        assert {line["error"]["code"] for line in errors} == {"not_sent"}

    def test_that_has_all_of_the_budget_under_way_is_told_from_one_that_has_not(self, tmp_path, batch, capsys):
        """Nothing is left then to pay the excess from; the verdict says by how much the budget was exceeded."""
        path = batch([request_line(f"q{i}") for i in range(3)])
        with hostile.Server(overshoots(5)) as server:
            assert self.run(path, tmp_path, server, "--json", budget="60") == 3
            assert server.generated == 75
            assert self.accounts(tmp_path) == (60, 15)
        told = capsys.readouterr()
        assert json.loads(told.out)["overspent"] == 15
        assert "15 tokens beyond what was granted; the budget was exceeded by 15" in told.err

    def test_is_gone_on_with_once_it_is_mended(self, tmp_path, batch):
        path = batch([request_line(f"q{i}") for i in range(60)])
        with hostile.Server(overshoots(5)) as server:
            assert self.run(path, tmp_path, server, budget="1400") == 3
            server.behave = talks(20)
            assert self.run(path, tmp_path, server, "--resume", budget="1400") == 0
            assert self.accounts(tmp_path) == (server.generated, 0)
            assert len(server.requests) == 60
        assert len(read_jsonl(tmp_path / "out")) == 60

    def test_may_know_another_name_for_it(self, tmp_path, batch, capsys):
        path = batch([request_line(f"q{i}") for i in range(8)])
        with hostile.Server(knows_only_max_tokens) as server:
            assert self.run(path, tmp_path, server) == 3
            assert "--limit-field max_tokens" in capsys.readouterr().err
            assert self.run(path, tmp_path, server, "--resume", "--limit-field", "max_tokens") == 0
            assert self.accounts(tmp_path)[0] <= 6000

    def test_is_told_of_when_traces_are_collected(self, tmp_path, batch, capsys):
        questions = batch([{"id": f"q{i}", "problem": "Say it", "gold": "7", "grader": "exact"} for i in range(20)])
        out = tmp_path / "traces.jsonl"
        with hostile.Server(overshoots(5)) as server:
            arguments = ["collect", questions, "--out", out, "--base-url", server.url, "--max-tokens", 9, "--quiet"]
            assert main([str(a) for a in arguments]) == 3
            assert len(server.requests) <= 8
        assert "nothing more was sent to it" in capsys.readouterr().err
        assert {(t.tokens, tuple(t.extra["flags"])) for t in read_traces(out)} == {(14, ("limit_ignored",))}


class TestResuming:
    def test_only_the_same_run_is_continued(self, tmp_path, batch, capsys):
        path = batch([request_line("a")])
        with hostile.Server(talks(5)) as server:
            arguments = run_command(path, tmp_path, "--base-url", server.url, "--model", "m")[3:]
            assert main(arguments) == 0
            assert main(arguments) == 2
            assert "--resume" in capsys.readouterr().err
            assert main([*arguments, "--resume"]) == 0
            assert main([*arguments, "--resume", "--policy", "uniform"]) == 2
            assert "another policy" in capsys.readouterr().err

    @pytest.mark.parametrize(("words", "more"), [(60, []), (2, ["--no-reclaim"])])
    def test_what_is_finished_stays_as_it_is(self, tmp_path, batch, words, more):
        """Prices of abandoned queries too; and a single clearing stays single, though tokens are left."""
        path = batch([request_line(f"q{i}", "word " * 5 * i) for i in range(1, 20)])
        found = []
        with hostile.Server(talks(words)) as server:
            arguments = run_command(path, tmp_path, "--base-url", server.url, "--model", "m", *more)[3:]
            for resume in ([], ["--resume"]):
                assert main([*arguments, "--budget", "400", *resume]) == 3
                names = ("out", "err", "run/manifest.json")
                found.append([len(server.requests), *((tmp_path / name).read_text() for name in names)])
        assert found[0] == found[1]
        assert all(line["error"]["price"] for line in read_jsonl(tmp_path / "err"))

    def test_there_must_be_a_run_to_continue(self, tmp_path, batch, capsys):
        path = batch([request_line("a")])
        with hostile.Server(talks(5)) as server:
            assert main(run_command(path, tmp_path, "--base-url", server.url, "--model", "m", "--resume")[3:]) == 2
        assert "no run to continue" in capsys.readouterr().err

    def test_a_ledger_that_is_gone_is_not_made_anew(self, tmp_path, batch, capsys):
        path = batch([request_line("a")])
        with hostile.Server(talks(5)) as server:
            arguments = run_command(path, tmp_path, "--base-url", server.url, "--model", "m")[3:]
            assert main(arguments) == 0
            (tmp_path / "run" / "ledger.sqlite").unlink()
            assert main([*arguments, "--resume"]) == 2
            assert len(server.requests) == 1
        assert "no such ledger" in capsys.readouterr().err

    def test_the_manifest_tells_what_was_run(self, tmp_path, batch):
        path = batch([request_line("a")])
        with hostile.Server(talks(5)) as server:
            main(run_command(path, tmp_path, "--base-url", server.url, "--model", "m")[3:])
        manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
        assert manifest["done"] is True
        assert manifest["asked"]["model"] == "m"
        assert manifest["rounds"][0]["admitted"] == 1
        assert manifest["summary"]["finished"] == 1
