"""The page about a run: true to the ledger in every state of a run, and without a trace in its folder."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import asdict

import pytest

from shadowprice.accounts.sqlite import Ledger
from shadowprice.errors import InputError, LedgerError
from shadowprice.formats.results import DECLINED, ESTIMATE
from shadowprice.report.run import run_report
from shadowprice.report.run_data import read_run
from shadowprice.runs import Run
from shadowprice.types import Usage

from ..run_folders import answer, killed_run, listing, note
from .conftest import BUDGET, GOLD, RATES, RUNS, TRACES, Recorded, requests
from .helpers import HOSTILE, Page, steps_of, summary_of


class TestAnyRun:
    """What holds for all of them: policies, accountings, teachers, samples, money, failures."""

    @pytest.fixture(params=RUNS)
    def place(self, request, run_of):
        return run_of(request.param)

    def test_the_page_is_self_contained_and_leaves_no_trace(self, place):
        before = listing(place)
        page = Page(run_report(place))
        assert listing(place) == before
        assert page.sources == []
        assert len(page.ids) == len(set(page.ids))
        assert {ref[1:] for ref in page.references} <= set(page.ids)
        for each in ("None", "nan", "Unfinished", "not_sent"):
            assert not re.search(rf"\b{each}\b", page.text)


class TestReserved:
    def test_the_verdict_is_its_summary(self, run_of):
        outcomes, spent = summary_of(run_of("reserved"))["outcomes"], summary_of(run_of("reserved"))["spent"]
        finished, truncated, declined = (outcomes[name] for name in ("finished", "truncated", "declined"))
        assert finished > 20
        text = Page(run_report(run_of("reserved"))).words
        assert f"{finished} of 60 requests answered, for {spent:,} of 1,200 tokens." in text
        answers = "1 answer was" if truncated == 1 else f"{truncated} answers were"
        assert f"{answers} cut at the limit; {declined} requests were declined." in text
        assert "correct" not in text

    def test_every_clearing_is_shown_with_its_price(self, run_of):
        rounds = summary_of(run_of("reserved"))["rounds"]
        assert len(rounds) > 1
        page = run_report(run_of("reserved"))
        section = page[page.index('<section id="price"') : page.index('<section id="waterfall"')]
        shown = re.findall(r"<tr><td.*?</tr>", section)
        assert len(shown) == len(rounds)
        for row, each in zip(shown, rounds, strict=True):
            assert f">{each['price']:.3g}<" in row

    def test_what_is_returned_is_granted_again_or_not(self, run_of):
        assert "What is returned is granted again." in run_report(run_of("reserved"))
        assert "What is returned stays unused." in run_report(run_of("graded"))

    def test_a_run_without_forecasts_is_shown_without_them(self, own):
        folder = own("reserved")
        (folder / "forecast.jsonl").unlink()
        run = read_run(folder)
        assert {row["forecast"] for row in run.requests} == {None}
        assert sorted(row["id"] for row in run.requests) == sorted(trace.id for trace in TRACES[:60])
        assert "forecast, tokens" not in run_report(folder)


class TestGraded:
    def test_correct_answers_are_counted_and_marked(self, run_of):
        run = read_run(run_of("graded"))
        marks = {row["id"]: row["correct"] for row in run.requests}
        assert run.correct == list(marks.values()).count("yes") > 0
        assert "no" in marks.values()
        answered = {row["id"] for row in run.requests if row["outcome"] == "finished"}
        assert {name for name, mark in marks.items() if mark} == answered & set(GOLD)
        assert f"requests answered, {run.correct} correctly, for" in Page(run_report(run_of("graded"))).words

    def test_they_are_counted_while_the_run_is_under_way(self, folder):
        ledger = folder(gold="ab12").ledger
        ledger.settle(ledger.reserve("a", 10), 5, Usage(5), answer("a", 5, correct=True))
        ledger.settle(ledger.reserve("b", 10), 5, Usage(5), answer("b", 5, correct=False))
        text = Page(run_report(ledger.path.parent)).words
        assert "Unfinished: 2 requests answered, 1 correctly so far, 10 of 100 tokens spent." in text


class TestMetered:
    def test_the_page_says_chunks_and_not_grants(self, run_of):
        page = run_report(run_of("metered"))
        assert "correct answers per token" in page
        assert "chunks ended" in page
        assert "index, metered" in page
        for words in ("returned unused", "utility per token", "attempts ended"):
            assert words not in page

    def test_policies_in_rounds_have_a_price_of_their_own(self, run_of):
        page = run_report(run_of("rounds"))
        assert "utility per token" in page
        assert "chunks ended" in page
        assert "CLEAR, metered" in page


class TestTeacher:
    def test_estimates_are_paid_from_the_budget_or_not(self, run_of):
        paid, free = read_run(run_of("tale")), read_run(run_of("taught"))
        assert steps_of(paid)["the teacher's estimates"] == paid.teacher["tokens"] == 120
        assert "the teacher's estimates" not in steps_of(free)
        assert "generated 120 tokens, paid from the budget" in Page(run_report(run_of("tale"))).words
        assert "generated 120 tokens, not charged to the budget" in Page(run_report(run_of("taught"))).words


class TestMoney:
    def test_costs_are_in_dollars(self, run_of):
        run = read_run(run_of("money"))
        row = next(row for row in run.requests if row["outcome"] == "finished")
        assert row["cost"] == RATES.cost(Usage(row["generated"], row["read"]))
        page = run_report(run_of("money"))
        assert (
            f"for ${run.spent / 1e9:.6f}".rstrip("0") + f" of $0.004 ({run.usage.output:,} tokens)." in Page(page).words
        )
        assert f'data-value="{row["cost"]}">${row["cost"] / 1e9:.6f}'.rstrip("0") in page
        for words in ("Where the dollars went", "generated, tokens", "per million tokens"):
            assert words in page
        assert "input $0.1, cached $0.1, output $0.5" in page

    def test_every_amount_of_a_clearing_has_its_unit(self, run_of):
        page = run_report(run_of("money"))
        section = page[page.index('<section id="price"') : page.index('<section id="waterfall"')]
        (first, *_) = read_run(run_of("money")).clearings
        assert f'data-value="{first["budget"]}">$0.004<' in section

    def test_grants_in_reserved_accounting_are_in_dollars_too(self, folder):
        place = folder(5_000_000, policy="clear", rates=asdict(RATES), reclaim=True)
        place.ledger.settle(place.ledger.reserve("a", 2_000_000), 1_500_000, Usage(2900, 500), answer("a", 2900))
        run = read_run(place.path)
        assert run.requests[0]["why"] == "ended after 2,900 tokens"
        page = run_report(place.path)
        assert ">$0.002<" in page
        assert ">$0.0015<" in page
        assert "0.0015 of $0.005 spent" in Page(page).words


class TestFailures:
    def test_they_are_grouped_by_cause(self, run_of):
        run = read_run(run_of("failing"))
        assert [(each["count"], each["code"]) for each in run.failures] == [
            (6, "model_not_found"),
            (6, "backend_unavailable"),
        ]
        words = Page(run_report(run_of("failing"))).words
        assert "12 failed" in words
        assert "6model_not_foundno model '3' on this server, for 3 tokens" in words
        assert "6backend_unavailablethe server answered 503" in words

    def test_a_run_that_was_stopped_says_why(self, tmp_path):
        with Run(requests(60), budget=BUDGET, backend=Recorded(TRACES), folder=tmp_path / "run", policy="clear") as run:
            asyncio.run(run.execute(on_result=lambda result: run.stop("the server ignores limits")))
        found = read_run(tmp_path / "run")
        assert found.done
        assert found.outcomes["not sent"] > 20
        assert {row["why"] for row in found.requests if row["outcome"] == "not sent"} == {
            "not sent: the server ignores limits"
        }
        page = run_report(tmp_path / "run")
        assert "Nothing more was sent: the server ignores limits." in Page(page).words
        assert '<span class="tag is-not_sent">not sent</span>' in page


class TestUnderWay:
    def test_it_is_read_while_it_runs(self, folder, tmp_path):
        ledger = folder(policy="clear").ledger
        first, _ = ledger.reserve_many([("a", 40), ("b", 30)])
        ledger.settle(first, 25, Usage(25), answer("a", 25))
        before = sorted(path.name for path in (tmp_path / "run").iterdir())
        text = Page(run_report(tmp_path / "run")).words
        assert "Unfinished: 1 request answered so far, 25 of 100 tokens spent." in text
        assert "1 waiting or in flight." in text
        assert "--resume" in text
        assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before
        with pytest.raises(LedgerError, match="in use"):  # the lock is still its own
            Ledger.reopen(tmp_path / "run" / "ledger.sqlite")
        ledger.reserve("c", 45)
        assert (ledger.available, ledger.reserved, ledger.spent) == (0, 75, 25)

    def test_it_is_read_after_kill_9_and_can_still_be_resumed(self, tmp_path):
        folder = killed_run(tmp_path / "run")
        before = listing(folder)
        assert "Unfinished: 1 request answered so far, 7 of 100 tokens spent." in Page(run_report(folder)).words
        after = listing(folder)
        assert {name: after[name] for name in before if not name.endswith("-shm")} == {
            name: before[name] for name in before if not name.endswith("-shm")
        }
        assert after.keys() == before.keys()
        with Ledger.reopen(folder / "ledger.sqlite") as ledger:
            assert ledger.spent == 7 + 20

    def test_a_run_killed_before_it_had_a_ledger_is_read(self, folder, tmp_path):
        folder().ledger.close()
        for path in (tmp_path / "run").glob("ledger.sqlite*"):
            path.unlink()
        text = Page(run_report(tmp_path / "run")).words
        assert "Unfinished: 0 requests answered so far, 0 of 100 tokens spent." in text


class TestOutcomes:
    def test_every_end_of_an_attempt_is_shown(self, folder, tmp_path):
        ledger = folder(1000, policy="tale").ledger
        grants = [("ends", 10), ("cut", 20), ("fails", 30), ("lost", 40), ("over", 10), ("never", 50), ("lands", 9)]
        ends, cut, fails, _, over, never, lands = ledger.reserve_many(grants)
        estimate = ledger.reserve(f"{ESTIMATE}1:ends", 16)
        ledger.settle(ends, 4, Usage(4), answer("ends", 4))
        ledger.settle(cut, 20, Usage(20), answer("cut", 20, "truncated"))
        ledger.settle(fails, 5, Usage(5))
        ledger.note("fails", note("fails", "failed", "request_refused", "no <b>such</b> model"))
        ledger.settle(over, 25, Usage(25), answer("over", 25, "truncated", ["limit_ignored"]))
        ledger.settle(lands, 9, Usage(9), answer("lands", 9, "landed"))
        ledger.settle(estimate, 3, Usage(3), answer(f"{ESTIMATE}1:ends", 3))
        ledger.void(never)
        ledger.note("never", note("never", "declined", DECLINED, "declined", price=0.25))
        ledger.note("late", note("late", "not_sent", "not_sent", "not sent: the server is down"))
        ledger.close()
        Ledger.reopen(tmp_path / "run" / "ledger.sqlite").close()  # the crash is noticed: `lost` is charged
        run = read_run(tmp_path / "run")
        rows = {row["id"]: row for row in run.requests}
        assert {name: row["outcome"] for name, row in rows.items()} == {
            "ends": "finished", "cut": "truncated", "fails": "failed", "lost": "waiting", "over": "truncated",
            "lands": "landed", "never": "declined", "late": "not sent",
        }  # fmt: skip
        assert rows["lost"]["cost"] == 40
        assert rows["lost"]["why"] == "lost in a crash: the whole grant was charged; will be retried"
        assert rows["fails"]["why"] == "request_refused: no <b>such</b> model"
        assert rows["never"]["why"] == "its tokens were worth more elsewhere at 0.25 per token"
        assert rows["lands"]["why"] == "was asked for its final answer after 9 of 9 tokens"
        assert steps_of(run) == {
            "granted": 10 + 20 + 30 + 40 + 25 + 9 + 16,  # including the 15 tokens above a limit
            "returned unused": 6 + 25 + 13,
            "the teacher's estimates": 3,
            "failed attempts": 5 + 40,
            "truncated answers": 45,
            "finished answers": 4 + 9,
        }
        page = run_report(tmp_path / "run")
        assert "1 answer: longer than their limit: charged for all that arrived." in page
        assert "Charged beyond its grants, and covered by the budget: 15 tokens." in page
        assert "no &lt;b&gt;such&lt;/b&gt; model" in page

    def test_tokens_above_the_budget_are_reported(self, folder):
        ledger = folder(10).ledger
        ledger.settle(ledger.reserve("a", 10), 35, Usage(35), answer("a", 35, "truncated"))
        assert "Charged beyond the budget: 25 tokens." in run_report(ledger.path.parent)

    def test_no_answer_of_a_server_becomes_markup(self, folder, tmp_path):
        name = HOSTILE.encode(errors="replace").decode()
        ledger = folder(model=name, policy=name, **{name: name}).ledger
        ledger.settle(ledger.reserve(name, 10), 5, Usage(5), answer(name, 5, text=name, flags=[name]))
        ledger.settle(ledger.reserve("b", 10), 5, Usage(5))
        ledger.note("b", note("b", "failed", name, name))
        found = Page(run_report(tmp_path / "run"))
        assert found.tags.count("script") == 1
        assert "img" not in found.tags
        assert found.handlers == []
        assert len(found.ids) == len(set(found.ids))


class TestDamaged:
    def test_a_damaged_ledger_is_named(self, folder, tmp_path):
        folder().ledger.close()
        (tmp_path / "run" / "ledger.sqlite").write_bytes(b"no database at all" * 100)
        with pytest.raises(InputError, match=r"ledger\.sqlite: "):
            run_report(tmp_path / "run")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_read_only_folder_is_read(self, own):
        folder = own("reserved")
        folder.chmod(0o500)
        try:
            assert "requests answered" in run_report(folder)
        finally:
            folder.chmod(0o700)
