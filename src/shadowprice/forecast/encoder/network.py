"""A transformer whose head gives numbers: loading a base, running it on texts, saving it.

A configuration, plain weights (safetensors) and a tokenizer are saved. They are read without the loaders of
transformers, which would follow a configuration to other files, to packages and to the network.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from shadowprice.arrays import Array
from shadowprice.errors import InputError, MissingExtra

try:
    import tokenizers
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError:
    raise MissingExtra("encoder", "the encoder forecaster") from None

_CONFIGURATION, WEIGHTS, _TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
_CHARACTERS = 32  # per token, at most: what is further to the left of a text is not tokenized


class Network:
    """Texts to rows of numbers, `width` each.

    max_length  how many tokens of a text are read, from its end; lowered to what the transformer can read
    """

    def __init__(self, model: Any, tokenizer: tokenizers.Tokenizer, padding: int, max_length: int) -> None:
        self.model, self.tokenizer, self.padding, self.max_length = model, tokenizer, padding, max_length
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_length, direction="left")

    @classmethod
    def from_base(cls, base: str, width: int, max_length: int) -> Self:
        """A pretrained transformer with a new head; `base` is a name on the Hugging Face hub or a folder."""
        if (os.path.isabs(base) or base.startswith(".")) and not os.path.isdir(base):
            raise InputError("no such folder", path=base, fix=_FIX)
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(base, trust_remote_code=False)
            model = cls._pretrained(base, width)
        except Exception as error:  # half a dozen libraries fail in their own ways
            raise InputError(f"the encoder {base!r} cannot be loaded: {_first_line(error)}", fix=_FIX) from None
        if not getattr(tokenizer, "is_fast", False) or tokenizer.pad_token_id is None:
            raise InputError(f"{base!r} has no fast tokenizer with a padding token", fix=_FIX)
        readable = min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None) or 2**30)
        return cls(model, tokenizer.backend_tokenizer, tokenizer.pad_token_id, min(max_length, readable))

    @classmethod
    def _pretrained(cls, base: str, width: int) -> Any:
        return transformers.AutoModelForSequenceClassification.from_pretrained(
            base,
            num_labels=width,
            ignore_mismatched_sizes=True,  # the base may have another head
            dtype=torch.float32,
            trust_remote_code=False,
        )

    @classmethod
    def _model_of(cls, configuration: Any) -> Any:
        """One with such a configuration, and random weights."""
        return transformers.AutoModelForSequenceClassification.from_config(configuration, dtype=torch.float32)

    @property
    def width(self) -> int:
        return int(self.model.config.num_labels)

    def _rows(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        found: torch.Tensor = self.model(**inputs).logits
        return found

    def pieces(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of the texts, cut on the left."""
        # Lone surrogates, which no tokenizer takes, become question marks.
        ends = [text[-_CHARACTERS * self.max_length :].encode(errors="replace").decode() for text in texts]
        return [encoding.ids or [self.padding] for encoding in self.tokenizer.encode_batch(ends)]

    def padded(self, pieces: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
        """A batch as the model takes it."""
        longest = max(map(len, pieces))
        ids = torch.tensor([[*row, *[self.padding] * (longest - len(row))] for row in pieces])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in pieces])
        return {"input_ids": ids, "attention_mask": mask}

    def outputs(self, texts: Sequence[str], batch: int) -> Array:
        """A row per text. Texts of similar length are batched together, so that little is computed for padding."""
        pieces = self.pieces(texts)
        order = np.argsort([len(row) for row in pieces], kind="stable")
        outputs = np.zeros((len(texts), self.width))
        self.model.to(device()).eval()
        with torch.inference_mode():
            for start in range(0, len(order), batch):
                places = order[start : start + batch]
                inputs = {name: each.to(device()) for name, each in self.padded([pieces[i] for i in places]).items()}
                outputs[places] = self._rows(inputs).double().cpu().numpy()
        return outputs

    def save(self, folder: Path) -> None:
        weights = {name: each.contiguous().cpu() for name, each in self.model.state_dict().items()}
        save_file(weights, folder / WEIGHTS)
        (folder / _CONFIGURATION).write_text(json.dumps(_plain(self.model.config.to_dict()), indent=1) + "\n")
        self.tokenizer.save(str(folder / _TOKENIZER))

    @classmethod
    def load(cls, folder: str | os.PathLike[str], padding: int, max_length: int) -> Self:
        try:
            record = _plain(json.loads(Path(folder, _CONFIGURATION).read_text()))
            configuration = transformers.AutoConfig.for_model(record.pop("model_type"), **record)
            weights = {name: each.float() for name, each in load_file(Path(folder, WEIGHTS)).items()}
            with torch.device("meta"):  # a forged configuration gets no memory before its shapes are checked
                shapes = _shapes(cls._model_of(configuration).state_dict())
            if shapes != _shapes(weights):
                raise ValueError("the weights do not fit the configuration")
            model = cls._model_of(configuration)
            model.load_state_dict(weights)
            return cls(model, tokenizers.Tokenizer.from_file(str(Path(folder, _TOKENIZER))), padding, max_length)
        except Exception as error:  # tokenizers raises bare exceptions
            raise InputError(f"damaged: {_first_line(error)}", path=folder, fix="train it again") from None


_FIX = "give a folder with an encoder, or a name on the Hugging Face hub with a network connection"
_CODE = {"auto_map", "attn_implementation", "experts_implementation", "quantization_config", "custom_pipelines"}


def _plain(configuration: dict[str, Any]) -> dict[str, Any]:
    """Without the entries that name code: files to import, kernels to fetch, packages to call."""
    return {name: value for name, value in configuration.items() if not name.startswith("_") and name not in _CODE}


def _shapes(weights: dict[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: each.shape for name, each in weights.items()}


def _first_line(error: Exception) -> str:
    lines: Iterable[str] = (line.strip() for line in str(error).splitlines())
    return next((line[:200] for line in lines if line), type(error).__name__)


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
