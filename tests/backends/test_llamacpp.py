"""The embedded model, for real: one server for most of these tests."""

import asyncio
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from shadowprice.backends._gguf import trained_context
from shadowprice.backends.base import LANDING, join, prefix
from shadowprice.backends.llamacpp import LlamaCppBackend, LlamaCppServer
from shadowprice.backends.models import MODELS, default_context
from shadowprice.backends.openai import OpenAIBackend
from shadowprice.datasets.tasks import tasks
from shadowprice.errors import BackendError, InputError, MissingExtra, Refused, Unavailable

from .asking import client_of


@pytest.fixture(scope="module")
def server(gguf):
    with LlamaCppServer(gguf) as running:
        yield running


@pytest.fixture(scope="module")
def small(gguf):
    with LlamaCppServer(gguf, slots=2, context=256) as running:
        yield running


@pytest.fixture
def client(server, monkeypatch):
    return client_of(server, monkeypatch)


def body(prompt: str) -> dict:
    return {"messages": [{"role": "user", "content": prompt}], "temperature": 0}


def answers(client: LlamaCppBackend, jobs: list[tuple[str, int]], at_once: int = 8) -> list:
    async def run():
        gate = asyncio.Semaphore(at_once)

        async def one(prompt, limit):
            async with gate:
                return await client.complete(body(prompt), limit)

        try:
            return await asyncio.gather(*(one(*job) for job in jobs))
        finally:
            await client.close()

    return asyncio.run(run())


def _post(url: str, request: dict) -> dict:
    asked = urllib.request.Request(url, json.dumps(request).encode(), {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked) as reply:
        return json.load(reply)


class TestAnswers:
    def test_it_answers(self, client):
        (answer,) = answers(client, [("What is the capital of Japan?", 40)])
        assert "Tokyo" in answer.text
        assert (answer.finish, answer.usage_source, answer.flags) == ("stop", "server", ())
        assert answer.body["model"] == client.model == "SmolLM2-135M-Instruct.Q4_1"

    def test_limits_are_kept_and_the_server_counts_what_was_charged(self, client):
        limits = [1, 2, 3, 5, 8, 13, 21]
        before = client.server.tokens_predicted()
        got = answers(client, [("Write a long story about a river.", limit) for limit in limits])
        assert [answer.tokens for answer in got] == limits
        assert {answer.finish for answer in got} == {"length"}
        assert client.server.tokens_predicted() - before == sum(limits)

    def test_a_smaller_limit_gives_an_exact_prefix_whatever_else_is_answered(self, client, server):
        found = tasks(3, 1000)
        lists = [
            task.prompt for task in found if task.prompt.startswith("Repeat this list") and 100 < len(task.prompt) < 200
        ]
        prompts = [*lists[:5], *(task.prompt for task in found[:5])]  # long prompts with a common start, and others
        whole = answers(client, [(prompt, 24) for prompt in prompts], at_once=1)
        assert len(set(prompts)) == 10
        cut = [1 + answer.tokens // 2 for answer in whole]
        jobs = [*zip(prompts, cut, strict=True), *((prompt, 24) for prompt in reversed(prompts))]
        again = answers(LlamaCppBackend(server.path), jobs)
        for one, part, limit in zip(whole, again, cut, strict=False):
            assert one.text.startswith(part.text)
            assert part.tokens == min(limit, one.tokens)
        assert [answer.text for answer in again[10:]] == [answer.text for answer in reversed(whole)]

    @pytest.mark.slow
    def test_exact_probabilities_are_the_same_to_the_last_bit_alone_beside_others_and_in_parts(self, gguf):
        prompts = [task.prompt for task in tasks(5, 8)]
        with LlamaCppServer(gguf, slots=8, exact=True) as server, ThreadPoolExecutor(8) as threads:

            def ask(prompt, ids=()):
                request = {"prompt": [prompt, *ids] if ids else prompt, "n_predict": 16, "temperature": 0, "n_probs": 1}
                request |= {"return_tokens": True, "cache_prompt": False, "ignore_eos": True}
                answer = _post(f"{server.url}/completion", request)
                return answer["tokens"], [each["logprob"] for each in answer["completion_probabilities"]]

            alone = [ask(prompt) for prompt in prompts]
            assert list(threads.map(ask, prompts)) == alone
            for prompt, (ids, chances) in zip(prompts, alone, strict=True):
                later_ids, later_chances = ask(prompt, ids[:10])
                assert (later_ids[:6], later_chances[:6]) == (ids[10:], chances[10:])

    @pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY"])
    def test_proxies_are_not_used(self, server, client, monkeypatch, name):
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        (answer,) = answers(LlamaCppBackend(server.path), [("Hello", 2)])
        assert answer.tokens == 2
        assert server.tokens_predicted() > 0

    def test_a_prompt_too_long_for_the_context_is_refused(self, client):
        with pytest.raises(Refused, match="context"):
            answers(client, [("word " * 3000, 5)])

    def test_what_is_being_generated_can_be_counted_meanwhile(self, client):
        async def watch():
            answer = asyncio.create_task(client.complete({**body("Count to one hundred."), "ignore_eos": True}, 120))
            seen = []
            while not answer.done():
                await asyncio.sleep(0.05)
                seen.append(await client.generating())
            done = await answer
            return done.tokens, seen, await client.generating()

        tokens, seen, after = asyncio.run(watch())
        assert any(0 < count < tokens for count in seen)
        assert after == 0

    def test_its_count_can_be_read_while_it_is_busy(self, client, server):
        with ThreadPoolExecutor(1) as thread:
            busy = thread.submit(answers, client, [(f"Write a story about {i} trees.", 8) for i in range(16)], 16)
            counts = [server.tokens_predicted()]
            while not busy.done():
                counts.append(server.tokens_predicted())
                time.sleep(0.05)
            generated = sum(answer.tokens for answer in busy.result())
            counts.append(server.tokens_predicted())
        assert generated == 16 * 8
        assert counts == sorted(counts)
        assert counts[-1] - counts[0] <= generated


class TestContext:
    """What fits is counted with the model's own tokenizer, before anything is sent."""

    STORY = "Write a long story about a river."

    @pytest.fixture
    def backend(self, small, monkeypatch):
        return client_of(small, monkeypatch)

    def asked(self, backend, *bodies, limit=1000):
        async def run():
            try:
                return await asyncio.gather(*(backend.complete(each, limit) for each in bodies), return_exceptions=True)
            finally:
                await backend.close()

        return asyncio.run(run())

    @pytest.mark.parametrize("more", [{}, {"stop": ["no such text"]}], ids=str)
    def test_a_limit_above_the_room_is_lowered_to_it(self, backend, more):
        (answer,) = self.asked(backend, {**body(self.STORY), **more, "ignore_eos": True})
        assert answer.finish == "length"
        assert answer.input_tokens + answer.cached_tokens + answer.tokens == 256

    @pytest.mark.parametrize("more", [{}, {"stop": ["no such text"]}], ids=str)
    def test_what_does_not_fit_is_refused_with_what_would_hold_it_and_not_sent(self, backend, more):
        before = backend.server.tokens_predicted()
        too_long = {**body("word " * 300), **more}
        too_much = {**body(self.STORY), "max_tokens": 1000, **more}
        never = {**body(self.STORY), "max_tokens": 9000, **more}
        found = self.asked(backend, too_long, too_much, never, limit=5)
        assert all(isinstance(error, Refused) and not error.sent and error.tokens == 0 for error in found)
        assert len({error.cause for error in found}) == 1
        assert "--context" in found[0].cause
        assert re.search(r"a prompt of 3\d\d tokens leaves nothing .* of 256 for .* \(--context 768\)", str(found[0]))
        assert re.search(r"a prompt of 3\d tokens and a limit of 1,000 do not fit .*\(--context 1280\)", str(found[1]))
        assert "--context holds 8,192 at most: shorten it" in str(found[2])
        assert backend.server.tokens_predicted() == before

    @pytest.mark.parametrize("question", ["Two\n\n plus  two?", "日本の首都は？ 🐈", "<|im_start|>x<|im_end|>"])
    def test_the_count_is_what_the_server_reads(self, backend, question):
        async def both():
            room = await backend.room(body(question))
            answer = await backend.complete(body(question), 1)
            raw = await backend.room({"prompt": [1, 2, 3]})
            await backend.close()
            return room, answer, raw

        room, answer, raw = asyncio.run(both())
        assert 256 - room == answer.input_tokens + answer.cached_tokens
        assert raw == 253

    def test_it_is_the_models_own_by_default(self, gguf, tmp_path):
        (tmp_path / "other.gguf").symlink_to(gguf)
        assert default_context(gguf, trained_context(gguf)) == MODELS["smollm2-135m"].context
        assert default_context(tmp_path / "other.gguf", trained_context(tmp_path / "other.gguf")) == 4096
        assert default_context(tmp_path / "small.gguf", 2048) == 2048

    @pytest.mark.parametrize(
        ("options", "printed"),
        [
            (
                {"context": 16384},
                r"was trained for a context of 8,192 tokens, not 16,384 \(give --context 8192 or less",
            ),
            ({"context": 0}, r"--context 0 \(give 1 or more"),
            ({"threads": 0}, r"--threads 0"),
            ({"slots": 0}, r"--slots 0"),
            ({"gpu_layers": -1}, r"--gpu-layers -1 \(give 0 or more"),
        ],
    )
    def test_numbers_that_cannot_be(self, gguf, options, printed):
        with pytest.raises(InputError, match=printed):
            LlamaCppServer(gguf, **options)

    def test_layers_for_a_gpu_that_is_not_there(self, gguf):
        import xllamacpp

        if any("GPU" in device["type"].name for device in xllamacpp.get_device_info()):
            pytest.skip("there is one")
        with pytest.raises(InputError, match=r"^--gpu-layers 4: llama.cpp finds no GPU here \(leave it out\)$"):
            LlamaCppServer(gguf, slots=1, context=256, gpu_layers=4)
        LlamaCppServer(gguf, slots=1, context=256, gpu_layers=0).close()

    def test_answers_are_the_same_with_more_threads_and_another_context(self, gguf, client):
        prompts = [task.prompt for task in tasks(5, 6)]
        one = answers(client, [(prompt, 24) for prompt in prompts])
        with LlamaCppServer(gguf, slots=2, context=512, threads=2) as server, pytest.MonkeyPatch.context() as patch:
            two = answers(client_of(server, patch), [(prompt, 24) for prompt in prompts])
        assert [answer.ids for answer in one] == [answer.ids for answer in two]


class TestContinuing:
    PROMPTS = ("Write a story about a cat.", "Count from 1 to 30.", "Write three lines with emoji: 🐈, 🐕, 🐎.")

    def test_answers_in_parts_are_token_for_token_what_they_are_in_one(self, client):
        async def both():
            whole = await asyncio.gather(*(client.complete(body(prompt), 40) for prompt in self.PROMPTS))
            parts = await asyncio.gather(*(in_parts(prompt) for prompt in self.PROMPTS))
            await client.close()
            return whole, parts

        async def in_parts(prompt):
            found = None
            while found is None or (found.finish == "length" and found.tokens < 40):
                left = 40 - (found.tokens if found else 0)
                found = join(found, await client.complete(body(prompt), min(7, left), continue_from=found))
            return found

        for one, part in zip(*asyncio.run(both()), strict=True):
            assert (part.text, part.tokens, part.ids, part.finish) == (one.text, one.tokens, one.ids, one.finish)

    def test_reads_only_what_is_new(self, client):
        async def twice():
            first = await client.complete(body("Write a story about a horse."), 8)
            more = await client.complete(body("Write a story about a horse."), 8, continue_from=first)
            await client.close()
            return first, more

        first, more = asyncio.run(twice())
        prompt = first.input_tokens + first.cached_tokens
        assert more.input_tokens + more.cached_tokens == prompt + 8
        assert more.cached_tokens >= prompt

    def test_a_suffix_follows_the_very_tokens(self, client):
        async def land():
            question = body("What is 2 + 3? Put the answer within \\boxed{}.")
            answer = await client.complete(question, 24)
            ages = (24, 12, 0)
            landed = [
                await client.complete(question, 16, continue_from=prefix(answer, age), suffix=LANDING) for age in ages
            ]
            by_text = await client.complete(
                question, 16, continue_from=replace(answer, ids=()), suffix=LANDING
            )  # without ids it continues from the text
            await client.close()
            return landed, by_text

        landed, by_text = asyncio.run(land())
        for each in (*landed, by_text):
            assert 1 <= each.tokens <= 16
            assert each.ids == ()
            assert each.finish == "length" or each.text.endswith("}")
            assert not any(stop in each.text for stop in ("}$", "}.", "}\n"))
        assert by_text.text == landed[0].text

    def test_the_server_can_be_used_like_any_other_and_continues_chats(self, server):
        async def through_openai():
            backend = OpenAIBackend(server.base_url, server.model, timeout=60)
            assert backend.can_continue(body("Count from 1 to 30.")) is None
            whole = await backend.complete(body("Count from 1 to 30."), 24)
            first = await backend.complete(body("Count from 1 to 30."), 12)
            more = await backend.complete(body("Count from 1 to 30."), 12, continue_from=first)
            assert backend.can_continue(body("Count from 1 to 30.")) is True
            landed = await backend.complete(body("Count from 1 to 30."), 12, continue_from=first, suffix=LANDING)
            await backend.close()
            return whole, join(first, more), landed

        whole, joined, landed = asyncio.run(through_openai())
        assert whole.text.startswith(joined.text[:20])
        assert landed.flags == ()
        assert 1 <= landed.tokens <= 12

    def test_a_question_that_the_model_cannot_read_costs_nothing(self, client):
        async def ask():
            image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
            with pytest.raises(BackendError, match="image") as caught:
                await client.complete({"messages": [{"role": "user", "content": [image]}]}, 9)
            await client.close()
            return caught.value.tokens

        assert asyncio.run(ask()) == 0

    @pytest.mark.parametrize("more", [{"stop": ["5"]}, {"response_format": {"type": "json_object"}}], ids=str)
    def test_what_applies_to_the_whole_answer_is_respected(self, client, more):
        async def ask():
            done = await client.complete({**body("Count from 1 to 30."), **more}, 40)
            await client.close()
            return done

        done = asyncio.run(ask())
        assert "5" not in done.text if "stop" in more else done.text.lstrip().startswith("{")


class TestTheProcess:
    def test_it_dies_with_its_parent(self, gguf):
        script = (
            "import os, sys, time; from shadowprice.backends.llamacpp import LlamaCppServer\n"
            "server = LlamaCppServer(sys.argv[1], slots=1)\n"
            "if os.fork() == 0: time.sleep(20); os._exit(0)\n"  # a child that keeps the pipe open
            "print(server.pid, flush=True); time.sleep(60)"
        )
        command = [sys.executable, "-c", script, str(gguf)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as parent:
            child = int(parent.stdout.readline())
            assert alive(child)
            parent.kill()
            parent.wait()
            try:
                assert within(10, lambda: not alive(child))
            finally:
                os.killpg(parent.pid, signal.SIGKILL)  # the fork

    def test_its_crash_does_not_affect_the_caller(self, gguf, tmp_path):
        server = LlamaCppServer(gguf, slots=1, log=tmp_path / "log")
        assert "listening" in (tmp_path / "log").read_text()
        os.kill(server.pid, signal.SIGSEGV)
        assert within(10, lambda: not alive(server.pid))
        with pytest.raises(Unavailable, match="does not answer"):
            server.tokens_predicted()
        server.close()

    def test_closing_stops_it_and_can_be_repeated(self, gguf):
        threads = threading.active_count()
        with LlamaCppServer(gguf, slots=1) as server:
            assert alive(server.pid)
            assert server.base_url.startswith("http://127.0.0.1:")
        assert not alive(server.pid)
        server.close()
        assert threading.active_count() == threads

    def test_a_file_that_is_not_a_model(self, gguf, tmp_path):
        (tmp_path / "no.gguf").write_bytes(b"GGUF" + bytes(100))
        with pytest.raises(InputError, match=r"no.gguf: llama.cpp cannot serve it: .+ \(give the path of a GGUF"):
            LlamaCppServer(tmp_path / "no.gguf")
        with pytest.raises(InputError, match="no such model"):
            LlamaCppServer(tmp_path / "none.gguf")
        (tmp_path / "words.gguf").write_bytes(b"PK")
        with pytest.raises(InputError, match="is not a GGUF file"):
            LlamaCppServer(tmp_path / "words.gguf")

    def test_a_server_that_does_not_start_in_time(self, gguf):
        with pytest.raises(Unavailable, match="did not start in time"):
            LlamaCppServer(gguf, start_timeout=0.01)

    def test_without_the_library(self, monkeypatch, tmp_path):
        monkeypatch.setitem(sys.modules, "xllamacpp", None)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(MissingExtra, match=r"shadowprice\[local\]"):
            LlamaCppServer(tmp_path)


def alive(pid: int) -> bool:
    """Running, and not a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def within(seconds: float, happened) -> bool:
    deadline = time.monotonic() + seconds
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.05)
    return happened()
