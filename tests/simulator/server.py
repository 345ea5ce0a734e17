"""A virtual server and its client: every token it generates is counted, whether the client learns of it or not."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

import orjson

from shadowprice.backends.base import effective_limit, response
from shadowprice.errors import Denied, LimitViolated, Refused, Unavailable
from shadowprice.formats.results import ESTIMATE
from shadowprice.tale import ASKS, question
from shadowprice.types import Completion, Usage

from .audit import Attempt, Audit
from .process import Process, Violation
from .story import ATTEMPTS, Story


class Server:
    """One for the whole life."""

    def __init__(self, story: Story, audit: Audit) -> None:
        self.story, self.audit = story, audit
        self.rng = random.Random(f"server {story.seed}")
        self._in_a_row: Counter[str] = Counter()  # faults, by request
        # What the teacher is asked does not have the name of the request in it.
        self._estimates = {
            orjson.dumps(asked.body): asked.id
            for request in story.requests
            for asked in (question(request, turn) for turn in range(ASKS))
        }

    def name_of(self, body: Mapping[str, Any]) -> str:
        found = self._estimates.get(orjson.dumps(body))
        return found or str(body["messages"][-1]["content"]).partition(":")[0]

    def fault(self, name: str, now: float) -> tuple[str, float | None]:
        """What goes wrong with a request, and the delay that the server names; an empty text: nothing."""
        if name in self.story.at_fault:
            return self.story.at_fault[name], None
        for outage in self.story.outages:
            if outage.start <= now < outage.end:
                return outage.fault, outage.delay
        if self.rng.random() < self.story.fault_rate:
            fault, delay = self.rng.choice(self.story.faults), self.rng.choice([None, 0.0, 1.5])
            self._in_a_row[name] += 1
            if not self.story.generous or self._in_a_row[name] < ATTEMPTS:
                return fault, delay
        self._in_a_row[name] = 0
        return "", None

    def latency(self) -> float | None:
        """Seconds; None: it answers at once, and nothing else gets a turn."""
        return self.rng.choice([None, 0.0, self.story.latency * self.rng.random(), self.story.latency])

    def words(self, name: str, sample: int, start: int, count: int) -> str:
        """Tokens of an answer: all are different, and equally long, so that every part shows what it is a part of."""
        return "".join(f"{name}.{sample}.{i:03d} " for i in range(start, start + count))


class Client:
    """The backend of one process."""

    model = "virtual"

    def __init__(self, server: Server, process: Process) -> None:
        self.server, self.process = server, process
        self.story, self.audit, self.rng = server.story, server.audit, server.rng
        self.shown: bool | None = self.story.continues if self.story.says_continues else None
        self.violated = False

    def can_continue(self, body: Mapping[str, Any]) -> bool | None:
        return self.shown

    async def complete(
        self, body: Mapping[str, Any], limit: int, *, continue_from: Completion | None = None, suffix: str = ""
    ) -> Completion:
        self.process.step()
        if limit < 1:
            raise Violation(f"a limit of {limit}")
        limit = effective_limit(body, limit)
        if self.violated:
            raise LimitViolated("the server ignored a limit")
        call = _Call(self, body, limit, continue_from, suffix)
        now = asyncio.get_running_loop().time()
        fault, delay = self.server.fault(call.name, now)
        if fault == "refuses connections":
            await self._wait()
            raise Unavailable("connection refused", tokens=0, cause="connection refused", sent=False, delay=delay)
        call.send()
        try:
            await self._wait(hangs=fault == "hangs")
            self.process.step()
            return call.fail(fault, delay) if fault else call.answer()
        except asyncio.CancelledError:
            if call.attempt.under_way:  # by the executor: the server may generate all of it
                call.generated(limit, None)
            raise

    async def _wait(self, *, hangs: bool = False) -> None:
        seconds = 600.0 if hangs else self.server.latency()
        if seconds is not None:
            await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Nothing to close."""


class _Call:
    """One attempt, on its way."""

    attempt: Attempt

    def __init__(
        self, client: Client, body: Mapping[str, Any], limit: int, part: Completion | None, suffix: str
    ) -> None:
        self.client, self.body, self.limit, self.part, self.suffix = client, body, limit, part, suffix
        self.story, self.rng, self.audit = client.story, client.rng, client.audit
        self.name = client.server.name_of(body)
        self.sample = int(body.get("seed", 0))
        self.start = part.text.count(" ") if part else 0
        printed = sum(len(message["content"]) for message in body["messages"])
        self.prompt = 7 + printed // 4 + self.start

    def send(self) -> None:
        most = self.story.rates.bound(self.prompt, self.limit)
        self.attempt = self.audit.sent(self.name, most, dict(self.body), self.part, self.suffix)

    def generated(self, tokens: int, exact: int | None, usage: Usage | None = None) -> None:
        """The server has generated so much: it costs that, whatever the client learns of it."""
        rates, attempt = self.story.rates, self.attempt
        attempt.cost = rates.cost(usage or Usage(tokens, self.prompt))
        attempt.exact, attempt.under_way = exact, False
        self.audit.event("generated", self.name, tokens)

    def rejected(self) -> None:
        """The server has generated nothing, and charges nothing for reading the prompt."""
        self.attempt.under_way = False
        self.audit.event("rejected", self.name)

    # --- failures ------------------------------------------------------------------------------

    def fail(self, fault: str, delay: float | None) -> Completion:
        some = self.rng.randint(0, self.limit)
        if fault == "busy":
            self.rejected()
            raise Unavailable("503 busy", tokens=0, cause="503", delay=delay)
        if fault in ("refused", "denied"):
            self.rejected()
            raise Refused("no") if fault == "refused" else Denied("no key")
        if fault == "not continued" and (self.part is None or self.suffix):
            return self.answer()
        if fault == "not continued":
            return self.starts_over()
        self.generated(some, None)
        if fault == "some" and some:
            raise Unavailable("cut", tokens=some)
        if fault == "maybe refused":
            raise Refused("400 after a while", tokens=None)
        if fault == "bug":
            raise self.rng.choice([RuntimeError, KeyError, ValueError, AssertionError])("a bug\nof two lines")
        if fault == "cancelled":
            raise asyncio.CancelledError
        if fault == "nonsense":
            return self.nonsense(some)
        raise Unavailable(f"{fault}: nobody knows how much", tokens=None, cause=fault, delay=delay)

    def starts_over(self) -> NoReturn:
        """The server begins the answer again: what it generates is of no use."""
        some = self.rng.choice([0, self.rng.randint(1, self.limit)])
        if some:
            self.generated(some, None)
        else:
            self.rejected()
        self.audit.not_continued.add(self.name)
        raise Refused("it starts over", tokens=some, code="not_continued")

    def nonsense(self, some: int) -> Any:
        good = self.completion("x " * some, some, "stop")
        return self.rng.choice(
            [
                None,
                "an answer",
                replace(good, tokens=-1),
                replace(good, tokens=float(some)),  # type: ignore[arg-type]
                replace(good, input_tokens=True),
                replace(good, body={"choices": object()}),
                replace(good, text="\ud800"),
            ]
        )

    # --- answers -------------------------------------------------------------------------------

    def answer(self) -> Completion:
        if self.part is not None and not self.suffix:
            if not self.story.continues:
                self.client.shown = False
                self.starts_over()
            self.client.shown = True
        if not self.story.keeps_limits and self.rng.random() < 0.2:
            return self.exceeds()
        if self.name.startswith(ESTIMATE):
            text, length = self.rng.choice([("57", 2), ("about 57 or so", 5), ("1,200", 3), ("12345678901234567", 17)])
        elif self.suffix:
            text, length = "42}", 3
        else:
            whole = self.story.lengths[self.name] + 11 * self.sample
            length = max(0, whole - self.start)
            text = self.client.server.words(self.name, self.sample, self.start, min(length, self.limit))
        if length > self.limit > 1 and self.rng.random() < 0.05:  # its context is full
            tokens = self.limit - 1
            text = self.client.server.words(self.name, self.sample, self.start, tokens)
        else:
            tokens = min(length, self.limit)
        return self.counted(text, tokens, "stop" if length <= self.limit else "length")

    def counted(self, text: str, tokens: int, finish: str) -> Completion:
        """The answer, with the count of tokens as this server gives it."""
        story, usage = self.story, Usage(tokens, self.prompt)
        if story.counts_prompts and self.story.counts == "server":
            cached = self.rng.randint(0, self.prompt)
            usage = Usage(tokens, self.prompt - cached, cached)
        told = self.limit if story.counts == "assumed" else tokens
        exact = story.counts == "server" and (story.counts_prompts or not story.rates.money)
        self.generated(tokens, story.rates.cost(usage) if exact else None, usage)
        answer = self.completion(text, told, finish)
        if story.counts_prompts and story.counts == "server":
            return replace(answer, input_tokens=usage.input, cached_tokens=usage.cached)
        return answer

    def exceeds(self) -> Completion:
        """Generates more than its limit; the client notices, and sends nothing more."""
        tokens = self.limit + self.rng.randint(1, 30)
        self.audit.within_model = False
        self.client.violated = True
        self.audit.event("exceeds", self.name, tokens, self.limit)
        usage = Usage(tokens, self.prompt)
        self.generated(tokens, None, usage)
        if self.rng.random() < 0.3:
            raise Unavailable("cut off: it ignored its limit", tokens=tokens)
        answer = self.completion("x " * tokens, tokens, "length")
        return replace(answer, flags=("limit_ignored",), usage_source="counted")

    def completion(self, text: str, tokens: int, finish: str) -> Completion:
        form = response(self.body, name="r", model="virtual", text=text, finish=finish, tokens=tokens)
        ids = tuple(range(self.start, self.start + tokens)) if self.story.ids and not self.suffix else ()
        return Completion(text, tokens, finish, self.story.counts, body=form, ids=ids)  # type: ignore[arg-type]
