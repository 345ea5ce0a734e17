"""What all requests of a batch share does not change their forecasts."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from shadowprice.cli import main
from shadowprice.datasets.tasks import tasks
from shadowprice.forecast import default, predict_all
from shadowprice.forecast.shared import SharedText, without_shared_text
from shadowprice.planning import plan
from shadowprice.types import Request

from ..conftest import read_jsonl, request_line

_SHARED = Path(__file__).parents[3] / "shared" / "questions" / "gsm8k_test.jsonl.gz"
_EXAMPLES = "".join(
    f"Q: There are {i} trees and {i + 3} birds. How many is that?\nA: We add. It is {2 * i + 3}.\n\n"
    for i in range(1, 9)
)
WORDINGS = {
    "suffix": lambda text: f"{text}\nPlease reason step by step, and put your final answer within \\boxed{{}}.",
    "another suffix": lambda text: f"{text} Think at length, check every step, and answer with one number.",
    "prefix": lambda text: f"You are a careful mathematician. Solve the problem step by step.\n\n{text}",
    "both": lambda text: f"Answer the following question: {text}\n\nLet's think step by step.",
    "few examples": lambda text: f"{_EXAMPLES}Q: {text}\nA:",
    "tags": lambda text: f"<question>{text}</question> Work it out in detail and then give the answer.",
    "quotes": lambda text: f'Consider the question: "{text}" Work it out in detail and then give the answer.',
    "marks of a chat": lambda text: f"[INST] Answer with all of your reasoning: {text} [/INST]",
    "a dash and an aside": lambda text: f"Solve this problem and explain it at length - {text} (show your work)",
}
SYSTEM = "You are a helpful assistant. Think about every problem at length, and then give the final answer."


def asked(texts):
    return [Request(str(i), text) for i, text in enumerate(texts)]


def medians_move(texts: list[str]) -> dict[str, float]:
    """By what factor each wording moves the median forecast."""
    forecaster = default()
    bare_median = np.median(forecaster.predict(texts).tokens)
    moved = {name: predict_all(forecaster, asked(map(put, texts))) for name, put in WORDINGS.items()}
    chats = [[{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}] for text in texts]
    moved["system prompt"] = plan([{"messages": chat} for chat in chats], "256/query").forecast
    return {name: float(np.median(forecast.tokens) / bare_median) for name, forecast in moved.items()}


def test_no_wording_moves_the_forecasts_of_generated_questions():
    moved = medians_move([task.prompt for task in tasks(5, 300)])
    assert all(0.95 < factor < 1.05 for factor in moved.values()), moved


@pytest.mark.skipif(not _SHARED.exists(), reason=f"no {_SHARED}")
def test_no_wording_moves_the_forecasts_of_gsm8k():
    with gzip.open(_SHARED, "rt") as lines:
        texts = [json.loads(line)["problem"] for line, _ in zip(lines, range(300), strict=False)]
    moved = medians_move(texts)
    assert all(0.95 < factor < 1.05 for factor in moved.values()), moved
    alone = default().predict([WORDINGS["suffix"](text) for text in texts]).tokens
    assert np.median(alone) > 1.3 * np.median(default().predict(texts).tokens)  # what it would be without this


def test_the_commands_forecast_and_plan_see_the_bare_questions(batch, tmp_path):
    texts = [task.prompt for task in tasks(6, 30)]
    plain = batch([request_line(f"q{i}", text) for i, text in enumerate(texts)], "plain.jsonl")
    worded = batch([request_line(f"q{i}", WORDINGS["prefix"](text)) for i, text in enumerate(texts)], "worded.jsonl")
    found = []
    for path in (plain, worded):
        out = tmp_path / f"{path.stem}.forecast.jsonl"
        assert main(["forecast", str(path), "--out", str(out), "--quiet"]) == 0
        assert main(["plan", str(path), "--budget", "9k", "--out", str(tmp_path / path.stem), "--quiet"]) in (0, 3)
        limits = [(r["custom_id"], r["body"]["max_completion_tokens"]) for r in read_jsonl(tmp_path / path.stem)]
        found.append((read_jsonl(out), limits))
    assert found[0] == found[1]


def test_the_words_that_the_command_adds_to_a_single_question_do_not_count(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.txt").write_text("A train takes 3 hours for 240 km. How fast is it?\n")
    (tmp_path / "t.txt").write_text("Think about this at length.\n\n{problem} Answer with a number.\n")
    options = {"plain": [], "worded": ["--system", SYSTEM, "--prompt-template", "t.txt"]}
    for name, more in options.items():
        assert main(["forecast", "q.txt", "--out", name, *more]) == 0
    assert read_jsonl(tmp_path / "plain") == read_jsonl(tmp_path / "worded")


class TestWhatIsRemoved:
    NAMES = ("Ada", "Ben", "Carla", "David", "Elena", "Farid", "Grace", "Hugo", "Ines", "Jonas")

    def test_questions_that_only_sound_alike_stay_whole(self):
        texts = [f"What is the sum of {i} and {i + 5} in base ten?" for i in range(20)]
        assert without_shared_text(texts) == texts

    def test_a_repeated_question_stays_whole(self):
        texts = ["Ada has two pens. She buys one. How many now?"] * 20
        assert without_shared_text(texts) == texts

    def test_a_few_requests_stay_whole(self):
        texts = [f"Answer in one word. Who is {name}?" for name in self.NAMES[:7]]
        assert without_shared_text(texts) == texts

    def test_one_of_twenty_may_lack_it(self):
        texts = [f"Answer in one word. Who is {i}?" for i in range(19)] + ["Why?"]
        assert without_shared_text(texts) == [f"Who is {i}?" for i in range(19)] + ["Why?"]
        texts[0] = "How?"
        assert without_shared_text(texts) == texts

    def test_nothing_is_removed_if_nothing_would_remain(self):
        texts = [f"Be brief. Name {name}" for name in self.NAMES] + ["Be brief. "]
        assert without_shared_text(texts) == [f"Name {name}" for name in self.NAMES] + ["Be brief. "]

    def test_our_own_instruction_is_removed_from_a_single_request(self):
        assert without_shared_text([WORDINGS["suffix"]("What is 2+2?")]) == ["What is 2+2?"]

    def test_the_last_few_of_a_long_batch_are_treated_as_the_others(self):
        shared = SharedText()
        shared.strip([f"Answer in one word. Who is {name}?" for name in self.NAMES])
        assert shared.strip(["Answer in one word. Who is Zoe?"]) == ["Who is Zoe?"]
