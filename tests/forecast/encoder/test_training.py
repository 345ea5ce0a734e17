"""The loss, and trainings that are interrupted and resumed."""

import math
import shutil
from pathlib import Path

import pytest

from shadowprice import InputError

from .conftest import EVAL, TRAIN, asked, quick, same

torch = pytest.importorskip("torch", reason="the extra `encoder` is not installed")

from shadowprice.forecast.encoder.training import Example, losses, per_question  # noqa: E402


def test_the_squared_error_of_a_truncated_answer_is_on_one_side():
    outputs = torch.tensor([[1.0], [3.0], [1.0], [3.0]])
    truncated = torch.tensor([True, True, False, False])
    found = losses(outputs, (), torch.full((4,), 2.0), truncated, torch.full((4,), math.nan))
    assert found.tolist() == [1.0, 0.0, 1.0, 1.0]


def test_the_likelihood_is_that_of_anything_longer():
    outputs = torch.tensor([[2.0, 0.0], [2.0, math.log(2.0)], [9.0, 0.0]])
    truncated = torch.tensor([True, False, True])
    found = losses(outputs, ("spread",), torch.tensor([2.0, 4.0, 2.0]), truncated, torch.full((3,), math.nan))
    assert found.tolist() == pytest.approx([math.log(2), 0.5 + math.log(2), 0.0], abs=1e-6)


def test_ungraded_answers_do_not_train_the_chance():
    outputs = torch.tensor([[0.0, 5.0], [0.0, 0.0]], requires_grad=True)
    correct = torch.tensor([math.nan, 1.0])
    found = losses(outputs, ("correct",), torch.zeros(2), torch.zeros(2, dtype=torch.bool), correct)
    assert found.tolist() == pytest.approx([0.0, math.log(2)])
    found.sum().backward()
    assert outputs.grad[0, 1] == 0.0


def test_answers_to_a_question_are_one_example_and_the_truncated_ones_another():
    answers = [Example("a", 1.0, False, 1.0), Example("a ", 3.0, False, 0.0), Example("a", 5.0, True, math.nan)]
    ended, cut, other = per_question([*answers, Example("b", 2.0, False, 1.0)])
    assert (ended.length, ended.correct, ended.weight) == (2.0, 0.5, pytest.approx(2 / 3))
    assert (cut.length, cut.truncated, cut.weight) == (5.0, True, pytest.approx(1 / 3))
    assert other.weight == 1.0


class TestResuming:
    TRACES = TRAIN[:60]

    def interrupted(self, base, folder: Path) -> None:
        def stop(line: str) -> None:
            if line.startswith("epoch 3 of 4: loss"):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            quick(base, epochs=4, checkpoints=folder, progress=stop).fit(self.TRACES)

    def test_a_resumed_training_ends_as_an_uninterrupted_one(self, base, tmp_path):
        whole = quick(base, epochs=4).fit(self.TRACES)
        self.interrupted(base, tmp_path / "checkpoints")
        lines = []
        encoder = quick(base, epochs=4, checkpoints=tmp_path / "checkpoints", resume=True, progress=lines.append)
        encoder.fit(self.TRACES)
        assert [line.split(":")[0] for line in lines[1::2]] == ["epoch 3 of 4", "epoch 4 of 4"]
        assert encoder.history == whole.history
        assert same(encoder.predict(asked(EVAL[:20])), whole.predict(asked(EVAL[:20])))
        # Once more, with nothing left to do.
        lines.clear()
        assert same(encoder.fit(self.TRACES).predict(asked(EVAL[:20])), whole.predict(asked(EVAL[:20])))
        assert len(lines) == 1

    def test_an_incomplete_checkpoint_is_ignored(self, base, tmp_path):
        self.interrupted(base, tmp_path)
        (last,) = tmp_path.glob("checkpoint-*")
        half = tmp_path / "checkpoint-999"
        shutil.copytree(last, half)
        (half / "trainer_state.json").write_text("{")
        (half / "model.safetensors").write_bytes(b"")
        encoder = quick(base, epochs=4, checkpoints=tmp_path, resume=True).fit(self.TRACES)
        assert len(encoder.history) == 4
        assert not half.exists()

    def test_only_the_same_training_is_resumed(self, base, tmp_path):
        self.interrupted(base, tmp_path / "checkpoints")
        before = sorted(tmp_path.rglob("*"))
        again = {"checkpoints": tmp_path / "checkpoints", "epochs": 4}
        with pytest.raises(InputError, match="checkpoints exist"):
            quick(base, **again).fit(self.TRACES)
        for other, traces in (({}, TRAIN[:61]), ({"learning_rate": 1e-4}, self.TRACES), ({"max_length": 32}, TRAIN)):
            with pytest.raises(InputError, match="other traces or settings"):
                quick(base, **{**again, **other}, resume=True).fit(traces)
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "letter.txt").write_text("Dear")
        with pytest.raises(InputError, match="something other"):
            quick(base, checkpoints=tmp_path / "mine", resume=True).fit(self.TRACES)
        assert [path for path in sorted(tmp_path.rglob("*")) if "mine" not in path.parts] == before
