"""Collecting traces: questions in their templates, programs that can be graded, probes of answers."""

import asyncio

import pytest

from shadowprice import InputError
from shadowprice.accounts.sqlite import Ledger
from shadowprice.backends.recorded import RecordedBackend
from shadowprice.collect import budget_for, check_programs, collect, graded, requests_for
from shadowprice.engine.executor import Progress
from shadowprice.engine.fixed import Ages
from shadowprice.formats.questions import Question
from shadowprice.formats.templates import read_template
from shadowprice.types import Trace


class TestTemplates:
    def test_questions_are_put_as_the_template_says(self, tmp_path):
        path = tmp_path / "mine.txt"
        path.write_text("Q: {problem}\nA:\n")
        (request,) = requests_for(
            [Question("a", "Why {x}?", "7")], samples=1, temperature=0.0, template=read_template(str(path))
        )
        assert request.body["messages"] == [{"role": "user", "content": "Q: Why {x}?\nA:"}]
        assert request.text == "Why {x}?"  # what forecasts are made from


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
            found = graded(QUESTIONS, dict(ledger.results()), samples=1, temperature=0.0, max_tokens=50, model="m")
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


def test_tests_that_import_what_is_not_here_are_refused_before_anything_is_paid_for():
    wants = Question("q", "?", "import numpy, no_such_package.part\nassert f()", grader="code")
    with pytest.raises(InputError, match=r"tests cannot run here: no no_such_package \(pip install"):
        check_programs([wants])
    check_programs([Question("q", "?", "import numpy, math\nassert f()", grader="code")])
    check_programs([Question("q", "?", "import no_such_package", grader="exact")])
