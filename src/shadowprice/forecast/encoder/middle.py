"""What a transformer knows about a text that is not trained any further: the means of two of its middle layers.

They say more about how hard a question is than the last layer, which was trained for another task. The layers above
them are not kept, and weights are saved in half precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from shadowprice.forecast.encoder.network import WEIGHTS, Network

_READ = "shadowprice_layers"  # in the configuration: which layers are read


class MiddleLayers(Network):
    """Texts to rows: means over the tokens, in the layers at a half and at two thirds of the depth."""

    @classmethod
    def _pretrained(cls, base: str, width: int) -> Any:
        configuration = transformers.AutoConfig.from_pretrained(base, trust_remote_code=False)
        depth = int(configuration.num_hidden_layers)
        layers = [depth // 2, max(1, round(2 * depth / 3))]
        configuration.num_hidden_layers = layers[1]
        setattr(configuration, _READ, layers)
        model = transformers.AutoModel.from_pretrained(
            base, config=configuration, dtype=torch.float32, trust_remote_code=False
        )
        return model.half().float()  # as they will be loaded again

    @classmethod
    def _model_of(cls, configuration: Any) -> Any:
        layers = getattr(configuration, _READ)
        if not all(isinstance(each, int) and 0 <= each <= configuration.num_hidden_layers for each in layers):
            raise ValueError("layers that it does not have")
        return transformers.AutoModel.from_config(configuration, dtype=torch.float32)

    @property
    def width(self) -> int:
        return len(getattr(self.model.config, _READ)) * int(self.model.config.hidden_size)

    def _rows(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        states = self.model(**inputs, output_hidden_states=True).hidden_states
        mask = inputs["attention_mask"].unsqueeze(-1).float()
        means = [(states[layer] * mask).sum(1) / mask.sum(1) for layer in getattr(self.model.config, _READ)]
        return torch.cat(means, dim=1)

    def save(self, folder: Path) -> None:
        super().save(folder)
        halves = {name: each.half().contiguous().cpu() for name, each in self.model.state_dict().items()}
        save_file(halves, folder / WEIGHTS)
