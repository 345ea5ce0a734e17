"""How a final answer is asked for, by name or from a file."""

import pytest

from shadowprice.errors import InputError
from shadowprice.formats.landings import LANDINGS, read_landing


def test_landings_have_names():
    assert read_landing("math") is LANDINGS["math"]
    assert read_landing("math").text.endswith("\\boxed{")
    assert "</think>" in read_landing("think").text


def test_a_file_has_the_text(tmp_path):
    (tmp_path / "land.txt").write_text("\n\nSo it is:\n")
    assert read_landing(str(tmp_path / "land.txt")).text == "\n\nSo it is:"


def test_what_is_neither_is_named_with_a_fix(tmp_path):
    with pytest.raises(InputError, match="choose one of math, think, plain, or name a file"):
        read_landing("maths")
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(InputError, match="is empty"):
        read_landing(str(tmp_path / "empty.txt"))
