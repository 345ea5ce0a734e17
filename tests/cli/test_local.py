"""`shadowprice run --local`, for real: what fits into the context of a model on this machine, and what does not."""

import json
import subprocess
import sys

import pytest

from shadowprice.accounts.sqlite import Ledger
from shadowprice.cli import main

from ..conftest import read_jsonl, request_line

STORY = "Write a very long story about a river, and never end it."


@pytest.fixture
def run(tmp_path, gguf):
    def command(path, *more) -> int:
        arguments = [
            "run", path, "--budget", 9000, "--quiet", "--force", "--local", gguf, "--context", 256, "--slots", 2,
            "--out", tmp_path / "out", "--errors", tmp_path / "err", "--run-folder", tmp_path / "run", *more,
        ]  # fmt: skip
        return main([str(argument) for argument in arguments])

    return command


def lines(folder):
    return {line["custom_id"]: line for line in [*read_jsonl(folder / "out"), *read_jsonl(folder / "err")]}


@pytest.mark.parametrize("more", [(), ("--policy", "index")])
def test_grants_are_capped_at_what_the_context_leaves_and_what_does_not_fit_is_refused(
    run, batch, tmp_path, capsys, more
):
    path = batch(
        [
            request_line("story", STORY, ignore_eos=True, temperature=0),
            request_line("long", "word " * 300),
            request_line("much", STORY, max_tokens=1000),
            request_line("short", "What is the capital of Japan?", max_tokens=40, temperature=0),
        ]
    )
    assert run(path, *more, "--json") == 3
    summary = json.loads(capsys.readouterr().out)
    found = lines(tmp_path)
    story = found["story"]
    assert story["shadowprice"]["outcome"] == "truncated"
    assert story["response"]["body"]["usage"]["total_tokens"] == 256
    assert summary["flags"] == {}
    assert found["short"]["shadowprice"]["outcome"] == "finished"
    for name, fix in (("long", "(--context 768)"), ("much", "(--context 1280)")):
        error = found[name]["error"]
        assert error["code"] == "context_length_exceeded"
        assert error["message"].endswith(fix)
    assert summary["causes"] == {"longer than the context of 256 tokens, see --context": 2}
    with Ledger.reopen(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert ledger.spent == sum(found[name]["shadowprice"]["cost"] for name in ("story", "short"))
    # The fix that was named is one: the run goes on where it stopped.
    assert run(path, *more, "--resume", "--context", 1280) == 0


@pytest.mark.parametrize("more", [(), ("--policy", "expected")])
def test_what_does_not_fit_is_not_called_declined_and_takes_no_part_in_the_market(run, batch, tmp_path, capsys, more):
    path = batch(
        [
            request_line("long", "Prove this theorem about primes in every detail. " * 60),
            request_line("much", "Prove that there are infinitely many primes, in detail.", max_tokens=1000),
            request_line("short", "What is 2 + 2?", ignore_eos=True, temperature=0),
        ]
    )
    assert run(path, *more, "--budget", 40) == 3
    printed = capsys.readouterr().out
    assert "answered   0 requests, 1 more cut short" in printed
    assert "unanswered 0 declined, 2 failed, 0 not sent" in printed
    assert (
        "failed     2 requests: longer than the context of 256 tokens, see --context (raise --context; then" in printed
    )
    found = lines(tmp_path)
    assert [found[name]["error"]["code"] for name in ("long", "much")] == ["context_length_exceeded"] * 2
    assert found["short"]["shadowprice"]["cost"] == 40
    assert run(path, *more, "--budget", 40, "--resume", "--context", 1280) == 3
    assert "unanswered 2 declined, 0 failed" in capsys.readouterr().out


@pytest.mark.parametrize("more", [("--policy", "uniform"), ("--policy", "uniform", "--max-tokens", 240)])
def test_no_more_is_granted_than_the_context_leaves(run, batch, tmp_path, capsys, more):
    path = batch([request_line("story", STORY, ignore_eos=True, temperature=0)])
    assert run(path, *more, "--json") == 0
    (cleared,) = json.loads(capsys.readouterr().out)["rounds"]
    usage = lines(tmp_path)["story"]["response"]["body"]["usage"]
    assert cleared["granted"] == usage["completion_tokens"] == 256 - usage["prompt_tokens"]


def test_prompts_count_where_they_are_to(run, batch, tmp_path, capsys):
    """A part of an answer reads the answer so far, most of it from the cache."""
    path = batch([request_line("story", STORY, ignore_eos=True, temperature=0), request_line("short")])
    assert run(path, "--policy", "index", "--count", "input+output", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    usage = summary["usage"]
    assert summary["spent"] == usage["output"] + usage["input"] + usage["cached"]
    assert usage["input"] + usage["cached"] > 0


def test_two_questions_from_standard_input_are_answered_the_same_every_time(gguf, tmp_path):
    questions = b"What is 2+2?\nName the capital of France.\n"
    seen = []
    for name in ("first", "second"):
        arguments = ["run", "-", "--budget", "200", "--local", "--threads", "1", "--out", name]
        command = [sys.executable, "-m", "shadowprice", *arguments]
        done = subprocess.run(command, input=questions, capture_output=True, cwd=tmp_path, timeout=300)
        assert done.returncode == 0, done.stderr
        assert b"2 questions from standard input: one question per line" in done.stderr
        assert b"answered   2 requests, 0 more cut short -> " in done.stdout
        answers = [line["response"]["body"]["choices"][0] for line in read_jsonl(tmp_path / name)]
        assert [answer["finish_reason"] for answer in answers] == ["stop", "stop"]
        seen.append([answer["message"]["content"] for answer in answers])
    assert seen[0] == seen[1]
    assert "4" in seen[0][0]
    assert "Paris" in seen[0][1]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--context", 9999), "was trained for a context of 8,192 tokens, not 9,999 (give --context 8192 or less)"),
        (("--threads", 0), "--threads 0 (give 1 or more)"),
        (("--slots", 0), "--slots 0 (give 1 or more)"),
        (("--local", "hf:org/models"), "hf:org/models names no file on the hub (write it as hf:OWNER/REPO/FILE.gguf)"),
        (("--local", "no-such-model"), "no such file, and no such model (known are smollm2-135m, qwen2.5-coder-1.5b; "),
        (("--local", "smollm-135m"), "no such model (did you mean smollm2-135m?; or name a GGUF file, hf:OWNER/"),
        (("--local", __file__), "test_local.py: is not a GGUF file (give one"),
    ],
)
def test_impossible_settings_are_reported_in_one_line(run, batch, tmp_path, capsys, more, message):
    assert run(batch([request_line("a")]), *more) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "run").exists()
