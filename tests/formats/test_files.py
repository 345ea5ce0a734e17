"""Files appear complete or not at all."""

import hashlib
import io

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

    def test_an_unwritable_place_is_an_error_at_once(self, tmp_path):
        with pytest.raises(InputError, match="cannot be written"), replacing([tmp_path / "no" / "where"]):
            pass
        with pytest.raises(InputError, match="is a folder"), replacing([tmp_path]):
            pass

    def test_one_file_for_two_purposes_is_refused(self, tmp_path):
        (tmp_path / "link").symlink_to(tmp_path / "one")
        with (
            pytest.raises(InputError, match="link: cannot be written twice"),
            replacing([tmp_path / "one", tmp_path / "link"]),
        ):
            pass
        assert [path.name for path in tmp_path.iterdir()] == ["link"]

    def test_a_stream_is_written_at_the_end(self, tmp_path):
        stream = io.BytesIO()
        with replacing([stream, tmp_path / "file"]) as (first, second):
            first.write(b"one")
            second.write(b"two")
            assert stream.getvalue() == b""
        assert stream.getvalue() == b"one"
        assert (tmp_path / "file").read_bytes() == b"two"


def test_a_hash_is_of_all_the_bytes(tmp_path):
    content = bytes(range(256)) * 5000
    (tmp_path / "file").write_bytes(content)
    assert sha256_of(tmp_path / "file") == hashlib.sha256(content).hexdigest()
