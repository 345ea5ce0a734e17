"""The part of vLLM's interface that the backend uses, over a model that answers every question with the same words."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

from .hostile import WORDS


@dataclass
class SamplingParams:
    max_tokens: int
    n: int = 1
    temperature: float = 1.0
    stop: list[str] = field(default_factory=list)
    seed: int | None = None


class Tokenizer:
    """A token for every piece of text that ends in a space."""

    def __init__(self):
        self.texts, self.ids = [], {}

    def encode(self, text, add_special_tokens=True):
        pieces = [piece for piece in text.replace(" ", " \0").split("\0") if piece]
        for piece in pieces:
            if piece not in self.ids:
                self.ids[piece] = len(self.texts)
                self.texts.append(piece)
        return [self.ids[piece] for piece in pieces]

    def decode(self, ids):
        return "".join(self.texts[each] for each in ids)

    def apply_chat_template(self, messages, add_generation_prompt, tokenize):
        return self.encode("".join(f"{each['role']}: {each['content']} " for each in messages) + "assistant: ")


class LLM:
    def __init__(self, model="fake", max_model_len=1000):
        self.tokenizer, self.lists, self.generated, self.fault = Tokenizer(), [], 0, None
        self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=max_model_len, model=model))

    def get_tokenizer(self):
        return self.tokenizer

    def generate(self, prompts, sampling_params, use_tqdm):
        assert len(prompts) == len(sampling_params)
        if self.fault:
            raise self.fault
        self.lists.append(len(prompts))
        return [self._answer(number, *each) for number, each in enumerate(zip(prompts, sampling_params, strict=True))]

    def _answer(self, number, prompt, settings):
        ids = prompt["prompt_token_ids"]
        assert len(ids) + settings.max_tokens <= self.llm_engine.model_config.max_model_len
        text = self.tokenizer.decode(ids)
        if settings.stop and settings.stop[0].startswith(("}", "\n")):  # asked for the final answer
            new, finish, reason = self.tokenizer.encode("is 42")[: settings.max_tokens], "stop", settings.stop[0]
            if len(new) < 2:
                finish, reason = "length", None
        else:
            done = max((n for n in range(len(WORDS) + 1) if text.endswith("".join(WORDS[:n]))), default=0)
            rest = [self.tokenizer.encode(word)[0] for word in WORDS[done:]]
            new, finish, reason = rest[: settings.max_tokens], "stop", None
            if len(rest) > settings.max_tokens:
                finish = "length"
        self.generated += len(new)
        output = SimpleNamespace(
            text=self.tokenizer.decode(new), token_ids=new, finish_reason=finish, stop_reason=reason
        )
        return SimpleNamespace(outputs=[output], prompt_token_ids=ids, num_cached_tokens=0, request_id=str(number))
