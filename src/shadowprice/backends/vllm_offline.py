"""vLLM in this process, without a server: `LLM.generate` with one `SamplingParams` per prompt.

    backend = VllmOfflineBackend("Qwen/Qwen2.5-7B-Instruct")       # or LLM(...), with its own options

`LLM.generate` takes a list and returns when all of it has ended. Requests that arrive meanwhile wait for the next list,
so give `Run` a concurrency of some hundreds. Prompts and parts of answers are passed as token ids: answers continue
exactly, and with prefix caching (vLLM's default) nothing is computed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from shadowprice.backends.base import (
    AsyncContext,
    can_be_continued,
    effective_limit,
    opens_box,
    response,
    stops_of,
)
from shadowprice.errors import MissingExtra, Refused, Unavailable
from shadowprice.types import Completion

__all__ = ["VllmOfflineBackend"]

# Fields of a request that are passed on as they are.
_PASSED = (
    "temperature", "top_p", "top_k", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "min_tokens", "ignore_eos",
)  # fmt: skip


class _Asked(NamedTuple):
    prompt: list[int]
    settings: dict[str, Any]
    answer: asyncio.Future[Any]


class VllmOfflineBackend(AsyncContext):
    """
    model   the name of a model, or a `vllm.LLM`
    options of `vllm.LLM`, if it is a name
    """

    def __init__(self, model: Any, **options: Any) -> None:
        try:
            import vllm
        except ImportError:
            raise MissingExtra("vllm", "vLLM in this process") from None
        self._settings = vllm.SamplingParams
        self._llm = vllm.LLM(model=model, **options) if isinstance(model, str) else model
        self._tokenizer = self._llm.get_tokenizer()
        self._context = int(self._llm.llm_engine.model_config.max_model_len)
        self.model = str(getattr(self._llm.llm_engine.model_config, "model", model))
        self._waiting: list[_Asked] = []
        self._generating = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vllm")

    def can_continue(self, body: Mapping[str, Any]) -> bool | None:
        return can_be_continued(body)

    async def complete(
        self, body: Mapping[str, Any], limit: int, *, continue_from: Completion | None = None, suffix: str = ""
    ) -> Completion:
        limit = effective_limit(body, limit)
        if (continue_from is not None or suffix) and not can_be_continued(body):
            problem = "a field of the request applies to the answer as a whole"
            raise Refused(problem, code="not_continued", sent=False)
        prompt = self._prompt(body)
        whole = [*prompt, *self._ids_of(continue_from)]
        if suffix:
            whole += self._tokenizer.encode(suffix, add_special_tokens=False)
        if len(whole) >= self._context:  # vLLM would refuse the whole list
            problem = f"{len(whole)} tokens are too long for the context of {self._context}"
            raise Refused(problem, sent=False, cause="too long for the context")
        granted = min(limit, self._context - len(whole))
        settings = {name: body[name] for name in _PASSED if body.get(name) is not None}
        settings |= {"max_tokens": granted, "n": 1}
        if suffix:
            settings["stop"] = stops_of(suffix)
        found = await self._generate(whole, settings)
        return self._completion(body, found, limit, granted, suffix)

    async def close(self) -> None:
        self._thread.shutdown(wait=True)

    def _prompt(self, body: Mapping[str, Any]) -> list[int]:
        if "messages" in body:
            ids = self._tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True, tokenize=True)
            return list(ids["input_ids"] if isinstance(ids, Mapping) else ids)
        prompt = body["prompt"]
        if isinstance(prompt, str):
            return list(self._tokenizer.encode(prompt))
        return self._prompt({"prompt": prompt[0]}) if isinstance(prompt[0], str | list) else list(prompt)

    def _ids_of(self, part: Completion | None) -> Sequence[int]:
        if part is None:
            return ()
        return part.ids or self._tokenizer.encode(part.text, add_special_tokens=False)

    # --- one list after another ----------------------------------------------------------------

    async def _generate(self, prompt: list[int], settings: dict[str, Any]) -> Any:
        loop = asyncio.get_running_loop()
        asked = _Asked(prompt, settings, loop.create_future())
        self._waiting.append(asked)
        if not self._generating:
            self._generating = True
            loop.call_soon(self._start, loop)  # after everything that is sent at this moment
        return await asked.answer

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        batch, self._waiting = self._waiting, []
        if not batch:
            self._generating = False
            return
        done = loop.run_in_executor(self._thread, self._run, batch)
        done.add_done_callback(lambda future: self._end(loop, batch, future))

    def _run(self, some: list[_Asked]) -> Sequence[Any]:
        prompts = [{"prompt_token_ids": each.prompt} for each in some]
        settings = [self._settings(**each.settings) for each in some]
        outputs: Sequence[Any] = self._llm.generate(prompts, sampling_params=settings, use_tqdm=False)
        return outputs

    def _end(self, loop: asyncio.AbstractEventLoop, some: list[_Asked], done: asyncio.Future[Sequence[Any]]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is None and not done.cancelled() and len(done.result()) != len(some):
            error = ValueError(f"{len(done.result())} answers to {len(some)} prompts")
        for at, each in enumerate(some):
            if each.answer.done():
                continue
            if error is not None or done.cancelled():
                line = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                each.answer.set_exception(Unavailable(f"vLLM failed: {line}", tokens=None, cause="vLLM failed"))
            else:
                each.answer.set_result(done.result()[at])
        self._start(loop)

    def _completion(self, body: Mapping[str, Any], found: Any, limit: int, granted: int, suffix: str) -> Completion:
        output = found.outputs[0]
        text, ids, stopped = output.text, tuple(output.token_ids), output.finish_reason == "stop"
        if suffix and opens_box(suffix) and stopped and isinstance(output.stop_reason, str):
            text += "}"  # it was part of the stop text
        cached = int(found.num_cached_tokens or 0)
        read = len(found.prompt_token_ids)
        whole = response(
            body,
            name=f"vllm-{found.request_id}",
            model=self.model,
            text=text,
            finish="stop" if stopped else "length",
            tokens=len(ids),
            prompt_tokens=read,
        )
        # An answer that the context cut, not its limit, cannot be continued: it has ended.
        over = stopped or (granted < limit and len(ids) >= granted)
        return Completion(
            text,
            len(ids),
            "stop" if stopped else "length",
            "server",
            flags=("context_full",) if over and not stopped else (),
            body=whole,
            ids=() if suffix else ids,
            input_tokens=max(0, read - cached),
            cached_tokens=min(cached, read),
        )
