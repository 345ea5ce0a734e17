"""The text forecaster with a transformer beside the words: what its middle layers say, each a column of the structure.

The transformer stays as it is: only weights of words and columns are learned, by the same regression.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from scipy import sparse

from shadowprice.arrays import Array
from shadowprice.errors import InputError, MissingExtra
from shadowprice.forecast.features import features
from shadowprice.forecast.folder import written
from shadowprice.forecast.huggingface import quiet
from shadowprice.forecast.text import TextForecaster
from shadowprice.types import Forecast

try:
    from shadowprice.forecast.encoder.middle import MiddleLayers
except MissingExtra:
    raise MissingExtra("encoder", "a forecaster with the features of a transformer") from None

_BATCH = 32
_STRENGTH = 0.7  # of all columns of the transformer together, beside the words


class FrozenForecaster(TextForecaster):
    """Slower than words alone: the transformer reads every question, in training and for a forecast.

    base        an encoder: a name on the Hugging Face hub, or a folder with its tokenizer
    max_length  how many tokens of a question it reads, from the end
    """

    kind = "frozen"

    def __init__(
        self,
        base: str | os.PathLike[str],
        *,
        max_length: int = 256,
        penalty: float = 3.0,
        structure: tuple[float, float] = (0.02, 0.1),
    ) -> None:
        if max_length < 8:
            raise InputError(f"max_length {max_length} is too short", fix="give 8 or more")
        super().__init__(penalty, structure)
        self.base, self.max_length = os.fspath(base), max_length
        self._loaded: MiddleLayers | None = None

    @property
    def _network(self) -> MiddleLayers:
        if self._loaded is None:
            with quiet():
                self._loaded = MiddleLayers.from_base(self.base, 0, self.max_length)
        return self._loaded

    def _untrained(self) -> Self:
        found = type(self)(self.base, max_length=self.max_length, penalty=self.penalty, structure=self.structure)
        found._loaded = self._loaded
        return found

    def _predict(self, texts: Sequence[str]) -> Forecast:
        return self._at_once(self._trained(), texts)

    def _read(self, texts: Sequence[str]) -> tuple[sparse.csr_array, Array]:
        words, structure = features(texts)
        return words, np.hstack([structure, self._network.outputs(texts, _BATCH)])

    def _width(self) -> int:
        return super()._width() + self._network.width

    def _strength(self, target: int) -> Array:
        width = self._network.width
        return np.concatenate([super()._strength(target), np.full(width, _STRENGTH / np.sqrt(width))])

    def save(self, folder: str | os.PathLike[str]) -> None:
        with written(folder, self.kind, self._about()) as scratch:
            self._save_weights(scratch)
            self._network.save(scratch)

    def _about(self) -> dict[str, Any]:
        about = super()._about()
        network = self._network
        return {**about, "base": self.base, "max_length": self.max_length, "padding": network.padding}

    @classmethod
    def _from(cls, folder: str | os.PathLike[str], about: Mapping[str, Any]) -> Self:
        for_length, for_correct = map(float, about["structure"])
        found = cls(
            str(about["base"]),
            max_length=int(about["max_length"]),
            penalty=float(about["penalty"]),
            structure=(for_length, for_correct),
        )
        with quiet():
            found._loaded = MiddleLayers.load(folder, int(about["padding"]), found.max_length)
        return found
