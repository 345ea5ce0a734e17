"""Files appear whole or not at all."""

import hashlib

import pytest

from shadowprice.errors import InputError
from shadowprice.formats.files import replacing, sha256_of


class TestReplacing:
    def test_all_files_or_none(self, tmp_path):
        one, two = tmp_path / "one", tmp_path / "two"
        one.write_text("old")
        with pytest.raises(RuntimeError), replacing([one, two]) as (first, _):  # noqa: PT012
            first.write(b"new")
            raise RuntimeError
        assert one.read_text() == "old"
        assert [p.name for p in tmp_path.iterdir()] == ["one"]
        with replacing([one, two]) as (first, second):
            first.write(b"new")
            second.write(b"also")
        assert (one.read_text(), two.read_text()) == ("new", "also")
        assert len(list(tmp_path.iterdir())) == 2

    def test_a_place_that_cannot_be_written_is_told_at_once(self, tmp_path):
        with pytest.raises(InputError, match="cannot be written"), replacing([tmp_path / "no" / "where"]):
            pass
        with pytest.raises(InputError, match="is a folder"), replacing([tmp_path]):
            pass


def test_a_hash_is_of_all_the_bytes(tmp_path):
    content = bytes(range(256)) * 5000
    (tmp_path / "file").write_bytes(content)
    assert sha256_of(tmp_path / "file") == hashlib.sha256(content).hexdigest()
