"""What `run` says at the end, to somebody who has never seen it: causes, counts and ways out."""

import pytest

from shadowprice.cli import main

from ..backends import hostile
from ..conftest import read_jsonl, request_line
from ..talking import talks


def refuses(status, message, **more):
    async def behave(request, reply):
        await reply.json(status, {"error": {"message": message, **more}})

    return behave


@pytest.fixture
def run(tmp_path, batch):
    """Answers 24 requests; the exit code."""
    path = batch([request_line(f"q{i}", f"What is {i} + {i}?") for i in range(24)])

    def command(url, *more, budget="6k") -> int:
        arguments = ["run", path, "--budget", budget, "--quiet", "--base-url", url, "--model", "m"]
        return main([str(argument) for argument in (*arguments, "--out", tmp_path / "out.jsonl", *more)])

    return command


SHARED = [
    (401, {"message": "Incorrect API key provided: sk-1.", "code": "invalid_api_key"}, "$OPENAI_API_KEY"),
    (403, {"message": "Project has no access to the model"}, "$OPENAI_API_KEY"),
    (404, {"message": "The model `m` does not exist", "code": "model_not_found"}, "check --model and --base-url"),
    (429, {"message": "You exceeded your current quota", "code": "insufficient_quota"}, "the account is empty"),
    (400, {"message": "/chat/completions: Invalid model name passed in model=m."}, "check --model"),  # LiteLLM
    (400, {"message": "you must provide a model parameter"}, "name the model with --model"),  # OpenAI
    (400, {"message": "model is required"}, "name the model with --model"),  # Ollama
    (400, {"message": "Model Not Exist", "type": "invalid_request_error"}, "check --model"),  # DeepSeek
    (400, {"message": "API key not valid. Please pass a valid API key."}, "$OPENAI_API_KEY"),  # Gemini
]


@pytest.mark.parametrize(("status", "error", "fix"), SHARED, ids=lambda value: str(value)[:40])
def test_a_refusal_that_all_share_stops_the_run_with_one_line(run, tmp_path, capsys, status, error, fix):
    with hostile.Server(refuses(status, **error)) as server:
        assert run(server.url) == 3
    assert len(server.requests) == 3
    printed = capsys.readouterr()
    (warning,) = printed.err.splitlines()
    assert warning.startswith(f"warning: the server refuses every request: {status}: {error['message'][:20]}")
    assert "; nothing more was sent (" in warning
    assert fix in warning
    assert "3 failed, 21 not sent" in printed.out
    assert "failed     3 requests: " in printed.out
    assert "graded" not in printed.out
    assert "would buy" not in printed.out
    errors = [line["error"] for line in read_jsonl(tmp_path / "out.declined.jsonl")]
    assert len(errors) == 24
    assert all(fix in each["fix"] for each in errors)


def test_failures_of_some_are_counted_by_cause_with_a_fix(run, capsys):
    async def some(request, reply):
        if "1" in request.body["messages"][0]["content"]:
            await refuses(400, "content policy", code="content_filter")(request, reply)
        else:
            await talks(5)(request, reply)

    with hostile.Server(some) as server:
        assert run(server.url, "--policy", "expected") == 3
    printed = capsys.readouterr().out
    assert (
        "failed     12 requests: 400: content_filter: content policy (the server refuses the request itself" in printed
    )


def test_a_server_that_is_not_there_is_named_without_the_words_of_a_library(run, tmp_path, capsys):
    assert run("http://127.0.0.1:9/v1", "--patience", "1s") == 3
    printed = capsys.readouterr()
    assert "connection refused (127.0.0.1:9); nothing more was sent (is the server up at --base-url?" in printed.err
    assert "Connect call failed" not in printed.err + (tmp_path / "out.declined.jsonl").read_text()


class TestAServerThatIsStillLoading:
    def test_is_waited_for(self, run, tmp_path, capsys):
        async def loads(request, reply):
            ready = len(server.requests) > 3
            await (talks(5) if ready else refuses(503, "Loading model", code=503))(request, reply)

        with hostile.Server(loads) as server:
            assert run(server.url, "--policy", "expected") == 0
        printed = capsys.readouterr()
        assert "answered   24 requests" in printed.out
        assert "unanswered 0 declined, 0 failed, 0 not sent" in printed.out
        assert printed.err == ""
        assert read_jsonl(tmp_path / "out.declined.jsonl") == []

    def test_makes_requests_fail_and_none_is_declined(self, run, tmp_path, capsys):
        with hostile.Server(refuses(503, "Loading model", code=503)) as server:
            assert run(server.url, "--patience", "1s") == 3
        printed = capsys.readouterr()
        assert "answered   0 requests" in printed.out
        assert "unanswered 0 declined, " in printed.out
        assert "503: Loading model; nothing more was sent (the server is overloaded or still loading" in printed.err
        errors = [line["error"] for line in read_jsonl(tmp_path / "out.declined.jsonl")]
        assert len(errors) == 24
        assert {each["code"] for each in errors} == {"backend_unavailable", "not_sent"}
        assert all("still loading" in each["fix"] for each in errors)
        assert main(["report", str(tmp_path / "out.jsonl.run")]) == 0
        page = (tmp_path / "out.jsonl.run" / "report.html").read_text()
        assert "503: Loading model" in page
        assert "worth more elsewhere" not in page


class TestTheDefaults:
    @pytest.mark.parametrize(
        ("server", "policy"),
        [(hostile.continues(), "index"), (hostile.continues(starts_over=True), "expected")],
        ids=["continues answers", "starts over"],
    )
    def test_of_run_depend_on_what_the_server_can_do(self, run, capsys, server, policy):
        with hostile.Server(server) as running:
            assert run(running.url) == 0
        assert f"24 requests, 6,000 tokens, policy {policy}\n" in capsys.readouterr().out

    def test_of_plan(self, batch, capsys):
        path = batch([request_line("a"), request_line("b")])
        assert main(["plan", str(path), "--budget", "9k", "--quiet"]) == 0
        assert "2 requests, 9,000 tokens, policy expected\n" in capsys.readouterr().out


@pytest.mark.parametrize("policy", ["clear", "triangular", "quadratic", "heuristic", "auction", "expected", "index"])
@pytest.mark.parametrize("budget", [1200, 100_000])
def test_nobody_is_declined_while_the_budget_could_serve_all_up_to_their_limits(run, capsys, policy, budget):
    """Forecasts are above the limit of 50 tokens."""
    with hostile.Server(talks(60)) as server:
        assert run(server.url, "--policy", policy, "--max-tokens", 50, budget=budget) == 0
    assert "answered   0 requests, 24 more cut short" in capsys.readouterr().out
    assert 1200 <= server.generated <= budget


class TestAfterAMistake:
    def test_a_run_that_has_cost_nothing_is_resumed_with_another_model(self, run, tmp_path, capsys):
        with hostile.Server(refuses(404, "no such model", code="model_not_found")) as server:
            assert run(server.url) == 3
        with hostile.Server(talks(5)) as server:
            assert run(server.url, "--resume", "--model", "n", "--policy", "expected", budget=5000) == 0
            assert {each.body["model"] for each in server.requests} == {"n"}
        assert "24 requests, 5,000 tokens" in capsys.readouterr().out
        assert read_jsonl(tmp_path / "out.declined.jsonl") == []

    def test_one_that_has_spent_something_is_not(self, run, capsys):
        with hostile.Server(talks(5)) as server:
            assert run(server.url) == 0
            capsys.readouterr()
            assert run(server.url, "--resume", "--model", "n") == 2
        assert "was started with another model ('m', now 'n')" in capsys.readouterr().err


class TestWhatMoreWouldBuy:
    def test_nothing_is_said_where_everything_was_answered(self, run, capsys):
        with hostile.Server(talks(5)) as server:
            assert run(server.url, "--policy", "expected") == 0
        assert "would buy" not in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("budget", "more", "words"),
        [
            (300, (), "30 more tokens would buy about "),
            ("$0.001", ("--rate-in", "0.5", "--rate-out", "2"), "$0.0001 would buy about "),
        ],
    )
    def test_it_is_a_tenth_of_a_small_budget_and_no_more_answers_than_are_missing(
        self, run, capsys, budget, more, words
    ):
        with hostile.Server(talks(1000)) as server:
            assert run(server.url, "--policy", "expected", *more, budget=budget) == 3
        (price,) = [line for line in capsys.readouterr().out.splitlines() if "would buy" in line]
        assert price.strip().startswith(f"price      {words}")
        assert 0 < float(price.split("about ")[1].split()[0]) <= 24

    def test_very_little_is_not_written_in_powers_of_ten(self, run, capsys):
        with hostile.Server(talks(10)) as server:
            run(server.url, "--policy", "expected", "--max-tokens", "3", budget="1M")
        assert "e-0" not in capsys.readouterr().out


PROSE = "The quick brown fox jumps over the lazy dog and then it rests. "  # 63 characters, 14 tokens


class TestAServerThatIgnoresItsLimits:
    """What is known is printed, and nothing else: estimates may be too high."""

    def warning(self, run, capsys, behaviour, *more, budget="100", code=3):
        with hostile.Server(behaviour) as server:
            assert run(server.url, "--policy", "uniform", "--concurrency", 1, *more, budget=budget) == code
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "at least" in line]
        return server, line

    def test_and_counts_honestly(self, run, capsys):
        behaviour = hostile.bundles("a b c d e ", 4, tokens=5, usage=20)
        server, line = self.warning(run, capsys, behaviour, "--max-tokens", 15, budget="360")
        assert server.generated == 20
        assert line == "warning: at least 20 tokens generated, 0 of them beyond the budget"

    def test_and_counts_nothing(self, run, capsys):
        """112 tokens for a limit of 20: the text shows that there are more than 20, and looks like 126."""
        behaviour = hostile.bundles(PROSE * 2, 4, tokens=28)
        server, line = self.warning(run, capsys, behaviour, "--max-tokens", 20, budget="480")
        at_least = int(line.split()[3])
        assert 20 < at_least <= server.generated
        assert line.startswith(f"warning: at least {at_least} tokens generated, 0 of them beyond the budget; ")
        assert line.endswith(" tokens charged by estimate; the server's own count is unknown")

    def test_beyond_the_budget_for_certain(self, run, capsys):
        server, line = self.warning(
            run, capsys, hostile.bundles("word ", 40, tokens=1), "--max-tokens", 20, budget="20"
        )
        assert server.generated > 20
        beyond = int(line.split()[6])
        assert line == (
            f"warning: at least {20 + beyond} tokens generated, {beyond} of them beyond the budget; "
            "the server's own count is unknown"
        )

    def test_for_money(self, run, capsys):
        rates = ("--rate-in", "0", "--rate-out", "10")
        behaviour = hostile.bundles(PROSE * 2, 4, tokens=28)
        _, line = self.warning(run, capsys, behaviour, "--max-tokens", 20, *rates, budget="$0.0006")
        assert "beyond the budget" not in line
        assert line.endswith(" charged by estimate; the server's own count is unknown")


def test_a_dense_text_that_is_not_counted_is_not_called_more_than_it_is(run, capsys):
    """Four answers of 20 tokens, 6.3 characters each, for a limit of 20: they are charged more, by estimate."""
    with hostile.Server(hostile.bundles(PROSE, 2, tokens=10)) as server:
        run(server.url, "--policy", "uniform", "--max-tokens", 20, "--concurrency", 1, budget="80")
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "at least" in line]
    at_least = int(line.split()[3])
    assert at_least <= server.generated <= 80
    assert "0 of them beyond the budget" in line


@pytest.mark.parametrize("accounting", ["reserved", "metered"])
def test_a_server_that_counts_nothing_is_named_in_words(run, capsys, accounting):
    async def uncounted(request, reply):
        await reply.head()
        await reply.say(3)
        await reply.finish()

    with hostile.Server(uncounted) as server:
        assert run(server.url, "--policy", "uniform", "--accounting", accounting, "--max-tokens", 20) == 0
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning == "warning: 24 answers: not counted by the server: charged their whole limit"


@pytest.mark.slow
def test_what_failed_requests_were_charged_is_in_the_summary(run, tmp_path, capsys):
    async def half(request, reply):
        if int(request.body["messages"][0]["content"].split()[2]) % 2:
            await reply.error(500, "CUDA error: out of memory")
        else:
            await talks(12)(request, reply)

    with hostile.Server(half) as server:
        assert run(server.url, "--policy", "uniform", "--no-reclaim") == 3
    charged = sum(line["shadowprice"]["cost"] for line in read_jsonl(tmp_path / "out.declined.jsonl"))
    assert charged == 12 * 250
    stated = f"of 6,000 tokens, of which {charged:,} tokens for failed requests: the server may have generated them; "
    assert stated in capsys.readouterr().out


@pytest.mark.slow
def test_a_server_that_limits_the_rate_is_believed_if_one_says_so(run, capsys):
    seen = []

    async def limited(request, reply):
        seen.append(request)
        if len(seen) % 3:
            await reply.error(429, "Rate limit reached", **{"Retry-After": "0"})
        else:
            await talks(12)(request, reply)

    with hostile.Server(limited) as server:
        assert run(server.url, "--policy", "uniform", "--no-reclaim") == 3
        printed = capsys.readouterr().err
        assert "more than --exposure allows; the last: 429: Rate limit reached; nothing more was sent (" in printed
        assert "--exposure 100% believes it" in printed
        assert run(server.url, "--policy", "uniform", "--no-reclaim", "--resume", "--exposure", "100%") == 0
    assert "answered   24 requests" in capsys.readouterr().out
