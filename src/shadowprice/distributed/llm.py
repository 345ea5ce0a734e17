"""vLLM inside Ray's datasets: limits of a plan as `sampling_params.max_tokens` of every row.

    plan = sp.ray.plan(dataset, budget="50M", max_tokens=4096)
    answers = sp.ray.llm.generate(plan, model="Qwen/Qwen2.5-7B-Instruct", concurrency=4)

Ray's vLLM processor generates on the machines of the cluster, without a server. Each row has its own limit, and rows
that are declined are not sent, so what is generated never exceeds the budget. There is no ledger: after a failure
Ray generates a block again, within the limits but not for free. Where tokens are paid for, use `sp.ray.run`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from shadowprice.errors import MissingExtra

if TYPE_CHECKING:
    import ray.data

    from shadowprice.distributed import Plan

# Fields of a request that vLLM's SamplingParams has, too.
_SAMPLING = ("temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty")


def generate(
    plan: Plan,
    *,
    model: str,
    batch_size: int = 64,
    concurrency: int = 1,
    engine: Mapping[str, Any] | None = None,
    **options: Any,
) -> ray.data.Dataset:
    """Answers the admitted rows of a plan: id, outcome, text, tokens; declined rows are rows, too.

    engine   options of vLLM, such as max_model_len
    options  of Ray's `vLLMEngineProcessorConfig`; without a GPU, placement_group_config={"bundles": [{"CPU": 1}]}
    """
    try:
        from ray.data.llm import build_processor, vLLMEngineProcessorConfig
    except ImportError:
        raise MissingExtra("vllm", "vLLM in Ray") from None
    config = vLLMEngineProcessorConfig(
        model_source=model, engine_kwargs=dict(engine or {}), batch_size=batch_size, concurrency=concurrency, **options
    )
    processor = build_processor(config, preprocess=to_prompt, postprocess=to_answer)
    planned = plan.to_dataset()
    answered: ray.data.Dataset = processor(planned.filter(is_admitted))
    return answered.union(planned.filter(is_declined).map(to_declined))


def is_admitted(row: Mapping[str, Any]) -> bool:
    return bool(row["max_tokens"] > 0)


def is_declined(row: Mapping[str, Any]) -> bool:
    return not is_admitted(row)


def to_prompt(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the processor needs of a row: messages, and how to sample, with the limit of this row."""
    body = orjson.loads(row["body"])
    sampling = {name: body[name] for name in _SAMPLING if body.get(name) is not None}
    messages = body.get("messages") or [{"role": "user", "content": body["prompt"]}]
    limit = sampling["max_tokens"] = int(row["max_tokens"])
    return {"id": row["id"], "max_tokens": limit, "messages": messages, "sampling_params": sampling}


def to_answer(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the result; one that was cut has used its whole limit."""
    tokens = int(row["num_generated_tokens"])
    cut = tokens >= int(row["max_tokens"])
    return {
        "id": row["id"],
        "outcome": "truncated" if cut else "finished",
        "text": row["generated_text"],
        "tokens": tokens,
    }


def to_declined(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "outcome": "declined", "text": "", "tokens": 0}
