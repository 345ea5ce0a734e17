"""Collecting traces of a benchmark by its name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shadowprice.cli import main
from shadowprice.formats.traces import read_traces

from ..backends import hostile
from .published import GSM8K, HUMANEVAL_PLUS, publish, whole


def test_without_a_network_the_error_is_one_line(tmp_path):
    command = [sys.executable, "-m", "shadowprice", "collect", "math500", "--out", str(tmp_path / "out"), "--local"]
    done = subprocess.run(
        [*command, "--quiet"],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("shadowprice: HuggingFaceH4/MATH-500: test cannot be loaded: ConnectionError")
    assert "--mirror DIR" in done.stderr


def answers(text):
    async def behave(request, reply):
        await reply.head()
        await reply.piece(text)
        await reply.finish("stop")
        await reply.usage(len(text) // 4 + 1)
        await reply.end()

    return behave


def collect(server, source, folder, *more):
    arguments = ["collect", source, "--out", folder / "traces.jsonl.gz", "--base-url", server.url, "--model", "m"]
    return main([str(a) for a in [*arguments, "--max-tokens", 90, "--quiet", *more]])


class TestCollect:
    @pytest.mark.parametrize("source", ["gsm8k-test", "hf:gsm8k-test"])
    def test_a_benchmark_by_name(self, tmp_path, mirror, monkeypatch, source):
        monkeypatch.chdir(tmp_path)
        if source.startswith("hf:"):
            Path("gsm8k-test").write_text("a file that would come first")
        with hostile.Server(answers(r"It is \boxed{50000}.")) as server:
            assert collect(server, source, tmp_path, "--mirror", mirror) == 0
            asked = {request.body["messages"][0]["content"] for request in server.requests}
        assert asked == {row["question"] for row in GSM8K}
        traces = list(read_traces(tmp_path / "traces.jsonl.gz"))
        assert [(t.id, t.dataset, t.gold, t.correct) for t in traces] == [
            ("gsm8k-test/0", "gsm8k-test", "12", False),
            ("gsm8k-test/1", "gsm8k-test", "50000", True),
        ]

    def test_a_benchmark_of_programs(self, tmp_path, mirror):
        with hostile.Server(answers(whole("humaneval+", HUMANEVAL_PLUS[0]))) as server:
            assert collect(server, "humaneval+", tmp_path, "--mirror", mirror) == 0
        traces = list(read_traces(tmp_path / "traces.jsonl.gz"))
        assert [t.correct for t in traces] == [True, False]

    def test_a_file_comes_before_a_benchmark(self, tmp_path, monkeypatch, batch):
        monkeypatch.chdir(tmp_path)
        batch([{"id": f"q{i}", "problem": "Say it", "gold": "it", "grader": "exact"} for i in range(5)], "math500")
        with hostile.Server(answers("it")) as server:
            assert collect(server, "math500", tmp_path, "--limit", 2) == 0
        assert [t.id for t in read_traces(tmp_path / "traces.jsonl.gz")] == ["q0", "q1"]

    def test_only_the_same_questions_are_continued(self, tmp_path, mirror, capsys):
        changed = tmp_path / "changed"
        rows = [{**GSM8K[0], "answer": "#### 13"}, GSM8K[1]]
        publish(changed, "openai/gsm8k", {"main": {"test": ("main/test-0.parquet", rows)}})
        with hostile.Server(answers("12")) as server:
            assert collect(server, "gsm8k-test", tmp_path, "--mirror", mirror) == 0
            assert collect(server, "gsm8k-test", tmp_path, "--mirror", mirror, "--resume") == 0
            assert len(server.requests) == 2
            assert collect(server, "gsm8k-test", tmp_path, "--mirror", changed, "--resume") == 2
        assert "another input" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("source", "more", "message"),
        [
            ("math5000", [], "math5000: no such file, and no such benchmark (benchmarks are gsm8k-train,"),
            ("hf:x", [], "hf:x: no such file, and no such benchmark"),
            ("math500", ["--grader", "exact"], "--grader exact: math500 has its own"),
            ("math500", ["--limit", "0"], "--limit 0 (give 1 or more)"),
        ],
    )
    def test_invalid_arguments(self, tmp_path, capsys, source, more, message):
        with hostile.Server(answers("")) as server:
            assert collect(server, source, tmp_path, *more) == 2
        assert message in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []
