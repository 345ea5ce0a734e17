"""A model on this machine: llama.cpp's own HTTP server, in its own process.

How sums are rounded depends on how many tokens are computed together, so what else a server does at the same time
can decide near-ties, even at temperature 0. With `exact` every token is computed alone: a greedy answer is always
the same, and an answer at a smaller limit or in parts is an exact prefix of the longer one. It costs speed where
several answers are generated at the same time, or prompts are long. Without it two settings keep differences rare:

    kv_unified off   every slot has its own cache (with one cache for all, half of the answers differed)
    n_ubatch 32      prompts are read in short pieces (with the default of 512, one answer in seven differed)

SmolLM2-135M's answers to short tasks do not differ at all with them; of a larger model's long answers half do, at
some token (docs/log.md). Other builds or engines round differently: only compare answers that one of them generated.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import select
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

from shadowprice.backends._cores import default_threads
from shadowprice.backends._gguf import trained_context
from shadowprice.backends.base import (
    AsyncContext,
    can_be_continued,
    effective_limit,
    opens_box,
    response,
    stops_of,
)
from shadowprice.backends.models import DEFAULT_MODEL, default_context, fetch_model, find_model
from shadowprice.cost import prompt_bound
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

    slots       answers generated at the same time; further requests wait
    context     tokens of a prompt and its answer together, per slot; None: what the model was trained for, 4,096
                at most; a named model has its own
    threads     for computation; None: $OMP_NUM_THREADS or the physical cores; on a busy machine fewer are faster
    gpu_layers  layers of the model that a GPU computes; None: all, where llama.cpp was built for a GPU
    cache       MiB of memory for the state of answers that were cut, so that continuing them is cheap
    exact       compute every token alone, so that greedy answers do not depend on what else is answered
    port        0: any free port
    log         a file for the server's log; None: no log

    Every slot takes memory for its whole context from the start.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        slots: int = 8,
        context: int | None = None,
        threads: int | None = None,
        gpu_layers: int | None = None,
        cache: int = 0,
        exact: bool = False,
        port: int = 0,
        log: str | os.PathLike[str] | None = None,
        start_timeout: float = 120.0,
    ) -> None:
        if importlib.util.find_spec("xllamacpp") is None:
            raise MissingExtra("local", "running a model on this machine")
        self.path = Path(model_path)
        if not self.path.is_file():
            raise InputError("no such model", fix="give the path of a GGUF file", path=self.path)
        with self.path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise InputError(
                    "is not a GGUF file", fix="give one; models in other forms must be converted", path=self.path
                )
        self.model = self.path.name.removesuffix(".gguf")
        self.trained_context = trained_context(self.path)
        self.context = default_context(self.path, self.trained_context) if context is None else context
        self._check(slots=slots, context=self.context, threads=threads, gpu_layers=gpu_layers)
        job = {"model": os.path.abspath(self.path), "name": self.model, "slots": slots, "context": self.context}
        job |= {"threads": default_threads() if threads is None else threads, "gpu_layers": gpu_layers}
        job |= {"exact": exact, "port": port, "cache": cache, "parent": os.getpid(), "verbose": log is not None}
        self._log: IO[bytes] = tempfile.TemporaryFile() if log is None else open(log, "w+b")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "shadowprice.backends._llamacpp_child"],
            stdin=subprocess.PIPE,  # stays open as long as this process lives
            stdout=subprocess.PIPE,
            stderr=self._log,
            # It needs no keys. Threads that wait for each other sleep: spinning, they starve beside other work.
            env={"OMP_WAIT_POLICY": "PASSIVE", **clean_environment()},
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

    def tokens_under_way(self) -> int:
        """Tokens of the answers that are being generated, so far."""
        slots = json.loads(self._get("/slots"))
        return sum(part["n_decoded"] for slot in slots if slot["is_processing"] for part in slot["next_token"])

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

    def _check(self, **numbers: int | None) -> None:
        for name, number in numbers.items():
            least = 0 if name == "gpu_layers" else 1
            if number is not None and number < least:
                raise InputError(f"--{name.replace('_', '-')} {number}", fix=f"give {least} or more")
        if self.trained_context and self.context > self.trained_context:
            problem = f"was trained for a context of {self.trained_context:,} tokens, not {self.context:,}"
            raise InputError(problem, path=self.path, fix=f"give --context {self.trained_context} or less")

    def _start(self, job: dict[str, Any], deadline: float) -> str:
        assert self._process.stdin
        assert self._process.stdout
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None
        ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        url = self._process.stdout.readline().decode().strip() if ready else ""
        if ready and not url:
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
        reason = _last_line(self._log.read().decode(errors="replace"))
        if reason.startswith("--"):  # an option, and not the file, is at fault
            return InputError(reason, fix="leave it out")
        return InputError(
            f"llama.cpp cannot serve it: {reason or f'exit code {self._process.returncode}'}",
            fix="give the path of a GGUF model that fits into memory, or fewer --slots or a smaller --context",
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
_MARKS = 8  # tokens that a tokenizer may add to a text
_REPLACED = {"messages", "prompt", "model", "stream", "stream_options", "n", *LIMIT_FIELDS}


class LlamaCppBackend(AsyncContext):
    """A named model (`models.MODELS`; None: the default one), `hf:OWNER/REPO/FILE.gguf`, or any GGUF file.

    Options are those of `LlamaCppServer`. A request without a temperature is sampled with the server's
    default; give 0 for greedy answers.

    A limit above what the context leaves after the prompt, by the model's own tokenizer, is lowered to it. A request
    whose prompt alone, or with the limit in its own body, is above the context raises `Refused` and is not sent.

    An answer is continued from its token ids, so that with `exact` a greedy answer in parts equals the answer in
    one piece. Landings are cheapest right after the answer was generated, from its longest prefix to its
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

        self.server = LlamaCppServer(find_model(model or DEFAULT_MODEL, progress=progress), **server)
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
            return await self._client.complete(body, await self._limit(body, limit, await self._whole(body)))
        ids, so_far = (continue_from.ids, continue_from.text) if continue_from else ((), "")
        request = {field: value for field, value in body.items() if field not in _REPLACED}
        prompt = _prompt(await self._question(body), ids, so_far, suffix)
        limit = await self._limit(body, limit, prompt, first=not (ids or so_far or suffix))
        request |= {"prompt": prompt, "n_predict": limit, "return_tokens": True}
        if suffix:
            request["stop"] = stops_of(suffix)
        reply = await self._client.fetch(f"{self.server.url}/completion", request)
        new = tuple(reply["tokens"])
        ended = reply["stop_type"] in ("eos", "word")
        text = reply["content"]
        if suffix:
            if opens_box(suffix) and reply["stop_type"] == "word":
                text += "}"  # it was part of the stop text
        elif "\ufffd" in text:  # it starts or ends within a character
            text = await self._decoded([*ids, *new], so_far, text, ended=ended)
        return self._completion(body, limit, reply, text, "stop" if ended else "length", () if suffix else new)

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

    async def generating(self) -> int:
        """Tokens that answers in flight have so far."""
        try:
            return await asyncio.to_thread(self.server.tokens_under_way)
        except Unavailable:  # the answers themselves show it
            return 0

    async def room(self, body: Mapping[str, Any], limit: int | None = None) -> int | None:
        """The tokens that the context leaves for an answer; None: more than `limit`, which the body's size shows.

        Raises Refused if the request does not fit.
        """
        if limit is not None and prompt_bound(body) + limit <= self.server.context:
            return None
        used = await self._count(await self._whole(body))
        self._refuse_unfit(used, _own_limit(body))
        return self.server.context - used

    async def _limit(
        self, body: Mapping[str, Any], limit: int, prompt: str | Sequence[str | int], *, first: bool = True
    ) -> int:
        """The limit, or what the context leaves; refuses a request that does not fit."""
        context = self.server.context
        own = _own_limit(body) if first else 0
        if _longest(prompt) + max(limit, own) <= context:
            return limit
        used = await self._count(prompt)
        self._refuse_unfit(used, own)
        return min(limit, context - used)

    def _refuse_unfit(self, used: int, own: int) -> None:
        """Raises Refused if the context cannot hold a prompt of `used` tokens and the caller's own limit."""
        context = self.server.context
        if used + max(1, own) <= context:
            return
        problem = f"a prompt of {used:,} tokens leaves nothing of a context of {context:,} for an answer"
        if used < context:
            problem = f"a prompt of {used:,} tokens and a limit of {own:,} do not fit into a context of {context:,}"
        enough = -(-(used + max(256, own)) // 256) * 256
        most = self.server.trained_context
        fix = f"--context {enough}" if not most or enough <= most else f"--context holds {most:,} at most: shorten it"
        cause = f"longer than the context of {context:,} tokens, see --context"
        raise Refused(f"{problem} ({fix})", code="context_length_exceeded", cause=cause, sent=False)

    async def _count(self, prompt: str | Sequence[str | int]) -> int:
        """Tokens of a prompt, by the model's own tokenizer."""
        pieces: Sequence[str | int] = [prompt] if isinstance(prompt, str) else prompt
        total = 0
        for place, piece in enumerate(pieces):
            if isinstance(piece, str):
                body = {"content": piece, "add_special": place == 0, "parse_special": True}
                total += len((await self._fetch("tokenize", body))["tokens"])
            else:
                total += 1
        return total

    async def _whole(self, body: Mapping[str, Any]) -> str | Sequence[str | int]:
        """All that the model reads: a text, or token ids as they are."""
        prompt = body.get("prompt")
        return prompt if "messages" not in body and isinstance(prompt, list) else await self._question(body)

    async def _fetch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The reply of an endpoint that generates nothing."""
        try:
            return await self._client.fetch(f"{self.server.url}/{path}", body)
        except Unavailable as error:
            raise Unavailable(str(error), tokens=0, cause=error.cause) from None

    async def _question(self, body: Mapping[str, Any]) -> str:
        """The prompt as the model reads it: a chat in the form of its template."""
        if "messages" not in body:
            return str(body["prompt"])
        return str((await self._fetch("apply-template", body))["prompt"])

    async def _decoded(self, ids: list[int], so_far: str, text: str, *, ended: bool) -> str:
        """The text of all tokens after `so_far`, in whole characters; `text` if they do not fit."""
        shown = ids[:-1] if ended else ids  # the last one marks the end
        try:
            reply = await self._client.fetch(f"{self.server.url}/detokenize", {"tokens": shown})
        except BackendError:  # must not hide that tokens were generated
            return text
        whole = str(reply["content"]) if ended else str(reply["content"]).rstrip("\ufffd")
        return whole[len(so_far) :] if whole.startswith(so_far) else text

    async def close(self) -> None:
        await self._client.close()
        self.server.close()


def _prompt(question: str, ids: tuple[int, ...], so_far: str, suffix: str) -> str | list[str | int]:
    """A prompt of texts and ids. Two texts in a list without ids between them would be two prompts."""
    if not ids:
        return question + so_far + suffix
    return [question, *ids, suffix] if suffix else [question, *ids]


def _own_limit(body: Mapping[str, Any]) -> int:
    """The caller's own limit; 0: none."""
    return min((body[field] for field in LIMIT_FIELDS if body.get(field) is not None), default=0)


def _longest(prompt: str | Sequence[str | int]) -> int:
    """An upper bound on the tokens of a prompt: no tokenizer makes more than there are bytes, but for its own marks."""
    pieces = [prompt] if isinstance(prompt, str) else prompt
    return _MARKS + sum(len(piece.encode(errors="replace")) if isinstance(piece, str) else 1 for piece in pieces)
