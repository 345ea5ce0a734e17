"""What a budget counts: dollars at given rates, or tokens with or without their prompts."""

import json
import re

import pytest

from shadowprice.accounts.sqlite import Ledger
from shadowprice.cli import main
from shadowprice.cost import ALL_TOKENS, TOKENS

from ..backends import hostile
from ..conftest import read_jsonl, request_line
from ..talking import talks

RATES = ("--rate-in", 1, "--rate-out", 4)
PROMPT = 5  # tokens that the server counts for every prompt


@pytest.fixture
def run(tmp_path, batch):
    """Runs some requests on a server in a folder of its own, and returns the exit code."""

    def command(server, *more, requests=20, folder="run") -> int:
        path = batch([request_line(f"q{i}") for i in range(requests)])
        arguments = [
            "run", path, "--quiet", "--base-url", server.url, "--model", "m", "--max-tokens", 40, "--force",
            "--out", tmp_path / "out", "--errors", tmp_path / "err", "--run-folder", tmp_path / folder,
            "--policy", "expected", *more,
        ]  # fmt: skip
        return main([str(argument) for argument in arguments])

    return command


def spent(folder) -> int:
    with Ledger.reopen(folder / "run" / "ledger.sqlite") as ledger:
        return ledger.spent


def page(folder, capsys) -> str:
    assert main(["report", str(folder / "run"), "--out", str(folder / "page.html")]) == 0
    capsys.readouterr()
    return " ".join((folder / "page.html").read_text().split())


class TestDollars:
    @pytest.mark.parametrize("more", [(), ("--policy", "index")])
    def test_a_budget_in_dollars_pays_for_prompts_and_is_kept(self, run, tmp_path, capsys, more):
        with hostile.Server(continues(30)) as server:
            assert run(server, "--budget", "$0.002", *RATES, *more) == 3
        read = sum(PROMPT + prefilled(request) for request in server.requests)
        cost = 1000 * read + 4000 * server.generated
        assert spent(tmp_path) == cost <= 2_000_000
        assert server.generated > 0
        dollars = f"${cost / 1e9:.6f}".rstrip("0")
        line = f"spent      {dollars} of $0.002; {server.generated} tokens generated, {read} read;"
        assert line in capsys.readouterr().out

    def test_so_much_for_each_request_is_exact(self, run, tmp_path, capsys):
        with hostile.Server(talks(3)) as server:
            assert run(server, "--budget", "$0.000333333/query", *RATES, "--json", requests=7) in (0, 3)
        assert json.loads(capsys.readouterr().out)["budget"] == 7 * 333_333

    def test_a_cached_prompt_costs_its_own_rate(self, run, tmp_path):
        async def caches(request, reply):
            await reply.head()
            await reply.piece("word")
            await reply.finish()
            await reply.usage(1, prompt_tokens_details={"cached_tokens": 4})
            await reply.end()

        with hostile.Server(caches) as server:
            assert run(server, "--budget", "$1", *RATES, "--rate-cached", "0.5", requests=3) == 0
        assert spent(tmp_path) == 3 * (1 * 1000 + 4 * 500 + 1 * 4000)

    def test_beside_a_budget_of_tokens_they_are_only_shown(self, run, tmp_path, capsys):
        with hostile.Server(talks(30)) as server:
            assert run(server, "--budget", 400, *RATES) == 3
        assert spent(tmp_path) == server.generated <= 400
        dollars = f"${(1000 * PROMPT * len(server.requests) + 4000 * server.generated) / 1e9:.6f}".rstrip("0")
        assert f"spent      {server.generated} of 400 tokens, {dollars};" in capsys.readouterr().out
        assert f"for {server.generated} of 400 tokens ({dollars})." in page(tmp_path, capsys)

    def test_the_summary_as_json_has_them(self, run, capsys):
        with hostile.Server(talks(30)) as server:
            run(server, "--budget", 400, *RATES, "--json")
            priced = json.loads(capsys.readouterr().out)
            run(server, "--budget", 400, "--json", folder="another")
            plain = json.loads(capsys.readouterr().out)
        usage = priced["usage"]
        assert priced["dollars"] == (1000 * usage["input"] + 4000 * usage["output"]) / 1e9
        assert plain["dollars"] is None


class TestTokensWithPrompts:
    def test_prompts_count_and_the_budget_is_kept(self, run, tmp_path, capsys):
        with hostile.Server(talks(30)) as server:
            assert run(server, "--budget", 2000, "--count", "input+output", requests=100) == 3
        total = server.generated + PROMPT * len(server.requests)
        assert spent(tmp_path) == total <= 2000
        assert server.generated > 0
        printed = capsys.readouterr().out
        assert f"spent      {total:,} of 2,000 tokens; {server.generated:,} tokens generated," in printed
        assert "$" not in printed
        shown = page(tmp_path, capsys)
        assert f"for {total:,} of 2,000 tokens." in shown
        assert "2,000 tokens, prompts included" in shown
        assert "$" not in re.sub("<(script|style).*?</", "", shown)

    def test_a_budget_that_no_prompt_fits_into_says_why(self, run, batch, tmp_path, capsys):
        why = "a prompt counts as its bytes and 256 tokens until a server has counted it: raise --budget\n"
        with hostile.Server(talks(12)) as server:
            assert run(server, "--budget", 100, "--count", "input+output", requests=2) == 3
        printed = capsys.readouterr().out
        assert f"  prompts    {why}" in printed
        assert "would buy" not in printed
        path = batch([request_line("a")])
        assert (
            main(["plan", str(path), "--budget", "100", "--count", "input+output", "--out", str(tmp_path / "p")]) == 3
        )
        assert f"  prompts   {why}" in capsys.readouterr().out

    @pytest.mark.parametrize("count", ["output", "input+output"])
    def test_an_answer_in_parts_pays_its_prompt_with_each_of_them(self, run, tmp_path, count):
        """The server continues texts, and counts as prompt whatever it is sent."""
        with hostile.Server(continues(300)) as server:
            more = ("--policy", "index", "--max-tokens", 400, "--count", count)
            assert run(server, "--budget", 20_000, *more, requests=4) == 0
        read = sum(PROMPT + prefilled(request) for request in server.requests)
        assert spent(tmp_path) == server.generated + (read if count == "input+output" else 0)
        assert server.generated == 4 * 300
        assert len(server.requests) > 4
        assert {line["shadowprice"]["outcome"] for line in read_jsonl(tmp_path / "out")} == {"finished"}

    @pytest.mark.parametrize(("count", "first"), [("output", "long"), ("input+output", "short")])
    def test_who_has_the_cheaper_prompt_is_served_first(self, batch, tmp_path, count, first):
        path = batch([request_line("long", "word " * 400), request_line("short")])
        known = {"tokens": 30, "spread": 0.1, "solve": 0.9}
        forecast = batch([{"custom_id": name, **known} for name in ("long", "short")], "forecast.jsonl")
        with hostile.Server(continues(30)) as server:
            arguments = [
                "run", path, "--budget", 9000, "--policy", "index", "--forecast", forecast, "--count", count, "--quiet",
                "--base-url", server.url, "--model", "m", "--concurrency", 1,
            ]  # fmt: skip
            assert main([str(argument) for argument in arguments]) == 0
        asked = server.requests[0].body["messages"][0]["content"]
        assert ("long" if asked.startswith("word") else "short") == first

    def test_rates_of_tokens_are_not_dollars(self):
        assert (ALL_TOKENS.money, ALL_TOKENS.priced) == (False, True)
        assert (TOKENS.money, TOKENS.priced) == (False, False)


def prefilled(request) -> int:
    """The words of an answer that a request continues."""
    last = request.body["messages"][-1]
    return len(last["content"].split()) if last["role"] == "assistant" else 0


def continues(words: int):
    """Answers of so many words, continued from where they stopped."""

    async def behave(request, reply):
        printed = prefilled(request)
        more = min(request.limit, words - printed)
        await reply.head()
        for number in range(printed, printed + more):
            await reply.piece(f"w{number} ")
        await reply.finish("stop" if printed + more == words else "length")
        await reply.usage(more, prompt_tokens=PROMPT + printed)
        await reply.end()

    return behave


class TestAPlan:
    RATES = ("--rate-in", "0.15", "--rate-out", "0.60")

    def test_in_dollars_it_counts_prompts_as_well(self, batch, tmp_path, capsys):
        path = batch([request_line(f"q{i}") for i in range(40)])
        assert main(["plan", str(path), "--budget", "$0.003", *self.RATES, "--json"]) == 3
        plan = json.loads(capsys.readouterr().out)
        lines = read_jsonl(tmp_path / "requests.planned.jsonl")
        generated = sum(line["body"]["max_completion_tokens"] for line in lines)
        assert plan["budget"] == 3_000_000
        assert 0 < 600 * generated < plan["cost"] <= 3_000_000
        assert len(lines) == plan["admitted"] < 40

    def test_it_says_so(self, batch, capsys):
        path = str(batch([request_line(f"q{i}") for i in range(40)]))
        assert main(["plan", path, "--budget", "$0.003", *self.RATES]) == 3
        printed = capsys.readouterr().out
        assert "40 requests, $0.003, policy expected" in printed
        assert " at most with prompts -> " in printed
        assert "$0.0003 would buy +" in printed
        assert main(["plan", path, "--budget", "900", *self.RATES, "--force"]) == 3
        assert re.search(r"900 tokens granted, \$0\.00\d+ at most -> ", capsys.readouterr().out)
        assert main(["plan", path, "--budget", "9k", "--count", "input+output", "--force"]) == 3
        assert " tokens at most with prompts -> " in capsys.readouterr().out

    def test_without_rates_it_says_what_to_give(self, batch, capsys):
        assert main(["plan", str(batch([request_line("a")])), "--budget", "$5"]) == 2
        assert "(give rates in dollars per million tokens, as --rate-in 0.15" in capsys.readouterr().err
