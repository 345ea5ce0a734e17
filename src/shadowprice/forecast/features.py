"""What a question looks like, as numbers: hashed words and pairs of words, and its structure.

No loop over queries or words: all texts of a call are laid end to end as bytes, and everything is
computed along that one array. It is what makes a forecast cheap enough for every request.

    word    a run of letters (other alphabets and a leading backslash count as letters), a run of
            digits, or one other sign; digits are all alike, so that a number is known by its length
    hash    of the word at bytes s..e: p^-s * sum_j byte_j p^j, modulo 2^64, by differences of one
            running sum; a pair of words hashes both hashes
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from shadowprice.arrays import Array

COLUMNS = 1 << 15
STRUCTURE = 14
_LONGEST = 4096  # characters kept of each end of a question
_BYTES_AT_ONCE = 1 << 22

_U64 = NDArray[np.uint64]
_SPACE, _LETTER, _DIGIT, _SIGN = range(4)
_CLASS = np.full(256, _SIGN, np.uint8)
_CLASS[[*b" \t\n\r\v\f\0"]] = _SPACE
_CLASS[[*b"abcdefghijklmnopqrstuvwxyz\\", *range(128, 256)]] = _LETTER
_CLASS[[*b"0123456789"]] = _DIGIT
_P = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
_MIX = np.uint64(0xD6E8FEB86659FD93)
_PAIR = np.uint64(0xA24BAED4963EE407)
_STEM = 5  # letters of a longer word that are a feature of their own
_COUNTED = b"$=?\n,^+"  # signs that have a column of their own in the structure


def features(texts: Sequence[str]) -> tuple[sparse.csr_array, Array]:
    """One row per text: hashed words and pairs of words, with length 1, and the structure."""
    some = [_shortened(text) for text in texts]
    parts, start, size = [], 0, 0
    for end, text in enumerate(some, start=1):
        size += len(text)
        if size > _BYTES_AT_ONCE or end == len(some):
            parts.append(_features(some[start:end]))
            start, size = end, 0
    if not parts:
        return sparse.csr_array((0, COLUMNS)), np.zeros((0, STRUCTURE))
    words, structure = zip(*parts, strict=True)
    return sparse.vstack(words, format="csr"), np.vstack(structure)


def _shortened(text: str) -> bytes:
    if len(text) > 2 * _LONGEST:
        text = f"{text[:_LONGEST]} {text[-_LONGEST:]}"
    return text.lower().encode(errors="replace") + b"\0"  # \0 keeps words of neighbours apart


def _features(texts: Sequence[bytes]) -> tuple[sparse.csr_array, Array]:
    sizes = np.array([len(text) for text in texts])
    byte = np.frombuffer(b"".join(texts), np.uint8)
    kind = _CLASS[byte]
    byte = np.where(kind == _DIGIT, np.uint8(ord("0")), byte)

    # Words begin where the kind changes, at every sign and at every backslash.
    begins = (kind != _SPACE) & ((kind == _SIGN) | (byte == ord("\\")))
    begins[0] |= kind[0] != _SPACE
    begins[1:] |= (kind[1:] != kind[:-1]) & (kind[1:] != _SPACE)
    starts = np.flatnonzero(begins)
    last = np.append(begins[1:], True) | np.append(kind[1:] == _SPACE, True)  # of what it is in
    ends = np.flatnonzero(last & (kind != _SPACE))
    document = np.repeat(np.arange(sizes.size), sizes)[starts]

    power, inverse = _powers(byte.size)
    running = np.cumsum((byte.astype(np.uint64) + np.uint64(1)) * power)
    before = np.where(starts > 0, running[starts - 1], np.uint64(0))
    word = _mixed((running[ends] - before) * inverse[starts])
    stem_ends = np.minimum(ends, starts + _STEM - 1)
    stem = _mixed((running[stem_ends] - before) * inverse[starts] + np.uint64(1))[ends > stem_ends]
    same = document[1:] == document[:-1]
    pair = _mixed(word[:-1] * _PAIR + word[1:])[same]

    column = np.concatenate([word, stem, pair]) >> np.uint64(64 - 15)
    row = np.concatenate([document, document[ends > stem_ends], document[1:][same]])
    place, count = np.unique(row * COLUMNS + column.astype(np.int64), return_counts=True)
    row, column = np.divmod(place, COLUMNS)
    value = 1 + np.log(count)
    norm = np.sqrt(np.bincount(row, value**2, minlength=sizes.size))
    words = sparse.csr_array((value / norm[row], (row, column)), shape=(sizes.size, COLUMNS))

    lengths = ends - starts + 1
    numbers = kind[starts] == _DIGIT
    edges = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    n = np.bincount(document, minlength=sizes.size)

    def of(mask: NDArray[np.bool_]) -> NDArray[np.intp]:
        return np.bincount(document[mask], minlength=sizes.size)

    counts = [
        sizes - 1,
        n,
        of(numbers),
        of(byte[starts] == ord("\\")),
        of((kind[starts] == _LETTER) & (lengths == 1)),
        *(np.add.reduceat((byte == sign).astype(np.int64), edges) for sign in _COUNTED),
    ]
    longest = np.zeros(sizes.size, np.int64)
    np.maximum.at(longest, document[numbers], lengths[numbers])
    different = np.diff(words.indptr) / np.maximum(1, 2 * n - 1)
    return words, np.column_stack([*map(np.log1p, counts), np.log1p(longest), different])


def _mixed(hashes: _U64) -> _U64:
    """Spreads what differs over all bits, the upper ones above all."""
    hashes = (hashes ^ (hashes >> np.uint64(32))) * _MIX
    return (hashes ^ (hashes >> np.uint64(29))) * _MIX


def _powers(size: int) -> tuple[_U64, _U64]:
    """p^j and p^-j for j below `size`, modulo 2^64; computed once and kept for the next call."""
    global _kept
    if _kept[0].size < size:
        _kept = _geometric(_P, size), _geometric(pow(_P, -1, 1 << 64), size)
    return _kept[0][:size], _kept[1][:size]


def _geometric(base: int, size: int) -> _U64:
    powers = np.full(size, base, np.uint64)
    powers[:1] = 1
    return np.cumprod(powers)


_kept: tuple[_U64, _U64] = (np.empty(0, np.uint64), np.empty(0, np.uint64))
