"""Schedulers of every configuration, and a world of answers and failures to try them in."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf

from hypothesis import strategies as st

from shadowprice import Forecast, Request
from shadowprice.backends.base import response
from shadowprice.cost import TOKENS, Rates
from shadowprice.engine import Settings, make_scheduler
from shadowprice.engine.fixed import Ages, Fixed
from shadowprice.engine.landing import Lander
from shadowprice.engine.reserved import Reserved
from shadowprice.engine.scheduler import Report, Scheduler, Work
from shadowprice.errors import BackendError, Refused, Unavailable
from shadowprice.formats.landings import Landing
from shadowprice.formats.results import StoredPart, dropped_parts
from shadowprice.market import POLICIES
from shadowprice.market.anytime import Anytime
from shadowprice.market.evidence import Evidence
from shadowprice.types import Completion, Result, Usage

PRACTICAL = [name for name in POLICIES if name not in ("oracle", "clairvoyant")]
DOLLARS = Rates.dollars("0.15", "0.6", "0.075")
UNEVEN = Rates(input=333_333, cached=77_777, output=1_234_567)  # units that do not come out even
CAP = 60
LANDING = Landing("\nThe answer is \\boxed{", 6)
ANYTIME = Anytime((0.0, 0.5, 1.0), (0.2, 0.4, 0.8), 4.0)
PROBED = replace(ANYTIME, tokens=1.0, evidence=Evidence((0.05, 0.1, 0.2, 0.4, 0.8), (0.0,) + (0.5,) * 4, (0.0,) * 5))


@dataclass(frozen=True)
class Configuration:
    """What makes a scheduler; the same one twice, because a run that is resumed makes it again."""

    name: str
    settings: Settings | None = None
    probe: Ages | None = None
    once: bool = False  # cleared once only
    anytime: Anytime | None = None

    @property
    def rates(self) -> Rates:
        return self.settings.rates if self.settings else TOKENS

    @property
    def samples(self) -> int:
        return self.settings.samples if self.settings else 1

    def make(self, can_continue=lambda request: True) -> Scheduler:
        if self.settings is None:
            return Fixed(CAP, probe=self.probe, attempts=3)
        if self.once and self.settings.accounting == "metered":  # no command does this; the class allows it
            s = self.settings
            return Reserved(s.policy, max_tokens=CAP, reclaim=False, can_continue=can_continue, attempts=s.attempts)
        scheduler = make_scheduler(self.settings, can_continue, self.anytime)
        if self.settings.policy == "index":  # so that a few answers teach something
            (scheduler._inner if isinstance(scheduler, Lander) else scheduler).lessons.ended = 2
        return scheduler


def _settings(policy: str, accounting: str = "reserved", **more) -> Settings:
    return Settings(policy, accounting, max_tokens=CAP, attempts=3, concurrency=4, **more)


def _configurations() -> Iterator[Configuration]:
    for policy in PRACTICAL:
        yield Configuration(policy, _settings(policy))
        yield Configuration(f"{policy} once", _settings(policy, reclaim=False), once=True)
        yield Configuration(f"{policy} metered", _settings(policy, "metered"))
    yield Configuration("expected metered once", _settings("expected", "metered"), once=True)
    for name, rates in {"dollars": DOLLARS, "uneven": UNEVEN}.items():
        yield Configuration(f"expected {name}", _settings("expected", rates=rates))
        yield Configuration(f"clear once {name}", _settings("clear", reclaim=False, rates=rates), once=True)
        yield Configuration(f"proportional metered {name}", _settings("proportional", "metered", rates=rates))
        yield Configuration(f"uniform samples {name}", _settings("uniform", samples=3, rates=rates))
        yield Configuration(f"index {name}", _settings("index", "metered", chunk=8, rates=rates))
    for policy in ("uniform", "expected", "tale"):
        yield Configuration(f"{policy} samples", _settings(policy, samples=3))
        yield Configuration(f"{policy} samples once", _settings(policy, samples=3, reclaim=False), once=True)
    yield Configuration("index", _settings("index", "metered"))
    yield Configuration("index chunks", _settings("index", "metered", chunk=5))
    yield Configuration("auto", _settings("auto", "metered"))
    for policy, accounting in (
        ("index", "metered"), ("auto", "metered"), ("proportional", "metered"), ("expected", "reserved"),
    ):  # fmt: skip
        landing = _settings(policy, accounting, landing=LANDING)
        yield Configuration(f"{policy} landing", landing)
        yield Configuration(f"{policy} landing at once", landing, anytime=ANYTIME)
        yield Configuration(f"{policy} landing dollars", replace(landing, rates=DOLLARS), anytime=ANYTIME)
    for policy in ("index", "auto"):
        yield Configuration(f"{policy} probes", _settings(policy, "metered", landing=LANDING, chunk=5), anytime=PROBED)
    yield Configuration("clear once landing", _settings("clear", reclaim=False, landing=LANDING), once=True)
    yield Configuration("fixed")
    yield Configuration("fixed probes", probe=Ages.parse("0,7,50%,40"))


CONFIGURATIONS = list(_configurations())

FAILURES = ("busy", "down", "lost", "some", "refused", "not continued")


@dataclass(frozen=True)
class Story:
    """What happens: how long answers are, which attempts fail and how, who reports first, when it crashes."""

    tokens: list[float]  # forecast
    solve: list[float]
    spread: float
    ends: list[int]  # where answers end
    limits: list[int | None]  # the callers' own
    budget: float  # share of what all answers need
    continues: list[bool | None]
    fails: float  # share of the attempts
    kinds: list[str]  # of failures
    parallel: int
    seed: int


lengths = st.one_of(st.integers(1, 20), st.integers(1, 200))


@st.composite
def stories(draw, most: int = 8) -> Story:
    n = draw(st.integers(1, most))

    def each(what):
        return draw(st.lists(what, min_size=n, max_size=n))

    return Story(
        tokens=each(st.floats(1, 300)),
        solve=each(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0])),
        spread=draw(st.sampled_from([0.02, 0.5, 1.5])),
        ends=each(lengths),
        limits=each(st.sampled_from([None, None, 1, 10, 500])),
        budget=draw(st.sampled_from([0.0, 0.1, 0.4, 1.0, 5.0])),
        continues=draw(st.sampled_from([[True], [False], [None], [True, False], [None, False], [None, True]])),
        fails=draw(st.sampled_from([0.0, 0.1, 0.5])),
        kinds=draw(st.lists(st.sampled_from(FAILURES), min_size=1, max_size=5)),
        parallel=draw(st.integers(1, 5)),
        seed=draw(st.integers(0, 10**6)),
    )


@dataclass
class World:
    """A story, told to a scheduler; breaks off with an AssertionError where the scheduler breaks a promise."""

    story: Story
    make: Configuration
    honest: bool = True  # the server keeps its limits
    spent: int = 0
    lost: int = 0  # of that, by attempts without an answer, and by those that a crash hid
    results: dict[str, Result] = field(default_factory=dict)
    kept: list[tuple[str, StoredPart]] = field(default_factory=list)  # parts, as a ledger keeps them
    shown: bool | None = None  # whether the server continues, once it is known

    def __post_init__(self) -> None:
        story, self.random = self.story, random.Random(self.story.seed)
        self.requests = [
            Request(f"q{i}", "?", limit, body={"messages": [{"role": "user", "content": "?" * (1 + i % 3)}]})
            for i, limit in enumerate(story.limits)
        ]
        self.forecast = Forecast(story.tokens, story.spread, story.solve)
        needed = sum(min(end, CAP) for end in story.ends) * self.make.samples
        unit = self.make.rates.output / 10**6
        entry = self.make.rates.bound(300, 0) * len(story.ends) if self.make.rates.priced else 0
        self.budget = int(story.budget * (needed * unit + entry))
        self.start()

    def start(self) -> None:
        """A new scheduler, that of a resumed run if something is kept."""
        self.out: dict[int, Work] = {}
        self.scheduler = self.make.make(self.can_continue)
        self.scheduler.add(self.requests, self.forecast)
        kept = [(name, stored) for name, stored in self.kept if name not in self.results]
        dropped = dropped_parts(kept)
        for number, (name, stored) in enumerate(kept):
            if number in dropped:
                self.scheduler.dropped(int(name[1:]), stored.part)
            else:
                self.scheduler.restore(int(name[1:]), stored.part, sample=stored.sample, landing=stored.landing)
        for name, result in self.results.items():
            self.scheduler.restore(int(name[1:]), result)

    def crash(self) -> None:
        """Nobody knows what became of the work under way: it is charged in full."""
        for work in self.out.values():
            self.spent += work.bound
            self.lost += work.bound
        self.start()

    # --- the server

    def _says(self, request: Request) -> bool | None:
        return self.story.continues[int(request.id[1:]) % len(self.story.continues)]

    def can_continue(self, request: Request) -> bool | None:
        printed = self._says(request)
        return self.shown if printed is None else printed

    def cap(self, place: int) -> float:
        return min(CAP, self.story.limits[place] or inf)

    def answer(self, work: Work) -> Report:
        """What comes of a piece of work."""
        if self.random.random() < self.story.fails:
            return self._failure(work, self.random.choice(self.story.kinds))
        if work.so_far is not None and not work.suffix:
            if self._says(work.request) is None and self.shown is None:
                self.shown = self.story.seed % 2 == 0
            if self.can_continue(work.request) is False:
                return self._failure(work, "not continued")
        return self._completed(work)

    def _failure(self, work: Work, kind: str) -> Report:
        some = self.random.randint(1, work.grant)
        error: BackendError = {
            "busy": Unavailable("busy", tokens=0),
            "down": Unavailable("down", tokens=0),
            "lost": Unavailable("lost", tokens=None),
            "some": Unavailable("cut", tokens=some),
            "refused": Refused("no"),
            "not continued": Refused("anew", tokens=self.random.choice([0, some]), code="not_continued"),
        }[kind]
        free = error.tokens == 0
        cost = 0 if free else error.tokens if error.tokens and not self.make.rates.priced else work.bound
        down = kind == "down"
        tried = self.random.randint(0, 1) if down else self.random.randint(1, 2) if free else 1
        return Report(work, cost, error=error, attempts=tried, postponed=down)

    def _completed(self, work: Work) -> Report:
        age = work.so_far.tokens if work.so_far else 0
        length = 3 if work.suffix else max(0, self.story.ends[work.place] + 11 * work.sample - age)
        tokens = min(length, work.grant)
        finish = "stop" if length <= work.grant else "length"
        prompt = len(work.body["messages"][-1]["content"]) + age if self.make.rates.priced else 0
        cached = self.random.randint(0, prompt)
        text = (self.random.choice("xy") if work.suffix else "x") * tokens
        form = response(work.body, name="r", model="m", text=text, finish=finish, tokens=tokens)
        found = Completion(
            text, tokens, finish, "server", body=form, input_tokens=prompt - cached, cached_tokens=cached
        )
        cost = self.make.rates.cost(Usage(tokens, prompt - cached, cached))
        graded = self.random.random() < 0.3 if self.make.samples > 1 and finish == "stop" else None
        return Report(work, cost, found, correct=graded)

    # --- the executor

    def send(self) -> bool:
        """The next piece of work, if there is any."""
        reserved = sum(work.bound for work in self.out.values())
        available = self.budget - self.spent - reserved
        work = self.scheduler.next(available, self.avoided())
        if work is None:
            return False
        assert work.request is self.requests[work.place]
        assert work.request.id not in self.results, "it has a result"
        assert work.place not in self.out, "it is under way"
        assert work.grant >= 1
        assert work.bound <= available, "more than there is"
        if work.probe:
            assert work.so_far is not None
        else:
            age = work.so_far.tokens if work.so_far else 0
            assert age + work.grant <= self.cap(work.place), "above the cap of an answer"
            assert 0 <= work.sample < self.make.samples
        self.out[work.place] = work
        return True

    def avoided(self) -> set[int]:
        """Some requests that failed; whether others come before them changes nothing else."""
        some = self.random.randint(0, len(self.requests)) if self.random.random() < self.story.fails else 0
        return set(self.random.sample(range(len(self.requests)), some))

    def report(self) -> None:
        """Any piece of the work under way ends."""
        work = self.out.pop(self.random.choice(sorted(self.out)))
        report = self.answer(work)
        assert report.cost <= work.bound or not self.honest
        self.spent += report.cost
        result = self.scheduler.done(report)
        if result is not None:
            self.keep(result)
        elif report.completion is not None:
            stored = StoredPart(report.completion, work.sample, bool(work.suffix), anew=work.so_far is None)
            self.kept.append((work.request.id, stored))
        if report.completion is None and result is None:
            self.lost += report.cost

    def keep(self, result: Result) -> None:
        assert result.id not in self.results, "it has two results"
        self.results[result.id] = result

    def step(self) -> bool:
        """False: nothing is under way, and nothing is sent any more."""
        while len(self.out) < self.story.parallel and self.send():
            pass
        if not self.out:
            return False
        self.report()
        return True

    def run(self, most: int = 5000) -> None:
        for _ in range(most):
            if not self.step():
                return
        raise AssertionError("it does not end")

    def close(self, stopped: str = "") -> list[Result]:
        rest = list(self.scheduler.close(stopped))
        for result in rest:
            self.keep(result)
        return rest
