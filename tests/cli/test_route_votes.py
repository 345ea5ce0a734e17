"""`run --routes --samples K` without correct answers: votes, from the input to the summary, and across kill -9."""

import json
import subprocess
import sys
import time
from collections import Counter

import pytest

from shadowprice.accounts.sqlite import Ledger
from shadowprice.cli import main

from ..backends import hostile
from ..conftest import read_jsonl, request_line

PROMPT, TOKENS = 5, 20
RATE = 100  # nano-dollars of a token
NUMBER = {f"What is question {i}?": i for i in range(40)}


def voter(pause: float = 0.0) -> hostile.Behaviour:
    """A server whose answers are the number of the question, but for those to the first seed: these are all wrong."""

    async def behave(request: hostile.Request, reply: hostile.Reply) -> None:
        import asyncio

        number = next(n for text, n in NUMBER.items() if text in json.dumps(request.body["messages"]))
        final = 1000 + number if request.body.get("seed", 0) == 0 else number
        await reply.head()
        await reply.piece("Let me see.\n", tokens=TOKENS - 1)
        await asyncio.sleep(pause)
        await reply.piece(f"The answer is {final}.")
        await reply.finish()
        await reply.usage(TOKENS)
        await reply.end()

    return behave


@pytest.fixture
def made(tmp_path, batch):
    def make(url: str, *more, requests: int = 12, **body) -> list[str]:
        (tmp_path / "routes.toml").write_text(
            f'[[route]]\nname = "one"\nbase_url = "{url}"\nmodel = "m"\n'
            f"rates = {{ input = {RATE / 1000}, output = {RATE / 1000} }}\n"
        )
        path = batch([request_line(f"q{i}", text, **body) for text, i in [*NUMBER.items()][:requests]])
        arguments = [
            "run", path, "--quiet", "--routes", tmp_path / "routes.toml", "--max-tokens", 200, "--budget", "$1",
            "--out", tmp_path / "out", "--errors", tmp_path / "err", "--run-folder", tmp_path / "run", *more,
        ]  # fmt: skip
        return [str(argument) for argument in arguments]

    return make


def said(tmp_path) -> dict[str, str]:
    lines = read_jsonl(tmp_path / "out")
    return {line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"] for line in lines}


def spent(tmp_path) -> int:
    with Ledger.reopen(tmp_path / "run" / "ledger.sqlite") as ledger:
        return ledger.spent


def test_votes_decide_and_every_answer_is_counted(made, tmp_path, capsys):
    with hostile.Server(voter()) as server:
        assert main(made(server.url, "--samples", "3")) == 0
        assert spent(tmp_path) == RATE * (PROMPT * len(server.requests) + server.generated)
    assert all(f"The answer is {name[1:]}." in text for name, text in said(tmp_path).items())
    lines = [line["shadowprice"] for line in read_jsonl(tmp_path / "out")]
    assert {(line["samples"], line["votes"], line["sample"]) for line in lines} == {(3, 2, 1)}
    assert all(line["usage"]["output"] == 3 * TOKENS for line in lines)
    printed = capsys.readouterr().out
    assert "  samples    36 answers bought; votes decided 12 requests\n" in printed


def test_at_temperature_0_one_answer_is_bought_and_one_line_says_why(made, tmp_path, capsys):
    with hostile.Server(voter()) as server:
        assert main(made(server.url, "--samples", "3", "--temperature", "0")) == 0
        assert len(server.requests) == 12
    assert (
        "  samples    12 answers bought; votes decided 0 requests; 12 requests at temperature 0, where all answers are "
        "the same: one each\n"
    ) in capsys.readouterr().out


def test_correct_answers_are_graded_and_not_voted_on(made, tmp_path, capsys):
    gold = tmp_path / "gold.jsonl"
    gold.write_text(
        "".join(json.dumps({"custom_id": f"q{i}", "gold": f"{i}", "grader": "numeric"}) + "\n" for i in range(6))
    )
    with hostile.Server(voter()) as server:
        assert main(made(server.url, "--samples", "3", "--gold", str(gold))) == 0
    lines = {line["custom_id"]: line["shadowprice"] for line in read_jsonl(tmp_path / "out")}
    for name, line in lines.items():
        graded = int(name[1:]) < 6
        assert (line["correct"], line["samples"], "votes" in line) == (
            True if graded else None,
            2 if graded else 3,
            not graded,
        )
    assert "  samples    30 answers bought; votes decided 6 requests\n" in capsys.readouterr().out


def test_a_run_that_is_killed_is_resumed_and_pays_for_no_answer_twice(made, tmp_path, capsys):
    requests = len(NUMBER)
    with hostile.Server(voter(pause=0.02)) as server:
        command = made(server.url, "--samples", "3", requests=requests)
        process = subprocess.Popen([sys.executable, "-m", "shadowprice", *command])
        try:
            end = time.monotonic() + 60
            while len(server.requests) < 1.5 * requests:
                assert time.monotonic() < end, "it did not begin in time"
                time.sleep(0.005)
        finally:
            process.kill()
            process.wait()
        assert main([*command, "--resume"]) == 0
        asked = Counter((json.dumps(r.body["messages"]), r.body["seed"]) for r in server.requests)
        again = sum(asked.values()) - len(asked)
        assert again <= 8, "only what was under way when it was killed"
        assert spent(tmp_path) >= RATE * (PROMPT * len(server.requests) + server.generated)
    assert len(asked) == 3 * requests
    assert all(f"The answer is {name[1:]}." in text for name, text in said(tmp_path).items())
    assert len(said(tmp_path)) == requests
    with hostile.Server(voter()) as server:
        command = made(server.url, "--samples", "2", "--resume", requests=requests)
        assert main(command) == 2
    assert "was started with another" in capsys.readouterr().err
