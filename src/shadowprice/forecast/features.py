"""What a question looks like, as numbers: hashed words and pairs of words, and its structure.

No loop over requests or words: all texts of a call are laid end to end as bytes, and everything is
computed along that one array. This makes a forecast cheap enough for every request.

    word    a run of letters (other alphabets and a leading backslash count as letters), a run of
            digits, or one other sign; all digits become 0, so that a number is known by its length
    hash    of the word at bytes s..e: p^-s * sum_{j=s..e} byte_j p^j, modulo 2^64, as a difference of
            one running sum; the hash of a pair of words is made of both hashes

One short text takes longer to lay out as arrays than to read: `features_of_one` reads it word by word.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from shadowprice.arrays import Array

_BITS = 15
COLUMNS = 1 << _BITS  # of hashed words
STRUCTURE = 14  # columns of the structure
_LONGEST = 4096  # characters read from each end of a question
_BYTES_AT_ONCE = 1 << 22

_U64 = NDArray[np.uint64]
_Ints = NDArray[np.intp]
_SPACE, _LETTER, _DIGIT, _SIGN = range(4)
_CLASS = np.full(256, _SIGN, np.uint8)
_CLASS[[*b" \t\n\r\v\f\0"]] = _SPACE
_CLASS[[*b"abcdefghijklmnopqrstuvwxyz\\", *range(128, 256)]] = _LETTER
_CLASS[[*b"0123456789"]] = _DIGIT
_P = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
_MIX_INT, _PAIR_INT = 0xD6E8FEB86659FD93, 0xA24BAED4963EE407  # odd numbers with random bits
_MIX, _PAIR = np.uint64(_MIX_INT), np.uint64(_PAIR_INT)
_STEM = 5  # the first letters of a longer word are a feature of their own
_COUNTED = b"$=?\n,^+"  # signs that have a column of their own in the structure
_WORD = re.compile(rb"[a-z\x80-\xff]+|[0-9]+|\\[a-z\x80-\xff]*|[^\s\0]")
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_ALL_BITS = (1 << 64) - 1
_ZERO, _BACKSLASH, _LETTERS = ord("0"), ord("\\"), b"abcdefghijklmnopqrstuvwxyz\\"


def features(texts: Sequence[str]) -> tuple[sparse.csr_array, Array]:
    """One row per text: hashed words and pairs of words, each row of length 1, and the structure."""
    encoded = [_encoded(text) for text in texts]
    parts, start, size = [], 0, 0
    for end, text in enumerate(encoded, start=1):
        size += len(text)
        if size > _BYTES_AT_ONCE or end == len(encoded):
            words = _split(encoded[start:end])
            hashed = _hashed(words)
            parts.append((hashed, _structure(words, hashed)))
            start, size = end, 0
    if not parts:
        return sparse.csr_array((0, COLUMNS)), np.zeros((0, STRUCTURE))
    if len(parts) == 1:  # joining takes longer than all else, for one text
        return parts[0]
    hashed_parts, structures = zip(*parts, strict=True)
    return sparse.vstack(hashed_parts, format="csr"), np.vstack(structures)


def features_of_one(text: str) -> tuple[dict[int, float], list[float]]:
    """The same for one text: column to value, not yet scaled to length 1, and the structure."""
    data = _encoded(text).translate(_DIGITS)
    words = _WORD.findall(data)
    counts: dict[int, int] = {}
    numbers = longest = commands = letters = 0
    before: int | None = None
    for hashed, columns, digits, command, letter in map(_word, words):
        for column in columns:
            counts[column] = counts.get(column, 0) + 1
        if before is not None:
            pair = _mixed_one(before * _PAIR_INT + hashed) >> 64 - _BITS
            counts[pair] = counts.get(pair, 0) + 1
        before = hashed
        if digits:
            numbers += 1
            if digits > longest:
                longest = digits
        commands += command
        letters += letter
    signs = [data.count(sign) for sign in _COUNTED]
    structure = [len(data) - 1, len(words), numbers, commands, letters, *signs, longest]
    different = len(counts) / max(1, 2 * len(words) - 1)
    values = {column: 1 + math.log(count) if count > 1 else 1.0 for column, count in counts.items()}
    return values, [*map(math.log1p, structure), different]


@lru_cache(2**14)
def _word(word: bytes) -> tuple[int, tuple[int, ...], int, bool, bool]:
    """The hash of a word, its columns (its own, and that of its stem, if it has one), how many digits it has, and
    whether it is a LaTeX command or one letter."""
    total, stem, power = 0, [], 1
    for place, byte in enumerate(word):
        total += (byte + 1) * power
        power = power * _P & _ALL_BITS
        if place == _STEM - 1 and len(word) > _STEM:
            stem = [_mixed_one(total + 1) >> 64 - _BITS]
    hashed, first = _mixed_one(total), word[0]
    digits = len(word) if first == _ZERO else 0
    letter = len(word) == 1 and first in _LETTERS
    return hashed, (hashed >> 64 - _BITS, *stem), digits, first == _BACKSLASH, letter


def _mixed_one(hashed: int) -> int:
    hashed &= _ALL_BITS
    hashed = (hashed ^ hashed >> 32) * _MIX_INT & _ALL_BITS
    return (hashed ^ hashed >> 29) * _MIX_INT & _ALL_BITS


def _encoded(text: str) -> bytes:
    if len(text) > 2 * _LONGEST:
        text = f"{text[:_LONGEST]} {text[-_LONGEST:]}"
    return text.lower().encode(errors="replace") + b"\0"  # \0 separates the last word of a text from the next text


@dataclass(frozen=True, eq=False)
class _Words:
    """Texts laid end to end as bytes, and the words in them: word w has the bytes first[w] .. last[w]."""

    sizes: _Ints  # bytes of each text
    byte: NDArray[np.uint8]
    kind: NDArray[np.uint8]  # of each byte: space, letter, digit or sign
    first: _Ints
    last: _Ints
    text: _Ints  # the text each word is in


def _split(texts: Sequence[bytes]) -> _Words:
    """A word begins where the kind of byte changes, at every sign and at every backslash."""
    sizes = np.array([len(text) for text in texts])
    byte = np.frombuffer(b"".join(texts), np.uint8)
    kind = _CLASS[byte]
    byte = np.where(kind == _DIGIT, np.uint8(ord("0")), byte)

    begins = (kind == _SIGN) | (byte == ord("\\"))
    begins[0] |= kind[0] != _SPACE
    begins[1:] |= (kind[1:] != kind[:-1]) & (kind[1:] != _SPACE)
    # A word ends before the next begins, before a space and at the end of everything.
    ends = (kind != _SPACE) & (np.append(begins[1:], True) | np.append(kind[1:] == _SPACE, True))
    first = np.flatnonzero(begins)
    return _Words(sizes, byte, kind, first, np.flatnonzero(ends), np.repeat(np.arange(sizes.size), sizes)[first])


def _hashed(words: _Words) -> sparse.csr_array:
    """Words, stems and pairs of neighbouring words, counted by hash: 1 + ln(count), each row scaled to length 1."""
    # sum_{j=s..e} byte_j p^j is running[e] - running[s - 1]; times p^-s it does not depend on where the word is.
    power, inverse = _powers(words.byte.size)
    running = np.cumsum((words.byte.astype(np.uint64) + np.uint64(1)) * power)
    before = np.where(words.first > 0, running[words.first - 1], np.uint64(0))
    word = _mixed((running[words.last] - before) * inverse[words.first])

    stem_last = np.minimum(words.last, words.first + _STEM - 1)
    has_stem = words.last > stem_last
    stem = _mixed((running[stem_last] - before) * inverse[words.first] + np.uint64(1))[has_stem]

    neighbours = words.text[1:] == words.text[:-1]
    pair = _mixed(word[:-1] * _PAIR + word[1:])[neighbours]

    column = np.concatenate([word, stem, pair]) >> np.uint64(64 - _BITS)  # the upper bits are the best mixed
    row = np.concatenate([words.text, words.text[has_stem], words.text[1:][neighbours]])
    cell, count = np.unique(row * COLUMNS + column.astype(np.int64), return_counts=True)
    row, column = np.divmod(cell, COLUMNS)
    value = 1 + np.log(count)
    norm = np.sqrt(np.bincount(row, value**2, minlength=words.sizes.size))
    starts = np.searchsorted(row, np.arange(words.sizes.size + 1))  # cells are sorted by row, and then by column
    return sparse.csr_array((value / norm[row], column, starts), shape=(words.sizes.size, COLUMNS))


def _structure(words: _Words, hashed: sparse.csr_array) -> Array:
    """Per text, all but the last as ln(1 + n): bytes, words, numbers, LaTeX commands, single letters, the signs of
    `_COUNTED`, digits of the longest number; and the share of different features among all."""
    texts = words.sizes.size
    kind, byte, length = words.kind[words.first], words.byte[words.first], words.last - words.first + 1
    is_number = kind == _DIGIT

    def number_of(chosen: NDArray[np.bool_]) -> _Ints:
        return np.bincount(words.text[chosen], minlength=texts)

    text_starts = np.concatenate([[0], np.cumsum(words.sizes)[:-1]])
    all_words = np.bincount(words.text, minlength=texts)
    longest_number = np.zeros(texts, np.int64)
    np.maximum.at(longest_number, words.text[is_number], length[is_number])
    counts = [
        words.sizes - 1,
        all_words,
        number_of(is_number),
        number_of(byte == ord("\\")),
        number_of((kind == _LETTER) & (length == 1)),
        *(np.add.reduceat((words.byte == sign).astype(np.int64), text_starts) for sign in _COUNTED),
        longest_number,
    ]
    different = np.diff(hashed.indptr) / np.maximum(1, 2 * all_words - 1)
    return np.column_stack([*map(np.log1p, counts), different])


def _mixed(hashes: _U64) -> _U64:
    """Mixes the bits of each hash, so that every input bit affects the upper bits, which choose the column."""
    hashes = (hashes ^ (hashes >> np.uint64(32))) * _MIX
    return (hashes ^ (hashes >> np.uint64(29))) * _MIX


def _powers(size: int) -> tuple[_U64, _U64]:
    """p^j and p^-j for j below `size`, modulo 2^64; computed once and cached for the next call."""
    global _cached_powers
    if _cached_powers[0].size < size:
        _cached_powers = _geometric(_P, size), _geometric(pow(_P, -1, 1 << 64), size)
    return _cached_powers[0][:size], _cached_powers[1][:size]


def _geometric(base: int, size: int) -> _U64:
    powers = np.full(size, base, np.uint64)
    powers[:1] = 1
    return np.cumprod(powers)


_cached_powers: tuple[_U64, _U64] = (np.empty(0, np.uint64), np.empty(0, np.uint64))
