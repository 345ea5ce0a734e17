"""A text is charged for its tokens, however a server bundles them and whatever it says about their number."""

import asyncio
import json
import sys
from types import SimpleNamespace

import pytest

from shadowprice.backends._charging import Density, Seen, charge, length, surplus
from shadowprice.backends._stream import Answer
from shadowprice.backends.openai import OpenAIBackend
from shadowprice.errors import LimitViolated

from .asking import CHAT, SHORT, TEXT, ask, charged, meet
from .hostile import Server, bundles, deltas

pytestmark = pytest.mark.usefixtures("no_proxy")

PROSE = "The quick brown fox jumps over the lazy dog and then it rests. "  # 63 characters, 14 tokens
CODE = "def f(x):\n                if x:\n                        return [x]\n                return None\n"


class TestBundledTokensBeyondTheLimit:
    """A text that is longer than its limit can be, without a usage that shows it."""

    @pytest.mark.parametrize("body", [CHAT, TEXT], ids=["chat", "text"])
    def test_are_noticed_and_charged_and_end_all_requests(self, body):
        async def run(url):
            backend, done = OpenAIBackend(url, "m", timeout=30), []
            try:
                for _ in range(6):
                    done.append(await backend.complete(body, 200))
            except LimitViolated:
                pass
            finally:
                await backend.close()
            return done

        with Server(bundles(PROSE, 82, tokens=14)) as server:  # 1,148 tokens
            done = asyncio.run(run(server.url))
            assert server.saw_hang_up(within=2)
        assert [each.flags for each in done] == [("limit_ignored",)]
        assert len(server.requests) == 1
        assert done[0].tokens >= 2_064 / 4.5
        assert server.generated < 700  # the stream was closed

    def test_are_charged_if_the_excess_is_too_small_to_be_certain(self):
        """300 tokens for a limit of 200: 6.7 characters a token would be unusual, but possible."""
        done = meet(bundles(PROSE, 21, tokens=14), limit=200)
        assert (done.tokens, done.usage_source, done.flags) == (331, "assumed", ("usage_estimated",))

    def test_in_a_body_that_is_not_streamed(self):
        async def behave(request, reply):
            reply.server.generated += 5_000
            message = {"role": "assistant", "content": "word " * 5_000}
            await reply.json(200, {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

        done = meet(behave, limit=100)
        assert (done.tokens, done.flags) == (6_250, ("limit_ignored",))

    @pytest.mark.parametrize(
        "delta",
        [
            lambda text: {"reasoning_content": text},
            lambda text: {"reasoning": text},
            lambda text: {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": text}]},
            lambda text: {"refusal": text},
            lambda text: {"thoughts_of_a_new_kind": {"deep": [text]}},
            lambda text: {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]},
            lambda text: {"audio": {"transcript": text}},
            lambda text: {"function_call": {"name": "f", "arguments": text}},
            lambda text: {"tool_calls": [{"index": 0, "function": {"arguments": text}}]},
            lambda text: {"tool_calls": [{"index": 0, "type": "custom", "custom": {"input": text}}]},
        ],
    )
    def test_count_wherever_they_are(self, delta):
        done = meet(deltas(*[delta(PROSE)] * 50, usage=50), limit=100)
        assert done.flags == ("limit_ignored",)
        assert done.tokens > 250

    def test_in_chinese(self):
        """A token for three characters or so of four, where a letter is a quarter of one."""
        done = meet(bundles("天地玄黃宇宙洪荒日月盈昃辰宿列張", 100, tokens=11), limit=100)
        assert done.flags == ("limit_ignored",)

    def test_are_counted_by_the_servers_tokenizer_where_it_has_one(self):
        tokens = {"vLLM": lambda text: {"count": len(text) // 5}, "llama.cpp": lambda text: {"tokens": text.split()}}
        for tokenizer in tokens.values():
            done = meet(bundles("very " * 30, 10, tokens=30), limit=200, tokenizer=tokenizer)
            assert (done.tokens, done.flags) == (300, ("limit_ignored",))

    def test_are_counted_by_the_tokenizer_of_the_model_if_the_hub_has_left_it_here(self, monkeypatch, tmp_path):
        tokenizers = pytest.importorskip("tokenizers")
        monkeypatch.setattr(pytest.importorskip("huggingface_hub.constants"), "HF_HUB_CACHE", str(tmp_path))
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"very": 0, "?": 1}, unk_token="?"))
        made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        place = tmp_path / "models--lab--model" / "snapshots" / "0" / "tokenizer.json"
        place.parent.mkdir(parents=True)
        made.save(str(place))
        (tmp_path / "models--lab--model" / "refs").mkdir()
        (tmp_path / "models--lab--model" / "refs" / "main").write_text("0")
        done = meet(bundles("very " * 30, 10, tokens=30), limit=200, model="lab/model")
        assert (done.tokens, done.flags) == (300, ("limit_ignored",))
        done = meet(bundles("very " * 30, 10, tokens=30), {**CHAT, "model": "lab/model"}, limit=200, model="")
        assert done.tokens == 300
        assert meet(bundles("very " * 30, 10, tokens=30), limit=200, model="lab/other").flags == ("usage_estimated",)

    @pytest.mark.parametrize("problem", [None, KeyError("gpt-none"), OSError("no network")])
    def test_are_counted_by_tiktoken_if_it_is_installed_and_knows_the_model(self, monkeypatch, problem):
        class Encoding:
            def encode(self, text, disallowed_special):
                return text.split()

        def encoding_for_model(model):
            if problem:
                raise problem
            return Encoding()

        monkeypatch.setitem(sys.modules, "tiktoken", SimpleNamespace(encoding_for_model=encoding_for_model))
        done = meet(bundles("very " * 30, 10, tokens=30), limit=200, model="gpt-x")
        assert done.tokens == (375 if problem else 300)

    def test_are_nothing_of_the_kind_if_the_tokenizer_says_so(self):
        with Server(bundles(PROSE, 15, tokens=14), tokenizer=lambda text: {"count": 14 * 15}) as server:
            done = ask(server.url, limit=212)
        assert (done.tokens, done.flags, server.tokenized) == (212, (), 1)

    @pytest.mark.parametrize("count", [0, -1, "many", None, 10**30])
    def test_are_not_excused_by_a_tokenizer_that_cannot_count(self, count):
        done = meet(bundles(PROSE, 21, tokens=14), limit=200, tokenizer=lambda text: {"count": count})
        assert done.tokens >= 294

    def test_are_not_asked_about_again_if_there_is_no_tokenizer(self):
        async def twice(url):
            backend = OpenAIBackend(url, "m", **SHORT)
            for _ in range(2):
                await backend.complete(CHAT, 200)
            await backend.close()

        with Server(bundles(PROSE, 18, tokens=14)) as server:
            asyncio.run(twice(server.url))
        assert server.tokenized == 1


class TestAnHonestServer:
    @pytest.mark.parametrize(
        ("text", "tokens"),
        [
            (CODE, 24),
            ("    " * 40 + "x\n", 3),
            ("| name | value |\n|" + "-" * 60 + "|" + "-" * 60 + "|\n", 12),
            ("=" * 100 + "\n", 2),
            (PROSE, 14),
            ("Donaudampfschifffahrtsgesellschaftskapitän ", 12),
            ("天地玄黃宇宙洪荒", 9),
            ("0.1234567890123456 ", 9),
        ],
        ids=lambda value: repr(value)[:20],
    )
    @pytest.mark.parametrize("usage", [True, False])
    def test_raises_no_alarm(self, text, tokens, usage):
        count = 20
        total = tokens * count
        done = meet(bundles(text, count, tokens=tokens, usage=total if usage else None), limit=total)
        assert "limit_ignored" not in done.flags
        assert done.text == text * count
        if usage:
            assert (done.tokens, done.flags) == (total, ())

    def test_that_hides_its_reasoning_raises_no_alarm(self):
        done = meet(bundles("42", 1, tokens=500, usage={"completion_tokens": 500}), limit=1_000)
        assert (done.tokens, done.flags) == (500, ())

    def test_that_sends_its_reasoning_under_two_names_is_counted_once(self):
        both = {"reasoning": PROSE, "reasoning_content": PROSE, "reasoning_details": [{"text": PROSE}]}
        done = meet(deltas(*[both] * 20, usage=280), limit=280)
        assert (done.tokens, done.flags) == (280, ())

    def test_with_one_long_word_for_a_limit_of_one(self):
        done = meet(bundles(" telecommunications", 1, tokens=1, usage=1, finish="length"), limit=1)
        assert (done.tokens, done.flags) == (1, ())

    def test_without_usage_that_sends_a_token_a_piece_is_charged_its_limit(self):
        done = meet(bundles("words ", 40, tokens=1), limit=40)
        assert (done.tokens, done.usage_source, done.flags) == (40, "assumed", ())


class TestUsageThatCannotBe:
    def test_is_far_below_what_the_text_must_be(self):
        done = meet(bundles("a word of it " * 100, 3, tokens=400, usage=5), limit=2_000)
        assert (done.tokens, done.flags) == (2_000, ("usage_wrong",))

    def test_is_below_its_own_reasoning(self):
        usage = {"completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 90}}
        done = meet(bundles("42", 1, tokens=90, usage=usage), limit=100)
        assert (done.tokens, done.flags) == (100, ("usage_wrong",))
        done = meet(bundles("42", 1, tokens=90, usage=usage), limit=50)
        assert (done.tokens, done.flags) == (90, ("usage_wrong", "limit_ignored"))

    def test_has_reasoning_that_is_no_number(self):
        for odd in (-5, "many", 10**30, 1.5):
            usage = {"completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": odd}}
            assert meet(bundles("42", 1, tokens=5, usage=usage)).flags == ("usage_wrong",)

    def test_with_reasoning_within_it_is_normal(self):
        usage = {"completion_tokens": 50, "completion_tokens_details": {"reasoning_tokens": 45}}
        done = meet(bundles("42", 1, tokens=50, usage=usage), limit=100)
        assert (done.tokens, done.flags) == (50, ())

    def test_with_reasoning_beside_it_shows_in_the_total(self):
        usage = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 60}
        usage["completion_tokens_details"] = {"reasoning_tokens": 50}
        done = meet(bundles("42", 1, tokens=55, usage=usage), limit=100)
        assert (done.tokens, done.flags) == (55, ())

    @pytest.mark.parametrize(
        ("total", "expected"), [(1_000, (995, ("limit_ignored",))), (16_000_000, (100, ("usage_wrong",)))]
    )
    def test_in_a_total_that_nothing_explains_is_not_called_generated(self, total, expected):
        usage = {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": total}
        done = meet(bundles("word ", 9, tokens=1, usage=usage), limit=100)
        assert (done.tokens, done.flags, done.certain) == (*expected, 9)


class TestUsageBeforeTheEnd:
    """Some servers send a running count, and not all of them a last one."""

    @staticmethod
    def counts(*texts, end=None, tokens=8):
        async def behave(request, reply):
            await reply.head()
            for place, text in enumerate(texts):
                reply.server.generated += tokens
                usage = {"usage": {"completion_tokens": tokens}} if not place else {}
                await reply.event(reply.chunk([reply.choice(text)], **usage))
            await reply.finish()
            if end is not None:
                await reply.usage(end)
            await reply.end()

        return behave

    def test_is_not_a_count_of_what_follows(self):
        done = meet(self.counts("eight short words ", "and eight more of them "), limit=20)
        assert (done.tokens, done.usage_source, done.flags, done.certain) == (20, "assumed", (), 8)

    def test_counts_the_text_beside_it(self):
        done = meet(self.counts("eight short words "), limit=20)
        assert (done.tokens, done.usage_source) == (8, "server")

    def test_does_not_matter_if_another_one_follows(self):
        done = meet(self.counts("eight short words ", "and eight more of them ", end=16), limit=20)
        assert (done.tokens, done.usage_source, done.flags) == (16, "server", ())

    def test_above_the_limit_is_noticed(self):
        done = meet(self.counts(*["so many words that they are eight tokens "] * 2), limit=7)
        assert (done.tokens, done.flags, done.certain) == (21, ("limit_ignored",), 8)


class TestWhatIsLearnt:
    def test_from_credible_answers(self):
        density = Density()
        assert (density.typical, density.most) == (4, 10)
        for _ in range(8):
            density.learn(600, 100)
        assert (density.typical, density.most) == (6, 9)

    def test_one_dense_answer_widens_the_bound(self):
        density = Density()
        for characters in [400] * 8 + [900]:
            density.learn(characters, 100)
        assert density.most == 13.5

    def test_stays_within_what_texts_have(self):
        for per_token in (0.5, 1, 10):
            density = Density()
            for _ in range(20):
                density.learn(int(100 * per_token), 100)
            assert 1 <= density.typical <= 6
            assert 8 <= density.most <= 15

    @pytest.mark.parametrize(("characters", "tokens"), [(40, 100), (1_100, 100), (60, 15), (0, 100)])
    def test_nothing_from_what_no_text_has(self, characters, tokens):
        density = Density()
        for _ in range(20):
            density.learn(characters, tokens)
        assert (density.typical, density.most) == (4, 10)

    def test_on_a_server_tightens_its_bound(self):
        """Eight answers show 5 characters a token: from then on 1,000 for a limit of 100 are too many."""

        async def run(url):
            backend, done = OpenAIBackend(url, "m", timeout=10), []
            for _ in range(9):
                done.append(await backend.complete(CHAT, 100))
            await backend.close()
            return done

        answers = iter([("word " * 10, 10, 10, 100)] * 8 + [("word " * 10, 20, 10, 100)])

        async def behave(request, reply):
            text, count, tokens, usage = next(answers)
            await bundles(text, count, tokens=tokens, usage=usage)(request, reply)

        with Server(behave) as server:
            done = asyncio.run(run(server.url))
        assert [each.flags for each in done] == [()] * 8 + [("limit_ignored",)]
        with Server(bundles("word " * 10, 20, tokens=10, usage=100)) as server:
            assert ask(server.url, limit=100).flags == ()  # before that it is possible

    def test_nothing_from_answers_that_hide_something(self):
        async def run(url):
            backend = OpenAIBackend(url, "m", timeout=10)
            for _ in range(9):
                await backend.complete(CHAT, 1_000)
            await backend.close()
            return backend._density

        hidden = {"completion_tokens": 60, "completion_tokens_details": {"reasoning_tokens": 40}}
        beside = {"prompt_tokens": 5, "completion_tokens": 20, "total_tokens": 65}
        for usage in (hidden, beside):
            with Server(bundles("word " * 20, 1, tokens=20, usage=usage)) as server:
                density = asyncio.run(run(server.url))
            assert (density.typical, density.most) == (4, 10)


class TestTheTable:
    """Every row of it, at a limit of 100."""

    @pytest.mark.parametrize(
        ("seen", "expected"),
        [
            (Seen(101, 101, None), (101, "counted", ("limit_ignored",))),
            (Seen(101, 101, 90), (101, "counted", ("limit_ignored",))),
            (Seen(101, 101, 130), (130, "counted", ("limit_ignored",))),
            (Seen(5, 1_065, None), (267, "counted", ("limit_ignored",))),
            (Seen(5, 1_065, 100), (267, "counted", ("limit_ignored",))),
            (Seen(5, 700, None, counted=109), (109, "counted", ("limit_ignored",))),
            (Seen(5, 700, None, counted=108), (100, "assumed", ())),
            (Seen(5, 20, 101), (101, "server", ("limit_ignored",))),
            (Seen(5, 20, 100), (100, "server", ())),
            (Seen(5, 20, 5), (5, "server", ())),
            (Seen(5, 20, 4), (100, "assumed", ("usage_wrong",))),
            (Seen(5, 164, 10), (10, "server", ())),
            (Seen(5, 165, 9), (100, "assumed", ("usage_wrong",))),
            (Seen(5, 600, 50), (150, "assumed", ("usage_wrong",))),
            (Seen(5, 600, 60, counted=90), (100, "assumed", ("usage_wrong",))),
            (Seen(5, 600, 80, counted=90), (80, "server", ())),
            (Seen(0, 0, 0, cut=True), (100, "assumed", ("usage_wrong",))),
            (Seen(0, 0, 0), (0, "server", ())),
            (Seen(5, 20, None, wrong=True), (100, "assumed", ("usage_wrong",))),
            (Seen(5, 20, 9, reasoning=10), (100, "assumed", ("usage_wrong",))),
            (Seen(5, 20, 9, reasoning=200), (200, "assumed", ("usage_wrong", "limit_ignored"))),
            (Seen(5, 20, 9, early=True), (100, "assumed", ())),
            (Seen(5, 20, 4, early=True), (100, "assumed", ())),
            (Seen(5, 900, 9, early=True), (225, "assumed", ("usage_estimated",))),
            (Seen(5, 20, 101, early=True), (101, "server", ("limit_ignored",))),
            (Seen(5, 20, 101, hidden=90), (101, "server", ("limit_ignored",))),
            (Seen(5, 900, None), (225, "assumed", ("usage_estimated",))),
            (Seen(5, 400, None), (100, "assumed", ())),
            (Seen(100, 700, None), (100, "assumed", ())),
        ],
        ids=str,
    )
    def test_says_what_is_charged(self, seen, expected):
        found = charge(seen, 100, Density())
        assert (found.tokens, found.source, found.flags) == expected

    def test_never_charges_above_the_limit_without_saying_why(self):
        for seen in (Seen(p, c, u) for p in (0, 9, 110) for c in (0, 90, 500, 2_000) for u in (None, 0, 50, 120)):
            found = charge(seen, 100, Density())
            assert found.tokens <= 100 or found.flags
            assert found.tokens >= max(seen.pieces, seen.used or 0)

    def test_says_what_is_certain_wherever_more_is_charged(self):
        density = Density()
        for seen, certain in [
            (Seen(101, 101, None), 101),
            (Seen(5, 1_065, None), 101),
            (Seen(5, 700, None, counted=109), 109),
            (Seen(5, 20, 101), None),
            (Seen(5, 20, 4), 5),
            (Seen(5, 900, None), 84),
            (Seen(5, 20, None), 5),
            (Seen(5, 20, 9, reasoning=10), 9),
            (Seen(5, 20, 9, early=True), 9),
            (Seen(5, 20, 101, hidden=90), 11),
        ]:
            assert charge(seen, 100, density).least == certain, seen


def test_runs_of_one_sign_are_few_tokens():
    assert (length("x" * 50), surplus("x" * 50)) == (50, 0)
    assert length(" " * 50) - surplus(" " * 50) == 4
    assert length("-" * 300) - surplus("-" * 300) == 12
    assert surplus("a    b") == 0


def test_a_cut_stream_of_bundles_has_an_unknown_cost():
    async def behave(request, reply):
        await reply.head()
        await reply.piece(PROSE, tokens=14)
        await reply.send(f"data: {json.dumps(reply.chunk([reply.choice('cut')]))[:40]}")

    outcome = meet(behave, limit=50)
    assert outcome.tokens is None
    assert charged(outcome, 50) == 50


def test_an_honest_server_that_bundles_and_counts_nothing_is_charged_its_limit():
    """An estimate that is a little above the limit is no reason to charge more than was granted."""
    done = meet(bundles(PROSE, 14, tokens=14), limit=200)
    assert (done.tokens, done.usage_source, done.flags) == (200, "assumed", ())


def test_text_beside_an_empty_delta_is_counted():
    answer = Answer({"messages": []}, 3)
    for _ in range(4):
        answer.add({"choices": [{"delta": {"role": "assistant"}, "message": {"content": "word "}}]})
    assert answer.overrun
