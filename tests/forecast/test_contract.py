"""What holds for every forecaster that can be trained."""

import json
from dataclasses import replace

import numpy as np
import pytest

from shadowprice import InputError, Request
from shadowprice.forecast import KINDS, load
from shadowprice.forecast.evaluation import evaluate

from .stories import queries, stories


@pytest.fixture(scope="module", params=KINDS)
def make(request, tmp_path_factory):
    """Makes one that is not trained."""
    if request.param == "text":
        return lambda heads=None: KINDS["text"]()()
    torch = pytest.importorskip("torch", reason="the extra `encoder` is not installed")
    from .encoder.small import small_deberta

    base = small_deberta(tmp_path_factory.mktemp("base"), [trace.prompt for trace in stories(400)])
    torch.set_num_threads(1)  # two that wait for each other on a busy machine take ten times as long
    if request.param == "frozen":
        return lambda heads=None: KINDS["frozen"]()(base, max_length=32)
    settings = {"max_length": 32, "epochs": 9, "learning_rate": 1e-3}
    return lambda heads=("spread", "correct"): KINDS["encoder"]()(base, heads=heads, **settings)


@pytest.fixture(scope="module")
def trained(make):
    return make().fit(stories(400))


def same(one, other):
    return all(
        np.allclose(getattr(one, name), getattr(other, name), rtol=1e-4)
        for name in ("tokens", "spread", "solve", "solved_tokens", "solved_spread")
    )


def test_it_learns_length_and_correctness(trained):
    scores = trained.evaluate(stories(400, seed=1), resamples=10).overall
    assert scores.spearman > 0.8
    assert scores.auc > 0.75
    assert 0.7 < scores.coverage["80%"] < 0.9
    assert scores.calibration_error < 0.1


def test_it_evaluates_its_own_forecasts(trained):
    fresh = stories(60, seed=1)
    assert trained.evaluate(fresh, resamples=20, seed=3) == evaluate(
        trained.predict(queries(fresh)), fresh, resamples=20, seed=3
    )


def test_texts_are_forecast_like_requests(trained):
    asked = queries(stories(10, seed=2))
    texts = [request.text for request in asked]
    assert same(trained.predict(texts), trained.predict(asked))
    assert same(trained.predict([texts[0], *asked[1:]]), trained.predict(asked))


def test_one_string_is_not_a_list(trained):
    with pytest.raises(InputError, match="one string is not a list of requests"):
        trained.predict("What is 2+2?")


def test_one_that_is_not_trained_says_so(make, tmp_path):
    for act in (
        lambda f: f.predict(["a"]),
        lambda f: f.save(tmp_path / "x"),
        lambda f: f.adapt(stories(50)),
        lambda f: f.evaluate(stories(5)),
    ):
        with pytest.raises(InputError, match="is not trained"):
            act(make())
    assert not (tmp_path / "x").exists()


def test_a_forecast_does_not_depend_on_its_neighbours(trained):
    asked = queries(stories(30, seed=2))
    together = trained.predict(asked)
    assert same(together.take(np.arange(29, -1, -1)), trained.predict(asked[::-1]))
    assert same(together.take([7]), trained.predict(asked[7:8]))


def test_what_is_saved_is_what_is_loaded(trained, tmp_path):
    asked = queries(stories(30, seed=3))
    trained.save(tmp_path / "saved")
    assert same(load(tmp_path / "saved").predict(asked), trained.predict(asked))


def test_it_adapts_to_another_model_from_a_hundred_traces(trained):
    wordy, fresh = stories(100, seed=4, factor=4.0, chance=0.3), stories(400, seed=5, factor=4.0, chance=0.3)
    adapted = trained.adapt(wordy).predict(queries(fresh))
    scores = evaluate(adapted, fresh, resamples=10).overall
    assert 0.8 < scores.median_forecast / scores.median_tokens < 1.25
    assert 0.7 < scores.coverage["80%"] < 0.9
    assert abs(adapted.solve.mean() - np.mean([trace.correct for trace in wordy])) < 0.05
    assert np.median(trained.predict(queries(fresh)).tokens) < 0.5 * scores.median_tokens  # the adapted one is new


def test_truncated_traces_are_censored(make):
    """Cut at 150 tokens, it is unknown how long the long ones are; but they do not end there."""
    cut = make().fit(stories(600, seed=6, cap=150))
    long = [trace for trace in stories(300, seed=7) if trace.prompt.startswith("Explain")]
    assert np.median(cut.predict(queries(long)).tokens) > 190


@pytest.mark.parametrize(
    "text",
    ["", " \n\t", "\0", "x" * 1_000_000, "?" * 50_000, "What " * 100_000, "二足す二は？", "Сколько будет 2 + 2?",
     "\ud800 half of a pair", "def f(x):\n    return f(x - 1) if x else 0\n", "😀" * 1000],
    ids=lambda text: repr(text[:8]),
)  # fmt: skip
def test_any_text_gets_a_sane_forecast(trained, text):
    forecast = trained.predict([Request("q", text)])
    assert 1 < forecast.tokens[0] <= 10_000
    assert 0.05 < forecast.spread[0] < 3
    assert 0 < forecast.solve[0] < 1


def test_no_requests_get_no_forecasts(trained):
    assert len(trained.predict([])) == 0


def test_too_little_to_learn_from(make):
    for few in ([], stories(5), stories(1) * 50):
        with pytest.raises(InputError, match="too few"):
            make().fit(few)


def test_traces_without_grades_train_the_length_only(make):
    ungraded = [replace(trace, correct=None) for trace in stories(400)]
    forecast = make(heads=("spread",)).fit(ungraded).predict(queries(stories(50, seed=8)))
    assert np.ptp(np.log(forecast.tokens)) > 1
    assert forecast.solve.min() > 0.9


class TestAFolder:
    """Loading checks everything and executes nothing."""

    @pytest.fixture
    def folder(self, trained, tmp_path):
        trained.save(tmp_path / "saved")
        return tmp_path / "saved"

    def change(self, folder, **fields):
        path = folder / "forecaster.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    def fails(self, folder, message):
        with pytest.raises(InputError, match=message) as caught:
            load(folder)
        assert "\n" not in str(caught.value)
        assert str(folder) in str(caught.value)

    def test_no_folder(self, tmp_path):
        self.fails(tmp_path / "nothing", "holds no forecaster.json")

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": "1"}', "[" * 100_000, "\x00"])
    def test_a_damaged_description(self, folder, text):
        (folder / "forecaster.json").write_text(text)
        self.fails(folder, "damaged")

    def test_from_a_newer_version(self, folder):
        self.change(folder, format=99)
        self.fails(folder, "newer version")

    def test_of_an_unknown_kind(self, folder):
        self.change(folder, kind="oracle")
        self.fails(folder, "unknown kind")

    def test_about_something_else(self, folder):
        self.change(folder, about={})
        self.fails(folder, "damaged")

    def test_a_flipped_byte(self, folder):
        for path in sorted(folder.iterdir()):
            if path.name != "forecaster.json":
                held = bytearray(path.read_bytes())
                held[len(held) // 2] ^= 1
                path.write_bytes(held)
                break
        self.fails(folder, "has changed since it was saved")

    def test_a_missing_file(self, folder):
        next(path for path in folder.iterdir() if path.name != "forecaster.json").unlink()
        self.fails(folder, "is missing")

    def test_a_file_too_many(self, folder):
        (folder / "module.py").write_text("raise SystemExit('executed')")
        self.fails(folder, "not part of the forecaster")

    def test_a_file_outside(self, folder, tmp_path):
        (tmp_path / "elsewhere").write_text("")
        self.change(folder, files={"../elsewhere": "0"})
        self.fails(folder, "missing")

    def test_saving_replaces_a_forecaster_and_nothing_else(self, trained, folder, tmp_path):
        trained.save(folder)
        load(folder)
        (tmp_path / "thesis").mkdir()
        (tmp_path / "thesis" / "chapter").write_text("one")
        with pytest.raises(InputError, match="something other"):
            trained.save(tmp_path / "thesis")
        assert (tmp_path / "thesis" / "chapter").read_text() == "one"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["saved", "thesis"]
