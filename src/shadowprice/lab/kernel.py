r"""Regression on questions by similarity: which questions a model answers well, from few and noisy marks.

    k(a, b) = exp(-0.7 |w_a - w_b|^2 - 0.5 |s_a - s_b|^2 / 14) + 0.3 w_a . w_b

with the words w and the structure s of `forecast.features`. Kernel ridge regression with one penalty per target, the
one with the smallest leave-one-out error, which is known in closed form: with the hat matrix H, the error at i without
i is (y_i - f_i) / (1 - H_ii). Noisy targets get a large penalty: they shrink to their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from shadowprice.arrays import Array
from shadowprice.forecast.features import features

_PENALTIES = np.geomspace(0.3, 1000.0, 16)
_EDGE = 3.0  # standard deviations: structure is clipped there


@dataclass(frozen=True, eq=False)
class KernelRegression:
    """Made by `fit`. `left_out` has the prediction for every question of the fit by a fit without it."""

    words: sparse.csr_array
    structure: Array
    centre: Array
    scale: Array
    mean: Array
    weights: Array
    left_out: Array

    @classmethod
    def fit(cls, texts: Sequence[str], targets: Array) -> KernelRegression:
        """`targets`: a row per text, a column per target."""
        words, raw = features(texts)
        centre, scale = raw.mean(0), np.maximum(raw.std(0), 1e-6)
        structure = np.clip((raw - centre) / scale, -_EDGE, _EDGE)
        values, vectors = np.linalg.eigh(_kernel(words, structure, words, structure))
        squared, mean = vectors**2, targets.mean(0)
        projected = vectors.T @ (targets - mean)
        left_out, weights = np.zeros_like(targets), np.zeros_like(targets)
        least = np.full(targets.shape[1], np.inf)
        for penalty in _PENALTIES:
            shrunk = values / (values + penalty)
            hat = (squared @ shrunk)[:, None]
            fitted = vectors @ (shrunk[:, None] * projected)
            without = mean + (fitted - hat * (targets - mean)) / (1 - hat)
            error = ((targets - without) ** 2).mean(0)
            better = error < least
            least = np.where(better, error, least)
            left_out[:, better] = without[:, better]
            weights[:, better] = (vectors @ (projected / (values + penalty)[:, None]))[:, better]
        return cls(words, structure, centre, scale, mean, weights, left_out)

    def predict(self, texts: Sequence[str]) -> Array:
        words, raw = features(texts)
        structure = np.clip((raw - self.centre) / self.scale, -_EDGE, _EDGE)
        predicted: Array = self.mean + _kernel(words, structure, self.words, self.structure) @ self.weights
        return predicted


def _kernel(words: sparse.csr_array, structure: Array, others: sparse.csr_array, structures: Array) -> Array:
    similar = np.asarray((words @ others.T).todense())
    norms = (structure**2).sum(1)[:, None] + (structures**2).sum(1)[None, :]
    apart = np.maximum(0.0, norms - 2 * structure @ structures.T) / structure.shape[1]
    kernel: Array = np.exp(-0.7 * (2 - 2 * similar) - 0.5 * apart) + 0.3 * similar
    return kernel
