"""`shadowprice plan`, as a user runs it."""

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from shadowprice.cli import main

from ..conftest import read_jsonl, request_line

COMMAND = [sys.executable, "-m", "shadowprice"]


@pytest.fixture
def forecasts(batch):
    return lambda lines: batch(lines, "forecasts.jsonl")


def plan(path, *arguments) -> int:
    return main(["plan", str(path), *map(str, arguments)])


class TestAPlan:
    def test_a_file_of_50_000_requests(self, batch, tmp_path, capsys):
        rng = random.Random(0)
        requests = []
        for i in range(50_000):
            body = {"temperature": 0.7, "seed": rng.randrange(10**18)}
            if i % 7 == 0:
                body["max_tokens"] = rng.randint(1, 900)
            if i % 11 == 0:
                body["max_completion_tokens"] = rng.randint(1, 900)
            if i % 13 == 0:
                body["n"] = rng.randint(1, 3)
            requests.append(request_line(f"r{i}", "word " * rng.randint(1, 200), **body))
        path = batch(requests)
        budget = 4_000_000
        assert plan(path, "--budget", "4M") == 3

        planned, errors = (
            read_jsonl(tmp_path / "requests.planned.jsonl"),
            read_jsonl(tmp_path / "requests.planned.declined.jsonl"),
        )
        limits = [line["body"]["max_completion_tokens"] * line["body"].get("n", 1) for line in planned]
        assert sum(limits) <= budget
        assert sum(limits) > 0.99 * budget
        # no line is lost, and the order is kept
        names = {line["custom_id"] for line in planned}
        assert [line["custom_id"] for line in planned] == [r["custom_id"] for r in requests if r["custom_id"] in names]
        assert [line["custom_id"] for line in errors] == [
            r["custom_id"] for r in requests if r["custom_id"] not in names
        ]
        # the caller's limit is never raised, everything else is untouched
        by_name = {r["custom_id"]: r for r in requests}
        for line in planned:
            asked = by_name[line["custom_id"]]
            limit = line["body"].pop("max_completion_tokens")
            body = dict(asked["body"])
            assert 1 <= limit <= min(body.pop("max_completion_tokens", limit), body.get("max_tokens", limit))
            assert line == {**asked, "body": body}
        assert {line["error"]["code"] for line in errors} == {"budget_abandoned"}
        assert all(line["error"]["forecast"]["tokens"] > 0 and line["error"]["price"] > 0 for line in errors)
        verdict = capsys.readouterr().out
        assert "50,000 requests, 4,000,000 tokens" in verdict
        assert "correct answers" in verdict
        assert f"declined  {len(errors):,} requests -> " in verdict
        assert "10% more" in verdict

    def test_forecasts_from_a_file_decide_who_is_admitted(self, batch, forecasts, tmp_path, capsys):
        path = batch([request_line(name) for name in "abc"])
        table = forecasts(
            [
                {"custom_id": "c", "tokens": 4000, "spread": 0.5, "solve": 0.2},
                {"custom_id": "a", "tokens": 300, "spread": 0.5, "solve": 0.9},
                {"custom_id": "b", "tokens": 900, "solve": 0.6},
                {"custom_id": "not asked for", "tokens": 1},
            ]
        )
        assert plan(path, "--budget", 1500, "--forecast", table, "--policy", "expected", "--json") == 3
        planned = read_jsonl(tmp_path / "requests.planned.jsonl")
        assert {line["custom_id"]: line["body"]["max_completion_tokens"] for line in planned} == {"a": 580, "b": 920}
        verdict = json.loads(capsys.readouterr().out)
        assert verdict["admitted"] == 2
        assert verdict["granted"] == 1500
        assert verdict["price"] == pytest.approx(0.000359, rel=1e-2)
        assert verdict["more_budget"] == 150

    def test_exit_0_when_every_request_is_served(self, batch, tmp_path):
        assert plan(batch([request_line("a"), request_line("b")]), "--budget", "10k") == 0
        assert (tmp_path / "requests.planned.declined.jsonl").read_text() == ""

    def test_several_answers_share_a_grant(self, batch, tmp_path):
        path = batch([request_line("a", n=4), request_line("b")])
        plan(path, "--budget", 1000, "--policy", "uniform")
        limits = [line["body"]["max_completion_tokens"] for line in read_jsonl(tmp_path / "requests.planned.jsonl")]
        assert limits == [125, 500]

    def test_each_endpoint_has_its_own_limit_field(self, batch, tmp_path, capsys):
        path = batch(
            [
                request_line("chat", max_tokens=800),
                {"custom_id": "text", "url": "/v1/completions", "body": {"prompt": "p", "max_tokens": 20}},
                {"custom_id": "new", "url": "/v1/responses", "body": {"input": "i"}},
            ]
        )
        plan(path, "--budget", 1500, "--policy", "uniform")
        chat, text, new = (line["body"] for line in read_jsonl(tmp_path / "requests.planned.jsonl"))
        assert (chat["max_completion_tokens"], chat["max_tokens"]) == (500, 800)
        assert text == {"prompt": "p", "max_tokens": 20}
        assert new["max_output_tokens"] == 500
        assert "--limit-field max_tokens" in capsys.readouterr().err
        plan(path, "--budget", 1500, "--policy", "uniform", "--limit-field", "max_tokens", "--force")
        chat = read_jsonl(tmp_path / "requests.planned.jsonl")[0]["body"]
        assert chat["max_tokens"] == 500
        assert "max_completion_tokens" not in chat

    def test_policy_options_reach_the_policy(self, batch, capsys):
        path = batch([request_line("a"), request_line("b")])
        assert plan(path, "--budget", "10k", "--policy", "clear", "--option", "beta=0.01", "--json") == 0
        assert json.loads(capsys.readouterr().out)["granted"] < 1000

    def test_no_share_is_written_in_powers_of_ten(self, batch, capsys):
        path = batch([request_line(f"q{i}", "Prove this theorem about primes, and explain it.") for i in range(20)])
        plan(path, "--budget", 100, "--policy", "clear", "--quiet")
        assert "  expected  within 100% of the best\n" in capsys.readouterr().out

    def test_one_token_is_not_several(self, batch, capsys):
        plan(batch([request_line("a")]), "--budget", 1, "--policy", "uniform")
        assert "1 request, 1 token granted -> " in capsys.readouterr().out

    def test_max_tokens_limits_every_answer(self, batch, tmp_path):
        plan(batch([request_line("a"), request_line("b")]), "--budget", "10k", "--max-tokens", 300)
        for line in read_jsonl(tmp_path / "requests.planned.jsonl"):
            assert line["body"]["max_completion_tokens"] == 300

    def test_pipes(self, batch, tmp_path):
        path = batch([request_line("a"), request_line("b", "long " * 999)])
        with path.open("rb") as source:
            done = subprocess.run(
                [*COMMAND, "plan", "-", "--budget", "500", "--policy", "clear", "--out", "-", "--errors", "left.jsonl"],
                stdin=source, capture_output=True, cwd=tmp_path, timeout=60,
            )  # fmt: skip
        assert done.returncode == 3
        assert json.loads(done.stdout)["custom_id"] == "a"
        assert b"2 requests, 500 tokens" in done.stderr
        assert read_jsonl(tmp_path / "left.jsonl")[0]["custom_id"] == "b"

    def test_a_named_pipe_is_read_whole(self, batch, tmp_path):
        path, pipe = batch([request_line("a"), request_line("b")]), tmp_path / "pipe"
        os.mkfifo(pipe)
        with subprocess.Popen(["sh", "-c", f"cat {path} > {pipe}"]):
            done = subprocess.run(
                [*COMMAND, "plan", pipe, "--budget", "2k", "--out", "o", "--errors", "/dev/null"],
                cwd=tmp_path, timeout=60, capture_output=True,
            )  # fmt: skip
        assert done.returncode == 0
        assert len(read_jsonl(tmp_path / "o")) == 2
        assert not os.path.isfile("/dev/null")  # written to, not replaced

    def test_a_reader_that_stops_early_causes_no_error(self, batch, tmp_path):
        path = batch([request_line(f"r{i}") for i in range(5000)])
        command = f"{sys.executable} -m shadowprice plan {path} --budget 900k --out - | head -n 1"
        done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, timeout=60)
        assert done.returncode == 0
        assert done.stderr.count(b"Traceback") == 0

    def test_a_gzipped_batch_file(self, batch, tmp_path):
        path = batch([request_line("a"), request_line("b")], "requests")
        path.write_bytes(gzip.compress(path.read_bytes()))
        assert plan(path, "--budget", "10k") == 0
        assert [line["custom_id"] for line in read_jsonl(tmp_path / "requests.planned.jsonl")] == ["a", "b"]

    def test_links_are_followed_and_modes_are_kept(self, batch, tmp_path):
        real, link = tmp_path / "real.jsonl", tmp_path / "link.jsonl"
        real.write_text("")
        real.chmod(0o600)
        link.symlink_to(real)
        plan(batch([request_line("a")]), "--budget", "1k", "--out", link)
        assert link.is_symlink()
        assert len(read_jsonl(real)) == 1
        assert real.stat().st_mode & 0o777 == 0o600

    def test_the_older_limit_field_alone_lowers_the_newer_one_too(self, batch, tmp_path):
        path = batch([request_line("a", max_completion_tokens=5000)])
        plan(path, "--budget", 300, "--policy", "uniform", "--limit-field", "max_tokens")
        body = read_jsonl(tmp_path / "requests.planned.jsonl")[0]["body"]
        assert (body["max_tokens"], body["max_completion_tokens"]) == (300, 300)

    def test_planning_twice_gives_the_same_file(self, batch, tmp_path):
        path = batch([request_line(f"r{i}", "x" * i) for i in range(1, 300)])
        texts = []
        for _ in range(2):
            plan(path, "--budget", "20k", "--policy", "expected", "--force")
            texts.append((tmp_path / "requests.planned.jsonl").read_bytes())
        assert texts[0] == texts[1]


GOOD = request_line("good")
NESTED = json.dumps(GOOD).replace('"What is 2 + 3?"', "[" * 990 + "]" * 990)
BAD_FILES = [
    ("broken JSON", [GOOD, '{"custom_id": "x", "body": '], ":2: not JSON"),
    ("not an object", [GOOD, "[1, 2]"], ":2: not a JSON object"),
    ("no custom_id", [GOOD, {"body": {"messages": [{"content": "x"}]}}], ":2: no custom_id"),
    ("a custom_id that is not a string", [{**GOOD, "custom_id": 7.5}], ":1: no custom_id"),
    ("a custom_id that is true", [{**GOOD, "custom_id": True}], ":1: no custom_id"),
    ("duplicate custom_id", [GOOD, request_line("b"), GOOD], ":3: custom_id 'good' was used before"),
    ("no body", [{"custom_id": "a"}], ":1: no body"),
    ("no messages", [{"custom_id": "a", "url": "/v1/chat/completions", "body": {}}], ":1: no messages"),
    ("empty messages", [{**GOOD, "body": {"messages": []}}], ":1: no messages"),
    ("an endpoint without tokens", [{**GOOD, "url": "/v1/embeddings"}], ":1: url '/v1/embeddings'"),
    ("a negative limit", [request_line("a", max_tokens=-4)], ":1: max_tokens is -4"),
    (
        "a limit that is not a number",
        [request_line("a", max_completion_tokens="5")],
        ":1: max_completion_tokens is '5'",
    ),
    ("messages that are not a list", [{**GOOD, "body": {"messages": "hi"}}], ":1: messages is 'hi'"),
    ("a message that is not an object", [{**GOOD, "body": {"messages": [1]}}], ":1: messages is [1]"),
    ("too many answers", [request_line("a", n=2**63)], ":1: n is 9223372036854775808"),
    ("nested too deeply", [NESTED], ":1: nested too deeply"),
    ("n of zero", [request_line("a", n=0)], ":1: n is 0"),
    ("NaN", ['{"custom_id": "a", "body": {"messages": ["x"], "temperature": NaN}}'], ":1: not JSON"),
    ("an empty file", [], ": has no requests"),
]
BAD_FORECASTS = [
    ("broken JSON", ["{"], ":1: not JSON"),
    ("NaN", ['{"custom_id": "good", "tokens": NaN}'], ":1: not JSON"),
    ("missing line", [{"custom_id": "other", "tokens": 5}], ": no forecast for custom_id 'good'"),
    ("duplicate", [{"custom_id": "good", "tokens": 5}] * 2, ":2: a second forecast"),
    ("no tokens", [{"custom_id": "good", "spread": 1}], ":1: no tokens"),
    ("negative", [{"custom_id": "good", "tokens": -5}], ":1: forecast tokens must be"),
    ("text", [{"custom_id": "good", "tokens": "many"}], ":1: tokens is not a number"),
    ("a probability above 1", [{"custom_id": "good", "tokens": 5, "solve": 1.5}], ":1: forecast solve must be"),
    ("no id", [{"tokens": 5}], ":1: no custom_id"),
]


class TestBadInput:
    """One line naming file, line and fix; exit 2; nothing written."""

    def refused(self, capsys, tmp_path, *arguments) -> str:
        (tmp_path / "out.jsonl").write_text("kept")
        before = sorted(p.name for p in tmp_path.iterdir())
        code = main(["plan", *map(str, arguments), "--out", str(tmp_path / "out.jsonl"), "--force", "--quiet"])
        captured = capsys.readouterr()
        assert code == 2
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert (tmp_path / "out.jsonl").read_text() == "kept"
        assert sorted(p.name for p in tmp_path.iterdir()) == before
        return captured.err

    @pytest.mark.parametrize(("lines", "message"), [b[1:] for b in BAD_FILES], ids=[b[0] for b in BAD_FILES])
    def test_a_bad_batch_file(self, batch, tmp_path, capsys, lines, message):
        path = batch(lines)
        printed = self.refused(capsys, tmp_path, path, "--budget", 100)
        assert f"{path}{message}" in printed
        assert printed.rstrip().endswith(")")  # the fix

    @pytest.mark.parametrize(("lines", "message"), [b[1:] for b in BAD_FORECASTS], ids=[b[0] for b in BAD_FORECASTS])
    def test_a_bad_forecast_file(self, batch, tmp_path, capsys, lines, message):
        table = batch(lines, "forecasts.jsonl")
        printed = self.refused(capsys, tmp_path, batch([GOOD]), "--budget", 100, "--forecast", table)
        assert f"{table}{message}" in printed

    @pytest.mark.parametrize("budget", ["-5", "lots", "1e", "nan", "", "99999999999999999999"])
    def test_a_bad_budget(self, batch, tmp_path, capsys, budget):
        assert "budget" in self.refused(capsys, tmp_path, batch([GOOD]), f"--budget={budget}")

    def test_a_missing_file(self, tmp_path, capsys):
        assert "nowhere.jsonl" in self.refused(capsys, tmp_path, tmp_path / "nowhere.jsonl", "--budget", 5)

    def test_a_folder_for_a_file(self, tmp_path, capsys):
        assert str(tmp_path) in self.refused(capsys, tmp_path, tmp_path, "--budget", 5)

    def test_an_unwritable_place(self, batch, tmp_path, capsys):
        where = tmp_path / "no" / "such" / "folder.jsonl"
        message = self.refused(capsys, tmp_path, batch([GOOD]), "--budget", 5, "--errors", where)
        assert f"{where}: cannot be written" in message

    def test_writing_over_the_input(self, batch, tmp_path, capsys):
        path = batch([GOOD])
        message = self.refused(capsys, tmp_path, path, "--budget", 5, "--errors", path)
        assert "is both input and errors" in message

    def test_an_unknown_policy_or_option(self, batch, tmp_path, capsys):
        path = batch([GOOD])
        assert "known are" in self.refused(capsys, tmp_path, path, "--budget", 5, "--policy", "magic")
        assert "did you mean clear?" in self.refused(capsys, tmp_path, path, "--budget", 5, "--policy", "claer")
        assert "it cannot be run" in self.refused(capsys, tmp_path, path, "--budget", 5, "--policy", "oracle")
        assert "its options are" in self.refused(capsys, tmp_path, path, "--budget", 5, "--option", "x=1")
        assert "NAME=NUMBER" in self.refused(capsys, tmp_path, path, "--budget", 5, "--option", "x")
        assert "--max-tokens" in self.refused(capsys, tmp_path, path, "--budget", 5, "--max-tokens", 0)
        assert "no option policy" in self.refused(capsys, tmp_path, path, "--budget", 5, "--option", "policy=3")
        assert "beta" in self.refused(capsys, tmp_path, path, "--budget", 5, "--option", "beta=1e-320")

    def test_usage(self, capsys):
        for arguments in (["plan"], ["plan", "x.jsonl"], ["dance"]):
            with pytest.raises(SystemExit) as stop:
                main(arguments)
            assert stop.value.code == 2
        assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_plan_leaves_nothing_behind(number, batch, tmp_path):
    path = batch([request_line(f"r{i}", "word " * 50) for i in range(60_000)])
    before = sorted(os.listdir(tmp_path))
    process = subprocess.Popen(
        [*COMMAND, "plan", str(path), "--budget", "1M", "--quiet"], stderr=subprocess.PIPE, cwd=tmp_path
    )
    deadline = time.monotonic() + 60
    while not any(name.startswith(".shadowprice-") for name in os.listdir(tmp_path)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.decode().strip() == "shadowprice: interrupted; nothing was written"
    assert sorted(os.listdir(tmp_path)) == before


def test_a_million_requests_fit_into_memory(batch):
    """Memory grows by less than 400 bytes per request, whatever the length of its text."""
    script = (
        "import resource, sys; from shadowprice.cli import main; main(sys.argv[1:]);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )

    def kilobytes(requests: int) -> int:
        path = batch([request_line(f"request-{i}", "word " * 60) for i in range(requests)])
        command = [sys.executable, "-c", script, "plan", str(path), "--budget", "1M"]
        return int(subprocess.run(command, capture_output=True, timeout=120).stderr.split()[-1])

    assert (kilobytes(25_000) - kilobytes(5_000)) * 1024 / 20_000 < 400


def test_help_lists_every_policy_and_needs_no_numpy():
    done = subprocess.run([*COMMAND, "plan", "--help"], capture_output=True, text=True, timeout=60)
    from shadowprice.market import POLICIES

    for policy in POLICIES.keys() - {"oracle", "clairvoyant"}:
        assert policy in done.stdout
    code = (
        "import sys, shadowprice.cli as cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("False\n")
