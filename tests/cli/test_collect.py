"""`shadowprice collect`, as a user runs it: every sample is answered, graded and paid for once."""

import asyncio
import json

import pytest

from shadowprice.cli import main
from shadowprice.formats.traces import read_traces

from ..backends import hostile
from ..talking import overshoots, talks


@pytest.fixture
def questions(batch):
    def write(n=5):
        lines = [
            {"id": f"q{i}", "problem": f"Say {i}", "gold": "word", "dataset": "d", "grader": "exact"} for i in range(n)
        ]
        return batch(lines, "questions.jsonl")

    return write


def command(path, out, server, *more) -> int:
    arguments = ["collect", path, "--out", out, "--base-url", server.url, "--model", "m", "--quiet", *more]
    return main([str(argument) for argument in arguments])


class TestTheCommand:
    def test_every_sample_is_answered_graded_and_paid_for_once(self, tmp_path, questions, capsys):
        path, out = questions(), tmp_path / "traces.jsonl.gz"
        more = ["--samples", 2, "--max-tokens", 9, "--temperature", 0.5]
        with hostile.Server(talks(1)) as server:
            assert command(path, out, server, *more) == 0
            assert command(path, out, server, *more, "--resume") == 0
            assert len(server.requests) == 10
            assert {(r.limit, r.body["temperature"]) for r in server.requests} == {(9, 0.5)}
            assert sorted(r.body["seed"] for r in server.requests) == [0] * 5 + [1] * 5
        traces = list(read_traces(out))
        assert [(t.id, t.sample) for t in traces] == [(f"q{i}", s) for i in range(5) for s in range(2)]
        for trace in traces:
            assert (trace.correct, trace.tokens, trace.truncated, trace.max_tokens) == (True, 1, False, 9)
            assert (trace.dataset, trace.gold, trace.model, trace.response) == ("d", "word", "m", "word ")
        assert "10 traces" in (printed := capsys.readouterr().out)
        assert "100.0% correct" in printed

    def test_an_answer_that_was_cut_is_not_correct_whatever_it_says(self, tmp_path, questions):
        out = tmp_path / "traces.jsonl"
        with hostile.Server(talks(5)) as server:
            assert command(questions(1), out, server, "--max-tokens", 1) == 0
        (trace,) = read_traces(out)
        assert (trace.correct, trace.truncated, trace.response) == (False, True, "word ")

    def test_what_a_server_does_not_count_is_charged_its_limit_and_not_recorded_as_that_long(
        self, tmp_path, questions, capsys
    ):
        async def uncounted(request, reply):
            await reply.head()
            await reply.say(3)
            await reply.finish()

        out = tmp_path / "traces.jsonl"
        with hostile.Server(uncounted) as server:
            assert command(questions(), out, server, "--max-tokens", 500) == 0
        assert {(t.tokens, t.truncated, tuple(t.extra["flags"])) for t in read_traces(out)} == {
            (3, False, ("not_counted",))
        }
        assert capsys.readouterr().err == "warning: 5 answers: not counted by the server: charged their whole limit\n"

    def test_what_failed_is_reported_with_its_cause_and_answered_when_it_is_resumed(self, tmp_path, questions, capsys):
        async def refuses_some(request, reply):
            even = request.body["messages"][0]["content"] in ("Say 0", "Say 2", "Say 4")
            await (hostile.fails(400, "too hard") if even else talks(1))(request, reply)

        out = tmp_path / "traces.jsonl"
        with hostile.Server(refuses_some) as server:
            assert command(questions(), out, server, "--json") == 3
            printed = capsys.readouterr()
            assert json.loads(printed.out)["failed"] == 3
            assert "3 failed: 400: too hard" in printed.err
            assert [trace.id for trace in read_traces(out)] == ["q1", "q3"]
            server.behave = talks(1)
            assert command(questions(), out, server, "--resume") == 0
            assert len(server.requests) == 5 + 3
        assert len(list(read_traces(out))) == 5

    def test_a_server_that_ignores_its_limit_is_sent_nothing_more(self, tmp_path, questions, capsys):
        out = tmp_path / "traces.jsonl"
        with hostile.Server(overshoots(5)) as server:
            assert command(questions(20), out, server, "--max-tokens", 9) == 3
            assert len(server.requests) <= 8
        assert "nothing more was sent" in capsys.readouterr().err
        assert {(t.tokens, tuple(t.extra["flags"])) for t in read_traces(out)} == {(14, ("limit_ignored",))}

    def test_only_the_same_collection_is_resumed(self, tmp_path, questions, capsys):
        out = tmp_path / "traces.jsonl"
        with hostile.Server(talks(1)) as server:
            assert command(questions(), out, server, "--max-tokens", 9) == 0
            assert command(questions(), out, server, "--max-tokens", 10, "--resume") == 2
        assert "another" in capsys.readouterr().err

    def test_traces_so_far_can_be_written_while_it_runs_and_after_it_was_stopped(self, tmp_path, questions, capsys):
        path, run, early, found = questions(), tmp_path / "run", tmp_path / "early.jsonl", []

        async def peeks(request, reply):
            if request.body["messages"][0]["content"] == "Say 3":
                found.append(await asyncio.to_thread(command, path, early, server, "--run-folder", run, "--so-far"))
                await hostile.fails(400, "too hard")(request, reply)
            else:
                await talks(1)(request, reply)

        with hostile.Server(peeks) as server:
            one_by_one = ["--run-folder", run, "--concurrency", 1]
            assert command(path, tmp_path / "traces.jsonl", server, *one_by_one) == 3
            assert (found, len(server.requests)) == ([0], 5)
            assert [trace.id for trace in read_traces(early)] == ["q0", "q1", "q2"]
            assert "2 not answered yet" in capsys.readouterr().out
            late = tmp_path / "late.jsonl"
            assert command(path, late, server, "--run-folder", run, "--so-far") == 0
            assert len(server.requests) == 5
        assert [trace.id for trace in read_traces(late)] == ["q0", "q1", "q2", "q4"]
        assert late.read_bytes() == (tmp_path / "traces.jsonl").read_bytes()

    def test_traces_so_far_are_those_of_the_same_collection(self, tmp_path, questions, capsys):
        out = tmp_path / "traces.jsonl"
        with hostile.Server(talks(1)) as server:
            assert command(questions(), out, server, "--so-far") == 2
            assert "no such run folder" in capsys.readouterr().err
            assert command(questions(), out, server) == 0
            assert command(questions(4), out, server, "--so-far", "--force") == 2
            assert "another input" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("more", "printed"),
        [
            (["--probe"], "use --local"),
            (["--samples", "0"], "--samples 0 "),
            (["--temperature", "-1"], "--temperature -1 "),
            (["--temperature", "nan"], "--temperature nan "),
            (["--max-tokens", "99999999999999999999"], "--max-tokens 99999999999999999999 "),
            (["--prompt-template", "nowhere"], "no such template"),
        ],
    )
    def test_options_that_make_no_sense_are_refused(self, tmp_path, questions, capsys, more, printed):
        with hostile.Server(talks(1)) as server:
            assert command(questions(), tmp_path / "out", server, *more) == 2
            assert server.requests == []
        assert printed in capsys.readouterr().err
        assert not (tmp_path / "out.run").exists()
