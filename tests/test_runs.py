"""A run answers what the budget allows, loses nothing, and never exceeds its budget."""

import asyncio
import json
import tracemalloc
from types import MappingProxyType

import numpy as np
import pytest

from shadowprice import Forecast, InputError, Request
from shadowprice.backends.recorded import RecordedBackend
from shadowprice.cost import Rates
from shadowprice.errors import LedgerError, Refused, Unavailable
from shadowprice.formats.results import parse_result
from shadowprice.runs import Run
from shadowprice.types import Completion, Trace
from tests.quick import QUICK

from .conftest import read_jsonl, request_line


class Known:
    """Forecasts that are right, up to a factor."""

    def __init__(self, lengths, factor=1.0):
        self.lengths, self.factor = lengths, factor

    def predict(self, requests):
        return Forecast([self.lengths[request.id] * self.factor for request in requests])


class World:
    """Requests, recorded answers to them, and a folder for the run."""

    def __init__(self, folder, n=40, budget=4000, seed=0):
        rng = np.random.default_rng(seed)
        self.lengths = {f"q{i}": int(rng.integers(10, 300)) for i in range(n)}
        self.backend = RecordedBackend(
            Trace(name, f"Question {name}?", tokens, response="x" * tokens) for name, tokens in self.lengths.items()
        )
        self.requests = [request_line(name, f"Question {name}?") for name in self.lengths]
        self.folder, self.budget = folder, budget

    def make(self, backend=None, forecaster=None, folder="run", **settings):
        return Run(
            self.requests,
            budget=self.budget,
            backend=backend or self.backend,
            forecaster=forecaster or Known(self.lengths),
            folder=self.folder / folder if folder else None,
            **settings,
        )

    def run(self, *arguments, **settings):
        """The summary; answers and errors are in the folder."""
        with self.make(*arguments, **settings) as run:
            summary = asyncio.run(run.execute(tolerance=QUICK))
            run.write(self.folder / "out", self.folder / "err")
            self.entries = list(run.ledger.entries())
        return summary

    def files(self):
        return read_jsonl(self.folder / "out"), read_jsonl(self.folder / "err")


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


class TestARun:
    @pytest.mark.parametrize("policy", ["clear", "uniform", "expected", "proportional", "auction", "index"])
    def test_every_request_ends_in_one_file_and_the_budget_holds(self, world, policy):
        summary = world.run(policy=policy, accounting="metered" if policy == "index" else "reserved")
        out, errors = world.files()
        assert sorted(line["custom_id"] for line in out + errors) == sorted(world.lengths)
        order = list(world.lengths)
        for lines in (out, errors):
            names = [line["custom_id"] for line in lines]
            assert names == sorted(names, key=order.index)
        assert summary.spent <= 4000
        assert summary.spent == sum(line["response"]["body"]["usage"]["completion_tokens"] for line in out)
        assert summary.spent == sum(line["shadowprice"]["cost"] for line in out)
        assert sum(summary.outcomes.values()) == summary.requests == 40

    def test_right_forecasts_are_spent_on_complete_answers_only(self, world):
        summary = world.run(policy="clear")
        assert summary.count("truncated") == 0
        assert summary.count("finished") > 0
        for line in world.files()[1]:
            assert line["error"]["code"] == "budget_abandoned"
            assert line["error"]["price"] > 0
            assert line["error"]["forecast"]["tokens"] == world.lengths[line["custom_id"]]

    def test_what_is_not_used_is_offered_to_those_that_were_declined(self, tmp_path):
        """Forecasts that are twice too long leave half of every grant; later clearings use it."""
        answered = {}
        for reclaim in (False, True):
            (tmp_path / str(reclaim)).mkdir()
            world = World(tmp_path / str(reclaim))
            summary = world.run(forecaster=Known(world.lengths, 2.0), policy="clear", reclaim=reclaim)
            answered[reclaim] = summary.count("finished")
            assert (len(summary.rounds) > 1) == reclaim
            assert summary.spent <= 4000
        assert answered[True] > 1.3 * answered[False]

    def test_no_answer_is_above_the_limits(self, world):
        world.requests = [{**line, "body": {**line["body"], "max_tokens": 50}} for line in world.requests[:20]]
        world.requests += [request_line(name, f"Question {name}?") for name in list(world.lengths)[20:]]
        world.run(policy="uniform", max_tokens=70)
        for line in world.files()[0]:
            most = 50 if int(line["custom_id"][1:]) < 20 else 70
            assert line["shadowprice"]["tokens"] <= most

    def test_a_budget_of_nothing_declines_everything(self, tmp_path):
        summary = World(tmp_path, budget=0).run()
        assert (summary.outcomes, summary.spent) == ({"declined": 40}, 0)

    def test_a_run_needs_no_folder(self, world):
        with world.make(folder=None) as run:
            results = run.complete()
            assert [result.id for result in results] == list(world.lengths)
            assert run.spent == sum(result.cost for result in results) <= 4000
            assert run.price == run.summary().price > 0
        assert list(world.folder.iterdir()) == []

    def test_results_come_as_they_are_known(self, world):
        async def go(run):
            return [result async for result in run]

        with world.make() as run:
            first = asyncio.run(go(run))
        assert sorted(result.id for result in first) == sorted(world.lengths)
        with world.make() as run:
            again = asyncio.run(go(run))
        assert [result.id for result in again] == list(world.lengths)
        assert {r.id: r.outcome for r in again} == {r.id: r.outcome for r in first}

    def test_results_of_an_earlier_execution_come_first_and_once(self, world):
        async def go(run):
            found = []
            async for result in run:
                found.append(result.id)
                if len(found) == 5:
                    run.stop()
            return found

        with world.make(policy="uniform") as run:
            asyncio.run(go(run))
            before = [name for name, _ in run.ledger.results()]
        assert 5 <= len(before) < 40
        with world.make(policy="uniform") as run:
            found = asyncio.run(go(run))
        assert found[: len(before)] == before
        assert len(found) == len(set(found))

    def test_an_error_of_the_run_itself_is_raised_where_its_results_are_read(self, world):
        async def go(run):
            async for _ in run:
                run.ledger.close()

        with world.make() as run, pytest.raises(LedgerError):
            asyncio.run(go(run))


def test_a_summary_and_the_files_take_the_memory_of_one_answer_not_of_all(tmp_path):
    answers = RecordedBackend(Trace(f"q{i}", f"Question q{i}?", 10, response="long " * 20_000) for i in range(60))
    requests = [request_line(f"q{i}", f"Question q{i}?") for i in range(60)]
    lengths = Known({f"q{i}": 10 for i in range(60)})
    with Run(requests, budget=6000, backend=answers, forecaster=lengths, folder=tmp_path / "run") as run:
        asyncio.run(run.execute())
        tracemalloc.start()
        try:
            assert run.summary().outcomes == {"finished": 60}
            run.write(tmp_path / "out", tmp_path / "err")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (tmp_path / "out").stat().st_size > 6_000_000
    assert peak < 2_000_000


class TestRequests:
    backend = RecordedBackend([])

    @pytest.mark.parametrize(
        ("requests", "printed"),
        [
            ([], "no requests"),
            ([request_line("a", n=2)], "'a' asks for several answers"),
            ([Request("a", "Why?"), "Why not?"], "both Request objects and others"),
            ([Request("a", "Why?"), Request("a", "Why not?")], "'a' is used 2 times"),
            ([request_line("shadowprice.estimate:1:a")], "reserved"),
        ],
    )
    def test_what_cannot_be_run_is_refused_before_a_folder_is_made(self, tmp_path, requests, printed):
        with pytest.raises(InputError, match=printed):
            Run(requests, budget=10, backend=self.backend, folder=tmp_path / "run")
        assert not (tmp_path / "run").exists()


class Flaky(RecordedBackend):
    """Recorded answers, and failures for some of the requests."""

    def __init__(self, world, **failures):
        self.__dict__.update(vars(world.backend))
        self.failures = failures

    async def complete(self, body, limit, **options):
        name = body["messages"][-1]["content"].split()[-1].rstrip("?")
        if error := self.failures.get(name):
            raise error
        return await super().complete(body, limit, **options)


class TestFailures:
    def test_are_reported_with_their_cause_and_never_as_declined(self, world):
        backend = Flaky(
            world,
            q1=Refused("no such model", code="model_not_found"),
            q2=Unavailable("the connection broke", tokens=None),
            q3=ZeroDivisionError("a bug"),
        )
        summary = world.run(backend, policy="uniform", max_tokens=60)
        found = {line["custom_id"]: line["error"] for line in world.files()[1]}
        assert summary.outcomes["failed"] == 3
        assert found["q1"]["code"] == "model_not_found"
        assert (found["q2"]["code"], found["q2"]["message"]) == ("backend_unavailable", "the connection broke")
        assert found["q3"]["message"] == "ZeroDivisionError: a bug"
        assert "budget_abandoned" not in {error["code"] for error in found.values()}

    def test_are_tried_again_when_the_run_is_resumed_from_what_is_left(self, world):
        dead = {name: Unavailable("no connection", tokens=0) for name in world.lengths}
        first = world.run(Flaky(world, **dead), policy="uniform", attempts=1)
        assert (first.outcomes.keys(), first.spent) == ({"failed", "not_sent"}, 0)
        second = world.run(policy="uniform", resume=True)
        assert second.count("failed", "declined", "not_sent") == 0
        out, errors = world.files()
        assert (len(out), errors) == (40, [])

    def test_what_failures_have_cost_is_not_there_when_they_are_tried_again(self, tmp_path):
        world = World(tmp_path, n=10, budget=1000)
        lost = {name: Unavailable("lost", tokens=None) for name in ("q1", "q2", "q3")}
        first = world.run(Flaky(world, **lost), policy="uniform", attempts=1)
        second = world.run(policy="uniform", resume=True)
        assert second.outcomes.get("failed", 0) == 0
        assert first.spent <= second.spent <= 1000
        assert sum(entry.units for entry in world.entries if entry.kind == "settle") == second.spent

    def test_a_run_in_which_something_failed_resumes_no_answer_that_it_has(self, world):
        world.run(Flaky(world, q1=Refused("no")), policy="uniform", max_tokens=60)
        before = {line["custom_id"]: line for line in world.files()[0]}
        world.run(policy="uniform", max_tokens=60, resume=True)
        after = {line["custom_id"]: line for line in world.files()[0]}
        assert before.items() <= after.items()
        assert "q1" in after


class Scripted:
    """Answers in turn, each with a number of tokens."""

    model = "m"

    def __init__(self, *answers):
        self.answers, self.limits, self.seeds = list(answers), [], []

    def can_continue(self, body):
        return False

    async def complete(self, body, limit, **options):
        self.limits.append(limit)
        self.seeds.append(body.get("seed"))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        text, tokens, *flags = answer
        cut = tokens > limit
        form = {"usage": {"completion_tokens": min(tokens, limit)}, "choices": [{"text": text}]}
        return Completion(text, min(tokens, limit), "length" if cut else "stop", "server", tuple(flags), body=form)

    async def close(self):
        pass


class TestSeveralSamples:
    """The samples of a request share its grant, one after the other."""

    def one(self, backend, samples=4, folder=None, gold=MappingProxyType({"q": ("right", "exact")})):
        run = Run(
            [request_line("q", "Well?")], budget=100, backend=backend, forecaster=Known({"q": 5}), folder=folder,
            gold=gold, policy="uniform", samples=samples, attempts=1,
        )  # fmt: skip
        with run:
            asyncio.run(run.execute())
            (result,) = run.results()
            return result, run.spent

    def test_a_correct_one_stops_the_rest(self):
        backend = Scripted(("wrong", 30), ("right", 20), ("never asked", 10))
        result, spent = self.one(backend)
        assert (result.text, result.correct) == ("right", True)
        assert (spent, result.cost, backend.limits, backend.seeds) == (50, 50, [100, 70], [0, 1])

    def test_they_end_with_the_grant(self):
        backend = Scripted(("wrong", 60), ("wrong too", 60))
        result, spent = self.one(backend)
        assert (spent, backend.limits) == (100, [100, 40])
        assert (result.text, result.outcome) == ("wrong", "finished")  # the first that came to its end

    def test_what_a_failed_one_may_have_cost_is_charged(self):
        result, spent = self.one(Scripted(("wrong", 30), Unavailable("lost", tokens=None)))
        assert (result.text, spent, result.cost) == ("wrong", 100, 100)

    def test_what_was_wrong_with_any_of_them_is_reported(self):
        result, _ = self.one(Scripted(("first", 30), ("second", 30, "odd"), ("third", 30, "odd")), 3)
        assert (result.text, result.completion.flags) == ("first", ("odd",))

    def test_those_that_were_paid_for_are_kept_when_the_run_is_stopped(self, tmp_path):
        def make(backend):
            return Run(
                [request_line("q", "Well?")], budget=100, backend=backend, forecaster=Known({"q": 5}),
                folder=tmp_path / "run", policy="uniform", samples=3, gold={"q": ("right", "exact")},
            )  # fmt: skip

        class Stops(Scripted):
            async def complete(self, *arguments, **options):
                run.stop()
                return await super().complete(*arguments, **options)

        with make(Stops(("first", 30), ("second", 99))) as run:
            asyncio.run(run.execute())
            assert (run.results()[0].outcome, run.spent) == ("not_sent", 30)
        backend = Scripted(("second", 99), ("third", 99))
        with make(backend) as run:
            asyncio.run(run.execute())
            (result,) = run.results()
            assert (result.text, result.cost, run.spent, backend.seeds) == ("first", 100, 100, [1])

    def test_where_nobody_grades_the_first_that_came_to_its_end_is_enough(self):
        backend = Scripted(("first", 30), ("never asked", 10))
        result, spent = self.one(backend, gold={})
        assert (result.text, result.correct, spent, backend.seeds) == ("first", None, 30, [0])

    def test_grants_are_never_exceeded(self):
        assert self.one(Scripted(*[("wrong", 33)] * 9), samples=9)[1] == 100


class TestGold:
    def test_answers_are_graded_where_the_correct_answer_is_known(self):
        backend = Scripted(("7", 10), ("8", 10), ("7", 10), ("7", 999))
        gold = {"a": ("7", "numeric"), "b": ("7", "numeric"), "d": ("7", "numeric")}
        run = Run(
            [request_line(name) for name in "abcd"], budget=200, backend=backend, gold=gold, policy="uniform",
            forecaster=Known(dict.fromkeys("abcd", 5)), concurrency=1,
        )  # fmt: skip
        results = run.complete()
        assert [result.correct for result in results] == [True, False, None, False]
        assert run.summary().correct == 1

    @pytest.mark.parametrize("known", [True, False])
    def test_answers_that_were_cut_at_the_end_of_the_budget_are_graded_as_any_other(self, tmp_path, known):
        world = World(tmp_path, n=4, budget=30)
        gold = dict.fromkeys(world.lengths, ("x", "exact")) if known else {"other": ("x", "exact")}
        world.run(policy="index", accounting="metered", gold=gold, chunk=8)
        cut = [parse_result(json.dumps(line)) for line in world.files()[0]]
        assert {(result.outcome, result.correct) for result in cut} == {("truncated", False if known else None)}


class TestMoney:
    rates = Rates.dollars(1, 4, 0.5)

    @pytest.mark.parametrize(("policy", "accounting"), [("clear", "reserved"), ("index", "metered")])
    def test_a_budget_of_money_holds(self, tmp_path, policy, accounting):
        world = World(tmp_path)
        world.budget = "$0.012"
        summary = world.run(policy=policy, accounting=accounting, rates=self.rates)
        assert 0 < summary.spent <= summary.budget == 12_000_000
        assert summary.count("finished") > 0
        assert summary.count("declined", "truncated") > 0

    def test_tokens_and_money_are_not_mixed_up(self, tmp_path):
        world = World(tmp_path)
        world.budget = "$1"
        with pytest.raises(InputError, match="rates"):
            world.make()
        world.budget = "200k"
        with pytest.raises(InputError, match=r"\$5"):
            world.make(rates=self.rates)


class TestTheFolder:
    def test_a_finished_run_is_not_paid_for_again(self, world):
        first, before = world.run(), world.entries
        manifest = (world.folder / "run" / "manifest.json").read_bytes()
        second = world.run(backend=Flaky(world, **{name: Refused("asked again") for name in world.lengths}))
        assert second == first
        assert world.entries == before
        assert (world.folder / "run" / "manifest.json").read_bytes() == manifest

    def test_the_manifest_says_what_was_run(self, world):
        summary = world.run(policy="clear")
        manifest = json.loads((world.folder / "run" / "manifest.json").read_text())
        assert manifest["done"] is True
        assert (manifest["budget"], manifest["asked"]["policy"]) == (4000, "clear")
        assert len(manifest["rounds"]) == len(summary.rounds)
        assert manifest["summary"]["outcomes"] == summary.outcomes

    def test_what_was_expected_of_every_request_is_kept(self, world):
        world.run()
        kept = read_jsonl(world.folder / "run" / "forecast.jsonl")
        assert {line["custom_id"]: line["tokens"] for line in kept} == world.lengths

    def test_questions_and_correct_answers_are_kept(self, world):
        name = next(iter(world.lengths))
        world.run(gold={name: ("Paris", "exact")})
        kept = {line["custom_id"]: line for line in read_jsonl(world.folder / "run" / "requests.jsonl")}
        assert list(kept) == list(world.lengths)
        assert all(line["question"] for line in kept.values())
        assert (kept[name]["gold"], kept[name]["grader"]) == ("Paris", "exact")

    @pytest.mark.parametrize("change", [{"policy": "uniform"}, {"max_tokens": 7}, {"samples": 2}, {"reclaim": False}])
    def test_only_the_same_run_is_resumed(self, world, change):
        world.run(policy="clear")
        (name,) = change
        with pytest.raises(InputError, match=f"another {name}"):
            world.make(**{"policy": "clear", **change})

    def test_other_requests_another_budget_or_another_model_are_another_run(self, world):
        world.run()
        world.budget += 1
        with pytest.raises(InputError, match="another budget"):
            world.make()
        world.budget -= 1
        world.backend.model = "other"
        with pytest.raises(InputError, match="another model"):
            world.make()
        world.backend.model = ""
        world.requests.pop()
        with pytest.raises(InputError, match="another input"):
            world.make()

    def test_it_must_exist_to_be_resumed_and_must_not_to_be_started(self, world):
        with pytest.raises(InputError, match="not a run to resume"):
            world.make(resume=True)
        world.run()
        with pytest.raises(InputError, match="exists"):
            world.make(resume=False)

    def test_one_process_at_a_time(self, world):
        with world.make(), pytest.raises(LedgerError):
            world.make()

    def test_a_ledger_that_is_gone_is_not_created_again(self, world):
        world.run()
        (world.folder / "run" / "ledger.sqlite").unlink()
        with pytest.raises(LedgerError, match="no such ledger"):
            world.make()

    @pytest.mark.parametrize("manifest", ["{", "[]", "{}", '{"format": 1, "rounds": [], "asked": {}, "budget": 1}'])
    def test_a_folder_that_cannot_be_resumed_is_refused_with_a_reason(self, world, manifest):
        world.run()
        (world.folder / "run" / "manifest.json").write_text(manifest)
        with pytest.raises(InputError, match=r"damaged|older version"):
            world.make()

    def test_a_run_that_was_stopped_continues(self, world):
        with world.make(policy="uniform") as run:
            run.stop("a reason")
            summary = asyncio.run(run.execute())
        assert (summary.stopped, summary.outcomes) == ("a reason", {"not_sent": 40})
        summary = world.run(policy="uniform")
        assert (summary.stopped, summary.count("not_sent")) == ("", 0)

    def test_clearings_before_a_stop_are_kept(self, world):
        with world.make(policy="clear", concurrency=1) as run:
            count = 0

            def stop_after_three(result):
                nonlocal count
                count += 1
                if count == 3:
                    run.stop()

            asyncio.run(run.execute(on_result=stop_after_three))
            (first,) = run.summary().rounds
        summary = world.run(policy="clear")
        assert summary.rounds[0] == first
        assert len(summary.rounds) >= 2

    def test_answers_in_parts_are_continued_and_no_part_is_paid_for_twice(self, tmp_path):
        """Stopped again and again, an index run on recorded answers ends with the answers it would have had."""
        alone = World(tmp_path / "alone", n=12, budget=10**6)
        alone.folder.mkdir()
        alone.run(policy="index", accounting="metered", chunk=8)
        world = World(tmp_path, n=12, budget=10**6)
        options = {"policy": "index", "accounting": "metered", "chunk": 8, "concurrency": 1}
        stops = 0
        while stops < 20:
            with world.make(**options) as run:
                seen = 0

                def look(progress, run=run):
                    nonlocal seen
                    seen += 1
                    if seen == 4:
                        run.stop()

                summary = asyncio.run(run.execute(on_event=look))
            if not summary.stopped:
                break
            stops += 1
        summary = world.run(**options)
        assert stops > 1
        assert summary.spent == sum(world.lengths.values())
        answers = [
            {line["custom_id"]: (line["response"]["body"]["choices"], line["shadowprice"]["cost"]) for line in out}
            for out, _ in (world.files(), alone.files())
        ]
        assert answers[0] == answers[1]


class TestAgain:
    """Executing the same run again, in one process."""

    @pytest.fixture
    def world(self, tmp_path):
        return World(tmp_path, n=30, budget=3000)

    def test_a_loop_that_was_left_can_be_taken_up_again(self, world):
        async def main():
            run = world.make(folder=None, policy="uniform", concurrency=4)
            first = [result.id async for result in _first(run, 3)]
            again = [result.id async for result in run]
            assert set(first) <= set(again)
            assert sorted(again) == sorted(world.lengths)
            assert run.spent <= run.budget
            assert sum(run.summary().outcomes.values()) == 30

        asyncio.run(asyncio.wait_for(main(), 20))

    def test_after_a_stop_it_continues(self, world):
        run = world.make(folder=None, policy="uniform")
        run.stop("for now")
        assert {result.outcome for result in run.complete()} == {"not_sent"}
        assert {result.outcome for result in run.complete()} == {"finished", "truncated"}
        assert "not_sent" not in run.progress.outcomes

    def test_two_executions_at_once_are_refused(self, world):
        async def main():
            run = world.make(folder=None)
            return await asyncio.gather(run.execute(), run.execute(), return_exceptions=True)

        summary, error = asyncio.run(main())
        assert summary.requests == 30
        assert isinstance(error, InputError)

    def test_complete_works_where_a_loop_is_running_already(self, world):
        async def notebook():
            with world.make() as run:
                return run.complete()

        assert len(asyncio.run(notebook())) == 30

    def test_what_goes_wrong_in_a_notebook_is_what_is_raised(self, world):
        class Broken:
            def predict(self, requests):
                raise InputError("no forecast")

        async def notebook():
            with world.make(forecaster=Broken()) as run:
                run.complete()

        with pytest.raises(InputError, match="no forecast"):
            asyncio.run(notebook())
        world.make(forecaster=Broken(), resume=True).close()  # the ledger was given back

    def test_costs_of_results_add_up_to_the_ledger_after_a_resume(self, world):
        class Fails:
            model, left = world.backend.model, 5

            def can_continue(self, body):
                return True

            async def complete(self, body, limit, **options):
                if self.left:
                    self.left -= 1
                    raise Unavailable("lost", tokens=None)
                return await world.backend.complete(body, limit, **options)

            async def close(self):
                pass

        with world.make(Fails(), policy="uniform", attempts=1, concurrency=1) as run:
            asyncio.run(run.execute())
            assert run.summary().count("failed") == 5
        with world.make(policy="uniform", attempts=1, concurrency=1) as run:
            asyncio.run(run.execute())
            assert run.summary().count("failed") == 0
            assert sum(result.cost for result in run.results()) == run.ledger.spent


async def _first(run, count):
    async for result in run:
        yield result
        count -= 1
        if not count:
            return


def test_money_does_not_pay_for_what_has_no_bound(tmp_path):
    content = [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]
    body = {"messages": [{"role": "user", "content": content}]}
    with pytest.raises(InputError, match="more than text"):
        Run([body], budget="$1", rates=Rates.dollars(1, 4), backend=RecordedBackend([]))


def test_a_prompt_above_its_bound_stops_a_run_that_pays_for_it():
    class Counts:
        model = "m"

        def can_continue(self, body):
            return False

        async def complete(self, body, limit, **options):
            return Completion("ok", 5, "stop", "server", input_tokens=25_000)

        async def close(self):
            pass

    run = Run(
        [f"Question {i}?" for i in range(50)], budget="$1", rates=Rates.dollars(1, 4), backend=Counts(), concurrency=2
    )
    asyncio.run(run.execute())
    assert "cost more than its prompt and its limit can" in run.progress.stopped
    assert run.summary().count("not_sent") >= 40
