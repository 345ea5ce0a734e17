"""What a network reads, and folders that are damaged or hostile."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from shadowprice import InputError, Request
from shadowprice.forecast import load

from .conftest import EVAL, TRAIN, asked, quick, same

pytest.importorskip("torch", reason="the extra `encoder` is not installed")


def test_the_end_of_a_long_question_is_read(trained):
    def pieces(text):
        network = trained._fitted.network
        return network.tokenizer.decode(network.pieces([text])[0])

    long = "Once upon a time. " * 500 + "How many days are in 37 weeks?"
    assert pieces(long).endswith("How many days are in 37 weeks?")
    assert pieces(long)[:40] not in ("", long[:40])
    other_start = "Quite another start of it all. " * 700 + long
    other_end = long + " Write it as a list, one number per line: 1, 2, 3, 4, 5, 6, 7, 8"
    found = trained.predict([Request("a", long), Request("b", other_start), Request("c", other_end)]).tokens
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert abs(np.log(found[0] / found[2])) > 0.01


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda about, config: about["fitted"].pop("mean"), "'mean'"),
        (lambda about, config: about["settings"].update(surprise=1), ".* unexpected .* 'surprise'"),
        (lambda about, config: about["network"].update(padding="x"), "invalid literal"),
        (lambda about, config: config.update(hidden_size=64 * 10**6), "the weights do not fit the config"),
        (lambda about, config: config.update(vocab_size=999), "the weights do not fit the config"),
        (lambda about, config: config.update(model_type="never-heard-of"), "Unrecognized model"),
    ],
)
def test_a_damaged_folder_is_one_clear_error(trained, tmp_path, change, problem):
    trained.save(tmp_path / "saved")
    forge(tmp_path / "saved", change)
    with pytest.raises(InputError, match=rf"saved: damaged: {problem}.*\(train it again\)"):
        load(tmp_path / "saved")


def forge(folder: Path, change) -> None:
    """Changes a saved forecaster and its hashes, as an attacker would."""
    from hashlib import sha256

    record = json.loads((folder / "forecaster.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    change(record["about"], config)
    (folder / "config.json").write_text(json.dumps(config))
    files = [path for path in folder.iterdir() if path.name != "forecaster.json"]
    record["files"] = {path.name: sha256(path.read_bytes()).hexdigest() for path in files}
    (folder / "forecaster.json").write_text(json.dumps(record))


def test_a_folder_of_version_0_1_is_read(trained, tmp_path):
    def older(about, config):
        about["learnt"] = about.pop("fitted")
        about["settings"]["heads"] = ["spread", "success"]

    trained.save(tmp_path / "saved")
    forge(tmp_path / "saved", older)
    assert same(load(tmp_path / "saved").predict(asked(EVAL[:20])), trained.predict(asked(EVAL[:20])))


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
