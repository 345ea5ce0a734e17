"""`shadowprice demo`, on recorded answers in place of the model."""

import json
import re
from contextlib import redirect_stdout
from io import StringIO

import pytest

from shadowprice.backends.recorded import RecordedBackend
from shadowprice.cli import main
from shadowprice.cli.demo import WAYS
from shadowprice.datasets.tasks import tasks
from shadowprice.types import Trace


class Counter:
    """What llama.cpp itself would count."""

    generated = 0
    closed = False

    def tokens_predicted(self):
        return self.generated

    def close(self):
        self.closed = True


class Recorded(RecordedBackend):
    """Answers every task of the demo, with its correct answer at the end of more or fewer words."""

    def __init__(self, **options):
        chosen = tasks(1, 40, split="eval")
        lengths = [4 + 3 * (i % 9) for i in range(40)]
        super().__init__(
            [
                Trace(task.id, task.prompt, tokens, response=f"{'So. ' * tokens}{task.answer}")
                for task, tokens in zip(chosen, lengths, strict=True)
            ]
        )
        self.server = SERVER

    async def complete(self, body, limit, **options):
        answer = await super().complete(body, limit, **options)
        self.server.generated += answer.tokens
        return answer


SERVER = Counter()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def shown(place):
    """What the demo prints."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out:
        patch.setattr("shadowprice.backends.llamacpp.LlamaCppBackend", Recorded)
        assert main(["demo", "--tasks", "40", "--budget", "12/query", "--out", str(place)]) == 0
    return out.getvalue()


def test_every_way_is_shown_with_what_the_server_itself_counted(shown):
    assert "40 tasks (sums, capitals, counting, word problems), one budget of 480 tokens" in shown
    rows = re.findall(r"^(\w+) +(\d+) \((\d+)%\) +([\d,]+) +([\d,]+) +(\d+) +(\d+)$", shown, re.MULTILINE)
    assert [name for name, *_ in rows] == list(WAYS)
    assert SERVER.closed
    for _, correct, percent, spent, counted, _, _ in rows:
        assert spent == counted
        assert 0 < int(spent) <= 480
        assert int(percent) == round(100 * int(correct) / 40)


def test_every_run_is_kept(shown, place):
    (folder,) = place.iterdir()
    assert f"every answer, price and token is in {folder}" in shown
    for name, settings in WAYS.items():
        manifest = json.loads((folder / name / "manifest.json").read_text())
        assert manifest["done"]
        assert manifest["asked"]["policy"] == settings["policy"]
        lines = [(folder / name / file).read_text().splitlines() for file in ("answers.jsonl", "declined.jsonl")]
        assert len(lines[0]) + len(lines[1]) == 40
