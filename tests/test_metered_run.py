"""A metered run pays for what is generated, goes on where it stopped, and never spends a token too many."""

import asyncio
import importlib.util
import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
import zlib
from contextlib import closing

import numpy as np
import pytest

from shadowprice import Forecast, InputError
from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends import llamacpp as local
from shadowprice.backends.base import joined
from shadowprice.backends.llamacpp import LocalBackend, LocalServer, fetch_model
from shadowprice.backends.openai import OpenAIBackend
from shadowprice.backends.recorded import ReplayBackend
from shadowprice.cli import main
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.engine import metered as metering
from shadowprice.engine.metered import replayed
from shadowprice.errors import BackendError, Refused, Unavailable
from shadowprice.formats.batch import read_requests
from shadowprice.market.gittins import schedule
from shadowprice.metered_runner import run_metered
from shadowprice.runner import Settings, run, write_results
from shadowprice.types import Trace

from .backends import hostile
from .conftest import read_jsonl, request_line
from .test_crash import QUERIES, Run, Starter


class Told:
    """Forecasts by name."""

    def __init__(self, tokens, spread=0.5, solve=0.8):
        self.tokens, self.spread, self.solve = tokens, spread, solve

    def predict(self, queries):
        return Forecast([self.tokens[query.id] for query in queries], self.spread, self.solve)


class World:
    """A batch, a forecast of it that is about right, and a ledger. The larger the spread, the shorter the stretches."""

    def __init__(self, folder, batch, lengths, budget, spread=0.5, **body):
        self.lengths, self.folder = lengths, folder
        rng = np.random.default_rng(1)
        told = {name: length * rng.lognormal(0, 0.5) for name, length in lengths.items()}
        self.told = Told(told, spread)
        self.requests = list(read_requests(batch([request_line(name, name, **body) for name in lengths])))
        self.ledger = Ledger.create(folder / "ledger.sqlite", budget)

    def run(self, backend, way=run_metered, **settings):
        settings = Settings(**{"patience": 0.01, "quantum": 8, **settings})

        async def go():
            try:
                return await way(self.requests, self.ledger, backend, self.told, settings)
            finally:
                await backend.close()

        progress = asyncio.run(go())
        return write_results(self.requests, self.ledger, progress, out=self.folder / "out", errors=self.folder / "err")

    def answers(self):
        """What each query got: text, finish, tokens and flags."""
        found = {}
        for line in read_jsonl(self.folder / "out"):
            (choice,) = line["response"]["body"]["choices"]
            told = line["shadowprice"]
            assert line["response"]["body"]["usage"]["completion_tokens"] == told["tokens"]
            found[line["custom_id"]] = choice["message"]["content"], told["finish"], told["tokens"], told["flags"]
        return found

    def errors(self):
        return {line["custom_id"]: line["error"]["code"] for line in read_jsonl(self.folder / "err")}


@pytest.fixture
def world(tmp_path, batch):
    made = []

    def make(lengths, budget, **options):
        made.append(World(tmp_path, batch, lengths, budget, **options))
        return made[-1]

    yield make
    for each in made:
        each.ledger.close()


def some_lengths(n, most=120, seed=0):
    rng = np.random.default_rng(seed)
    return {f"q{i}": int(rng.integers(1, most)) for i in range(n)}


def recorded(lengths):
    return ReplayBackend([Trace(name, name, n, response="x" * n) for name, n in lengths.items()])


class TestOnRecordedAnswers:
    @pytest.mark.parametrize("budget", [0, 1, 300, 2000, 10**6])
    def test_every_query_ends_in_one_file_and_the_budget_holds(self, world, budget):
        w = world(lengths := some_lengths(50), budget)
        summary = w.run(recorded(lengths))
        answers, errors = w.answers(), w.errors()
        assert sorted([*answers, *errors]) == sorted(lengths)
        assert set(errors.values()) <= {"budget_abandoned"}
        assert summary.spent == sum(tokens for _, _, tokens, _ in answers.values()) <= budget
        assert summary.spent == min(budget, sum(lengths.values()))  # while somebody could use it
        for name, (text, finish, tokens, flags) in answers.items():
            assert (len(text), flags) == (tokens, [])
            assert (finish == "stop") == (tokens == lengths[name])

    def test_alone_and_token_by_token_it_is_the_replay_of_the_market(self, world):
        w = world(lengths := some_lengths(60), 1500)
        w.run(recorded(lengths), concurrency=1, quantum=1)
        forecast = w.told.predict([r.query for r in w.requests])
        wanted = replayed(forecast, 1500, np.inf, list(lengths.values()))
        answers = w.answers()
        assert [answers[name][2] if name in answers else 0 for name in lengths] == wanted.tolist()

    def test_more_answers_come_to_their_end_than_with_grants(self, tmp_path, batch):
        finished = {}
        for way in (run, run_metered):
            (folder := tmp_path / way.__name__).mkdir()
            w = World(folder, batch, lengths := some_lengths(100, 400), 6000)
            finished[way] = w.run(recorded(lengths), way).finished
            w.ledger.close()
        assert finished[run_metered] > 1.2 * finished[run]

    def test_the_callers_own_limit_holds(self, world):
        w = world(lengths := some_lengths(20), 10**6, max_tokens=30)
        w.run(recorded(lengths))
        for name, (_, finish, tokens, _) in w.answers().items():
            assert tokens == min(30, lengths[name])
            assert (finish == "stop") == (lengths[name] <= 30)

    def test_answers_longer_than_their_forecast_thinks_possible_go_on_while_nobody_else_wants_the_tokens(self, world):
        w = world(lengths := dict.fromkeys(["a", "b", "c"], 300), 800)
        w.told = Told(dict.fromkeys(lengths, 20), spread=0.05)
        summary = w.run(recorded(lengths))
        assert (summary.finished, summary.truncated, summary.spent) == (2, 1, 800)

    def test_as_many_are_served_at_once_as_allowed(self, world):
        class Counting(ReplayBackend):
            now = most = 0

            async def extend(self, body, so_far, limit):
                self.now += 1
                self.most = max(self.most, self.now)
                await asyncio.sleep(0.001)
                self.now -= 1
                return await super().extend(body, so_far, limit)

        w = world(lengths := some_lengths(40), 10**6)
        backend = Counting([Trace(name, name, n, response="x" * n) for name, n in lengths.items()])
        w.run(backend, concurrency=7)
        assert backend.most == 7

    def test_several_answers_to_one_request_are_refused(self, world):
        w = world(lengths := some_lengths(2), 100, n=2)
        with pytest.raises(InputError, match="several answers"):
            w.run(recorded(lengths))

    def test_a_run_that_was_interrupted_goes_on_from_its_parts(self, world):
        """Nothing is generated twice: the rest costs what is missing of the whole."""

        class Stops(ReplayBackend):
            calls = 0

            async def extend(self, body, so_far, limit):
                self.calls += 1
                if self.calls > 25:
                    raise RuntimeError("the power is gone")
                return await super().extend(body, so_far, limit)

        w = world(lengths := some_lengths(30), 10**6, spread=1.5)
        backend = Stops([Trace(name, name, n, response="x" * n) for name, n in lengths.items()])
        with pytest.raises(ExceptionGroup):
            w.run(backend, concurrency=1)
        begun = {name: json.loads(part) for name, part in w.ledger.parts() if not w.ledger.has_result(name)}
        assert begun
        w.ledger.close()
        w.ledger = Ledger.reopen(w.ledger.path)
        lost = w.ledger.spent - sum(e.tokens for e in w.ledger.entries() if e.kind in ("settle", "pause"))
        w.run(recorded(lengths))
        assert {name: answer[2] for name, answer in w.answers().items()} == lengths
        assert w.ledger.spent == sum(lengths.values()) + lost
        before = list(w.ledger.entries())
        w.run(recorded(lengths))
        assert list(w.ledger.entries()) == before


class Flaky(ReplayBackend):
    """Fails in these ways, one after the other, from its call number `first` on."""

    def __init__(self, length, first, *failures):
        super().__init__([Trace("q", "q", length, response="x" * length)])
        self.first, self.failures, self.calls = first, list(failures), 0

    async def extend(self, body, so_far, limit):
        self.calls += 1
        if self.calls >= self.first and self.failures:
            raise self.failures.pop(0)
        return await super().extend(body, so_far, limit)


class TestFailures:
    def one(self, world, backend, budget=1000, **settings):
        w = world({"q": 50}, budget, spread=2.0)
        summary = w.run(backend, quantum=5, **settings)
        return w, summary

    def test_an_attempt_that_generated_nothing_is_tried_again_for_nothing(self, world):
        backend = Flaky(50, 3, Unavailable("busy", tokens=0, delay=0.001), Unavailable("busy", tokens=0))
        w, summary = self.one(world, backend)
        assert (summary.finished, summary.spent) == (1, 50)
        assert w.answers()["q"][0] == "x" * 50

    def test_an_unknown_outcome_costs_its_stretch_and_the_answer_goes_on(self, world):
        w, summary = self.one(world, Flaky(50, 3, Unavailable("lost", tokens=None)))
        grants = [e.tokens for e in w.ledger.entries() if e.kind == "reserve"]
        assert (summary.finished, summary.spent) == (1, 50 + grants[2])
        assert w.answers()["q"][:3] == ("x" * 50, "stop", 50)

    def test_unknown_outcomes_never_add_up_to_more_than_the_budget(self, world):
        w, summary = self.one(world, Flaky(50, 2, *[Unavailable("lost", tokens=None)] * 99), budget=70, attempts=100)
        assert (summary.spent, w.ledger.overspent) == (70, 0)

    def test_attempts_are_bounded_and_what_was_said_before_is_kept(self, world):
        backend = Flaky(50, 3, *[Unavailable("busy", tokens=0, delay=0.0)] * 99)
        w, summary = self.one(world, backend, attempts=3)
        assert (backend.calls, summary.truncated) == (2 + 3, 1)
        text, finish, tokens, flags = w.answers()["q"]
        assert (finish, flags) == ("length", ["not_continued"])
        assert len(text) == tokens == summary.spent > 0

    def test_with_nothing_said_it_has_failed(self, world):
        w, summary = self.one(world, Flaky(50, 1, *[Unavailable("busy", tokens=0, delay=0.0)] * 99), attempts=3)
        assert (summary.failed, summary.spent) == (1, 0)
        assert w.errors() == {"q": "backend_unavailable"}

    @pytest.mark.parametrize("first", [1, 2])
    def test_a_refusal_is_final(self, world, first):
        backend = Flaky(50, first, Refused("no", code="model_not_found"))
        _w, summary = self.one(world, backend)
        assert backend.calls == first
        assert (summary.failed, summary.truncated) == ((1, 0) if first == 1 else (0, 1))


# --- a server that tells stories ---------------------------------------------------------------


def story(question):
    """What the greedy model says to a question, in tokens: words with all kinds of white space after them."""
    rng = random.Random(zlib.crc32(question.encode()))
    spaces = [" ", " ", ".", "\n", "\n\n", "  "]
    length = 1 + min(400, int(rng.lognormvariate(3.7, 1.2)))
    return [f"{rng.choice('abcdefgh')}{i}{rng.choice(spaces)}" for i in range(length)]


def after(tokens, said):
    """The tokens that come after what was said; the first may be what is left of one."""
    assert "".join(tokens).startswith(said), "this is not what the model said"
    while said and len(tokens[0]) <= len(said):
        said, tokens = said[len(tokens[0]) :], tokens[1:]
    return [tokens[0][len(said) :], *tokens[1:]] if said else tokens


def tells(goes_on=True, trims=False, refuses=False, thinks=False, usage=True, pause=0.0):
    """A greedy model behind a server that goes on with an assistant's message, or answers anew after it.

    It may trim messages, as some chat templates do, refuse what it does not know, or think before it speaks.
    """

    async def behave(request, reply):
        if refuses and "continue_final_message" in request.body:
            await reply.error(400, "Unrecognized request argument supplied: continue_final_message")
            return
        question, *more = (message["content"] for message in request.body["messages"])
        said, whole = "".join(more), story(question)
        rest = after(whole, said.rstrip() if trims else said) if goes_on else whole
        known = sum(len("".join(whole[:i])) < len(said) for i in range(len(whole)))  # tokens
        prompt = 15 + known + (0 if goes_on or not said else 5)
        count = min(request.limit, len(rest))
        await reply.head()
        for token in rest[:count]:
            if thinks:
                reply.server.generated += 1
                await reply.event(reply.chunk([{"index": 0, "delta": {"reasoning_content": token}}]))
            else:
                await reply.piece(token)
            await asyncio.sleep(pause)
        await reply.finish("length" if request.limit < len(rest) else "stop")
        if usage:
            await reply.usage(count, prompt_tokens=prompt)
        await reply.end()

    return behave


STORIES = {name: story(name) for name in (f"Tell me about {i}." for i in range(40))}
LENGTHS = {name: len(tokens) for name, tokens in STORIES.items()}
TEXTS = {name: "".join(tokens) for name, tokens in STORIES.items()}


def client(server, **options):
    return OpenAIBackend(server.url, "m", timeout=options.pop("timeout", 10), **options)


def parts_per_query(ledger):
    return len(list(ledger.parts())) / len(list(ledger.results()))


class TestAServerThatGoesOn:
    @pytest.mark.parametrize("trims", [False, True])
    def test_answers_in_parts_are_what_they_are_in_one(self, world, trims):
        """White space that a chat template may lose is said, and paid for, again."""
        w = world(LENGTHS, 10**6, spread=1.5)
        with hostile.Server(tells(trims=trims)) as server:
            w.run(client(server))
            assert parts_per_query(w.ledger) > 1
            assert server.generated == w.ledger.spent
        assert {name: answer[:2] for name, answer in w.answers().items()} == {n: (t, "stop") for n, t in TEXTS.items()}
        assert all(LENGTHS[name] <= tokens < 1.2 * LENGTHS[name] + 5 for name, (_, _, tokens, _) in w.answers().items())

    def test_the_last_token_of_a_budget_is_spent_and_none_above_it(self, world):
        budget = sum(LENGTHS.values()) // 3
        w = world(LENGTHS, budget, spread=1.5)
        with hostile.Server(tells()) as server:
            summary = w.run(client(server))
            assert server.generated == w.ledger.spent == budget
        answers = w.answers()
        assert min(summary.finished, summary.truncated, summary.abandoned) > 0
        for name, (text, finish, _, flags) in answers.items():
            assert (TEXTS[name] == text) if finish == "stop" else TEXTS[name].startswith(text)
            assert not flags
        assert set(w.errors().values()) == {"budget_abandoned"}

    def test_what_applies_to_an_answer_as_a_whole_is_answered_in_one_go(self, world):
        w = world(LENGTHS, 10**6, spread=1.5, stop=["never"])
        with hostile.Server(tells()) as server:
            w.run(client(server))
            assert len(server.requests) == len(LENGTHS)
        assert {name: answer[0] for name, answer in w.answers().items()} == TEXTS

    def test_a_plain_prompt_is_sent_with_what_came_after_it(self):
        async def both(server):
            backend, body = client(server), {"prompt": "Once "}
            assert backend.resumes(body)
            first = await backend.extend(body, None, 3)
            await backend.extend(body, first, 3)
            await backend.close()

        with hostile.Server(hostile.well_behaved) as server:
            asyncio.run(both(server))
            assert [request.body["prompt"] for request in server.requests] == ["Once ", "Once w0 w1 w2 "]


class TestAServerThatBeginsAnew:
    """Answers come in one go; the one that showed it is begun anew."""

    ways = pytest.mark.parametrize(
        "behaviour",
        [tells(goes_on=False), tells(refuses=True), tells(thinks=True)],
        ids=["anew", "refuses", "thinks"],
    )

    @ways
    def test_is_noticed_before_anything_is_lost(self, world, behaviour, request):
        w = world(LENGTHS, 10**6, spread=1.5)
        with hostile.Server(behaviour) as server:
            w.run(client(server))
            assert server.generated == w.ledger.spent
            assert 0 < server.generated - sum(LENGTHS.values()) <= 16
        assert list(w.ledger.parts()) == []
        said = {name: "" if "thinks" in request.node.name else text for name, text in TEXTS.items()}
        assert {name: answer[:2] for name, answer in w.answers().items()} == {n: (t, "stop") for n, t in said.items()}

    @ways
    def test_does_not_pass_a_budget(self, world, behaviour):
        budget = sum(LENGTHS.values()) // 3
        w = world(LENGTHS, budget, spread=1.5)
        with hostile.Server(behaviour) as server:
            summary = w.run(client(server))
            assert server.generated == w.ledger.spent == budget
        assert w.ledger.overspent == 0
        assert summary.finished > 0

    def test_is_given_limits_where_the_index_falls_below_the_price(self, world):
        w = world(LENGTHS, sum(LENGTHS.values()) // 2, spread=1.5)
        with hostile.Server(tells(goes_on=False)) as server:
            price = w.run(client(server), concurrency=1).rounds[0].price
            asked = [([message["content"] for message in r.body["messages"]], r.limit) for r in server.requests]
        plan = schedule(w.told.predict([r.query for r in w.requests]), np.inf)
        worth = {name: plan.stop[(plan.query == i) & (plan.index >= price)] for i, name in enumerate(LENGTHS)}
        shown = [len(said) for said, _ in asked].index(2)  # that it begins anew
        early = [(limit, worth[said[0]].max()) for said, limit in asked[shown + 1 :][:20]]
        assert [limit for limit, _ in early] == [age for _, age in early]

    def test_that_does_not_count_is_charged_what_it_may_have_generated_and_told_of(self, world):
        budget = sum(LENGTHS.values())
        w = world(LENGTHS, budget, spread=1.5)
        with hostile.Server(tells(usage=False)) as server:
            summary = w.run(client(server))
            assert server.generated <= w.ledger.spent <= budget
        assert summary.flags == {"not_counted": summary.finished + summary.truncated}
        assert summary.finished > 0

    @pytest.mark.parametrize("usage", [True, False])
    def test_whose_answers_nobody_counted_teaches_nothing_about_lengths(self, world, monkeypatch, usage):
        """What such an answer is charged is its limit."""
        lessons = []
        monkeypatch.setattr(metering, "learnt", lambda forecast, *seen: lessons.append(seen) or forecast)
        w = world(LENGTHS, 10**6)
        w.told = Told({name: 20 + 3 * length for name, length in LENGTHS.items()})
        with hostile.Server(tells(goes_on=False, usage=usage)) as server:
            summary = w.run(client(server))
            assert summary.finished >= 32
            w.run(client(server))  # from the ledger
        assert bool(lessons) == usage

    def test_parts_from_before_are_given_as_far_as_they_came(self, world):
        w = world(LENGTHS, 10**6, spread=1.5)

        async def cut_short(*arguments):
            async with asyncio.timeout(1.5):
                return await run_metered(*arguments)

        with hostile.Server(tells(pause=0.003)) as server:
            with pytest.raises(TimeoutError):
                w.run(client(server), cut_short)
            begun = {name for name, _ in w.ledger.parts() if not w.ledger.has_result(name)}
            assert begun
            server.behave = tells(goes_on=False)
            w.ledger.close()
            w.ledger = Ledger.reopen(w.ledger.path)
            w.run(client(server))
            assert server.generated <= w.ledger.spent
        for name, (text, finish, _, flags) in w.answers().items():
            assert TEXTS[name].startswith(text)
            assert (finish == "length") == (name in begun) == (flags == ["not_continued"])


MISBEHAVIOURS = {
    "says nothing of usage": tells(usage=False),
    "says a wrong usage": hostile.says(6, {"completion_tokens": 0}),
    "never ends": hostile.never_ending,
    "says more than it may and counts it": hostile.ten_tokens_a_piece,
    "a book in one piece": hostile.a_book_in_one_piece,
    "says a usage above its limit": hostile.says(1, {"completion_tokens": 501}),
    "says nonsense": hostile.streams("data: {nonsense\n\n", work=1),
    "429": hostile.fails(429),
    "429 with a delay": hostile.fails(429, retry_after="0.01"),
    "500": hostile.fails(500, work=4),
    "400": hostile.fails(400),
    "breaks off": hostile.error_in_the_stream,
    "half an event": hostile.a_chunk_cut_off,
    "silence": hostile.silence,
    "silence after headers": hostile.silence_after_headers,
    "stalls": hostile.silence_in_mid_stream,
    "only keep-alives": hostile.only_keep_alives,
    "hangs up": hostile.hangs_up,
    "hangs up in mid-stream": hostile.hangs_up_in_mid_stream,
    "knows no stream options": hostile.knows_no_stream_options,
    "does not stream": hostile.does_not_stream,
}
IGNORES_LIMITS = {
    "never ends",
    "says a usage above its limit",
    "says more than it may and counts it",
    "a book in one piece",
}


class TestAnyServer:
    @pytest.mark.parametrize("every", [1, 3])
    @pytest.mark.parametrize("how", MISBEHAVIOURS)
    def test_that_misbehaves_always_or_now_and_then_costs_no_more_than_the_budget(self, world, how, every):
        """Only a server that ignores limits can generate more, and is sent nothing more once that is seen."""
        budget, calls = 500, 0
        w = world({name: LENGTHS[name] for name in list(LENGTHS)[:8]}, budget, spread=1.5)

        async def behave(request, reply):
            nonlocal calls
            calls += 1
            reply.say = lambda count: hostile.Reply.say(reply, min(count, request.limit))
            await (MISBEHAVIOURS[how] if calls % every == 0 else tells())(request, reply)

        with hostile.Server(behave) as server:
            summary = w.run(client(server, timeout=0.3, stall_timeout=0.1), concurrency=4, attempts=2)
            assert server.generated <= w.ledger.spent or summary.stopped
        assert bool(summary.stopped or w.ledger.overspent) == (how in IGNORES_LIMITS)
        assert w.ledger.spent <= budget
        if how != "says a usage above its limit":  # and is believed
            assert w.ledger.overspent == 0
        assert w.ledger.reserved == 0
        assert len(w.answers()) + len(w.errors()) == 8
        for name, (text, finish, _, _) in w.answers().items():
            if every > 1 and finish == "stop" and "say" not in how and "stream" not in how and "book" not in how:
                assert text == TEXTS[name]


# --- killed and resumed ------------------------------------------------------------------------


class MeteredRun(Run):
    def __init__(self, folder, starter, server, budget):
        super().__init__(folder, starter, server, budget, "none")
        forecast = folder / "forecast.jsonl"  # knows nothing, so that many answers outlast their stretches
        lines = [{"custom_id": q, "tokens": 40, "spread": 1.2, "solve": 0.5} for q in QUERIES]
        forecast.write_text("".join(json.dumps(line) + "\n" for line in lines))
        for left_out in ("--policy", "--max-tokens"):
            at = self.arguments.index(left_out)
            del self.arguments[at : at + 2]
        self.arguments += ["--accounting", "metered", "--forecast", forecast]


@pytest.fixture(scope="module")
def starter():
    with Starter() as running:
        yield running


class TestKilled:
    """Where tests/test_crash.py has whole answers, these come in parts."""

    @pytest.mark.parametrize(
        ("share", "kills", "kill"), [(2.0, 5, signal.SIGKILL), (2.0, 1, signal.SIGTERM), (0.4, 3, signal.SIGKILL)]
    )
    def test_a_run_goes_on_from_what_was_said_and_pays_for_nothing_twice(self, starter, tmp_path, share, kills, kill):
        whole = {q: "".join(story(f"Tell me about {q}.")) for q in QUERIES}
        budget = int(share * sum(len(story(f"Tell me about {q}.")) for q in QUERIES))
        with hostile.Server(tells(pause=0.001)) as server:
            run = MeteredRun(tmp_path / "run", starter, server, budget)
            run.disturb(random.Random(f"{share} {kill}"), kills, kill)
            assert run.kills_at_work > 0
            parts = sum(kind == "pause" for _, kind, *_ in run.journal())
        assert parts > 20
        answers = run.answers()
        for name, (text, finish, _) in answers.items():
            assert text == whole[name] if finish == "stop" else whole[name].startswith(text)
        if share > 1:
            assert {finish for _, finish, _ in answers.values()} == {"stop"}
            assert len(answers) == len(QUERIES)
        else:
            assert {finish for _, finish, _ in answers.values()} == {"stop", "length"}

    def test_ctrl_c_finishes_what_is_under_way_so_that_nothing_is_wasted(self, starter, tmp_path):
        needed = sum(len(story(f"Tell me about {q}.")) for q in QUERIES)
        budget = int(1.1 * needed)  # white space at the end of a part may be said twice
        with hostile.Server(tells(pause=0.001)) as server:
            run, rng = MeteredRun(tmp_path / "run", starter, server, budget), random.Random("ctrl-c")
            while run.kills < 2 and run.killed(rng, signal.SIGINT):
                run.kills += 1
            run.end()
            assert run.kills
            assert "orphan" not in {kind for _, kind, *_ in run.journal()}
        assert {name for name, (_, finish, _) in run.answers().items() if finish == "stop"} == set(QUERIES)


# --- the command -------------------------------------------------------------------------------


class TestTheCommand:
    def run(self, folder, batch, server, *more, budget=1500):
        path = batch([request_line(name, name) for name in LENGTHS])
        lines = [{"custom_id": name, "tokens": 40, "spread": 1.2, "solve": 0.5} for name in LENGTHS]
        command = [
            "run", path, "--budget", budget, "--accounting", "metered", "--base-url", server.url, "--model", "m",
            "--forecast", batch(lines, "forecast.jsonl"), "--out", folder / "out", "--errors", folder / "err",
            "--run-folder", folder / "run", "--quiet", *more,
        ]  # fmt: skip
        return main([str(argument) for argument in command])

    def test_says_what_became_of_the_budget(self, tmp_path, batch, capsys):
        with hostile.Server(tells()) as server:
            assert self.run(tmp_path, batch, server) == 3
            assert server.generated == 1500
        said = capsys.readouterr().out
        assert "40 queries, 1,500 tokens, best index first" in said
        assert "spent      1,500 of 1,500 tokens" in said
        manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
        assert (manifest["asked"]["accounting"], manifest["asked"]["policy"]) == ("metered", "metered")
        assert manifest["rounds"][0]["price"] > 0
        assert manifest["summary"]["spent"] == 1500

    def test_a_run_is_continued_in_the_accounting_it_was_started_in(self, tmp_path, batch, capsys):
        with hostile.Server(tells()) as server:
            self.run(tmp_path, batch, server)
            asked = len(server.requests)
            assert self.run(tmp_path, batch, server, "--resume") == 3
            assert self.run(tmp_path, batch, server, "--resume", "--accounting", "reserved") == 2
            assert len(server.requests) == asked
        assert "another accounting" in capsys.readouterr().err

    def test_resuming_what_is_finished_changes_nothing(self, tmp_path, batch, capsys):
        with hostile.Server(tells()) as server:
            found = []
            for more in ([], ["--resume"]):
                self.run(tmp_path, batch, server, *more)
                found.append([(tmp_path / name).read_text() for name in ("out", "err", "run/manifest.json")])
                found[-1].append(capsys.readouterr().out)
        assert found[0] == found[1]

    def test_clearings_before_a_crash_are_kept(self, tmp_path, batch, capsys, monkeypatch):
        with hostile.Server(tells()) as server:
            with monkeypatch.context() as broken:
                broken.setattr(Ledger, "pause", None)
                with pytest.raises(ExceptionGroup):
                    self.run(tmp_path, batch, server)
            self.run(tmp_path, batch, server, "--resume")
        first, second, *_ = json.loads((tmp_path / "run" / "manifest.json").read_text())["rounds"]
        assert (first["budget"], first["queries"]) == (1500, 40)
        assert second["budget"] < 1500
        assert "clearings" in capsys.readouterr().out

    def test_what_was_expected_of_every_query_is_kept(self, tmp_path, batch):
        with hostile.Server(tells()) as server:
            self.run(tmp_path, batch, server)
        kept = read_jsonl(tmp_path / "run" / "forecast.jsonl")
        assert [line["custom_id"] for line in kept] == list(LENGTHS)
        assert {(line["tokens"], line["spread"], line["solve"]) for line in kept} == {(40, 1.2, 0.5)}

    def test_a_request_for_several_answers_is_named_before_anything_begins(self, tmp_path, batch, capsys):
        path = batch([request_line("a"), request_line("b", n=2)])
        command = ["run", path, "--budget", 9, "--accounting", "metered", "--base-url", "http://127.0.0.1:1/v1"]
        assert main([str(a) for a in [*command, "--out", tmp_path / "out"]]) == 2
        assert f"{path}:2: asks for several answers" in capsys.readouterr().err
        assert not list(tmp_path.glob("*.run"))

    @pytest.mark.parametrize(
        "more", [["--samples", "2"], ["--policy", "clear"], ["--option", "beta=1"], ["--no-reclaim"]], ids=" ".join
    )
    def test_what_has_no_meaning_when_metered_is_refused(self, tmp_path, batch, capsys, more):
        with hostile.Server(tells()) as server:
            assert self.run(tmp_path, batch, server, *more) == 2
            assert not server.requests
        assert f"{more[0]} with --accounting metered" in capsys.readouterr().err
        assert not (tmp_path / "run").exists()


# --- a real model ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gguf():
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("needs the extra [local]")
    try:
        return fetch_model()
    except InputError as error:
        pytest.skip(f"the model cannot be had: {error}")


@pytest.fixture(scope="module")
def model(gguf):
    """Few slots and many answers that wait, so that each finds its slot taken by another."""
    with LocalServer(gguf, slots=4, cache=256) as running:
        yield running


@pytest.fixture
def backend(model, monkeypatch):
    """On the server of all; closing it leaves the server alone."""
    monkeypatch.setattr(local, "LocalServer", lambda path, **options: model)
    monkeypatch.setattr(model, "close", lambda: None)
    return LocalBackend(model.path)


CAP = 32
# Beside the tasks: words that the model spells in an unusual way, and characters of several tokens.
AWKWARD = [
    "Describe the history of Liberia in detail. Then give its capital, in a line that begins with Answer:",
    "Write five emoji: \U0001f600\U0001f603\U0001f604\U0001f643, then repeat them twice.",
    "\u8bf7\u7528\u4e2d\u6587\u5199\u4e09\u53e5\u8bdd\u4ecb\u7ecd\u5317\u4eac\u3002",
]
PROMPTS = [*AWKWARD, *[trace.prompt for trace in shipped_traces("eval") if 12 <= trace.tokens <= 60][:21]]


def chat(prompt):
    return {"messages": [{"role": "user", "content": prompt}], "temperature": 0}


@pytest.fixture(scope="module")
def undisturbed(model):
    """The greedy answers in one go, as `run` has them: text, finish and tokens."""

    async def ask():
        client, gate = OpenAIBackend(model.base_url, model.model, api_key="none"), asyncio.Semaphore(4)

        async def one(prompt):
            async with gate:
                return await client.complete(chat(prompt), CAP)

        try:
            return await asyncio.gather(*map(one, PROMPTS))
        finally:
            await client.close()

    answers = asyncio.run(ask())
    assert {answer.finish for answer in answers} == {"stop", "length"}
    return dict(zip(PROMPTS, answers, strict=True))


class TestOnARealModel:
    def test_an_answer_in_parts_is_token_for_token_what_it_is_in_one(self, model, backend, undisturbed):
        """All of them at once, a few tokens each in turn, so that nobody finds his own state in a slot."""

        async def in_turn():
            found, gate = dict.fromkeys(PROMPTS), asyncio.Semaphore(4)

            async def extend(prompt):
                async with gate:
                    so_far = found[prompt]
                    left = CAP - (so_far.tokens if so_far else 0)
                    found[prompt] = joined(so_far, await backend.extend(chat(prompt), so_far, min(8, left)))

            try:
                while due := [p for p, a in found.items() if not a or (a.finish == "length" and a.tokens < CAP)]:
                    await asyncio.gather(*map(extend, due))
            finally:
                await backend.close()
            return found

        before = model.tokens_predicted()
        found = asyncio.run(in_turn())
        assert {p: (a.text, a.finish, a.tokens) for p, a in found.items()} == {
            p: (a.text, a.finish, a.tokens) for p, a in undisturbed.items()
        }
        assert sum(answer.tokens > 16 for answer in found.values()) >= 15  # three parts or more
        assert model.tokens_predicted() - before == sum(answer.tokens for answer in found.values())

    @pytest.mark.parametrize("budget", [150, 400])
    def test_what_the_model_itself_counts_is_within_the_budget(
        self, model, backend, undisturbed, tmp_path, batch, budget
    ):
        lengths = {prompt: answer.tokens for prompt, answer in undisturbed.items()}
        w = World(tmp_path, batch, lengths, budget, spread=1.5, temperature=0)
        before = model.tokens_predicted()
        summary = w.run(backend, max_tokens=CAP, quantum=8)
        assert model.tokens_predicted() - before == summary.spent == min(budget, sum(lengths.values()))
        assert parts_per_query(w.ledger) > 0.3
        w.ledger.close()
        for prompt, (text, finish, tokens, flags) in w.answers().items():
            whole = undisturbed[prompt]
            assert whole.text.startswith(text)
            assert (text == whole.text) if finish == "stop" else tokens <= whole.tokens
            assert not flags

    @pytest.mark.parametrize(
        "more",
        [{"response_format": {"type": "json_object"}}, {"logprobs": True}, {"stop": [","]}],
        ids=lambda more: next(iter(more)),
    )
    def test_what_applies_to_an_answer_as_a_whole_is_heeded(self, backend, more):
        body = {**chat(PROMPTS[-1]), **more}

        async def both():
            try:
                return await backend.complete(body, 12), await backend.extend(body, None, 12)
            finally:
                await backend.close()

        whole, found = asyncio.run(both())
        assert not backend.resumes(body)
        assert found.body["choices"] == whole.body["choices"]

    def test_a_question_that_the_model_cannot_be_asked_costs_nothing(self, backend):
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

        async def ask():
            try:
                await backend.extend({"messages": [{"role": "user", "content": [image]}]}, None, 9)
            finally:
                await backend.close()

        with pytest.raises(BackendError, match="image") as failed:
            asyncio.run(ask())
        assert failed.value.tokens == 0

    def test_as_a_server_like_any_other_it_shows_that_it_goes_on(self, model, undisturbed, tmp_path, batch):
        """By text, which is exact where the model spells words in the usual way."""
        lengths = {prompt: undisturbed[prompt].tokens for prompt in PROMPTS[len(AWKWARD) :][:8]}
        w = World(tmp_path, batch, lengths, 10**6, spread=1.5, temperature=0)
        before, other = model.tokens_predicted(), OpenAIBackend(model.base_url, model.model, api_key="none")
        assert other.resumes(chat("?")) is None
        summary = w.run(other, max_tokens=CAP, quantum=8)
        assert other.resumes(chat("?")) is True
        assert model.tokens_predicted() - before == summary.spent
        assert parts_per_query(w.ledger) > 0.5
        w.ledger.close()
        for prompt, (text, finish, _, _) in w.answers().items():
            whole = undisturbed[prompt].text  # one that was cut may be shorter, by white space that was said twice
            assert text == whole if finish == "stop" else whole.startswith(text)

    def test_killed_and_resumed_it_goes_on_from_the_very_tokens(self, gguf, undisturbed, tmp_path, batch):
        lengths = {prompt: answer.tokens for prompt, answer in undisturbed.items()}
        World(tmp_path, batch, lengths, budget := 320, temperature=0).ledger.close()
        command = [sys.executable, "-c", ONE_RUN, *map(str, (gguf, tmp_path, CAP))]
        for rows in (20, 45):
            with subprocess.Popen(command) as process:
                while len(journal(tmp_path / "ledger.sqlite")) < rows and process.poll() is None:
                    time.sleep(0.02)
                process.kill()
            assert process.returncode == -signal.SIGKILL
        subprocess.run(command, check=True, timeout=120)
        with Ledger.reopen(tmp_path / "ledger.sqlite") as ledger:
            assert (ledger.spent, ledger.overspent, ledger.reserved) == (budget, 0, 0)
            kinds = [entry.kind for entry in ledger.entries()]
            answers = {name: json.loads(line) for name, line in ledger.results()}
        assert kinds.count("orphan") > 0
        assert kinds.count("pause") > 10
        ends = {name: line["shadowprice"]["finish"] for name, line in answers.items()}
        assert set(ends.values()) == {"stop", "length"}
        for name, line in answers.items():
            text, whole = line["response"]["body"]["choices"][0]["message"]["content"], undisturbed[name]
            assert text == whole.text if ends[name] == "stop" else whole.text.startswith(text)


ONE_RUN = """
import asyncio, sys
from pathlib import Path
from shadowprice.backends.llamacpp import LocalBackend
from shadowprice.formats.batch import read_requests
from shadowprice.accounts.sqlite import Ledger
from shadowprice.metered_runner import run_metered
from shadowprice.runner import Settings
from shadowprice.types import Forecast

class Alike:
    def predict(self, queries):
        return Forecast([20.0] * len(queries), 1.5)

gguf, folder, cap = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
requests = list(read_requests(folder / "requests.jsonl"))
settings = Settings(max_tokens=cap, quantum=8, concurrency=4)

async def go(ledger):
    backend = LocalBackend(gguf, slots=4, cache=256)
    try:
        await run_metered(requests, ledger, backend, Alike(), settings)
    finally:
        await backend.close()

with Ledger.reopen(folder / "ledger.sqlite") as ledger:
    asyncio.run(go(ledger))
"""


def journal(path):
    """The rows of an account, read beside its only writer."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        return db.execute("SELECT kind FROM journal").fetchall()
