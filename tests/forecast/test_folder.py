"""A folder is replaced as a whole or not at all."""

import pytest

from shadowprice import InputError
from shadowprice.forecast.folder import description, fingerprint, refuse_others, written


def save(folder, content="one", about=None):
    with written(folder, "kind", about or {"a": 1}) as scratch:
        (scratch / "data").write_text(content)


def test_what_is_written_is_read(tmp_path):
    save(tmp_path / "parent" / "f", about={"a": [1, "x"]})
    assert description(tmp_path / "parent" / "f") == ("kind", {"a": [1, "x"]})
    assert (tmp_path / "parent" / "f" / "data").read_text() == "one"


def test_a_failure_leaves_the_earlier_one_and_no_scratch(tmp_path):
    save(tmp_path / "f")
    with pytest.raises(TypeError):
        save(tmp_path / "f", "two", {"a": {1, 2}})  # a set is not JSON
    assert (tmp_path / "f" / "data").read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_the_fingerprint_depends_on_every_file(tmp_path):
    prints = []
    for content, about in (("one", {"a": 1}), ("one", {"a": 1}), ("two", {"a": 1}), ("one", {"a": 2})):
        save(tmp_path / "f", content, about)
        prints.append(fingerprint(tmp_path / "f"))
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_only_a_forecaster_or_an_empty_folder_is_replaced(tmp_path):
    (tmp_path / "empty").mkdir()
    save(tmp_path / "f")
    for allowed in ("empty", "f", "new"):
        refuse_others(tmp_path / allowed)
    (tmp_path / "file").write_text("")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("")
    for other in ("file", "thesis"):
        with pytest.raises(InputError, match="something other"):
            refuse_others(tmp_path / other)


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        save(tmp_path / "file" / "f")
