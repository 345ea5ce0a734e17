"""`shadowprice train`, as a user runs it, and what other commands do with its forecasters."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import shadowprice.datasets.shipped
from shadowprice.cli import main
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.forecast import DEFAULT, default, load
from shadowprice.forecast.evaluation import evaluate
from shadowprice.forecast.splits import held_out
from shadowprice.forecast.text import TextForecaster
from shadowprice.formats.files import sha256_of
from shadowprice.formats.traces import write_traces
from shadowprice.types import Request, Trace

from ..backends import hostile
from ..conftest import read_jsonl, request_line
from .test_forecast import same

COMMAND = [sys.executable, "-m", "shadowprice"]
TRACES = Path(shadowprice.datasets.shipped.__file__).parent / "smollm2-135m.eval.jsonl.gz"


def train(*arguments) -> int:
    return main(["train", *map(str, arguments)])


def requests_of(traces):
    return [Request(trace.id, trace.prompt) for trace in traces]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with `forecaster` and its report, trained on the traces in the package."""
    folder = tmp_path_factory.mktemp("trained")
    assert train(TRACES, "--out", folder / "forecaster", "--quiet") == 0
    return folder


class TestTrain:
    def test_the_report_is_about_questions_that_were_held_out(self, trained):
        traces = shipped_traces("eval", "smollm2")
        out = held_out(traces, 0.2, 0)
        test = [trace for trace, held in zip(traces, out, strict=True) if held]
        fitted = TextForecaster().fit([trace for trace, held in zip(traces, out, strict=True) if not held])
        expected = evaluate(fitted.predict(requests_of(test)), test)
        found = json.loads((trained / "forecaster.report" / "report.json").read_text())
        for part in ("overall", "datasets", "tiers"):
            assert found[part] == json.loads(json.dumps(asdict(expected)))[part]
        assert found["overall"]["spearman"] > 0.6
        assert found["held_out"] == {"share": 0.2, "seed": 0}
        assert found["trained_on"] + found["overall"]["traces"] == len(traces)

    def test_the_forecaster_is_trained_on_all_traces(self, trained):
        traces = shipped_traces("eval", "smollm2")
        asked = requests_of(shipped_traces("train", "smollm2"))
        assert same(load(trained / "forecaster").predict(asked), TextForecaster().fit(traces).predict(asked), rtol=1e-3)

    def test_the_report_is_a_table_and_a_figure(self, trained):
        report = trained / "forecaster.report"
        assert sorted(os.listdir(report)) == ["report.json", "report.md", "report.png", "report.svg"]
        assert "| all |" in (report / "report.md").read_text()

    def test_the_same_command_writes_the_same_files_and_a_summary_in_json(self, trained, tmp_path, capsys):
        train(TRACES, "--out", tmp_path / "forecaster", "--json", "--quiet")
        printed = capsys.readouterr()
        assert printed.err == ""
        for path in trained.glob("forecaster*/*"):
            assert (tmp_path / path.relative_to(trained)).read_bytes() == path.read_bytes(), path.name
        summary = json.loads(printed.out)
        assert summary["traces"] == 1000
        assert summary["fingerprint"] == sha256_of(tmp_path / "forecaster" / "forecaster.json")
        report = json.loads((tmp_path / "forecaster.report" / "report.json").read_text())
        assert summary["report"]["overall"] == report["overall"]

    def test_the_summary(self, trained, tmp_path, capsys):
        assert train(TRACES, "--out", tmp_path / "f", "--report", tmp_path / "elsewhere") == 0
        printed = capsys.readouterr()
        assert printed.out.startswith(f"forecaster -> {tmp_path / 'f'}: kind text, 1,000 traces of 1,000 questions")
        assert "Spearman 0." in printed.out
        assert "AUC 0." in printed.out
        assert "elsewhere" in printed.out
        assert "held out" in printed.err
        assert "training on all 1,000 traces" in printed.err
        assert (tmp_path / "elsewhere" / "report.md").exists()

    def test_validation_0_writes_no_report(self, trained, tmp_path, capsys):
        assert train(TRACES, "--out", tmp_path / "f", "--validation", 0) == 0
        assert os.listdir(tmp_path) == ["f"]
        assert "Spearman" not in capsys.readouterr().out
        asked = requests_of(shipped_traces("train", "smollm2"))
        assert same(load(tmp_path / "f").predict(asked), load(trained / "forecaster").predict(asked))

    def test_several_files(self, tmp_path, capsys):
        traces = shipped_traces("eval", "smollm2")
        write_traces(tmp_path / "a.jsonl", traces[:150])
        write_traces(tmp_path / "b.jsonl.gz", traces[150:])
        train(tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz", "--out", tmp_path / "f", "--validation", 0, "--quiet")
        assert "1,000 traces of 1,000 questions" in capsys.readouterr().out

    def test_traces_without_grades_are_used_for_the_length_only(self, tmp_path, capsys):
        traces = [Trace(t.id, t.prompt, t.tokens, None, t.truncated) for t in shipped_traces("eval", "smollm2")[:150]]
        write_traces(tmp_path / "t.jsonl", traces)
        assert train(tmp_path / "t.jsonl", "--out", tmp_path / "f", "--quiet") == 0
        assert "correct    no trace is graded" in capsys.readouterr().out

    def test_without_matplotlib_the_report_has_no_figure(self, tmp_path, capsys, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        assert train(TRACES, "--out", tmp_path / "f", "--quiet") == 0
        assert capsys.readouterr().err == (
            "note: no figure in the report: the figure needs an extra (pip install 'shadowprice[report]')\n"
        )
        assert sorted(os.listdir(tmp_path / "f.report")) == ["report.json", "report.md"]


class TestAdapt:
    def wordier(self, path):
        """A model whose answers are three times as long."""
        traces = [
            Trace(t.id, t.prompt, 3 * t.tokens, t.correct, t.truncated)
            for t in shipped_traces("train", "smollm2")
            if t.tokens < 170
        ][:150]
        write_traces(path, traces)
        return traces

    def test_to_another_model(self, trained, tmp_path, capsys):
        traces = self.wordier(tmp_path / "t.jsonl")
        assert train(tmp_path / "t.jsonl", "--from", trained / "forecaster", "--out", tmp_path / "f", "--quiet") == 0
        asked = requests_of(traces)
        before, after = (load(place).predict(asked).tokens for place in (trained / "forecaster", tmp_path / "f"))
        assert 1.8 < np.median(after / before) < 5
        report = json.loads((tmp_path / "f.report" / "report.json").read_text())
        assert report["overall"]["log_error"] < report["before_adapting"]["log_error"]
        assert "Before it was adapted" in (tmp_path / "f.report" / "report.md").read_text()

    def test_the_one_in_the_package(self, tmp_path):
        self.wordier(tmp_path / "t.jsonl")
        assert train(tmp_path / "t.jsonl", "--from", "default", "--out", tmp_path / "f", "--validation", 0) == 0
        asked = requests_of(shipped_traces("eval", "smollm2"))
        assert not same(load(tmp_path / "f").predict(asked), default().predict(asked))

    def test_in_place(self, trained, tmp_path):
        self.wordier(tmp_path / "t.jsonl")
        load(trained / "forecaster").save(tmp_path / "f")
        before = sha256_of(tmp_path / "f" / "forecaster.json")
        assert train(tmp_path / "t.jsonl", "--from", tmp_path / "f", "--out", tmp_path / "f", "--validation", 0) == 0
        assert sha256_of(tmp_path / "f" / "forecaster.json") != before
        load(tmp_path / "f")

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (["--kind", "encoder"], "--kind encoder with --from a forecaster of kind text (leave out --kind)"),
            (["--epochs", "3"], "--epochs with --from: only a new encoder has that option (leave out one of them)"),
        ],
    )
    def test_options_that_contradict_it(self, trained, tmp_path, capsys, more, message):
        assert train(TRACES, "--from", trained / "forecaster", "--out", tmp_path / "f", *more) == 2
        assert capsys.readouterr().err == f"shadowprice: {message}\n"


class TestEncoder:
    @pytest.fixture
    def base(self, tmp_path):
        """A folder with a tiny untrained transformer."""
        for package in ("torch", "tokenizers", "transformers"):
            pytest.importorskip(package, reason="the extra `encoder` is not installed")
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

        words = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "what", "sum", "capital", "name"])}
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        folder = tmp_path / "base"
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(
            folder
        )
        shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
        BertModel(BertConfig(vocab_size=len(words), **shape)).save_pretrained(folder)
        return folder

    def test_the_options_reach_the_encoder(self, base, asked, tmp_path, capsys):
        write_traces(tmp_path / "t.jsonl", shipped_traces("eval", "smollm2")[:60])
        assert train(
            tmp_path / "t.jsonl", "--out", tmp_path / "f", "--kind", "encoder", "--base", base, "--epochs", 2,
            "--batch-size", 16, "--max-length", 24, "--learning-rate", 0.001, "--heads", "correct,spread",
            "--checkpoints", tmp_path / "states", "--seed", 7,
        ) == 0  # fmt: skip
        printed = capsys.readouterr()
        assert "kind encoder, 60 traces of 60 questions" in printed.out
        assert printed.err.count("epoch") >= 4  # two trainings of two epochs
        assert sorted(os.listdir(tmp_path / "states")) == ["all", "held-out"]
        settings = json.loads((tmp_path / "f" / "forecaster.json").read_text())["about"]["settings"]
        expected = {"epochs": 2, "batch": 16, "max_length": 24, "learning_rate": 0.001, "seed": 7}
        assert {name: settings[name] for name in expected} == expected
        assert settings["heads"] == ["spread", "correct"]
        assert main(["forecast", str(asked), "--forecaster", str(tmp_path / "f"), "--out", str(tmp_path / "o")]) == 0
        assert len(read_jsonl(tmp_path / "o")) == 100

    def test_its_features_beside_words(self, base, asked, tmp_path, capsys):
        write_traces(tmp_path / "t.jsonl", shipped_traces("eval", "smollm2")[:60])
        assert train(tmp_path / "t.jsonl", "--out", tmp_path / "f", "--features", base, "--quiet") == 0
        assert "kind frozen, 60 traces of 60 questions" in capsys.readouterr().out
        adapted = ["--from", tmp_path / "f", "--kind", "text", "--validation", 0]
        assert train(tmp_path / "t.jsonl", "--out", tmp_path / "g", *adapted) == 0
        assert main(["forecast", str(asked), "--forecaster", str(tmp_path / "g"), "--out", str(tmp_path / "o")]) == 0
        assert len(read_jsonl(tmp_path / "o")) == 100

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (["--from", "default"], "--features with --from, which keeps the features it has (leave out one of them)"),
            (["--kind", "encoder"], "--features with --kind encoder (leave out one of them)"),
        ],
    )
    def test_options_that_contradict_features(self, tmp_path, capsys, more, message):
        assert train("no-such-traces", "--out", tmp_path / "f", "--features", "any", *more) == 2
        assert capsys.readouterr().err == f"shadowprice: {message}\n"

    def test_invalid_settings_are_refused_before_anything_is_read(self, tmp_path, capsys):
        pytest.importorskip("torch", reason="the extra `encoder` is not installed")
        for more in (["--heads", "tails"], ["--epochs", "0"]):
            assert train("no-such-traces", "--out", tmp_path / "f", "--kind", "encoder", *more) == 2
            assert "no-such-traces" not in capsys.readouterr().err


class TestPlanAndRun:
    def test_a_plan_with_a_forecaster_is_a_plan_with_its_forecasts(self, trained, asked, tmp_path):
        table, forecaster = tmp_path / "lengths.jsonl", str(trained / "forecaster")
        main(["forecast", str(asked), "--forecaster", forecaster, "--out", str(table)])
        written = []
        for policy in ("clear", "expected"):
            for name, value in (("--forecast", str(table)), ("--forecaster", forecaster)):
                out, errors = tmp_path / f"{policy}{name}", tmp_path / f"{policy}{name}.declined"
                assert main(
                    ["plan", str(asked), "--budget", "30/query", "--policy", policy, name, value, "--out", str(out),
                     "--errors", str(errors)]
                ) == 3  # fmt: skip
                written.append((out.read_bytes(), errors.read_bytes()))
        assert written[0] == written[1]
        assert written[2] == written[3]
        assert written[0] != written[2]

    def test_the_length_of_correct_answers_reaches_the_market(self, batch, tmp_path):
        """The same median and probability, but correct answers are short for one request and long for the other."""
        path = batch([request_line("short"), request_line("long")])
        table = batch(
            [
                {"custom_id": "short", "tokens": 200, "solve": 0.5, "solved_tokens": 50},
                {"custom_id": "long", "tokens": 200, "solve": 0.5, "solved_tokens": 200},
            ],
            "forecasts.jsonl",
        )
        arguments = ["plan", str(path), "--budget", "100", "--policy", "expected", "--forecast", str(table)]
        assert main([*arguments, "--out", str(tmp_path / "o"), "--errors", str(tmp_path / "e")]) == 3
        assert [line["custom_id"] for line in read_jsonl(tmp_path / "o")] == ["short"]

    def test_forecast_and_forecaster_exclude_each_other(self, asked, capsys):
        with pytest.raises(SystemExit, match="2"):
            main(["plan", str(asked), "--budget", "10k", "--forecast", "a", "--forecaster", "b"])
        assert "not allowed with" in capsys.readouterr().err

    def test_a_damaged_forecaster_is_refused(self, trained, asked, tmp_path, capsys):
        load(trained / "forecaster").save(tmp_path / "f")
        with (tmp_path / "f" / "weights.npz").open("ab") as file:
            file.write(b"x")
        assert main(["plan", str(asked), "--budget", "10k", "--forecaster", str(tmp_path / "f")]) == 2
        assert "weights.npz: damaged" in capsys.readouterr().err

    def test_a_run_remembers_its_forecaster(self, trained, batch, tmp_path, capsys):
        path = batch([request_line("a"), request_line("b")])
        arguments = [
            "run", str(path), "--budget", "1000", "--model", "m", "--out", str(tmp_path / "out"),
            "--errors", str(tmp_path / "err"), "--run-folder", str(tmp_path / "run"), "--quiet",
        ]  # fmt: skip
        with hostile.Server(hostile.well_behaved) as server:
            arguments += ["--base-url", server.url]
            assert main([*arguments, "--forecaster", str(trained / "forecaster")]) == 0
            identity = f"forecaster {sha256_of(trained / 'forecaster' / 'forecaster.json')}"
            assert json.loads((tmp_path / "run" / "manifest.json").read_text())["asked"]["forecast"] == identity
            assert main([*arguments, "--resume"]) == 2
            assert "was started with another forecast" in capsys.readouterr().err
            assert main([*arguments, "--run-folder", str(tmp_path / "other"), "--force"]) == 0
        identity = f"forecaster {sha256_of(DEFAULT / 'forecaster.json')}"
        assert json.loads((tmp_path / "other" / "manifest.json").read_text())["asked"]["forecast"] == identity


def trace_line(**changes):
    return json.dumps({"id": "t", "prompt": "What?", "tokens": 5, **changes})


class TestScout:
    """Another model's answers to the same questions."""

    @pytest.fixture(scope="class")
    @staticmethod
    def scouted(tmp_path_factory):
        folder = tmp_path_factory.mktemp("scouted")
        for split in ("eval", "train"):
            traces = shipped_traces(split, "smollm2")
            write_traces(folder / f"{split}.jsonl", [replace(t, model="small", tokens=2 * t.tokens) for t in traces])
        arguments = ("--scout", folder / "eval.jsonl", "--out", folder / "forecaster", "--quiet")
        assert train(TRACES, "--from", "default", *arguments) == 0
        return folder

    def test_its_answers_are_used_by_every_command_that_forecasts(self, scouted, asked, tmp_path, capsys):
        report = json.loads((scouted / "forecaster.report" / "report.json").read_text())
        assert report["overall"]["spearman"] > 0.9
        use = ["--forecaster", str(scouted / "forecaster"), "--scout", str(scouted / "train.jsonl")]
        assert main(["forecast", str(asked), *use, "--out", str(tmp_path / "f.jsonl"), "--quiet"]) == 0
        plan = ["plan", str(asked), "--budget", "2k", "--quiet", "--force", "--out", str(tmp_path / "planned.jsonl")]
        assert main([*plan, "--forecast", str(tmp_path / "f.jsonl")]) in (0, 3)
        first = (tmp_path / "planned.jsonl").read_bytes()
        assert main([*plan, *use]) in (0, 3)
        assert (tmp_path / "planned.jsonl").read_bytes() == first

    @pytest.mark.parametrize(
        ("use", "message"),
        [
            (
                "--forecaster DIR",
                "needs the answers of its scout, 'small', to the same questions",
            ),
            (
                "--forecaster DIR --scout OWN",
                "answers of 'SmolLM2-135M-Instruct.Q4_1', but the forecaster was",
            ),
            ("--scout OWN", "--scout with a forecaster that was not trained with a scout"),
            ("--forecast OWN --scout OWN", "--scout with --forecast"),
            ("--forecaster DIR --scout OTHER", "no answer to any of these requests; the first is"),
        ],
    )
    def test_what_does_not_match(self, scouted, asked, capsys, use, message):
        names = {"DIR": scouted / "forecaster", "OWN": TRACES, "OTHER": scouted / "eval.jsonl"}
        arguments = [str(names.get(word, word)) for word in use.split()]
        assert main(["plan", str(asked), "--budget", "2k", "--quiet", *arguments]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "traces.jsonl: No such file or directory (check the path)"),
        ("", "0 questions to train on, 20 are needed (give more traces)"),
        ("\n".join(trace_line(prompt=f"q{i}") for i in range(19)), "19 questions to train on, 20 are needed"),
        ("\n".join(trace_line(prompt=f"Q {i % 3}") for i in range(99)), "3 questions to train on, 20 are needed"),
        ("\n".join(trace_line(prompt=f"q{i}", tokens=0) for i in range(99)), "0 questions to train on"),
        ("\n".join(trace_line(prompt=f"q{i}") for i in range(22)), "questions left to train on, 20 are needed"),
        (f"{trace_line()}\n{{", "traces.jsonl:2: not JSON"),
        (f"{trace_line()}\n\n{trace_line(tokens='many')}", "traces.jsonl:3: tokens is 'many'"),
        (f'{trace_line()}\n{{"id": "t", "tokens": 5}}', "traces.jsonl:2: no prompt"),
        (f"{trace_line()}\n{trace_line(prompt=' ')}", "traces.jsonl:2: an empty prompt"),
    ],
)
def test_traces_that_cannot_be_used(tmp_path, capsys, content, message):
    path = tmp_path / "traces.jsonl"
    if content is not None:
        path.write_text(content)
    assert train(path, "--out", tmp_path / "f", "--quiet") == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
    assert os.listdir(tmp_path) in ([], ["traces.jsonl"])


@pytest.mark.parametrize("damage", ["cut off", "a wrong byte"])
def test_a_damaged_gzip_file(tmp_path, capsys, damage):
    path, content = tmp_path / "traces.jsonl.gz", TRACES.read_bytes()
    middle = len(content) // 2
    if damage == "cut off":
        path.write_bytes(content[:middle])
    else:
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :])
    assert train(path, "--out", tmp_path / "f", "--quiet") == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"shadowprice: {path}:")
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--validation", "1"], "--validation 1 is not a share (give 0 to 0.9; 0 writes no report)"),
        (["--validation", "nan"], "--validation nan is not a share"),
        (["--validation", "0", "--report", "r"], "--report with --validation 0, which writes no report"),
        (["--report", "f/report"], "f/report: is inside the forecaster (put the report beside it)"),
        (["--report", "f"], "f: is inside the forecaster"),
        (["--report", "a-file"], "a-file: is not a folder"),
        (["--out", "a-file"], "a-file: holds something other than a forecaster (name a new folder)"),
        (["--out", "."], ".: holds something other than a forecaster"),
        (["--epochs", "0"], "--epochs: the kind text has no such option (use --kind encoder)"),
        (["--from", "nowhere"], "nowhere: holds no forecaster.json (name a folder made by `train`)"),
    ],
)
def test_invalid_options_are_refused_before_anything_is_read(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    Path("a-file").write_text("mine")
    assert train("no-such-traces.jsonl", "--out", "f", *arguments) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"shadowprice: {message}")
    assert printed.count("\n") == 1
    assert Path("a-file").read_text() == "mine"
    assert os.listdir(tmp_path) == ["a-file"]


def test_interrupted_it_writes_nothing(tmp_path):
    traces = [
        Trace(f"{i}-{trace.id}", f"{trace.prompt} {i}", trace.tokens, trace.correct)
        for i in range(8)
        for trace in shipped_traces("train", "smollm2")
    ]
    write_traces(tmp_path / "traces.jsonl", traces)
    before = sorted(os.listdir(tmp_path))
    process = subprocess.Popen(
        [*COMMAND, "train", "traces.jsonl", "--out", "f", "--validation", "0"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stderr:
        if "training on all" in line:
            process.send_signal(signal.SIGINT)
            break
    _, rest = process.communicate(timeout=120)
    assert process.returncode == 130
    assert rest.strip() == "shadowprice: interrupted; nothing was written"
    assert sorted(os.listdir(tmp_path)) == before
