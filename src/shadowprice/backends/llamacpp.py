"""A model on this machine: llama.cpp's own HTTP server, in a process of its own.

Greedy answers (temperature 0) are the same on every run of one build on one machine, and an answer at
a smaller limit is an exact prefix of the longer one, whatever is answered beside it or was before it.
Two settings were found to see to that; without them neighbours and cache decide how sums are rounded,
and near-ties fall one way or the other:

    kv_unified off   every slot has a cache of its own (with one for all, half of the answers differed)
    n_ubatch 32      prompts are read in short pieces (with the default of 512 one answer in seven differed)

Other builds, machines or engines round in other ways: only compare what one of them generated.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

from shadowprice.backends.base import LANDING, LIMIT_FIELDS, granted, pausable, response
from shadowprice.backends.models import DEFAULT_MODEL, MODELS, fetch_model
from shadowprice.errors import BackendError, InputError, MissingExtra, Refused, Unavailable
from shadowprice.types import Completion

__all__ = ["LocalBackend", "LocalServer", "fetch_model"]

# --- the server --------------------------------------------------------------------------------


class LocalServer:
    """A llama.cpp server on 127.0.0.1; it runs once this returns, until `close` or the end of this process.

    It has a process of its own: if it crashes, the caller lives; if the caller dies, even by SIGKILL,
    it goes too.

    slots    answers generated at the same time; more requests wait in line
    context  tokens of a prompt and its answer together, per slot
    threads  of computation; on a busy machine two are slower than one
    cache    MiB of memory for the state of answers that were cut, so that going on with one is cheap
    port     0: a free one
    log      a file for what the server says; None: silence
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        slots: int = 8,
        context: int = 1024,
        threads: int = 1,
        cache: int = 0,
        port: int = 0,
        log: str | os.PathLike[str] | None = None,
        start_timeout: float = 120.0,
    ) -> None:
        if importlib.util.find_spec("xllamacpp") is None:
            raise MissingExtra("local", "running a model on this machine")
        self.path = Path(model_path)
        if not self.path.is_file():
            raise InputError("no such model", fix="give the path of a GGUF file", path=self.path)
        self.model = self.path.name.removesuffix(".gguf")
        job = {"model": str(self.path.resolve()), "name": self.model, "slots": slots, "context": context}
        job |= {"threads": threads, "port": port, "cache": cache, "parent": os.getpid(), "talkative": log is not None}
        self._log: IO[bytes] = tempfile.TemporaryFile() if log is None else open(log, "w+b")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__ if __name__ != "__main__" else "shadowprice.backends.llamacpp"],
            stdin=subprocess.PIPE,  # held open as long as the parent lives
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is for the caller, who may still want answers
        )
        try:
            self.url = self._start(job, time.monotonic() + start_timeout)
        except BaseException:
            self.close()
            raise

    @property
    def base_url(self) -> str:
        """For OpenAI clients."""
        return f"{self.url}/v1"

    @property
    def pid(self) -> int:
        return self._process.pid

    def tokens_predicted(self) -> int:
        """Tokens the server generated since its start, by its own count.

        An answer is counted when it ends.
        """
        for line in self._get("/metrics").splitlines():
            if line.startswith("llamacpp:tokens_predicted_total "):
                return int(float(line.split()[1]))
        raise Unavailable("the server does not count its tokens", tokens=0)

    def close(self) -> None:
        """End the server; answers under way are lost."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream:
                stream.close()

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, job: dict[str, Any], deadline: float) -> str:
        assert self._process.stdin
        assert self._process.stdout
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None
        said, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        url = self._process.stdout.readline().decode().strip() if said else ""
        if said and not url:
            raise self._failure()
        while url and time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise self._failure()
            try:
                self._get("/health", url)
            except Unavailable:
                time.sleep(0.05)
            else:
                return url
        raise Unavailable(f"the server of {self.path} did not start in time", tokens=0)

    def _failure(self) -> InputError:
        self._process.wait()
        self._log.seek(0)
        said = self._log.read().decode(errors="replace")
        return InputError(
            f"llama.cpp cannot serve it: {_last_line(said) or f'it ended with {self._process.returncode}'}",
            fix="give the path of a GGUF model that fits into memory",
            path=self.path,
        )

    def _get(self, path: str, url: str = "") -> str:
        try:
            with _direct.open((url or self.url) + path, timeout=10) as answer:
                text: str = answer.read().decode()
                return text
        except OSError as error:  # urllib's own are among them
            raise Unavailable(f"the server on this machine does not answer: {error}", tokens=0) from None


_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy cannot reach 127.0.0.1 here


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


# --- the model ---------------------------------------------------------------------------------

# What follows the brace that closes a final answer. A brace alone does not: \frac{1}{2} has some of its own.
_CLOSED = ("}$", "}.", "}\n", "}\\)", "}\\]", "} \\")

# Of a request: the question, which is sent in another form, and how it is answered.
_NOT_OF_THE_MODEL = ("messages", "prompt", "model", "stream", "stream_options", "n", *LIMIT_FIELDS)


class LocalBackend:
    """A named model (`models.MODELS`; None: the default one) or any GGUF file, behind the protocol of all backends.

    Options are those of `LocalServer`. A request without a temperature is sampled with the server's
    own; give 0 for greedy answers.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        progress: Callable[[str], None] | None = None,
        **server: Any,
    ) -> None:
        from shadowprice.backends.openai import OpenAIBackend

        if model is None or str(model) in MODELS:
            name = DEFAULT_MODEL if model is None else str(model)
            server.setdefault("context", MODELS[name].context)
            model = fetch_model(name, progress=progress)
        self.server = LocalServer(model, **server)
        self.model = self.server.model
        # A large model on a busy machine takes its time; what hangs here is noticed by the process ending.
        self._client = OpenAIBackend(self.server.base_url, self.model, api_key="none", timeout=7200.0)

    async def complete(self, body: Mapping[str, Any], limit: int) -> Completion:
        return await self._client.complete(body, limit)

    def resumes(self, body: Mapping[str, Any]) -> bool:
        return pausable(body) and ("messages" in body or isinstance(body.get("prompt"), str))

    async def extend(self, body: Mapping[str, Any], so_far: Completion | None, limit: int) -> Completion:
        """Goes on from the very tokens, so that a greedy answer in parts is what it is in one."""
        limit = granted(body, limit)
        if not self.resumes(body):
            if so_far is not None:
                raise Refused("what applies to an answer as a whole cannot be in parts", code="not_continued")
            return await self.complete(body, limit)
        ids = so_far.ids if so_far else ()
        request = {field: value for field, value in body.items() if field not in _NOT_OF_THE_MODEL}
        asked = await self._prompt(body) + (so_far.text if so_far and not ids else "")
        request |= {"prompt": [asked, *ids], "n_predict": limit, "return_tokens": True}
        found = await self._client.fetch(f"{self.server.url}/completion", request)
        ended, new = found["stop_type"] in ("eos", "word"), tuple(found["tokens"])
        text = found["content"]
        if "\ufffd" in text:  # it begins or ends within a character
            text = await self._text([*ids, *new], so_far.text if so_far else "", text, ended=ended)
        finish: Literal["stop", "length"] = "stop" if ended else "length"
        tokens, prompt = max(found["tokens_predicted"], len(new)), found["tokens_evaluated"] - len(ids)
        form = response(
            body,
            name="",
            model=self.model,
            text=text,
            finish=finish,
            tokens=tokens,
            prompt_tokens=prompt,
            created=int(time.time()),
        )
        flags = ("limit_ignored",) if tokens > limit else ()
        return Completion(text, tokens, finish, "server", flags, form, new)

    async def land(self, body: Mapping[str, Any], ids: Sequence[int], limit: int) -> tuple[str, int]:
        """The final answer as the model would state it after these tokens of its own, and what stating it took.

        Cheapest right after the answer was generated, from its longest prefix to its shortest: the server then
        reads nothing again but the request to state the answer.
        """
        request = {field: value for field, value in body.items() if field not in _NOT_OF_THE_MODEL}
        asked = await self._prompt(body)
        prompt = [asked, *ids, LANDING] if ids else asked + LANDING  # two texts would be two prompts
        request |= {"prompt": prompt, "n_predict": limit, "stop": list(_CLOSED)}
        found = await self._client.fetch(f"{self.server.url}/completion", request)
        return f"{LANDING}{found['content']}{'}' if found['stop_type'] == 'word' else ''}", found["tokens_predicted"]

    async def _prompt(self, body: Mapping[str, Any]) -> str:
        """What the model reads: a chat in the form of its template."""
        if "messages" not in body:
            return str(body["prompt"])
        try:
            found = await self._client.fetch(f"{self.server.url}/apply-template", body)
        except Unavailable as error:
            raise Unavailable(str(error), tokens=0) from None  # nothing is generated here
        return str(found["prompt"])

    async def _text(self, ids: list[int], said: str, text: str, *, ended: bool) -> str:
        """What all the tokens say after what was `said`, in whole characters; `text` if they do not say that."""
        shown = ids[:-1] if ended else ids  # the last one says that it has ended
        try:
            found = await self._client.fetch(f"{self.server.url}/detokenize", {"tokens": shown})
        except BackendError:  # must not hide that tokens were generated
            return text
        whole = str(found["content"]) if ended else str(found["content"]).rstrip("\ufffd")
        return whole[len(said) :] if whole.startswith(said) else text

    async def close(self) -> None:
        await self._client.close()
        self.server.close()


# --- the child process -------------------------------------------------------------------------


def _serve() -> None:
    """Serve what the first line of stdin describes, until stdin ends: then the parent is gone."""
    job = json.loads(sys.stdin.buffer.readline())
    report = os.dup(1)
    os.dup2(2, 1)  # whatever the library prints must not be taken for the report
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with, args=(job["parent"],), daemon=True).start()

    import xllamacpp

    p = xllamacpp.CommonParams()
    p.model.path = job["model"]
    p.model_alias = {job["name"]}
    p.hostnames, p.port = ["127.0.0.1"], job["port"]
    p.n_parallel, p.n_ctx = job["slots"], job["slots"] * job["context"]
    p.n_threads_http = job["slots"] + 8  # each answer under way holds one; the rest see to /health and /metrics
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = job["threads"]
    p.endpoint_metrics, p.ui, p.warmup = True, False, False
    p.verbosity = 3 if job["talkative"] else 1
    p.fit_params = False  # it would lower the context without a word where memory is short
    # What makes greedy answers exact, see the head of this file.
    p.kv_unified, p.n_ubatch = False, 32
    p.n_cache_reuse, p.cache_ram_mib = 0, job["cache"]  # nothing is computed in another way for being cached
    p.cache_idle_slots = False
    server = xllamacpp.Server(p)
    os.write(report, server.listening_address.encode() + b"\n")
    os.close(report)
    threading.Event().wait()


def _leave_with(parent: int) -> None:
    # The end of stdin is enough, unless the parent has forked: then its children hold the pipe open.
    while os.getppid() == parent:
        if select.select([0], [], [], 1.0)[0]:
            break
    os._exit(0)


if __name__ == "__main__":
    _serve()
