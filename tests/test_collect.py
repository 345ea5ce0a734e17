"""Collecting traces: every sample of every question, graded, paid for once, with probes where they are asked for."""

import asyncio
import json

import pytest

from shadowprice import InputError
from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.recorded import RecordedBackend
from shadowprice.cli import main
from shadowprice.collect import budget_for, collect, graded, requests_for
from shadowprice.engine.executor import Progress
from shadowprice.engine.fixed import Ages
from shadowprice.formats.questions import Question
from shadowprice.formats.templates import TEMPLATES, read_template
from shadowprice.formats.traces import read_traces
from shadowprice.types import Trace

from .backends import hostile
from .talking import overshoots, talks


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
        assert "10 traces" in (said := capsys.readouterr().out)
        assert "100.0% correct" in said

    def test_an_answer_that_was_cut_is_not_correct_whatever_it_says(self, tmp_path, questions):
        out = tmp_path / "traces.jsonl"
        with hostile.Server(talks(5)) as server:
            assert command(questions(1), out, server, "--max-tokens", 1) == 0
        (trace,) = read_traces(out)
        assert (trace.correct, trace.truncated, trace.response) == (False, True, "word ")

    def test_what_failed_is_reported_with_its_cause_and_answered_when_it_is_resumed(self, tmp_path, questions, capsys):
        async def refuses_some(request, reply):
            even = request.body["messages"][0]["content"] in ("Say 0", "Say 2", "Say 4")
            await (hostile.fails(400, "too hard") if even else talks(1))(request, reply)

        out = tmp_path / "traces.jsonl"
        with hostile.Server(refuses_some) as server:
            assert command(questions(), out, server, "--json") == 3
            said = capsys.readouterr()
            assert json.loads(said.out)["failed"] == 3
            assert "3 failed: 400: too hard" in said.err
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
        assert "nothing more was sent (an older server may obey --limit-field max_tokens" in capsys.readouterr().err
        assert {(t.tokens, tuple(t.extra["flags"])) for t in read_traces(out)} == {(14, ("limit_ignored",))}

    def test_only_the_same_collection_is_resumed(self, tmp_path, questions, capsys):
        out = tmp_path / "traces.jsonl"
        with hostile.Server(talks(1)) as server:
            assert command(questions(), out, server, "--max-tokens", 9) == 0
            assert command(questions(), out, server, "--max-tokens", 10, "--resume") == 2
        assert "another" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            (["--probe"], "use --local"),
            (["--samples", "0"], "--samples"),
            (["--temperature", "-1"], "--temperature"),
            (["--prompt-template", "nowhere"], "no such template"),
        ],
    )
    def test_options_that_make_no_sense_are_refused(self, tmp_path, questions, capsys, more, said):
        with hostile.Server(talks(1)) as server:
            assert command(questions(), tmp_path / "out", server, *more) == 2
            assert server.requests == []
        assert said in capsys.readouterr().err
        assert not (tmp_path / "out.run").exists()


@pytest.mark.parametrize("text", ["", "x", "1,", "-1", "101%", "1.5", "1,,2"])
def test_ages_that_are_not_numbers_are_refused(text):
    with pytest.raises(InputError, match="is not an age"):
        Ages.parse(text)


class TestTemplates:
    def test_questions_are_put_as_the_template_says(self, tmp_path):
        path = tmp_path / "mine.txt"
        path.write_text("Q: {problem}\nA:\n")
        (request,) = requests_for(
            [Question("a", "Why {x}?", "7")], samples=1, temperature=0.0, template=read_template(str(path))
        )
        assert request.body["messages"] == [{"role": "user", "content": "Q: Why {x}?\nA:"}]
        assert request.text == "Why {x}?"  # what forecasts are made from

    def test_a_template_must_have_a_place_for_the_question(self, tmp_path):
        path = tmp_path / "mine.txt"
        path.write_text("Answer!")
        with pytest.raises(InputError, match=r"has no \{problem\}"):
            read_template(str(path))

    @pytest.mark.parametrize("name", TEMPLATES)
    def test_those_that_come_with_the_package_have_one(self, name):
        assert "{problem}" in read_template(name)


# --- probes ------------------------------------------------------------------------------------

AGES = Ages.parse("0,8,50%")
QUESTIONS = [Question(f"q{i}", f"Question {i}?", "7", grader="math") for i in range(12)]
TRACES = [
    Trace(
        q.id,
        q.problem,
        10 + 5 * i,
        response=f"So \\boxed{{{7 if i % 2 else 8}}}",
        extra={"landed": {"0": [False, 2, "3"], "9": [True, 2, "7"]}},
    )
    for i, q in enumerate(QUESTIONS)
]


class Collecting:
    """A collection from recorded answers, in a ledger that is opened again for every execution."""

    def __init__(self, folder, budget=None):
        self.path = folder / "ledger.sqlite"
        self.requests = requests_for(QUESTIONS, samples=1, temperature=0.0)
        Ledger.create(self.path, budget or budget_for(self.requests, 50, AGES)).close()

    def run(self, stop_after=None, concurrency=4, backend=None):
        """The traces, and what was spent; stopped after a number of events."""
        progress, events = Progress(0), 0

        def look(progress):
            nonlocal events
            events += 1
            if events == stop_after:
                progress.stop("enough")

        with Ledger.reopen(self.path) as ledger:
            options = {"max_tokens": 50, "probe": AGES, "concurrency": concurrency, "progress": progress}
            asyncio.run(collect(self.requests, ledger, backend or RecordedBackend(TRACES), on_event=look, **options))
            found = graded(QUESTIONS, ledger, samples=1, temperature=0.0, max_tokens=50, model="m")
            assert (ledger.reserved, ledger.overspent) == (0, 0)
            return list(found), ledger.spent, progress


class TestProbes:
    def test_traces_say_what_each_beginning_was_good_for(self, tmp_path):
        traces, spent, progress = Collecting(tmp_path).run()
        assert progress.outcomes == {"finished": 9, "truncated": 3}
        assert [t.correct for t in traces[:4]] == [False, True, False, True]
        assert traces[3].extra["landed"] == {
            "12": [True, 2, "7"], "8": [False, 2, "3"], "0": [False, 2, "3"],
        }  # fmt: skip
        assert list(traces[11].extra["landed"]) == ["50", "25", "8", "0"]  # cut at 50: its end is probed too
        probes = sum(len(t.extra["landed"]) for t in traces)
        assert spent == sum(t.tokens for t in traces) + 2 * probes

    @pytest.mark.parametrize("concurrency", [1, 4])
    def test_interrupted_again_and_again_the_traces_are_the_same(self, tmp_path, concurrency):
        (tmp_path / "undisturbed").mkdir()
        whole, least, _ = Collecting(tmp_path / "undisturbed").run()
        collecting, stops = Collecting(tmp_path), 0
        while True:
            traces, spent, progress = collecting.run(stop_after=7, concurrency=concurrency)
            if not progress.stopped:
                break
            assert len(traces) < len(whole)
            stops += 1
        assert stops > 1
        assert traces == whole
        again = 2 * 4 * concurrency * stops  # answers under way are kept, and probed again from the first probe
        assert least <= spent <= least + again

    def test_a_question_that_was_never_answered_has_no_trace(self, tmp_path):
        traces, _, progress = Collecting(tmp_path).run(backend=RecordedBackend(TRACES[:5]))
        assert [trace.id for trace in traces] == [f"q{i}" for i in range(5)]
        assert progress.outcomes == {"finished": 5, "failed": 7}
