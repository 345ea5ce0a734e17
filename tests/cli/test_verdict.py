"""What `run` says at the end, to somebody who has never seen it: causes, counts and ways out."""

import pytest

from shadowprice.cli import main

from ..backends import hostile
from ..conftest import read_jsonl, request_line
from ..talking import talks


def refuses(status, message, **more):
    async def behave(request, reply):
        await reply.json(status, {"error": {"message": message, **more}})

    return behave


@pytest.fixture
def run(tmp_path, batch):
    """Answers 24 requests; the exit code."""
    path = batch([request_line(f"q{i}", f"What is {i} + {i}?") for i in range(24)])

    def command(url, *more, budget="6k") -> int:
        arguments = ["run", path, "--budget", budget, "--quiet", "--base-url", url, "--model", "m"]
        return main([str(argument) for argument in (*arguments, "--out", tmp_path / "out.jsonl", *more)])

    return command


SHARED = [
    (401, {"message": "Incorrect API key provided: sk-1.", "code": "invalid_api_key"}, "$OPENAI_API_KEY"),
    (403, {"message": "Project has no access to the model"}, "$OPENAI_API_KEY"),
    (404, {"message": "The model `m` does not exist", "code": "model_not_found"}, "check --model and --base-url"),
    (429, {"message": "You exceeded your current quota", "code": "insufficient_quota"}, "the account is empty"),
    (400, {"message": "/chat/completions: Invalid model name passed in model=m."}, "check --model"),  # LiteLLM
    (400, {"message": "Model Not Exist", "type": "invalid_request_error"}, "check --model"),  # DeepSeek
    (400, {"message": "API key not valid. Please pass a valid API key."}, "$OPENAI_API_KEY"),  # Gemini
]


@pytest.mark.parametrize(("status", "error", "fix"), SHARED, ids=lambda value: str(value)[:40])
def test_a_refusal_that_all_share_stops_the_run_with_one_line(run, tmp_path, capsys, status, error, fix):
    with hostile.Server(refuses(status, **error)) as server:
        assert run(server.url) == 3
    assert len(server.requests) == 3
    said = capsys.readouterr()
    (warning,) = said.err.splitlines()
    assert warning.startswith(f"warning: the server refuses every request: {status}: {error['message'][:20]}")
    assert "; nothing more was sent (" in warning
    assert fix in warning
    assert "3 failed, 21 not sent" in said.out
    assert "failed     3 requests: " in said.out
    assert "graded" not in said.out
    assert "would buy" not in said.out
    errors = [line["error"] for line in read_jsonl(tmp_path / "out.declined.jsonl")]
    assert len(errors) == 24
    assert all(fix in each["fix"] for each in errors)


def test_failures_of_some_are_counted_by_cause_with_a_fix(run, capsys):
    async def some(request, reply):
        if "1" in request.body["messages"][0]["content"]:
            await refuses(400, "content policy", code="content_filter")(request, reply)
        else:
            await talks(5)(request, reply)

    with hostile.Server(some) as server:
        assert run(server.url, "--policy", "expected") == 3
    said = capsys.readouterr().out
    assert "failed     12 requests: 400: content_filter: content policy (the server refuses the request itself" in said


def test_a_server_that_is_not_there_is_named_without_the_words_of_a_library(run, tmp_path, capsys):
    assert run("http://127.0.0.1:9/v1", "--patience", "1s") == 3
    said = capsys.readouterr()
    assert "connection refused (127.0.0.1:9); nothing more was sent (is the server up at --base-url?" in said.err
    assert "Connect call failed" not in said.err + (tmp_path / "out.declined.jsonl").read_text()


class TestAfterAMistake:
    def test_a_run_that_has_cost_nothing_is_resumed_with_another_model(self, run, tmp_path, capsys):
        with hostile.Server(refuses(404, "no such model", code="model_not_found")) as server:
            assert run(server.url) == 3
        with hostile.Server(talks(5)) as server:
            assert run(server.url, "--resume", "--model", "n", "--policy", "expected", budget=5000) == 0
            assert {each.body["model"] for each in server.requests} == {"n"}
        assert "24 requests, 5,000 tokens" in capsys.readouterr().out
        assert read_jsonl(tmp_path / "out.declined.jsonl") == []

    def test_one_that_has_spent_something_is_not(self, run, capsys):
        with hostile.Server(talks(5)) as server:
            assert run(server.url) == 0
            capsys.readouterr()
            assert run(server.url, "--resume", "--model", "n") == 2
        assert "was started with another model ('m', now 'n')" in capsys.readouterr().err


class TestWhatMoreWouldBuy:
    def test_nothing_is_said_where_everything_was_answered(self, run, capsys):
        with hostile.Server(talks(5)) as server:
            assert run(server.url, "--policy", "expected") == 0
        assert "would buy" not in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("budget", "more", "words"),
        [
            (300, (), "30 more tokens would buy about "),
            ("$0.001", ("--rate-in", "0.5", "--rate-out", "2"), "$0.0001 would buy about "),
        ],
    )
    def test_it_is_a_tenth_of_a_small_budget_and_no_more_answers_than_are_missing(
        self, run, capsys, budget, more, words
    ):
        with hostile.Server(talks(1000)) as server:
            assert run(server.url, "--policy", "expected", *more, budget=budget) == 3
        (price,) = [line for line in capsys.readouterr().out.splitlines() if "would buy" in line]
        assert price.strip().startswith(f"price      {words}")
        assert 0 < float(price.split("about ")[1].split()[0]) <= 24

    def test_very_little_is_not_written_in_powers_of_ten(self, run, capsys):
        with hostile.Server(talks(10)) as server:
            run(server.url, "--policy", "expected", "--max-tokens", "3", budget="1M")
        assert "e-0" not in capsys.readouterr().out
