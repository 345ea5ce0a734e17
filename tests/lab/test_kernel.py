"""Regression by similarity: it finds what texts show, and shrinks what they do not; left-out errors are true ones."""

import numpy as np

from shadowprice.lab.kernel import KernelRegression

from .several import questions


def test_it_predicts_what_the_text_shows():
    texts, hard = questions(200)
    model = KernelRegression.fit(texts[:150], hard[:150, None].astype(float))
    predicted = model.predict(texts[150:])[:, 0]
    assert predicted[hard[150:]].min() > predicted[~hard[150:]].max()


def test_noise_shrinks_to_the_mean():
    texts, _ = questions(200)
    noise = np.random.default_rng(0).normal(5, 1, (200, 1))
    model = KernelRegression.fit(texts, noise)
    assert np.std(model.predict(texts)) < 0.3
    assert np.abs(model.predict(texts).mean() - 5) < 0.1


def test_what_is_left_out_is_predicted_as_by_a_fit_without_it():
    texts, hard = questions(60)
    target = (hard + np.random.default_rng(1).normal(0, 0.3, 60))[:, None]
    whole = KernelRegression.fit(texts, target)
    for place in (0, 17, 59):
        rest = [i for i in range(60) if i != place]
        without = KernelRegression.fit([texts[i] for i in rest], target[rest])
        assert abs(without.predict([texts[place]])[0, 0] - whole.left_out[place, 0]) < 0.1
