"""lm-eval: a model that answers all generation requests of an evaluation under one budget.

    python -m shadowprice.integrations.lm_eval run --model shadowprice \\
        --model_args base_url=http://127.0.0.1:8000/v1,model=NAME,budget=200k --tasks gsm8k

lm-eval hands over the requests of all tasks at once, so they are one batch that is cleared at once. A request that
is declined has the empty answer, and is scored as such. Requests for likelihoods generate nothing and are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from shadowprice.backends.base import Backend
from shadowprice.backends.openai import OpenAIBackend
from shadowprice.cost import parse_budget
from shadowprice.errors import InputError
from shadowprice.runs import Run
from shadowprice.types import Result


@register_model("shadowprice")
class ShadowpriceLM(LM):
    """One budget for everything that is generated with it.

    base_url, model  an OpenAI-compatible server
    budget           `200k`, a number of tokens; `256/query` counts the requests of the first call
    settings         those of `Run`: policy, accounting, max_tokens, concurrency, ...

    `results` has the result of every request so far.
    """

    def __init__(
        self,
        base_url: str = "",
        model: str = "",
        budget: str | int = "",
        *,
        backend: Backend | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        if not budget or not ((base_url and model) or backend):
            raise InputError(
                "base_url, model and budget are needed", fix="give --model_args base_url=URL,model=M,budget=200k"
            )
        self._backend, self._base_url, self._model = backend, str(base_url), str(model)
        self._budget: str | int = budget
        # What lm-eval passes to every model, and has no meaning for a server.
        self._settings = {k: v for k, v in settings.items() if k not in ("batch_size", "max_batch_size", "device")}
        self.spent = 0
        self.results: list[Result] = []

    @property
    def tokenizer_name(self) -> str:
        return self._model

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        if not requests:
            return []
        left = parse_budget(self._budget, len(requests)) - self.spent
        self._budget = left + self.spent
        bodies = [_body(*request.args) for request in requests]
        results = asyncio.run(self._answer(bodies, left))
        self.spent += sum(result.cost for result in results)
        self.results += results
        return [_until(result.text, _stops(request.args[1])) for result, request in zip(results, requests, strict=True)]

    async def _answer(self, bodies: Sequence[Mapping[str, Any]], budget: int) -> list[Result]:
        if self._backend is not None:
            return await self._run(bodies, budget, self._backend)
        async with OpenAIBackend(self._base_url, model=self._model) as backend:
            return await self._run(bodies, budget, backend)

    async def _run(self, bodies: Sequence[Mapping[str, Any]], budget: int, backend: Backend) -> list[Result]:
        run = Run(list(bodies), budget=budget, backend=backend, **self._settings)
        async for _ in run:
            pass
        by_id = {result.id: result for result in run.results()}
        return [by_id[request.id] for request in run.requests]

    def loglikelihood(self, requests: list[Instance]) -> NoReturn:
        raise InputError("likelihoods generate nothing: there is no budget to divide", fix="use a generate_until task")

    def loglikelihood_rolling(self, requests: list[Instance]) -> NoReturn:
        self.loglikelihood(requests)


def _body(context: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The request in OpenAI form."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": context}]}
    if limit := options.get("max_gen_toks") or options.get("max_tokens"):
        body["max_tokens"] = int(limit)
    if stops := _stops(options):
        body["stop"] = stops[:4]  # as many as OpenAI's servers accept; the others are cut from the answer
    body["temperature"] = float(options.get("temperature") or 0.0) if options.get("do_sample", True) else 0.0
    return body


def _stops(options: Mapping[str, Any]) -> list[str]:
    until = options.get("until") or []
    return [stop for stop in ([until] if isinstance(until, str) else until) if stop]


def _until(text: str, stops: Sequence[str]) -> str:
    """The text up to the first of the stops."""
    return text[: min([at for stop in stops if (at := text.find(stop)) >= 0], default=len(text))]


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
