"""A model on this machine: llama.cpp's own HTTP server, in its own process.

Greedy answers (temperature 0) are the same on every run of one build on one machine, and an answer at
a smaller limit is an exact prefix of the longer one, whatever else the server answers before or at the
same time. Two settings ensure that; without them, concurrent requests and the cache change how sums are
rounded, and near-ties are decided differently:

    kv_unified off   every slot has its own cache (with one cache for all, half of the answers differed)
    n_ubatch 32      prompts are read in short pieces (with the default of 512, one answer in seven differed)

Other builds, machines or engines round differently: only compare answers that one of them generated.
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Literal

from shadowprice.backends.base import BOX_STOPS, AsyncContext, can_be_continued, effective_limit, opens_box, response
from shadowprice.backends.models import DEFAULT_MODEL, MODELS, fetch_model
from shadowprice.errors import BackendError, InputError, MissingExtra, Refused, Unavailable
from shadowprice.formats.limits import LIMIT_FIELDS
from shadowprice.redact import clean_environment
from shadowprice.types import Completion

__all__ = ["LlamaCppBackend", "LlamaCppServer", "fetch_model"]

# --- the server --------------------------------------------------------------------------------


class LlamaCppServer:
    """A llama.cpp server on 127.0.0.1, ready when the constructor returns, until `close` or the end of this process.

    It runs in its own process: a crash of the server does not affect the caller; when the caller ends, even
    by SIGKILL, the server ends too.

    slots    answers generated at the same time; further requests wait
    context  tokens of a prompt and its answer together, per slot
    threads  for computation; on a busy machine two are slower than one
    cache    MiB of memory for the state of answers that were cut, so that continuing them is cheap
    port     0: any free port
    log      a file for the server's log; None: no log
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
        job |= {"threads": threads, "port": port, "cache": cache, "parent": os.getpid(), "verbose": log is not None}
        self._log: IO[bytes] = tempfile.TemporaryFile() if log is None else open(log, "w+b")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__ if __name__ != "__main__" else "shadowprice.backends.llamacpp"],
            stdin=subprocess.PIPE,  # stays open as long as this process lives
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=clean_environment(),  # it needs no keys
            start_new_session=True,  # Ctrl-C reaches only the caller, which may still want answers
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
        """Tokens the server generated since its start, by its own count; an answer is counted when it ends."""
        for line in self._get("/metrics").splitlines():
            if line.startswith("llamacpp:tokens_predicted_total "):
                return int(float(line.split()[1]))
        raise Unavailable("the server reports no token count", tokens=0)

    def close(self) -> None:
        """Stop the server; unfinished answers are lost."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream:
                stream.close()

    def __enter__(self) -> LlamaCppServer:
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
            f"llama.cpp cannot serve it: {_last_line(said) or f'exit code {self._process.returncode}'}",
            fix="give the path of a GGUF model that fits into memory",
            path=self.path,
        )

    def _get(self, path: str, url: str = "") -> str:
        try:
            with _direct.open((url or self.url) + path, timeout=10) as answer:
                text: str = answer.read().decode()
                return text
        except OSError as error:  # includes urllib's errors
            raise Unavailable(f"the server on this machine does not answer: {error}", tokens=0) from None


_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy cannot reach this 127.0.0.1


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


# --- the model ---------------------------------------------------------------------------------

# Fields of a request that are sent in another form: the question, and how it is answered.
_REPLACED = {"messages", "prompt", "model", "stream", "stream_options", "n", *LIMIT_FIELDS}


class LlamaCppBackend(AsyncContext):
    """A named model (`models.MODELS`; None: the default one) or any GGUF file.

    Options are those of `LlamaCppServer`. A request without a temperature is sampled with the server's
    default; give 0 for greedy answers.

    An answer is continued from its token ids, so that a greedy answer in parts equals the answer in one
    piece. Landings are cheapest right after the answer was generated, from its longest prefix to its
    shortest: the server then reads nothing again but the suffix.
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
        self.server = LlamaCppServer(model, **server)
        self.model = self.server.model
        # A large model on a busy machine is slow; a server that died is noticed by its closed connections.
        self._client = OpenAIBackend(self.server.base_url, self.model, api_key="none", timeout=7200.0)

    def can_continue(self, body: Mapping[str, Any]) -> bool:
        return can_be_continued(body) and ("messages" in body or isinstance(body.get("prompt"), str))

    async def complete(
        self, body: Mapping[str, Any], limit: int, *, continue_from: Completion | None = None, suffix: str = ""
    ) -> Completion:
        limit = effective_limit(body, limit)
        if not self.can_continue(body):
            if continue_from is not None or suffix:
                raise Refused(
                    "a field of the request applies to the answer as a whole", code="not_continued", sent=False
                )
            return await self._client.complete(body, limit)
        ids, said = (continue_from.ids, continue_from.text) if continue_from else ((), "")
        request = {field: value for field, value in body.items() if field not in _REPLACED}
        request |= {"prompt": _prompt(await self._question(body), ids, said, suffix), "n_predict": limit}
        request["return_tokens"] = True
        if opens_box(suffix):
            request["stop"] = list(BOX_STOPS)
        found = await self._client.fetch(f"{self.server.url}/completion", request)
        new = tuple(found["tokens"])
        ended = found["stop_type"] in ("eos", "word")
        text = found["content"]
        if suffix:
            text += "}" if found["stop_type"] == "word" else ""  # it was part of the stop text
        elif "\ufffd" in text:  # it starts or ends within a character
            text = await self._decoded([*ids, *new], said, text, ended=ended)
        return self._completion(body, limit, found, text, "stop" if ended else "length", () if suffix else new)

    def _completion(
        self,
        body: Mapping[str, Any],
        limit: int,
        found: Mapping[str, Any],
        text: str,
        finish: Literal["stop", "length"],
        ids: tuple[int, ...],
    ) -> Completion:
        tokens, prompt = max(found["tokens_predicted"], len(ids)), found["tokens_evaluated"]
        cached = min(prompt, found.get("timings", {}).get("cache_n", 0))
        return Completion(
            text,
            tokens,
            finish,
            "server",
            ("limit_ignored",) if tokens > limit else (),
            response(
                body,
                name="",
                model=self.model,
                text=text,
                finish=finish,
                tokens=tokens,
                prompt_tokens=prompt,
                created=int(time.time()),
            ),
            ids,
            input_tokens=prompt - cached,
            cached_tokens=cached,
        )

    async def _question(self, body: Mapping[str, Any]) -> str:
        """The prompt as the model reads it: a chat in the form of its template."""
        if "messages" not in body:
            return str(body["prompt"])
        try:
            found = await self._client.fetch(f"{self.server.url}/apply-template", body)
        except Unavailable as error:
            raise Unavailable(str(error), tokens=0, cause=error.cause) from None  # nothing is generated here
        return str(found["prompt"])

    async def _decoded(self, ids: list[int], said: str, text: str, *, ended: bool) -> str:
        """The text of all tokens after what they `said` before, in whole characters; `text` if they do not fit."""
        shown = ids[:-1] if ended else ids  # the last one marks the end
        try:
            found = await self._client.fetch(f"{self.server.url}/detokenize", {"tokens": shown})
        except BackendError:  # must not hide that tokens were generated
            return text
        whole = str(found["content"]) if ended else str(found["content"]).rstrip("\ufffd")
        return whole[len(said) :] if whole.startswith(said) else text

    async def close(self) -> None:
        await self._client.close()
        self.server.close()


def _prompt(question: str, ids: tuple[int, ...], said: str, suffix: str) -> str | list[str | int]:
    """A prompt of texts and ids. Two texts in a list without ids between them would be two prompts."""
    if not ids:
        return question + said + suffix
    return [question, *ids, suffix] if suffix else [question, *ids]


# --- the child process -------------------------------------------------------------------------


def _serve() -> None:
    """Serve what the first line of stdin describes, until stdin ends, which means that the parent has ended."""
    job = json.loads(sys.stdin.buffer.readline())
    report = os.dup(1)
    os.dup2(2, 1)  # what the library prints must not mix with the report
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with, args=(job["parent"],), daemon=True).start()

    import xllamacpp

    p = xllamacpp.CommonParams()
    p.model.path = job["model"]
    p.model_alias = {job["name"]}
    p.hostnames, p.port = ["127.0.0.1"], job["port"]
    p.n_parallel, p.n_ctx = job["slots"], job["slots"] * job["context"]
    p.n_threads_http = job["slots"] + 8  # every running answer holds one; the others serve /health and /metrics
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = job["threads"]
    p.endpoint_metrics, p.ui, p.warmup = True, False, False
    p.verbosity = 3 if job["verbose"] else 1
    p.fit_params = False  # it would silently lower the context when memory is short
    # These make greedy answers exact, see the top of this file.
    p.kv_unified, p.n_ubatch = False, 32
    p.n_cache_reuse, p.cache_ram_mib = 0, job["cache"]  # cached or not, everything is computed the same way
    p.cache_idle_slots = False
    server = xllamacpp.Server(p)
    os.write(report, server.listening_address.encode() + b"\n")
    os.close(report)
    threading.Event().wait()


def _exit_with(parent: int) -> None:
    # The end of stdin would be enough, but children that the parent forked keep the pipe open.
    while os.getppid() == parent:
        if select.select([0], [], [], 1.0)[0]:
            break
    os._exit(0)


if __name__ == "__main__":
    _serve()
