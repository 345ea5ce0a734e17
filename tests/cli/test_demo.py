"""`shadowprice demo`, on recorded answers in place of the model."""

import json
import re
from contextlib import redirect_stdout
from io import StringIO

import pytest

from shadowprice.backends.recorded import RecordedBackend
from shadowprice.cli import main
from shadowprice.cli.demo import SETTINGS
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.datasets.tasks import tasks
from shadowprice.formats.templates import TEMPLATES, in_template
from shadowprice.types import Trace


class Recorded(RecordedBackend):
    """Answers what the demo asks, and counts its tokens as llama.cpp does."""

    closed = 0

    def __init__(self, model, **options):
        if model == "smollm2-135m":
            answers = [
                Trace(task.id, task.prompt, tokens := 4 + 3 * (i % 9), response=f"{'So. ' * tokens}{task.answer}")
                for i, task in enumerate(tasks(1, 40, split="eval"))
            ]
        else:
            answers = [
                Trace(each.id, in_template(TEMPLATES["math"], each.prompt), each.tokens, response=each.response)
                for each in shipped_traces("eval")
            ]
        super().__init__(answers)
        self.server, self.generated = self, 0

    async def complete(self, body, limit, **options):
        answer = await super().complete(body, limit, **options)
        self.generated += answer.tokens
        return answer

    def tokens_predicted(self):
        return self.generated

    async def close(self):
        Recorded.closed += 1


def demo(folder, *more):
    """What it prints."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out:
        patch.setattr("shadowprice.backends.llamacpp.LlamaCppBackend", Recorded)
        assert main(["demo", "--out", str(folder), *more]) == 0
    return out.getvalue()


def rows(shown):
    """Name, correct answers, their share, tokens spent, tokens that the server counted."""
    return re.findall(r"^(\w+) +(\d+) \((\d+)%\) +([\d,]+) +([\d,]+|-) +\d+ +\d+$", shown, re.MULTILINE)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def shown(place):
    return demo(place, "--tasks", "40")


def test_every_way_is_shown_with_what_the_server_itself_counted(shown):
    assert "40 questions (sums, capitals, counting, word problems), one budget of 480 tokens" in shown
    assert [name for name, *_ in rows(shown)] == list(SETTINGS)
    for _, correct, percent, spent, counted in rows(shown):
        assert spent == counted
        assert 0 < int(spent) <= 480
        assert int(percent) == round(100 * int(correct) / 40)
    assert Recorded.closed


def test_every_run_is_kept_with_its_report(shown, place):
    (folder,) = place.iterdir()
    assert f"every answer, price and token is in {folder}, with a report.html for each" in shown
    for name, settings in SETTINGS.items():
        manifest = json.loads((folder / name / "manifest.json").read_text())
        assert manifest["done"]
        assert manifest["asked"]["policy"] == settings["policy"]
        lines = [(folder / name / file).read_text().splitlines() for file in ("answers.jsonl", "declined.jsonl")]
        assert len(lines[0]) + len(lines[1]) == 40
        assert "requests answered" in (folder / name / "report.html").read_text()


def test_mathematics_continues_where_it_stopped(tmp_path):
    pytest.importorskip("math_verify", reason="the extra `math` is not installed")
    first = demo(tmp_path, "--math", "--tasks", "6")
    assert "6 questions (gsm8k_test), one budget of 900 tokens" in first
    assert all(spent == counted for *_, spent, counted in rows(first))
    second = demo(tmp_path, "--math", "--tasks", "6")
    assert [row[:-1] for row in rows(second)] == [row[:-1] for row in rows(first)]
    assert {counted for *_, counted in rows(second)} == {"-"}  # answered before: the server counted nothing


def test_no_questions_are_refused(tmp_path, capsys):
    assert main(["demo", "--tasks", "0", "--out", str(tmp_path)]) == 2
    assert "--tasks 0 (give 1 or more)" in capsys.readouterr().err
