"""The manifest of a run is what `run` wrote, or it is refused."""

import copy
import json
import os

import pytest

from shadowprice.accounts.manifest import FORMAT, MANIFEST, read_manifest
from shadowprice.errors import InputError

ROUND = {"budget": 100, "queries": 2, "admitted": 1, "granted": 90, "price": 0.5, "status": "cleared"}
LEAST = {"format": FORMAT, "budget": 100, "asked": {}, "rounds": [], "done": False}
WHOLE = {
    **LEAST,
    "done": True,
    "created": "2026-01-01T00:00:00Z",
    "shadowprice": "0.2.0",
    "asked": {
        "policy": "tale", "accounting": "metered", "reclaim": True, "samples": 2, "max_tokens": 9, "model": "m",
        "options": {"beta": 0.1}, "rates": {"input": 1, "cached": 1, "output": 2, "unit": "dollars"},
    },
    "rounds": [ROUND, {**ROUND, "price": None, "status": None}],
    "summary": {"requests": 2, "outcomes": {"finished": 2}, "stopped": None, "rounds": [ROUND]},
    "teacher": {"asked": 1, "retried": 0, "fell_back": 0, "tokens": 5, "charged": True, "flags": {"limit_ignored": 1}},
    "files": {"out": "answers.jsonl"},
    "sandboxes": ["namespaces"],
}  # fmt: skip


def written(folder, manifest):
    (folder / MANIFEST).write_text(manifest if isinstance(manifest, str) else json.dumps(manifest))
    return folder


def changed(path, value):
    """The whole manifest with one value replaced."""
    manifest = copy.deepcopy(WHOLE)
    place = manifest
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return manifest


@pytest.mark.parametrize("manifest", [LEAST, WHOLE, {**WHOLE, "unknown": [1]}], ids=["least", "whole", "unknown"])
def test_what_a_run_writes_is_read_back(tmp_path, manifest):
    assert read_manifest(written(tmp_path, manifest)) == manifest


def test_half_a_character_in_a_name_is_no_damage(tmp_path):
    manifest = {**LEAST, "asked": {"model": "\ud800"}}
    assert read_manifest(written(tmp_path, manifest)) == manifest


@pytest.mark.parametrize("version", [None, 1, FORMAT - 1, str(FORMAT), FORMAT + 0.5])
def test_one_of_another_version_is_refused(tmp_path, version):
    with pytest.raises(InputError) as caught:
        read_manifest(written(tmp_path, {**LEAST, "format": version}))
    assert str(caught.value) == f"{tmp_path}: was made by an older version of shadowprice (start a new run)"


def test_one_without_a_version_is_refused(tmp_path):
    with pytest.raises(InputError, match="older version"):
        read_manifest(written(tmp_path, {name: value for name, value in LEAST.items() if name != "format"}))


DAMAGED = [
    *("", "[]", "7", "null", '{"format": 3', "\\x00", "[" * 100_000),
    *({name: value for name, value in WHOLE.items() if name != left} for left in ("budget", "asked", "rounds", "done")),
    *(
        changed(path, value)
        for path, value in [
            (["budget"], "100"), (["budget"], True), (["budget"], -1), (["budget"], 1.5), (["done"], 1),
            (["asked"], []), (["asked", "samples"], True), (["asked", "policy"], 3), (["asked", "rates"], [1]),
            (["asked", "rates", "input"], 0.5), (["asked", "rates", "gold"], "1"), (["rounds"], {}),
            (["rounds", 0], 3), (["rounds", 0, "price"], "0.5"), (["rounds", 0, "granted"], None),
            (["rounds", 0, "more"], 1), (["summary"], []), (["summary", "requests"], None),
            (["summary", "outcomes", "finished"], "2"), (["summary", "rounds", 0], {}), (["teacher", "charged"], 1),
            (["teacher", "flags", "limit_ignored"], True), (["files", "out"], 3), (["sandboxes"], [None]),
        ]
    ),
]  # fmt: skip


@pytest.mark.parametrize("manifest", DAMAGED, ids=range(len(DAMAGED)))
def test_what_a_run_does_not_write_is_refused(tmp_path, manifest):
    message = r"manifest\.json: damaged: `run` did not write this \(start a new run\)$"
    with pytest.raises(InputError, match=message):
        read_manifest(written(tmp_path, manifest))


def test_a_folder_without_one_is_not_a_run(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_manifest(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / MANIFEST)
    with pytest.raises(InputError, match=r"manifest\.json: "):
        read_manifest(tmp_path)
