"""A metered run pays for what is generated, continues where it stopped, and never exceeds its budget."""

import asyncio
import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
import zlib
from collections import Counter
from contextlib import closing
from types import MappingProxyType

import numpy as np
import pytest

from shadowprice import Forecast
from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.llamacpp import LlamaCppServer
from shadowprice.backends.openai import OpenAIBackend
from shadowprice.backends.recorded import RecordedBackend
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.errors import Refused, Unavailable
from shadowprice.formats.requests import requests_from
from shadowprice.formats.results import parse_chunk
from shadowprice.market.gittins import schedule
from shadowprice.runs import Run
from shadowprice.types import Trace
from tests.quick import QUICK

from .. import test_crash
from ..backends import hostile
from ..backends.asking import client_of
from ..conftest import read_jsonl, request_line


class Given:
    """Forecasts by name."""

    def __init__(self, tokens, spread=0.5, solve=0.8):
        self.tokens, self.spread, self.solve = tokens, spread, solve

    def predict(self, requests):
        return Forecast([self.tokens[request.id] for request in requests], self.spread, self.solve)


class World:
    """Requests, forecasts that are about right, and a run folder. The larger the spread, the shorter the chunks."""

    def __init__(self, folder, lengths, budget, spread=0.5, **body):
        self.lengths, self.folder, self.budget = lengths, folder, budget
        rng = np.random.default_rng(1)
        self.forecaster = Given({name: length * rng.lognormal(0, 0.5) for name, length in lengths.items()}, spread)
        self.requests = [request_line(name, name, **body) for name in lengths]

    def make(self, backend, **settings):
        return Run(
            self.requests,
            budget=self.budget,
            backend=backend,
            folder=self.folder / "run",
            forecaster=self.forecaster,
            **{"policy": "index", "accounting": "metered", "chunk": 8, **settings},
        )

    def run(self, backend, *, until=None, **settings):
        """The summary; what the ledger holds is kept, too. It is cut off once the ledger is such as `until` says."""

        async def execute(run):
            running = asyncio.ensure_future(run.execute(tolerance=QUICK))
            try:
                while until and not running.done():
                    await asyncio.sleep(0.01)
                    if until(run.ledger):
                        running.cancel()
                        break
                return await running
            finally:
                await backend.close()

        with self.make(backend, **settings) as run:
            try:
                summary = asyncio.run(execute(run))
                run.write(self.folder / "out", self.folder / "err")
            finally:
                self.look(run.ledger)
        return summary

    def look(self, ledger):
        self.spent, self.overspent, self.reserved = ledger.spent, ledger.overspent, ledger.reserved
        self.entries, self.chunks = list(ledger.entries()), list(ledger.chunks())
        self.begun = {name for name, _ in self.chunks if not ledger.has_result(name)}

    @property
    def chunks_per_answer(self):
        return len(self.chunks) / len(self.answers())

    def answers(self):
        """What each request got: text, finish, tokens and flags."""
        found = {}
        for line in read_jsonl(self.folder / "out"):
            (choice,) = line["response"]["body"]["choices"]
            own = line["shadowprice"]
            assert line["response"]["body"]["usage"]["completion_tokens"] == own["tokens"]
            found[line["custom_id"]] = choice["message"]["content"], own["finish"], own["tokens"], own["flags"]
        return found

    def errors(self):
        return {line["custom_id"]: line["error"]["code"] for line in read_jsonl(self.folder / "err")}


@pytest.fixture
def world(tmp_path):
    return lambda lengths, budget, **options: World(tmp_path, lengths, budget, **options)


def some_lengths(n, most=120, seed=0):
    rng = np.random.default_rng(seed)
    return {f"q{i}": int(rng.integers(1, most)) for i in range(n)}


def traces(lengths):
    return [Trace(name, name, n, response="x" * n) for name, n in lengths.items()]


def recorded(lengths):
    return RecordedBackend(traces(lengths))


class PowerCut(BaseException):
    """Nothing can be done about it."""


class TestOnRecordedAnswers:
    @pytest.mark.parametrize("budget", [0, 1, 300, 2000, 10**6])
    def test_every_request_ends_in_one_file_and_the_budget_holds(self, world, budget):
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

    def test_more_answers_come_to_their_end_than_with_grants(self, tmp_path):
        finished = {}
        for policy, accounting in (("clear", "reserved"), ("index", "metered")):
            w = World(tmp_path / policy, lengths := some_lengths(100, 400), 6000)
            w.folder.mkdir()
            finished[policy] = w.run(recorded(lengths), policy=policy, accounting=accounting).count("finished")
        assert finished["index"] > 1.2 * finished["clear"]

    def test_the_callers_own_limit_holds(self, world):
        w = world(lengths := some_lengths(20), 10**6, max_tokens=30)
        w.run(recorded(lengths))
        for name, (_, finish, tokens, _) in w.answers().items():
            assert tokens == min(30, lengths[name])
            assert (finish == "stop") == (lengths[name] <= 30)

    def test_as_many_are_served_at_once_as_allowed(self, world):
        class Counting(RecordedBackend):
            now = most = 0

            async def complete(self, *arguments, **options):
                self.now += 1
                self.most = max(self.most, self.now)
                await asyncio.sleep(0.001)
                self.now -= 1
                return await super().complete(*arguments, **options)

        w = world(lengths := some_lengths(40), 10**6)
        backend = Counting(traces(lengths))
        w.run(backend, concurrency=7)
        assert backend.most == 7

    def test_a_run_that_was_interrupted_continues_from_its_parts(self, world):
        """Nothing is generated twice: the rest costs what is missing of the whole."""

        class Stops(RecordedBackend):
            calls = 0

            async def complete(self, *arguments, **options):
                self.calls += 1
                if self.calls > 25:
                    raise PowerCut
                return await super().complete(*arguments, **options)

        w = world(lengths := some_lengths(30), 10**6, spread=1.5)
        with pytest.raises(PowerCut):
            w.run(Stops(traces(lengths)), concurrency=1)
        assert w.begun
        w.run(recorded(lengths))
        assert {name: answer[2] for name, answer in w.answers().items()} == lengths
        lost = sum(entry.units for entry in w.entries if entry.kind == "orphan")
        assert w.spent == sum(lengths.values()) + lost
        before = w.entries
        w.run(recorded(lengths))
        assert w.entries == before


class Flaky(RecordedBackend):
    """Fails in these ways, one after the other, from its call number `first` on."""

    def __init__(self, length, first, *failures):
        super().__init__(traces({"q": length}))
        self.first, self.failures, self.calls = first, list(failures), 0

    async def complete(self, *arguments, **options):
        self.calls += 1
        if self.calls >= self.first and self.failures:
            raise self.failures.pop(0)
        return await super().complete(*arguments, **options)


class TestFailures:
    def one(self, world, backend, budget=1000, **settings):
        w = world({"q": 50}, budget, spread=2.0)
        return w, w.run(backend, chunk=5, **settings)

    def test_an_attempt_that_generated_nothing_is_repeated_at_no_cost(self, world):
        backend = Flaky(50, 3, Unavailable("busy", tokens=0, delay=0.001), Unavailable("busy", tokens=0))
        w, summary = self.one(world, backend)
        assert (summary.count("finished"), summary.spent) == (1, 50)
        assert w.answers()["q"][0] == "x" * 50

    def test_an_unknown_outcome_costs_its_chunk_and_the_answer_continues(self, world):
        w, summary = self.one(world, Flaky(50, 3, Unavailable("lost", tokens=None)))
        grants = [entry.units for entry in w.entries if entry.kind == "reserve"]
        assert (summary.count("finished"), summary.spent) == (1, 50 + grants[2])
        assert w.answers()["q"][:3] == ("x" * 50, "stop", 50)

    def test_unknown_outcomes_never_add_up_to_more_than_the_budget(self, world):
        w, summary = self.one(world, Flaky(50, 2, *[Unavailable("lost", tokens=None)] * 99), budget=70, attempts=100)
        assert (summary.spent, w.overspent) == (70, 0)

    def test_attempts_are_bounded_and_what_was_generated_before_is_kept(self, world):
        backend = Flaky(50, 3, *[Unavailable("busy", tokens=0, delay=0.0)] * 99)
        w, summary = self.one(world, backend, attempts=3)
        assert (backend.calls, summary.count("truncated")) == (2 + 3, 1)
        text, finish, tokens, flags = w.answers()["q"]
        assert (finish, flags) == ("length", ["not_continued"])
        assert len(text) == tokens == summary.spent > 0

    def test_if_nothing_was_generated_it_has_failed(self, world):
        w, summary = self.one(world, Flaky(50, 1, *[Unavailable("busy", tokens=0, delay=0.0)] * 99), attempts=3)
        assert (summary.count("failed"), summary.spent) == (1, 0)
        assert w.errors() == {"q": "backend_unavailable"}

    @pytest.mark.parametrize(("first", "outcomes"), [(1, {"failed": 1}), (2, {"truncated": 1})])
    def test_a_refusal_is_final(self, world, first, outcomes):
        backend = Flaky(50, first, Refused("no", code="model_not_found"))
        _, summary = self.one(world, backend)
        assert (backend.calls, summary.outcomes) == (first, outcomes)


# --- a server that tells stories ---------------------------------------------------------------


def story(question):
    """What the greedy model says to a question, in tokens: words with all kinds of white space after them."""
    rng = random.Random(zlib.crc32(question.encode()))
    spaces = [" ", " ", ".", "\n", "\n\n", "  "]
    length = 1 + min(400, int(rng.lognormvariate(3.7, 1.2)))
    return [f"{rng.choice('abcdefgh')}{i}{rng.choice(spaces)}" for i in range(length)]


def after(tokens, printed):
    """The tokens that come after what was generated; the first may be what is left of one."""
    assert "".join(tokens).startswith(printed), "this is not what the model generated"
    while printed and len(tokens[0]) <= len(printed):
        printed, tokens = printed[len(tokens[0]) :], tokens[1:]
    return [tokens[0][len(printed) :], *tokens[1:]] if printed else tokens


def tells(continues=True, trims=False, refuses=False, thinks=False, usage=True, pause=0.0):
    """A greedy model behind a server that continues an assistant's message, or starts over after it.

    It may trim messages, as some chat templates do, refuse fields it does not know, or think instead of speaking.
    """

    async def behave(request, reply):
        if refuses and "continue_final_message" in request.body:
            await reply.error(400, "Unrecognized request argument supplied: continue_final_message")
            return
        question, *more = (message["content"] for message in request.body["messages"])
        printed, whole = "".join(more), story(question)
        rest = after(whole, printed.rstrip() if trims else printed) if continues else whole
        known = sum(len("".join(whole[:i])) < len(printed) for i in range(len(whole)))  # tokens
        prompt = 15 + known + (0 if continues or not printed else 5)
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


class TestAServerThatContinues:
    @pytest.mark.parametrize("trims", [False, True])
    def test_answers_in_parts_are_what_they_are_in_one(self, world, trims):
        """White space that a chat template may lose is generated, and paid for, again."""
        w = world(LENGTHS, 10**6, spread=1.5)
        with hostile.Server(tells(trims=trims)) as server:
            w.run(client(server))
            assert server.generated == w.spent
        assert w.chunks_per_answer > 0.5
        assert {name: answer[:2] for name, answer in w.answers().items()} == {n: (t, "stop") for n, t in TEXTS.items()}
        assert all(LENGTHS[name] <= tokens < 1.2 * LENGTHS[name] + 5 for name, (_, _, tokens, _) in w.answers().items())

    def test_the_last_token_of_a_budget_is_spent_and_none_above_it(self, world):
        budget = sum(LENGTHS.values()) // 3
        w = world(LENGTHS, budget, spread=1.5)
        with hostile.Server(tells()) as server:
            summary = w.run(client(server))
            assert server.generated == w.spent == budget
        answers = w.answers()
        assert all(summary.count(outcome) for outcome in ("finished", "truncated", "declined"))
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


class TestAServerThatStartsOver:
    """Answers come in one go; the one that showed it is begun again."""

    ways = pytest.mark.parametrize(
        "behaviour",
        [tells(continues=False), tells(refuses=True), tells(thinks=True)],
        ids=["starts over", "refuses", "thinks"],
    )

    @ways
    def test_is_noticed_before_much_is_lost(self, world, behaviour, request):
        w = world(LENGTHS, 10**6, spread=1.5)
        with hostile.Server(behaviour) as server:
            w.run(client(server))
            assert server.generated == w.spent
            assert 0 < server.generated - sum(LENGTHS.values()) <= 16
        assert len(w.chunks) == 1  # the first of the two pieces that showed it
        printed = {name: "" if "thinks" in request.node.name else text for name, text in TEXTS.items()}
        assert {name: answer[:2] for name, answer in w.answers().items()} == {
            n: (t, "stop") for n, t in printed.items()
        }

    @ways
    def test_does_not_pass_a_budget(self, world, behaviour):
        budget = sum(LENGTHS.values()) // 3
        w = world(LENGTHS, budget, spread=1.5)
        with hostile.Server(behaviour) as server:
            summary = w.run(client(server))
            assert server.generated == w.spent == budget
        assert w.overspent == 0
        assert summary.count("finished") > 0

    def test_is_given_limits_where_the_index_falls_below_the_price(self, world):
        w = world(LENGTHS, sum(LENGTHS.values()) // 2, spread=1.5)
        with hostile.Server(tells(continues=False)) as server:
            price = w.run(client(server), concurrency=1).rounds[0].price
            asked = [([message["content"] for message in r.body["messages"]], r.limit) for r in server.requests]
        plan = schedule(w.forecaster.predict(requests_from(w.requests)), np.inf)
        worth = {name: plan.stop[(plan.query == i) & (plan.index >= price)] for i, name in enumerate(LENGTHS)}
        shown = [len(printed) for printed, _ in asked].index(2)  # that it starts over
        early = [
            (limit, worth[printed[0]].max()) for printed, limit in asked[shown + 1 :][:7]
        ]  # before the first lesson
        assert [limit for limit, _ in early] == [age for _, age in early]

    def test_that_does_not_count_is_charged_what_it_may_have_generated_and_reported(self, world):
        budget = sum(LENGTHS.values())
        w = world(LENGTHS, budget, spread=1.5)
        with hostile.Server(tells(usage=False)) as server:
            summary = w.run(client(server))
            assert server.generated <= w.spent <= budget
        assert summary.flags == {"not_counted": summary.count("finished", "truncated")}
        assert summary.count("finished") > 0

    def test_parts_of_an_earlier_execution_are_answers_as_they_are_unless_they_are_short(self, world):
        def long_parts(chunks, begun):
            age = Counter()
            for name, line in chunks:
                age[name] += parse_chunk(line)[0].tokens
            return {name for name in begun if age[name] > 16}

        def has_one(ledger):
            chunks = list(ledger.chunks())
            return bool(long_parts(chunks, {name for name, _ in chunks if not ledger.has_result(name)}))

        w = world(LENGTHS, 10**6, spread=1.5)
        with hostile.Server(tells(pause=0.003)) as server:
            with pytest.raises(asyncio.CancelledError):
                w.run(client(server), until=has_one)
            kept = long_parts(w.chunks, w.begun)
            server.behave = tells(continues=False)
            w.run(client(server))
            assert server.generated <= w.spent
        for name, (text, finish, _, flags) in w.answers().items():
            assert TEXTS[name].startswith(text)
            assert (finish == "length") == (name in kept) == (flags == ["not_continued"])


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
        w = world({name: LENGTHS[name] for name in list(LENGTHS)[:5]}, budget, spread=1.5)

        async def behave(request, reply):
            nonlocal calls
            calls += 1
            reply.say = lambda count: hostile.Reply.say(reply, min(count, request.limit))
            await (MISBEHAVIOURS[how] if calls % every == 0 else tells())(request, reply)

        with hostile.Server(behave) as server:
            summary = w.run(client(server, timeout=0.3, stall_timeout=0.1), concurrency=4, attempts=2)
            ignored = "ignored a limit" in summary.stopped
            assert server.generated <= w.spent or ignored or w.overspent
        assert (ignored or w.overspent > 0) == (how in IGNORES_LIMITS)
        assert w.spent <= budget
        if how not in ("says a usage above its limit", "a book in one piece"):  # which are charged as they are
            assert w.overspent == 0
        assert w.reserved == 0
        assert len(w.answers()) + len(w.errors()) == 5
        for name, (text, finish, _, _) in w.answers().items():
            if every > 1 and finish == "stop" and "say" not in how and "stream" not in how and "book" not in how:
                assert text == TEXTS[name]


# --- killed and resumed ------------------------------------------------------------------------


class MeteredRun(test_crash.Run):
    """Without a forecast to speak of, so that many answers outlast their chunks."""

    def __init__(self, folder, starter, server, budget):
        super().__init__(folder, starter, server, budget, "index")
        forecast = folder / "forecast.jsonl"
        lines = [{"custom_id": q, "tokens": 40, "spread": 1.2, "solve": 0.5} for q in test_crash.REQUESTS]
        forecast.write_text("".join(json.dumps(line) + "\n" for line in lines))
        at = self.arguments.index("--max-tokens")
        del self.arguments[at : at + 2]
        self.arguments += ["--accounting", "metered", "--forecast", forecast]


@pytest.fixture(scope="module")
def starter():
    with test_crash.Starter() as running:
        yield running


class TestKilled:
    """Where tests/test_crash.py has whole answers, these come in parts."""

    whole = MappingProxyType({q: story(f"Tell me about {q}.") for q in test_crash.REQUESTS})
    needed = sum(map(len, whole.values()))

    @pytest.mark.parametrize(("share", "kills"), [(2.0, 4), (0.4, 3)])
    def test_a_run_continues_and_pays_for_nothing_twice(self, starter, tmp_path, share, kills):
        with hostile.Server(tells(pause=0.001)) as server:
            run = MeteredRun(tmp_path / "run", starter, server, int(share * self.needed))
            run.disturb(random.Random(f"{share} {signal.SIGKILL}"), kills, signal.SIGKILL)
            assert run.kills_at_work > 0
            assert sum(row["kind"] == "chunk" for row in run.journal()) > 20
        answers = run.answers()
        for name, (text, finish, _) in answers.items():
            whole = "".join(self.whole[name])
            assert text == whole if finish == "stop" else whole.startswith(text)
        ends = {finish for _, finish, _ in answers.values()}
        assert ends == ({"stop"} if share > 1 else {"stop", "length"})
        assert share < 1 or len(answers) == len(self.whole)

    @pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGTERM])
    def test_ctrl_c_finishes_what_is_under_way_so_that_nothing_is_wasted(self, starter, tmp_path, kill):
        budget = int(1.1 * self.needed)  # white space at the end of a part may be generated twice
        with hostile.Server(tells(pause=0.001)) as server:
            run, rng = MeteredRun(tmp_path / "run", starter, server, budget), random.Random("ctrl-c")
            while run.kills < 2 and run.killed(rng, kill):
                run.kills += 1
            run.end()
            assert run.kills
            assert "orphan" not in {row["kind"] for row in run.journal()}
        assert {name for name, (_, finish, _) in run.answers().items() if finish == "stop"} == set(self.whole)


# --- a real model ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(gguf):
    """Few slots and many answers that wait, so that each finds its slot taken by another."""
    with LlamaCppServer(gguf, slots=4, cache=256) as running:
        yield running


@pytest.fixture
def backend(model, monkeypatch):
    return client_of(model, monkeypatch)


CAP = 32
# Beside the tasks: words that the model spells in an unusual way, and characters of several tokens.
AWKWARD = [
    "Describe the history of Liberia in detail. Then give its capital, in a line that begins with Answer:",
    "Write five emoji: \U0001f600\U0001f603\U0001f604\U0001f643, then repeat them twice.",
    "\u8bf7\u7528\u4e2d\u6587\u5199\u4e09\u53e5\u8bdd\u4ecb\u7ecd\u5317\u4eac\u3002",
]
PROMPTS = [*AWKWARD, *[trace.prompt for trace in shipped_traces("eval", "smollm2") if 12 <= trace.tokens <= 60][:21]]


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
    @pytest.mark.parametrize("budget", [150, 400])
    def test_what_the_model_itself_counts_is_within_the_budget(self, model, backend, undisturbed, world, budget):
        lengths = {prompt: answer.tokens for prompt, answer in undisturbed.items()}
        w = world(lengths, budget, spread=1.5, temperature=0)
        before = model.tokens_predicted()
        summary = w.run(backend, max_tokens=CAP)
        assert model.tokens_predicted() - before == summary.spent == min(budget, sum(lengths.values()))
        assert w.chunks_per_answer > 0.3
        for prompt, (text, finish, tokens, flags) in w.answers().items():
            whole = undisturbed[prompt]
            assert whole.text.startswith(text)
            assert (text == whole.text) if finish == "stop" else tokens <= whole.tokens
            assert not flags

    def test_as_a_server_like_any_other_it_shows_that_it_continues(self, model, undisturbed, world):
        """By text, which is exact where the model spells words in the usual way."""
        lengths = {prompt: undisturbed[prompt].tokens for prompt in PROMPTS[len(AWKWARD) :][:8]}
        w = world(lengths, 10**6, spread=1.5, temperature=0)
        before, other = model.tokens_predicted(), OpenAIBackend(model.base_url, model.model, api_key="none")
        assert other.can_continue(chat("?")) is None
        summary = w.run(other, max_tokens=CAP)
        assert other.can_continue(chat("?")) is True
        assert model.tokens_predicted() - before == summary.spent
        assert w.chunks_per_answer > 0.5
        for prompt, (text, finish, _, _) in w.answers().items():
            whole = undisturbed[prompt].text  # one that was cut may be shorter, by white space generated twice
            assert text == whole if finish == "stop" else whole.startswith(text)

    def test_killed_and_resumed_it_continues_from_the_very_tokens(self, gguf, undisturbed, tmp_path):
        command = [sys.executable, "-c", ONE_RUN, str(gguf), str(tmp_path), json.dumps(PROMPTS), str(CAP)]
        ledger = tmp_path / "run" / "ledger.sqlite"
        for rows in (20, 45):
            with subprocess.Popen(command) as process:
                while len(journal(ledger)) < rows and process.poll() is None:
                    time.sleep(0.02)
                process.kill()
            assert process.returncode == -signal.SIGKILL
        subprocess.run(command, check=True, timeout=120)
        with Ledger.reopen(ledger) as account:
            assert (account.spent, account.overspent, account.reserved) == (320, 0, 0)
            kinds = [entry.kind for entry in account.entries()]
            answers = {name: json.loads(line) for name, line in account.results()}
        assert kinds.count("orphan") > 0
        assert kinds.count("chunk") > 10
        ends = {name: line["shadowprice"]["finish"] for name, line in answers.items()}
        assert set(ends.values()) == {"stop", "length"}
        for name, line in answers.items():
            text, whole = line["response"]["body"]["choices"][0]["message"]["content"], undisturbed[PROMPTS[int(name)]]
            assert text == whole.text if ends[name] == "stop" else whole.text.startswith(text)


ONE_RUN = """
import asyncio, json, sys
from pathlib import Path
from shadowprice import Forecast, Request
from shadowprice.backends.llamacpp import LlamaCppBackend
from shadowprice.runs import Run

class Alike:
    def predict(self, requests):
        return Forecast([20.0] * len(requests), 1.5)

gguf, folder, prompts, cap = sys.argv[1:]
bodies = [{"messages": [{"role": "user", "content": prompt}], "temperature": 0} for prompt in json.loads(prompts)]
requests = [Request(str(i), "", body=body) for i, body in enumerate(bodies)]

async def go():
    backend = LlamaCppBackend(gguf, slots=4, cache=256)
    settings = {"policy": "index", "accounting": "metered", "max_tokens": int(cap), "chunk": 8, "concurrency": 4}
    settings |= {"folder": Path(folder) / "run", "forecaster": Alike()}
    try:
        with Run(requests, budget=320, backend=backend, **settings) as run:
            await run.execute()
    finally:
        await backend.close()

asyncio.run(go())
"""


def journal(path):
    """The rows of a ledger, read beside its only writer."""
    if not path.exists():
        return []
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        try:
            return db.execute("SELECT kind FROM journal").fetchall()
        except sqlite3.OperationalError:  # it is being created
            return []
