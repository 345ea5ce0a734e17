"""TALE-EP: the teacher's numbers, or the forecast; prompts that state the limit; and the budget holds."""

import asyncio
import json
import re
import signal
import string
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice import Forecast, Request
from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.openai import OpenAIBackend
from shadowprice.cli import main
from shadowprice.cost import Rates
from shadowprice.errors import Refused, Unavailable
from shadowprice.formats.requests import requests_from
from shadowprice.formats.results import ESTIMATE
from shadowprice.runs import Run
from shadowprice.tale import LIMIT, ask, estimates_in, parse_estimate, with_estimates
from shadowprice.types import Completion
from tests.quick import QUICK

from .backends import hostile
from .conftest import read_jsonl, request_line

STRICTLY = "in digits only"  # words of the second question alone


# --- the number --------------------------------------------------------------------------------


class TestParsing:
    @pytest.mark.parametrize(
        ("text", "number"),
        [
            ("7", 7),
            ("  350\n", 350),
            ("1,200", 1200),
            ("1_200_300", 1200300),
            ("420 tokens", 420),
            ("1 Token", 1),
            ("64tokens", 64),
            ("2147483648", 2**31),
        ],
    )
    def test_one_whole_number_is_taken(self, text, number):
        assert parse_estimate(text) == number

    @pytest.mark.parametrize(
        "text",
        ["", " ", "tokens", "0", "007", "-5", "+5", "1.5", "120.", "1e3", "12 34", "10-20", "1,20", "1,2000", "12,",
         "~50", "about 50", "50 words", "Number of tokens: 50", "**50**", "50 tokens.", "50\n50", "２５", "²",
         "2147483649", "9" * 11, "9" * 5000, "50 to\u212aens", "50 tokenſ", "fifty"],
    )  # fmt: skip
    def test_anything_else_is_not(self, text):
        assert parse_estimate(text) is None

    near_misses = st.from_regex(r"\s?[+-]?\d[\d,_. ]{0,12}( ?[tT]okens?)?\.?\s?", fullmatch=True)

    @given(st.one_of(st.text(), near_misses, st.integers().map(str), st.integers(1, 2**32).map("{:,} tokens".format)))
    def test_it_takes_what_a_reader_without_patterns_takes(self, text):
        assert (parse_estimate(text) is not None) == is_a_number(text)


def is_a_number(text):
    """The same rule, letter by letter."""
    text = text.strip()
    for word in ("tokens", "token"):
        if text[-len(word) :].lower() == word and text.isascii():
            text = text[: -len(word)].rstrip(" \t\n\r\f\v")
            break
    first, *rest = text.replace("_", ",").split(",")
    digits = "".join([first, *rest])
    return (
        0 < len(digits) < 20
        and all(c in string.digits for c in digits)
        and digits[0] != "0"
        and (not rest or (0 < len(first) <= 3 and all(len(group) == 3 for group in rest)))
        and int(digits) <= 2**31
    )


# --- the teacher -------------------------------------------------------------------------------


def is_estimate(request):
    return request.chat and "How many tokens does a complete answer" in request.body["messages"][-1]["content"]


def subject(request):
    """The request that an estimate is asked for."""
    return re.search(r"Request: (.*)\n", request.body["messages"][-1]["content"])[1]


async def speak(request, reply, text, tokens=None):
    """Word by word, a token each; cut at the limit."""
    words = re.findall(r"\S+\s*", text)
    printed = words[: request.limit]
    await reply.head()
    for word in printed:
        await reply.piece(word)
    await reply.finish("length" if len(printed) < len(words) else "stop")
    await reply.usage(len(printed) if tokens is None else tokens)
    await reply.end()


def teaches(*replies, words=20):
    """To the first question about a request the first reply, to the second the second; answers of so many words."""

    async def behave(request, reply):
        if not is_estimate(request):
            return await speak(request, reply, "word " * words)
        again = STRICTLY in request.body["messages"][-1]["content"]
        printed = replies[-1] if again else replies[0]
        return await speak(request, reply, printed(subject(request)) if callable(printed) else printed)

    return behave


def by_size(text):
    """The estimate that is in the question: `Question of 70`."""
    return text.split()[-1]


class Thousands:
    def predict(self, requests):
        return Forecast([1000.0 + i for i, _ in enumerate(requests)])


class Asking:
    """Six requests, a ledger, and whoever is asked."""

    def __init__(self, folder, n=6, budget=1000):
        self.requests = requests_from([request_line(f"q{i}", f"Question of {10 * i + 10}") for i in range(n)])
        self.ledger = Ledger.create(folder / "ledger.sqlite", budget)

    def ask(self, url, most=None, requests=None, timeout=20.0, **options):
        async def go():
            teacher = OpenAIBackend(url, "", timeout=timeout)
            try:
                most_of_all = self.ledger.budget if most is None else most
                await ask(
                    requests or self.requests, self.ledger, teacher, most=most_of_all, tolerance=QUICK, **options
                )  # fmt: skip
            finally:
                await teacher.close()

        asyncio.run(go())
        return estimates_in(self.ledger, requests or self.requests)

    def forecast(self, estimates):
        return with_estimates(Thousands().predict(self.requests), self.requests, estimates.tokens_of).tokens.tolist()


@pytest.fixture
def asking(tmp_path):
    made = Asking(tmp_path)
    yield made
    made.ledger.close()


class TestAsking:
    def test_numbers_are_asked_for_in_few_tokens_and_paid(self, asking):
        with hostile.Server(teaches(by_size)) as server:
            found = asking.ask(server.url)
        assert found.tokens_of == {f"q{i}": 10 * i + 10 for i in range(6)}
        assert (found.asked, found.retried, found.fell_back) == (6, 0, 0)
        assert found.tokens == asking.ledger.spent == server.generated == 6
        for request in server.requests:
            assert request.limit == LIMIT
            assert (request.body["model"], request.body["temperature"]) == ("m", 0)

    def test_a_reply_that_is_not_a_number_is_asked_for_once_more_and_more_strictly(self, asking):
        with hostile.Server(teaches("Well, let me see.", by_size)) as server:
            found = asking.ask(server.url)
        assert found.tokens_of["q2"] == 30
        assert (found.asked, found.retried, found.fell_back, found.tokens) == (6, 6, 0, 6 * 4 + 6)
        assert [STRICTLY in r.body["messages"][-1]["content"] for r in server.requests] == [False] * 6 + [True] * 6

    @pytest.mark.parametrize(
        "reply",
        ["The answer to this is forty-two.", "9" * 30, "so " * 40, "1 2 3", "0"],
        ids=["words", "absurd", "no end", "several", "zero"],
    )
    def test_a_teacher_that_gives_no_number_twice_leaves_the_forecast(self, asking, reply):
        with hostile.Server(teaches(reply)) as server:
            found = asking.ask(server.url)
        assert (found.asked, found.retried, found.fell_back) == (6, 6, 6)
        assert server.generated == found.tokens == asking.ledger.spent
        assert asking.forecast(found) == [1000, 1001, 1002, 1003, 1004, 1005]

    def test_a_number_that_was_cut_off_is_not_believed(self, asking):
        async def cut(request, reply):
            await reply.head()
            await reply.piece("12")
            await reply.finish("length")
            await reply.usage(1)
            await reply.end()

        with hostile.Server(cut) as server:
            assert asking.ask(server.url).tokens_of == {}

    def test_only_those_without_a_number_fall_back(self, asking):
        with hostile.Server(teaches(lambda text: "50" if "30" in text else "no idea")) as server:
            found = asking.ask(server.url)
        assert found.tokens_of == {"q2": 50}
        assert asking.forecast(found) == [1000, 1001, 50, 1003, 1004, 1005]

    def test_no_request_is_asked_about_again(self, asking):
        with hostile.Server(teaches(lambda text: "50" if "30" in text else "no idea")) as server:
            first, asked = asking.ask(server.url), len(server.requests)
            assert asking.ask(server.url) == first
            assert len(server.requests) == asked == 6 + 5

    def test_a_teacher_that_is_down_is_not_waited_for_by_everyone(self, tmp_path):
        asking = Asking(tmp_path, n=50)
        with asking.ledger, hostile.Server(hostile.fails(429)) as server:
            found = asking.ask(server.url, concurrency=4, attempts=3)
            assert (found.asked, found.fell_back, found.tokens) == (0, 50, 0)
            assert len(server.requests) <= 4 * 3
            server.behave = teaches(by_size)  # resumed later
            assert asking.ask(server.url).fell_back == 0

    def test_a_teacher_that_stalls_has_cost_what_it_was_granted(self, tmp_path):
        asking = Asking(tmp_path, n=50)
        with asking.ledger, hostile.Server(hostile.silence_in_mid_stream) as server:
            found = asking.ask(server.url, concurrency=4, timeout=0.5)
            assert (found.asked, found.retried, found.fell_back) == (4, 4, 50)
            assert found.tokens == asking.ledger.spent == 8 * LIMIT
            assert server.generated <= found.tokens

    def test_no_request_is_asked_about_more_than_twice(self, asking):
        with hostile.Server(hostile.fails(500)) as server:
            for _ in range(3):
                asking.ask(server.url)
            assert len(server.requests) == 12

    def test_a_teacher_that_comes_back_is_asked_again(self, asking):
        fails = iter([hostile.fails(503), hostile.fails(429)])

        async def behave(request, reply):
            await next(fails, teaches("70"))(request, reply)

        with hostile.Server(behave) as server:
            found = asking.ask(server.url)
        assert found.fell_back == 0
        assert found.tokens == 6  # neither status is given after generating

    def test_a_teacher_that_ignores_its_limit_is_charged_for_all_of_it_and_asked_no_more(self, asking):
        with hostile.Server(hostile.never_ending) as server:
            found = asking.ask(server.url, concurrency=1)
            assert (found.asked, found.fell_back, found.flags) == (1, 6, {"limit_ignored": 1})
            assert found.tokens == asking.ledger.spent > LIMIT
            assert len(server.requests) == 1

    @pytest.mark.parametrize("most", [0, LIMIT - 1, LIMIT, 3 * LIMIT, 5 * LIMIT - 1])
    def test_without_units_left_no_request_is_asked_about(self, asking, most):
        with hostile.Server(teaches("so " * 40)) as server:
            found = asking.ask(server.url, most=most)
        assert server.generated == found.tokens == most // LIMIT * LIMIT
        assert found.fell_back == 6

    def test_what_estimates_do_not_use_makes_room_for_others(self, asking):
        """Room for two at a time; a number takes a token of the sixteen."""
        with hostile.Server(teaches("70")) as server:
            found = asking.ask(server.url, most=2 * LIMIT)
        assert (found.asked, found.tokens, server.generated) == (6, 6, 6)

    def test_a_question_without_text_is_not_asked_about(self, asking):
        prompt = {"custom_id": "ids", "url": "/v1/completions", "body": {"prompt": [5, 6, 7]}}
        requests = requests_from([prompt])
        with hostile.Server(teaches("70")) as server:
            assert asking.ask(server.url, requests=requests).fell_back == 1
            assert server.requests == []

    def test_a_money_budget_pays_for_prompts_and_numbers(self, tmp_path):
        rates = Rates.dollars(1, 4)
        asking = Asking(tmp_path, budget=10**8)
        with asking.ledger, hostile.Server(teaches(by_size)) as server:
            found = asking.ask(server.url, rates=rates)
            assert (found.fell_back, found.tokens) == (0, 6)
            assert asking.ledger.spent == 6 * (5 * 1000 + 4000)
            assert found.tokens_of["q2"] == 30
        asking = Asking(make(tmp_path / "less"), budget=10**8)
        with asking.ledger, hostile.Server(teaches("so " * 40)) as server:
            found = asking.ask(server.url, rates=rates, most=4_000_000)
            assert 0 < asking.ledger.spent <= 4_000_000
            assert found.tokens == server.generated


def make(folder):
    folder.mkdir()
    return folder


class Teaching:
    """Estimates ten tokens of everything, and answers as it is told."""

    model = "m"

    def __init__(self, *answers):
        self.answers, self.heard = list(answers), []

    def can_continue(self, body):
        return False

    async def complete(self, body, limit, **options):
        asked = body["messages"][-1]["content"]
        if "How many tokens" in asked:
            return completion("10", 1, limit)
        self.heard.append((asked, limit))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return completion("wrong", answer, limit)

    async def close(self):
        pass


def completion(text, tokens, limit):
    finish = "stop" if tokens <= limit else "length"
    form = {"choices": [{"text": text}], "usage": {"prompt_tokens": 0}}
    return Completion(text, min(tokens, limit), finish, "server", body=form)


def taught(backend, budget=101, **settings):
    gold = {"a": ("right", "exact")}
    run = Run(
        [request_line("a")],
        budget=budget,
        backend=backend,
        forecaster=Thousands(),
        gold=gold,
        policy="tale",
        **settings,
    )
    with run:
        asyncio.run(run.execute(tolerance=QUICK))
        return run.spent


class TestStatedLimits:
    def test_every_sample_states_what_is_left_of_the_grant(self):
        backend = Teaching(30, 30, 30)
        assert taught(backend, samples=3) == 1 + 90
        assert [limit for _, limit in backend.heard] == [100, 70, 40]
        for text, limit in backend.heard:
            assert text.endswith(f"\n\nKeep the entire response within at most {limit} tokens.")

    def test_the_limit_is_the_one_that_holds_be_it_the_callers_own(self):
        backend = Teaching(30)
        run = Run(
            [request_line("a", max_tokens=40)], budget=101, backend=backend, policy="tale", forecaster=Thousands()
        )
        run.complete()
        ((text, limit),) = backend.heard
        assert limit == 40
        assert "at most 40 tokens" in text

    def test_an_attempt_that_is_repeated_states_the_limit_once(self):
        backend = Teaching(*[Unavailable("busy", tokens=0, delay=0.0)] * 2, 1)
        taught(backend)
        assert len(backend.heard) == 3
        assert len(set(backend.heard)) == 1
        assert backend.heard[0][0].count("Keep the entire response") == 1


# --- the command -------------------------------------------------------------------------------


def limit_stated(request):
    """The limit in the prompt, which must be the one that was sent."""
    (stated,) = re.findall(r"within at most (\d+) tokens", request.body["messages"][-1]["content"])
    assert int(stated) == request.limit
    return int(stated)


def command(path, folder, *more, budget=2000):
    return [
        "run", str(path), "--budget", str(budget), "--policy", "tale", "--quiet", "--model", "m",
        "--out", str(folder / "out"), "--errors", str(folder / "err"), "--run-folder", str(folder / "run"),
        *map(str, more),
    ]  # fmt: skip


@pytest.fixture
def path(batch):
    return batch([request_line(f"q{i}", f"Question of {10 * i + 10}") for i in range(6)])


class TestTheCommand:
    def test_the_teacher_is_the_model_that_answers_and_is_paid_from_the_budget(self, tmp_path, path, capsys):
        with hostile.Server(teaches(by_size)) as server:
            assert main(command(path, tmp_path, "--base-url", server.url)) == 0
        printed = capsys.readouterr().out
        assert (
            "teacher    6 requests asked about, 0 of them twice, 0 fell back on the forecast; 6 tokens, of this budget"
            in printed
        )
        assert f"spent      {server.generated:,} of 2,000 tokens" in printed
        answered = [request for request in server.requests if not is_estimate(request)]
        grants = np.array([limit_stated(request) for request in answered])
        needs = np.array([int(re.search(r"of (\d+)", r.body["messages"][-1]["content"])[1]) for r in answered])
        assert grants.sum() == 2000 - 6  # eq. 21 to 23, for what the estimates have left
        assert np.abs(grants - needs / needs.sum() * 1994).max() <= 1

    def test_the_summary_says_what_asking_came_to(self, tmp_path, path, capsys):
        with hostile.Server(teaches("hm", lambda text: "9" if "30" in text else "hm")) as server:
            assert main(command(path, tmp_path, "--base-url", server.url, "--json")) == 0
        expected = {"asked": 6, "retried": 6, "fell_back": 5, "tokens": 12, "flags": {}, "charged": True}
        summary = json.loads(capsys.readouterr().out)
        assert summary["teacher"] == expected
        assert summary["requests"] == summary["outcomes"]["finished"] == len(read_jsonl(tmp_path / "out")) == 6
        assert json.loads((tmp_path / "run" / "manifest.json").read_text())["teacher"] == expected

    def test_another_teacher_is_counted_and_not_charged(self, tmp_path, path, capsys, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", "of the one that answers")
        monkeypatch.setenv("TEACHER_API_KEY", "of the teacher")
        with hostile.Server(teaches(by_size)) as server, hostile.Server(teaches(by_size)) as teacher:
            more = ["--base-url", server.url, "--teacher-url", teacher.url, "--teacher-model", "larger", "--json"]
            assert main(command(path, tmp_path, *more)) == 0
            summary = json.loads(capsys.readouterr().out)
            assert main([*command(path, tmp_path, *more), "--resume"]) == 0
        assert json.loads(capsys.readouterr().out)["teacher"] == summary["teacher"]
        assert summary["teacher"]["tokens"] == teacher.generated == len(teacher.requests) == 6
        assert not summary["teacher"]["charged"]
        assert summary["spent"] == server.generated
        assert not any(map(is_estimate, server.requests))
        assert {r.body["model"] for r in teacher.requests} == {"larger"}
        assert {r.headers["authorization"] for r in teacher.requests} == {"Bearer of the teacher"}
        assert {r.headers["authorization"] for r in server.requests} == {"Bearer of the one that answers"}

    def test_the_model_that_answers_is_charged_by_whatever_name_it_is_called(self, tmp_path, path):
        with hostile.Server(teaches(by_size)) as server:
            assert main(command(path, tmp_path, "--base-url", server.url, "--teacher-url", f"{server.url}/")) == 0
        assert json.loads((tmp_path / "run" / "manifest.json").read_text())["teacher"]["charged"]

    @pytest.mark.parametrize("budget", [0, 1, 20, 33, 64, 100, 190, 400])
    @pytest.mark.parametrize("estimates", ["70", "so " * 40], ids=["numbers", "rambles"])
    def test_estimates_and_answers_together_stay_within_a_tight_budget(self, tmp_path, path, budget, estimates):
        with hostile.Server(teaches(estimates, words=100)) as server:
            main(command(path, tmp_path, "--base-url", server.url, budget=budget))
        assert server.generated <= budget
        teacher = json.loads((tmp_path / "run" / "manifest.json").read_text())["teacher"]
        assert teacher["tokens"] <= budget // 2
        assert server.generated > budget - 6 or budget < 6  # and there is no request without a use for the rest
        lines = read_jsonl(tmp_path / "out") + read_jsonl(tmp_path / "err")
        assert sorted(line["custom_id"] for line in lines) == [f"q{i}" for i in range(6)]

    def test_estimates_are_not_graded(self, tmp_path, path, batch, capsys):
        gold = batch([{"custom_id": "q1", "gold": "word word", "grader": "exact"}], "gold.jsonl")
        with hostile.Server(teaches("70", words=2)) as server:
            assert main(command(path, tmp_path, "--base-url", server.url, "--gold", gold, "--json")) == 0
        assert json.loads(capsys.readouterr().out)["correct"] == 1

    @pytest.mark.parametrize(
        ("more", "printed"),
        [
            (["--policy", "clear", "--teacher-url", "http://127.0.0.1:9/v1"], "only policy tale asks a teacher"),
            (["--teacher-model", "larger"], "--teacher-model without --teacher-url"),
            (["--teacher-url", "ftp://x"], "the base URL is invalid"),
        ],
    )
    def test_a_teacher_that_makes_no_sense_is_refused(self, tmp_path, path, capsys, more, printed):
        assert main(command(path, tmp_path, "--base-url", "http://127.0.0.1:9/v1", *more)) == 2
        assert printed in capsys.readouterr().err
        assert not (tmp_path / "run").exists()

    def test_names_of_estimates_are_reserved(self, tmp_path, batch, capsys):
        path = batch([request_line("a"), request_line(f"{ESTIMATE}1:a")])
        assert main(command(path, tmp_path, "--base-url", "http://127.0.0.1:9/v1")) == 2
        assert f"custom_id '{ESTIMATE}1:a' begins with" in capsys.readouterr().err
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("charged", [True, False], ids=["same model", "another"])
def test_a_run_killed_while_it_asks_continues_without_asking_again(tmp_path, path, charged):
    """kill -9 with three estimates in the ledger and one under way."""
    held = []

    async def holds_the_fourth(request, reply):
        if is_estimate(request) and subject(request).endswith(" 40") and not held:
            held.append(request)
            reply.server.generated += LIMIT
            await asyncio.sleep(60)
        await teaches(by_size, words=10)(request, reply)

    with hostile.Server(holds_the_fourth) as server, hostile.Server(holds_the_fourth) as other:
        asked_of = server if charged else other
        arguments = command(path, tmp_path, "--base-url", server.url, "--concurrency", 1, budget=300)
        arguments += [] if charged else ["--teacher-url", other.url]
        process = subprocess.Popen([sys.executable, "-m", "shadowprice", *arguments])
        try:
            wait_for(lambda: held or process.poll() is not None)
            assert held
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        before = len(asked_of.requests)
        assert main([*arguments, "--resume"]) == 0
        asked = [
            (subject(r), STRICTLY in r.body["messages"][-1]["content"]) for r in asked_of.requests if is_estimate(r)
        ]
        assert before == 4
        assert set(asked[4:]) == {("Question of 40", True), ("Question of 50", False), ("Question of 60", False)}
        assert len(asked) == len(set(asked)) == 7
        teacher = json.loads((tmp_path / "run" / "manifest.json").read_text())["teacher"]
        assert (teacher["asked"], teacher["retried"], teacher["fell_back"]) == (6, 1, 0)
        assert teacher["tokens"] == 6 + LIMIT
        assert server.generated <= 300
        assert main([*arguments, "--resume"]) == 0
        assert len(asked) == sum(map(is_estimate, asked_of.requests))


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_request_the_teacher_never_heard_of_keeps_its_forecast():
    requests = [Request("a", "x"), Request("b", "y")]
    forecast = with_estimates(Thousands().predict(requests), requests, {"b": 7, "elsewhere": 3})
    assert forecast.tokens.tolist() == [1000, 7]


def test_what_the_teacher_refuses_does_not_fail_the_request():
    class Refuses(Teaching):
        async def complete(self, body, limit, **options):
            if "How many tokens" in body["messages"][-1]["content"]:
                raise Refused("no")
            return await super().complete(body, limit, **options)

    assert taught(Refuses(10), budget=100) == 10


def test_a_run_that_is_stopped_while_it_asks_finishes_that_estimate_and_asks_the_others_later(tmp_path):
    class Stops(Teaching):
        async def complete(self, body, limit, **options):
            run.stop("enough")
            return await super().complete(body, limit, **options)

    def make(backend):
        requests = [request_line(f"q{i}", f"Question {i}") for i in range(4)]
        options = {"folder": tmp_path / "run", "policy": "tale", "concurrency": 1}
        return Run(requests, budget=400, backend=backend, forecaster=Thousands(), **options)

    with make(Stops()) as run:
        summary = asyncio.run(run.execute())
        assert (summary.outcomes, summary.spent, run.teaching["asked"]) == ({"not_sent": 4}, 1, 1)
    with make(Teaching(10, 10, 10, 10)) as run:
        summary = asyncio.run(run.execute())
        assert (summary.outcomes, summary.spent, run.teaching["asked"]) == ({"finished": 4}, 44, 4)
