"""Words and structure of texts, computed for all of them at once."""

import re
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.forecast import features as module
from shadowprice.forecast.features import COLUMNS, STRUCTURE, features, features_of_one


def test_words_are_what_a_regular_expression_finds():
    """Rows are equal where the words are, and (but for collisions) only there."""
    word = re.compile(r"\\?[a-z]+|\d+|[^\sa-z\d]")
    texts = ["Find $x^2 + \\frac{1}{20}$.", "find $x^2+\\frac{1}{37}$ .", "find $x^3 + \\frac{1}{2}$."]
    words = [["#" * len(w) if w.isdigit() else w for w in word.findall(text.lower())] for text in texts]
    rows = features(texts)[0].toarray()
    for i in range(3):
        for j in range(3):
            assert (words[i] == words[j]) == np.array_equal(rows[i], rows[j])


@settings(deadline=None)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=6))
def test_a_row_depends_on_its_own_text_alone(texts):
    words, structure = features(texts)
    for i, text in enumerate(texts):
        alone, about = features([text])
        np.testing.assert_allclose(words[[i]].toarray(), alone.toarray())
        np.testing.assert_allclose(structure[[i]], about)
    assert words.shape == (len(texts), COLUMNS)
    lengths = np.sqrt((words.toarray() ** 2).sum(axis=1))
    assert np.all(np.isclose(lengths, 1) | (lengths == 0))


@settings(deadline=None)
@given(st.text(max_size=80) | st.text(st.sampled_from("ab\\10 $=?\n.é界"), max_size=200))
def test_one_text_word_by_word_has_the_same_row(text):
    values, structure = features_of_one(text)
    row = np.zeros(COLUMNS)
    row[[*values]] = [*values.values()]
    row /= np.linalg.norm(row) or 1.0
    words, about = features([text])
    np.testing.assert_allclose(row, words.toarray()[0], rtol=1e-14)
    np.testing.assert_allclose(structure, about[0], rtol=1e-14)


def test_case_and_the_digits_of_a_number_do_not_matter():
    one, other = features(["What is 12 + 345?", "WHAT IS 98 + 765?"])[0].toarray()
    assert np.array_equal(one, other)


def test_structure_by_hand():
    _, (row,) = features(["Find $x^2$, then 3 x 4567?"])
    words = ["find", "$", "x", "^", "#", "$", ",", "then", "#", "x", "####", "?"]
    pairs = {*pairwise(words)}
    different = (len({*words}) + len(pairs)) / (2 * len(words) - 1)
    #        bytes words numbers \\commands letters $ = ? \\n , ^ + longest number
    counts = [26, 12, 3, 0, 2, 2, 0, 1, 0, 1, 1, 0, 4]
    np.testing.assert_allclose(row, [*np.log1p(counts), different])


def test_many_texts_are_computed_in_parts(monkeypatch):
    texts = [f"Question {i}: what is {i} + {i * i}?" for i in range(50)]
    words, structure = features(texts)
    monkeypatch.setattr(module, "_BYTES_AT_ONCE", 100)
    in_parts, about = features(texts)
    np.testing.assert_array_equal(words.toarray(), in_parts.toarray())
    np.testing.assert_array_equal(structure, about)


def test_no_texts():
    words, structure = features([])
    assert words.shape == (0, COLUMNS)
    assert structure.shape == (0, STRUCTURE)
