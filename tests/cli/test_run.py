"""`shadowprice run`, as a user runs it; the server is real HTTP, and counts what it generates."""

import json
import os
import subprocess
import sys

import pytest

from shadowprice.accounts.sqlite import Ledger
from shadowprice.cli import main

from ..backends import hostile
from ..conftest import read_jsonl, request_line
from ..talking import knows_only_max_tokens, overshoots, talks

NOWHERE = "http://127.0.0.1:9/v1"


@pytest.fixture
def run(tmp_path):
    """Runs a batch file in a folder of its own; later options override earlier ones."""

    def command(path, url, *more) -> int:
        arguments = [
            "run", path, "--budget", 6000, "--policy", "expected", "--quiet", "--base-url", url, "--model", "m",
            "--out", tmp_path / "out", "--errors", tmp_path / "err", "--run-folder", tmp_path / "run", *more,
        ]  # fmt: skip
        return main([str(argument) for argument in arguments])

    return command


def ledger_of(folder):
    with Ledger.reopen(folder / "run" / "ledger.sqlite") as ledger:
        return ledger.spent, ledger.overspent


class TestTheCommand:
    def test_a_hundred_requests_at_once_that_want_five_times_the_budget(self, run, tmp_path, batch):
        path = batch([request_line(f"q{i}", "Go on.") for i in range(100)])
        with hostile.Server(talks(50)) as server:
            assert run(path, server.url, "--budget", 1000, "--policy", "auction", "--concurrency", 100) == 3
            assert 0 < server.generated <= 1000
            assert ledger_of(tmp_path) == (server.generated, 0)
        lines = read_jsonl(tmp_path / "out") + read_jsonl(tmp_path / "err")
        assert sorted(line["custom_id"] for line in lines) == sorted(f"q{i}" for i in range(100))

    def test_says_what_became_of_the_requests_and_the_budget(self, run, batch, capsys):
        path = batch([request_line(f"q{i}") for i in range(10)])
        with hostile.Server(talks(20)) as server:
            assert run(path, server.url, "--policy", "auction", "--budget", "100") == 3
        printed = capsys.readouterr().out
        assert "10 requests, 100 tokens, policy auction" in printed
        assert f"spent      {server.generated} of 100 tokens" in printed
        declined = 10 - len(server.requests)
        assert f"unanswered {declined} declined, 0 failed, 0 not sent" in printed

    def test_the_summary_as_json(self, run, batch, capsys):
        path = batch([request_line(f"q{i}") for i in range(10)])
        with hostile.Server(talks(20)) as server:
            assert run(path, server.url, "--json") == 0
        summary = json.loads(capsys.readouterr().out)
        assert summary["requests"] == summary["outcomes"]["finished"] == 10
        assert summary["spent"] == summary["usage"]["output"] == server.generated == 200
        assert (summary["overspent"], summary["stopped"], summary["teacher"], summary["correct"]) == (0, "", None, None)
        assert summary["rounds"][0]["admitted"] == 10

    def test_where_files_go_by_default(self, batch, tmp_path):
        path = batch([request_line("a"), request_line("b", max_tokens=1)])
        with hostile.Server(talks(3)) as server:
            command = ["run", str(path), "--budget", "6k", "--base-url", server.url, "--policy", "uniform", "--quiet"]
            assert main(command) == 0
        assert [line["shadowprice"]["outcome"] for line in read_jsonl(tmp_path / "requests.answers.jsonl")] == [
            "finished", "truncated",
        ]  # fmt: skip
        assert read_jsonl(tmp_path / "requests.answers.declined.jsonl") == []
        assert (tmp_path / "requests.answers.jsonl.run" / "ledger.sqlite").exists()

    def test_requests_from_a_pipe_and_answers_to_one(self, batch, tmp_path):
        path = batch([request_line("a")])
        with hostile.Server(talks(3)) as server:
            command = [
                sys.executable, "-m", "shadowprice", "run", "-", "--budget", "6k", "--base-url", server.url,
                "--out", "-", "--quiet",
            ]  # fmt: skip
            done = subprocess.run(command, input=path.read_bytes(), capture_output=True, cwd=tmp_path, timeout=60)
        assert done.returncode == 0, done.stderr
        (line,) = done.stdout.splitlines()
        assert json.loads(line)["custom_id"] == "a"
        assert b"answered" in done.stderr

    RATES = ("--rate-in", 1, "--rate-out", 4)

    def test_a_budget_in_dollars(self, run, tmp_path, batch, capsys):
        path = batch([request_line(f"q{i}") for i in range(20)])
        with hostile.Server(talks(30)) as server:
            assert run(path, server.url, "--budget", "$0.002", *self.RATES, "--max-tokens", 40) == 3
        spent = ledger_of(tmp_path)[0]
        assert spent == 1000 * 5 * len(server.requests) + 4000 * server.generated <= 2_000_000
        assert f"spent      ${spent / 1e9:.6f}".rstrip("0") + " of $0.002;" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("more", "printed"),
        [
            (["--rate-in", "1"], "no --rate-out (give both, as --rate-in 0.15 --rate-out 0.60)"),
            (["--rate-out", "1", "--rate-cached", "1"], "no --rate-in (give both"),
            (["--rate-in", "a", "--rate-out", "b"], "the rate of input is 'a', not dollars per million tokens"),
            (["--rate-in", "1/0", "--rate-out", "1"], "is '1/0', not dollars per million tokens"),
            (["--rate-in", "1", "--rate-out", "4", "--rate-cached", "-1"], "the rate of cached input is '-1', not"),
            (["--rate-in", "1", "--rate-out", "0"], "an output token must cost something"),
            (["--budget", "$5"], "(give rates in dollars per million tokens, as --rate-in 0.15 --rate-out 0.60)"),
            (["--budget", "$5", "--rate-in", "1", "--rate-out", "4", "--count", "output"], "leave it out"),
            (["--budget", "5 apples"], "is not an amount"),
            (["--concurrency", "0"], "--concurrency 0"),
            (["--context", "4096"], "--context with --base-url (only a model of --local has it"),
            (["--gpu-layers", "4"], "--gpu-layers with --base-url"),
            (["--samples", "0"], "must be at least 1"),
            (["--policy", "index", "--accounting", "reserved"], "use metered"),
            (["--accounting", "metered", "--samples", "3"], "several samples in metered accounting"),
            (["--accounting", "metered", "--no-reclaim"], "no reclaim in metered accounting"),
            (["--policy", "oracle"], "oracle"),
            (["--option", "beta"], "--option 'beta' is not NAME=NUMBER"),
        ],
    )
    def test_options_that_make_no_sense_are_refused_before_anything_is_made(
        self, run, tmp_path, batch, capsys, more, printed
    ):
        assert run(batch([request_line("a")]), NOWHERE, *more) == 2
        error = capsys.readouterr().err
        assert printed in error
        assert len(error.splitlines()) == 1
        assert not (tmp_path / "run").exists()

    def test_a_request_for_several_answers_is_refused(self, run, tmp_path, batch, capsys):
        assert run(batch([request_line("a"), request_line("b", n=2)]), NOWHERE) == 2
        assert "'b' asks for several answers" in capsys.readouterr().err
        assert not (tmp_path / "run").exists()


class TestGold:
    def test_answers_are_graded(self, run, batch, capsys):
        path = batch([request_line("a"), request_line("b"), request_line("c")])
        gold = batch(
            [
                {"custom_id": "a", "gold": "word word", "grader": "exact"},
                {"custom_id": "b", "gold": "7", "grader": "numeric"},
            ],
            "gold.jsonl",
        )
        with hostile.Server(talks(2)) as server:
            assert run(path, server.url, "--gold", gold, "--json") == 0
        assert json.loads(capsys.readouterr().out)["correct"] == 1

    @pytest.mark.parametrize(
        ("line", "printed"),
        [
            ({"gold": "1"}, ":1: no custom_id"),
            ({"custom_id": "a", "gold": "1", "grader": "taste"}, ":1: unknown grader 'taste'"),
            ("{", ":1: not JSON"),
        ],
    )
    def test_an_invalid_file_is_refused_with_the_place(self, run, batch, capsys, line, printed):
        gold = batch([line], "gold.jsonl")
        assert run(batch([request_line("a")]), NOWHERE, "--gold", gold) == 2
        assert f"{gold}{printed}" in capsys.readouterr().err


class TestAServerThatFails:
    def test_what_failed_is_answered_when_the_run_is_resumed(self, run, tmp_path, batch, capsys):
        path = batch([request_line(f"q{i}") for i in range(12)])
        with hostile.Server(hostile.fails(404, "no such model")) as server:
            assert run(path, server.url, "--json") == 3
            printed = capsys.readouterr()
            summary = json.loads(printed.out)
            failed = summary["outcomes"]["failed"]
            assert 3 <= failed < 12
            assert summary["outcomes"] == {"failed": failed, "not_sent": 12 - failed}
            assert [*summary["causes"].values()] == [failed]
            assert "warning: the server refuses every request: 404: no such model; nothing more was sent" in printed.err
            errors = read_jsonl(tmp_path / "err")
            assert {line["error"]["message"] for line in errors} == {
                "404: no such model",
                "not sent: the server refuses every request: 404: no such model",
            }
            server.behave = talks(5)
            assert run(path, server.url, "--json", "--resume") == 0
        assert json.loads(capsys.readouterr().out)["outcomes"] == {"finished": 12}
        assert read_jsonl(tmp_path / "err") == []
        assert ledger_of(tmp_path) == (60, 0)

    def test_what_it_may_have_generated_counts(self, run, tmp_path, batch):
        path = batch([request_line(f"q{i}") for i in range(12)])
        with hostile.Server(hostile.fails(500, "out of memory", work=7)) as server:
            more = ["--budget", 200, "--policy", "uniform", "--max-tokens", 10, "--patience", "1s"]
            assert run(path, server.url, *more) == 3
            assert server.generated <= ledger_of(tmp_path)[0] <= 200
            server.behave = talks(5)
            spent = ledger_of(tmp_path)[0]
            assert spent < 200  # it stopped while there was something left
            assert run(path, server.url, *more, "--resume") == 0
            assert spent < ledger_of(tmp_path)[0] <= 200
        assert read_jsonl(tmp_path / "err") == []

    def test_half_a_character_is_no_reason_to_lose_the_other_answers(self, run, tmp_path, batch):
        async def odd(request, reply):
            if "three" not in request.body["messages"][0]["content"]:
                return await talks(5)(request, reply)
            await reply.head()
            await reply.event(reply.chunk([reply.choice("\ud83d")]))
            await reply.finish()
            await reply.usage(1)
            return await reply.end()

        path = batch([request_line(name, name) for name in ("one", "two", "three", "four")])
        with hostile.Server(odd) as server:
            code = run(path, server.url, "--max-tokens", 20)
        answered = {line["custom_id"] for line in read_jsonl(tmp_path / "out")}
        assert answered >= {"one", "two", "four"}
        assert code == (0 if "three" in answered else 3)


class TestAServerThatIgnoresItsLimits:
    """What it generates cannot be bounded, so that it is sent nothing more."""

    more = ("--policy", "uniform", "--max-tokens", "20", "--concurrency", "4")

    def test_is_charged_what_it_took_and_sent_nothing_more(self, run, tmp_path, batch, capsys):
        names = [f"q{i}" for i in range(60)]
        with hostile.Server(overshoots(5)) as server:
            assert run(batch([request_line(name) for name in names]), server.url, *self.more) == 3
            assert len(server.requests) <= 4
            assert ledger_of(tmp_path) == (server.generated, 0)
        printed = capsys.readouterr().err
        assert f"{len(server.requests)} answers: longer than their limit" in printed
        assert f"at least {25 * len(server.requests)} tokens generated, 0 of them beyond the budget" in printed
        assert f"{server.url} ignored a limit of 20 tokens: 25; nothing more was sent" in printed
        out, errors = read_jsonl(tmp_path / "out"), read_jsonl(tmp_path / "err")
        assert sorted(line["custom_id"] for line in out + errors) == sorted(names)
        assert len(out) == len(server.requests)
        assert {line["error"]["code"] for line in errors} == {"not_sent"}

    def test_with_all_of_the_budget_under_way_it_is_exceeded_and_the_summary_says_by_how_much(
        self, run, tmp_path, batch, capsys
    ):
        path = batch([request_line(f"q{i}") for i in range(3)])
        with hostile.Server(overshoots(5)) as server:
            assert run(path, server.url, *self.more, "--json", "--budget", 60) == 3
            assert server.generated == 75
            assert ledger_of(tmp_path) == (60, 15)
        printed = capsys.readouterr()
        assert json.loads(printed.out)["overspent"] == 15
        assert "at least 75 tokens generated, 15 of them beyond the budget\n" in printed.err

    def test_the_run_continues_once_the_server_is_fixed(self, run, tmp_path, batch):
        path = batch([request_line(f"q{i}") for i in range(60)])
        with hostile.Server(overshoots(5)) as server:
            assert run(path, server.url, *self.more, "--budget", 1400) == 3
            server.behave = talks(20)
            assert run(path, server.url, *self.more, "--budget", 1400, "--resume") == 0
            assert ledger_of(tmp_path) == (server.generated, 0)
            assert len(server.requests) == 60
        assert len(read_jsonl(tmp_path / "out")) == 60

    def test_it_may_know_another_field(self, run, tmp_path, batch, capsys):
        path = batch([request_line(f"q{i}") for i in range(8)])
        with hostile.Server(knows_only_max_tokens) as server:
            assert run(path, server.url, *self.more) == 3
            assert "--limit-field max_tokens" in capsys.readouterr().err
            assert run(path, server.url, *self.more, "--resume", "--limit-field", "max_tokens") == 0
            assert ledger_of(tmp_path)[0] <= 6000


class TestResuming:
    def test_only_the_same_run_is_resumed(self, run, batch, capsys):
        path = batch([request_line("a")])
        with hostile.Server(talks(5)) as server:
            assert run(path, server.url) == 0
            assert run(path, server.url) == 2
            assert "--resume" in capsys.readouterr().err
            assert run(path, server.url, "--resume") == 0
            assert run(path, server.url, "--resume", "--policy", "uniform") == 2
            assert "another policy" in capsys.readouterr().err

    @pytest.mark.parametrize(("words", "more"), [(60, []), (2, ["--no-reclaim"]), (60, ["--accounting", "metered"])])
    def test_what_is_finished_stays_as_it_is(self, run, tmp_path, batch, words, more):
        """The prices of declined requests too; and a single clearing stays single, though tokens are left."""
        path = batch([request_line(f"q{i}", "word " * 5 * i) for i in range(1, 20)])
        found = []
        with hostile.Server(talks(words)) as server:
            for resume in ([], ["--resume"]):
                assert run(path, server.url, "--budget", 400, *more, *resume) in (0, 3)
                names = ("out", "err", "run/manifest.json")
                found.append([len(server.requests), *((tmp_path / name).read_text() for name in names)])
        assert found[0] == found[1]
        assert all(line["error"]["price"] for line in read_jsonl(tmp_path / "err"))

    def test_there_must_be_a_run_to_resume(self, run, batch, capsys):
        assert run(batch([request_line("a")]), NOWHERE, "--resume") == 2
        assert "is not a run to resume" in capsys.readouterr().err

    def test_a_ledger_that_is_gone_is_not_created_again(self, run, tmp_path, batch, capsys):
        path = batch([request_line("a")])
        with hostile.Server(talks(5)) as server:
            assert run(path, server.url) == 0
            os.unlink(tmp_path / "run" / "ledger.sqlite")
            assert run(path, server.url, "--resume") == 2
            assert len(server.requests) == 1
        assert "no such ledger" in capsys.readouterr().err
