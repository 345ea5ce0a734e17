"""`shadowprice reproduce`, from its command line."""

import gzip
import json

import pytest

from shadowprice.cli import main
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.formats.traces import write_traces
from shadowprice.lab.results import Results

from ..conftest import shared_traces

SMALL = ["--quick", "--seeds", "1", "--streams", "balanced", "--no-report", "--quiet"]


def strange_lines(n=120):
    """Answers of another model: unknown names, few optional fields, two caps."""
    lines = []
    for i, trace in enumerate(shipped_traces("eval", "smollm2")[:n]):
        line = {"id": trace.id, "prompt": trace.prompt, "tokens": 3 * trace.tokens, "correct": trace.correct}
        line |= [{}, {"dataset": "my own", "gold": None}, {"model": None, "sample": None}][i % 3]
        if i % 4 == 0:
            line |= {"max_tokens": 100, "tokens": min(line["tokens"], 100), "truncated": line["tokens"] >= 100}
        lines.append(json.dumps(line))
    return lines


@pytest.fixture
def strange(tmp_path):
    def write(lines, name="strange.jsonl"):
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


class TestAFileNeverSeenBefore:
    def test_works(self, strange, tmp_path, capsys):
        out = tmp_path / "out"
        assert main(["reproduce", "--traces", str(strange(strange_lines())), "--out", str(out), *SMALL]) == 0
        results = Results.read(out)
        assert results.meta["questions"] == 120
        assert "cross-fitted" in results.meta["forecasts"]
        assert "quartile" in results.meta["tiers_by"]
        assert any("truncated below the cap" in note for note in results.meta["notes"])
        assert results.meta["files"][0]["sha256"]
        assert results.meta["command"].startswith("shadowprice reproduce --traces")
        assert "what held and what did not" in capsys.readouterr().out

    def test_a_broken_line_is_named_in_one_line(self, strange, tmp_path, capsys):
        lines = strange_lines()
        lines[6] = '{"id": "x"'
        path = strange(lines)
        assert main(["reproduce", "--traces", str(path), "--out", str(tmp_path / "out"), *SMALL]) == 2
        (printed,) = capsys.readouterr().err.splitlines()
        assert f"{path}:7: not JSON" in printed
        assert "--skip-bad" in printed
        assert not (tmp_path / "out").exists()

    def test_broken_lines_are_skipped_with_skip_bad(self, strange, tmp_path, capsys):
        lines = strange_lines()
        for i in range(0, len(lines), 5):
            lines[i] = ["{", "[]", '{"id": "a"}', '{"id": "a", "prompt": 1, "tokens": 1}', "\x00\xff"][i // 5 % 5]
        path = strange(lines)
        out = tmp_path / "out"
        assert main(["reproduce", "--traces", str(path), "--out", str(out), "--skip-bad", *SMALL]) == 0
        shown = capsys.readouterr().err
        assert f"{path}:1: not JSON" in shown
        assert f"{path}:11: no prompt" in shown
        assert "24 broken lines skipped" in shown
        assert Results.read(out).meta["bad_lines"] == 24
        assert Results.read(out).meta["questions"] == 96

    def test_a_damaged_archive_is_one_line(self, tmp_path, capsys):
        path = tmp_path / "cut.jsonl.gz"
        path.write_bytes(gzip.compress("\n".join(strange_lines()).encode())[:-200])
        assert main(["reproduce", "--traces", str(path), "--out", str(tmp_path / "o"), "--skip-bad", *SMALL]) == 2
        (printed,) = capsys.readouterr().err.splitlines()
        assert "damaged" in printed

    @pytest.mark.parametrize(
        ("change", "extra", "printed"),
        [
            (lambda line: {**line, "correct": None}, [], "none of the 120 traces is graded"),
            (lambda line: {**line, "model": line["id"]}, [], "1 graded questions"),
            (lambda line: line, ["--model", "gpt"], "unknown model 'gpt'"),
            (lambda line: line, ["--cap", "0"], "--cap 0"),
            (lambda line: line, ["--seeds", "0"], "--seeds 0"),
            (lambda line: line, ["--calibrate", "50"], "--train or --forecaster"),
            (lambda line: line, ["--budgets", "many"], "'many' is not an amount"),
            (lambda line: line, ["--budgets", "0"], "a budget of 0"),
            (lambda line: line, ["--streams", "steep"], "known are balanced"),
            (lambda line: line, ["--policies", "luck"], "known are uniform"),
            (lambda line: line, ["--forecaster", "nowhere"], "nowhere: holds no forecaster.json"),
            (lambda line: {**line, "tokens": 2**61}, [], "no model generates that many"),
        ],
    )
    def test_invalid_input_is_one_clear_line(self, strange, tmp_path, capsys, change, extra, printed):
        lines = [json.dumps(change(json.loads(line))) for line in strange_lines()]
        arguments = ["reproduce", "--traces", str(strange(lines)), "--out", str(tmp_path / "out"), *SMALL, *extra]
        assert main(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert printed in line
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        "change",
        [
            lambda i: {"tokens": 7, "correct": True},
            lambda i: {"tokens": 1, "correct": False},
            lambda i: {"tokens": 5, "correct": True, "truncated": True},
            lambda i: {"tokens": 0, "correct": bool(i % 2)},
            lambda i: {"tokens": 10**6 if i % 2 else 1, "correct": bool(i % 2)},
        ],
        ids=["all alike", "all wrong", "all truncated", "all empty", "a million or one"],
    )
    def test_answers_without_variety_work(self, strange, tmp_path, change):
        lines = [{"id": f"{i}", "prompt": f"Say {i} in words.", **change(i)} for i in range(60)]
        path = strange([json.dumps(line) for line in lines])
        assert main(["reproduce", "--traces", str(path), "--out", str(tmp_path / "out"), *SMALL]) == 0
        rows = Results.read(tmp_path / "out").table("main")
        assert all(0 <= row["solved"] <= 100 for row in rows)


class TestFolders:
    def test_other_content_is_left_alone(self, tmp_path, capsys):
        (tmp_path / "thesis.tex").write_text("x")
        assert main(["reproduce", "--out", str(tmp_path), *SMALL]) == 2
        assert "not results" in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]

    def test_a_file_twice_is_refused(self, strange, tmp_path, capsys):
        path = str(strange(strange_lines()))
        assert main(["reproduce", "--traces", path, path, "--out", str(tmp_path / "out"), *SMALL]) == 2
        assert "twice" in capsys.readouterr().err


class TestSources:
    def test_the_shipped_answers_by_default(self, tmp_path, capsys):
        assert main(["reproduce", "--out", str(tmp_path / "out"), *SMALL]) == 0
        meta = Results.read(tmp_path / "out").meta
        assert (meta["model"], meta["second_model"]) == ("Qwen2.5-Coder-1.5B-Instruct", "SmolLM2-135M-Instruct.Q4_1")
        assert {file["role"] for file in meta["files"]} == {"traces", "train"}
        assert all(len(file["sha256"]) == 64 for file in meta["files"])

    def test_recorded_answers_of_the_package_by_their_name(self, tmp_path):
        assert main(["reproduce", "--traces", "smollm2", "--out", str(tmp_path / "out"), *SMALL]) == 0
        meta = Results.read(tmp_path / "out").meta
        assert (meta["model"], meta["second_model"]) == ("SmolLM2-135M-Instruct.Q4_1", None)
        assert [file["role"] for file in meta["files"]] == ["traces", "train"]

    def test_a_name_that_is_neither_a_file_nor_in_the_package(self, tmp_path, capsys):
        assert main(["reproduce", "--traces", "qwen", "--out", str(tmp_path / "out"), *SMALL]) == 2
        assert "qwen" in capsys.readouterr().err

    def test_train_and_calibrate(self, tmp_path):
        evaluated, train = tmp_path / "eval.jsonl", tmp_path / "train.jsonl.gz"
        write_traces(evaluated, shipped_traces("eval", "smollm2"))
        write_traces(train, shipped_traces("train", "smollm2"))
        out = tmp_path / "out"
        arguments = ["reproduce", "--traces", str(evaluated), "--train", str(train), "--calibrate", "60"]
        assert main([*arguments, "--out", str(out), *SMALL]) == 0
        meta = Results.read(out).meta
        assert meta["questions"] == len(shipped_traces("eval", "smollm2")) - 60
        assert "adapted to 60 questions" in meta["forecasts"]

    def test_budgets_in_tokens_and_in_medians(self, tmp_path):
        assert main(["reproduce", "--budgets", "2x", "20", "--out", str(tmp_path / "out"), *SMALL]) == 0
        meta = Results.read(tmp_path / "out").meta
        assert meta["budgets"] == [20, round(2 * meta["median_tokens"])]

    def test_a_forecaster_that_was_trained_before(self, tmp_path):
        from shadowprice.forecast.text import TextForecaster

        TextForecaster().fit(shipped_traces("train", "smollm2")).save(tmp_path / "forecaster")
        arguments = ["reproduce", "--forecaster", str(tmp_path / "forecaster"), "--out", str(tmp_path / "out")]
        assert main([*arguments, *SMALL]) == 0
        assert "forecaster given" in Results.read(tmp_path / "out").meta["forecasts"]


def test_the_report_and_the_figures(tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    assert main(["reproduce", "--out", str(out), *[each for each in SMALL if each != "--no-report"]]) == 0
    assert "<html" in (out / "report.html").read_text()
    assert (out / "figures" / "frontier.svg").exists()


@pytest.fixture(scope="module")
def fourteen(tmp_path_factory):
    """Qwen2.5-14B-Instruct, forecasts learned from other models on other questions."""
    out = tmp_path_factory.mktemp("lab") / "out"
    train = ["llama-3.1-8b-instruct.math-train", "zeroeval-12-models.gsm8k-mathl5"]
    arguments = ["--traces", str(shared_traces("qwen2.5-14b-instruct.math")), "--cap", "4096", "--train"]
    arguments += [str(shared_traces(name)) for name in train]
    assert main(["reproduce", *arguments, "--out", str(out), "--quick", "--no-report", "--quiet"]) == 0
    return Results.read(out)


class TestTheFourteenBillion:
    def held(self, results, word):
        (row,) = [row for row in results.table("findings") if word in row["claim"]]
        return row["held"]

    @pytest.mark.parametrize(
        "claim",
        [
            "at least 3 times as many correct answers",
            "CLEAR and uniform converge",
            "Many requests are declined when tokens are scarce",
            "Alpha changes no result",
            "when noise is added to the forecasts",
            "Triangular and quadratic",
            "forecasts without declining lose",
            "S-shaped",
        ],
    )
    def test_what_holds(self, fourteen, claim):
        assert self.held(fourteen, claim) == "yes"

    @pytest.mark.parametrize("claim", ["around the median", "in any tested condition", "The oracle is an upper bound"])
    def test_what_does_not_hold(self, fourteen, claim):
        assert self.held(fourteen, claim) == "no"

    def test_the_gain_where_tokens_are_scarce(self, fourteen):
        rows = {
            (row["stream"], row["policy"]): row["solved"]
            for row in fourteen.table("main")
            if row["source"] == "ours" and row["budget"] == 256 and row["accounting"] == "reserved"
        }
        for stream in fourteen.meta["streams"]:
            assert rows[stream, "clear"] >= 3 * rows[stream, "uniform"]


def test_code_best_of_four(tmp_path):
    names = ["three-models.humaneval-k10", "codegen-16b.humaneval-k100"]
    paths = [str(shared_traces(name)) for name in names]
    out = tmp_path / "out"
    policies = ["--policies", "uniform", "clear"]
    assert main(["reproduce", "--traces", *paths, *policies, "--out", str(out), *SMALL]) == 0
    rows = [row for row in Results.read(out).table("code_best_of_k") if row["source"] == "ours"]
    assert len({row["model"] for row in rows}) == 4
    scarce = [row for row in rows if row["policy"] == "clear" and row["budget_times_median"] < 0.3]
    assert all(row["gain"] > 0 for row in scarce if row["accounting"] == "reserved")
    assert Results.read(out).table("rollouts")
