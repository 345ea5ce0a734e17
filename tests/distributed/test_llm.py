"""Rows for vLLM's processor in Ray, and back. The processor itself: `scripts/vllm_offline.py`."""

import sys

import orjson
import pytest

from shadowprice.distributed import llm
from shadowprice.errors import MissingExtra


def row(limit, **body):
    question = {"messages": [{"role": "user", "content": "Why?"}], **body}
    return {"id": "a", "body": orjson.dumps(question), "max_tokens": limit}


def test_each_row_has_its_own_limit():
    found = llm.to_prompt(row(37, temperature=0, max_tokens=500, model="m"))
    assert found["sampling_params"] == {"temperature": 0, "max_tokens": 37}
    assert found["messages"] == [{"role": "user", "content": "Why?"}]


def test_an_answer_that_used_its_whole_limit_was_cut():
    made = {**llm.to_prompt(row(5)), "generated_text": "because", "num_generated_tokens": 5}
    del made["sampling_params"], made["messages"]  # Ray does not give them back
    assert llm.to_answer(made) == {"id": "a", "outcome": "truncated", "text": "because", "tokens": 5}
    assert llm.to_answer({**made, "num_generated_tokens": 4})["outcome"] == "finished"


def test_declined_rows_are_rows_and_are_not_sent():
    assert llm.is_admitted(row(1))
    assert llm.is_declined(row(0))
    assert llm.to_declined(row(0)) == {"id": "a", "outcome": "declined", "text": "", "tokens": 0}


def test_without_vllm_the_error_gives_the_line_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.data.llm", None)
    with pytest.raises(MissingExtra, match=r"shadowprice\[vllm\]"):
        llm.generate(None, model="m")
