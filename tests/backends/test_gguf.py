"""The head of a model's file, and the threads that a model is given."""

import struct

import pytest

from shadowprice.backends import _cores
from shadowprice.backends._cores import default_threads
from shadowprice.backends._gguf import trained_context


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def field(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def head(*fields: bytes, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(fields)) + b"".join(fields)


NAME = field("general.architecture", 8, text("llama"))
WORDS = field("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2) + text("a") + text("bc"))
SCORES = field("tokenizer.ggml.scores", 9, struct.pack("<IQ", 6, 2) + struct.pack("<2f", 1, 2))
NESTED = field("x", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 4, 1) + struct.pack("<I", 7))
CONTEXT = field("llama.context_length", 4, struct.pack("<I", 8192))


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        (head(NAME, CONTEXT), 8192),
        (head(NAME, WORDS, SCORES, NESTED, CONTEXT), 8192),
        (head(field("qwen2.context_length", 10, struct.pack("<Q", 32768))), 32768),
        (head(NAME), None),
        (head(NAME, CONTEXT)[:-2], None),
        (head(field("x", 99, b"")), None),
        (head(field("x", 9, struct.pack("<IQ", 8, 2**60))), None),
        (head(text("x" * 9)[:8]), None),
        (b"GGUF", None),
        (b"PK\3\4", None),
        (b"", None),
    ],
)
def test_the_context_that_a_model_was_trained_for(tmp_path, content, tokens):
    (tmp_path / "x.gguf").write_bytes(content)
    assert trained_context(tmp_path / "x.gguf") == tokens


def test_of_a_file_that_is_not_there(tmp_path):
    assert trained_context(tmp_path / "none") is None


class TestThreads:
    @pytest.fixture(autouse=True)
    def machine(self, tmp_path, monkeypatch):
        """Four CPUs on two cores."""
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        monkeypatch.setattr(_cores, "_CPUS", tmp_path)
        monkeypatch.setattr(_cores, "_QUOTA", tmp_path / "cpu.max")
        monkeypatch.setattr(_cores.os, "sched_getaffinity", lambda process: {0, 1, 2, 3}, raising=False)
        monkeypatch.setattr(_cores.os, "cpu_count", lambda: 4)
        for cpu in range(4):
            place = tmp_path / f"cpu{cpu}" / "topology"
            place.mkdir(parents=True)
            (place / "thread_siblings_list").write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
        return tmp_path

    def test_as_many_as_there_are_physical_cores(self):
        assert default_threads() == 2

    def test_those_that_this_process_may_use(self, monkeypatch):
        monkeypatch.setattr(_cores.os, "sched_getaffinity", lambda process: {0, 2}, raising=False)
        assert default_threads() == 1

    @pytest.mark.parametrize(("quota", "threads"), [("max 100000", 2), ("50000 100000", 1), ("150000 100000", 2)])
    def test_no_more_than_a_container_has_time_for(self, machine, quota, threads):
        (machine / "cpu.max").write_text(quota + "\n")
        assert default_threads() == threads

    @pytest.mark.parametrize(("asked", "threads"), [("3", 3), ("3,2", 3), ("many", 2), ("0", 2)])
    def test_what_the_user_has_set_for_other_libraries_counts(self, monkeypatch, asked, threads):
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        assert default_threads() == threads
