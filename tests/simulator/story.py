"""What a seed decides before a life begins: the requests, the settings, the budget, the faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from shadowprice.cost import TOKENS, Rates
from shadowprice.engine import Settings
from shadowprice.engine.executor import Tolerance
from shadowprice.engine.fixed import Ages
from shadowprice.formats.landings import LANDINGS, Landing
from shadowprice.market import POLICIES
from shadowprice.market.anytime import Anytime
from shadowprice.types import Forecast, Request

from ..engine.worlds import DOLLARS, PROBED, UNEVEN

PRACTICAL = [*(name for name in POLICIES if name not in ("oracle", "clairvoyant")), "index"]
# How an attempt can end other than with an answer. All of them may happen to a client of an honest server.
FAULTS = ("busy", "refuses connections", "cut", "some", "hangs", "refused", "denied", "maybe refused", "bug",
          "cancelled", "nonsense", "not continued")  # fmt: skip
ATTEMPTS = 4  # at a piece of work, where every request must be answered: fewer faults than that in a row pass
ENDS = ("kill", "power cut", "stop", "cancel")  # of a process


@dataclass(frozen=True)
class Outage:
    """From `start` to `end` every attempt ends in the same way."""

    start: float
    end: float
    fault: str
    delay: float | None  # that the server names


@dataclass(frozen=True)
class End:
    """What happens to a process, and at which of its steps."""

    kind: str
    step: int


@dataclass(frozen=True)
class Story:
    seed: int
    requests: list[Request]
    forecast: Forecast
    anytime: Anytime | None  # what landings are worth, where that is known
    lengths: dict[str, int]  # of the true answers
    budget: int
    settings: Settings | None  # None: questions are collected, with the same grant for each
    probe: Ages | None
    grant: int
    concurrency: int
    rates: Rates
    graded: bool
    tolerance: Tolerance
    continues: bool | None  # whether the server does; None: it does, but only trying shows it
    says_continues: bool  # whether the client knows without trying
    counts: str  # usage_source of answers
    counts_prompts: bool
    ids: bool  # answers have token ids
    keeps_limits: bool
    fault_rate: float
    faults: list[str]
    outages: list[Outage]
    latency: float
    disk_error_rate: float
    ends: list[End] = field(default_factory=list)  # of all processes but the last
    generous: bool = False  # the budget covers everything, and nothing goes wrong that does not pass
    at_fault: dict[str, str] = field(default_factory=dict)  # but for these requests: every attempt at them fails
    shuffle: bool = False
    on_file: bool = False

    @classmethod
    def of(cls, seed: int) -> Story:
        teller = _Teller(seed)
        story = teller.tell()
        return teller.generous(story) if teller.rng.random() < 0.15 else story


class _Teller:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(f"story {seed}")

    def tell(self) -> Story:
        rng = self.rng
        n = rng.choice([1, 2, 3, 4, 6, 8, 8, 12])
        longest = rng.choice([5, 20, 60, 200])
        lengths = {f"q{i:02d}": rng.randint(0 if rng.random() < 0.1 else 1, longest) for i in range(n)}
        requests = [self.request(name) for name in lengths]
        collecting = rng.random() < 0.15
        rates = TOKENS if collecting else rng.choice([TOKENS, TOKENS, DOLLARS, UNEVEN])
        settings = None if collecting else self.settings(longest, rates)
        grant = rng.choice([8, longest, 2 * longest])
        honest = rng.random() < 0.93
        return Story(
            seed=self.seed,
            requests=requests,
            forecast=Forecast(
                [max(1.0, length * rng.choice([0.3, 0.8, 1.0, 1.2, 3.0])) for length in lengths.values()],
                rng.choice([0.02, 0.5, 1.5]),
                [rng.choice([0.0, 0.1, 0.5, 0.9, 1.0]) for _ in lengths],
            ),
            anytime=rng.choice([None, PROBED]),
            lengths=lengths,
            budget=self.budget(lengths, settings, rates),
            settings=settings,
            probe=Ages.parse("0,7,50%,40") if rng.random() < 0.5 else None,
            grant=grant,
            concurrency=settings.concurrency if settings else rng.randint(1, 8),
            rates=rates,
            graded=rng.random() < 0.3,
            tolerance=Tolerance(rng.choice([0.0, 5.0, 60.0]), rng.choice([0.1, 0.5]), rng.choice([0.0, 0.1, 10.0])),
            continues=rng.random() < 0.7,
            says_continues=rng.random() < 0.6,
            counts=rng.choice(["server", "server", "server", "counted", "assumed"]),
            counts_prompts=rng.random() < 0.8,
            ids=rng.random() < 0.3,
            keeps_limits=honest,
            fault_rate=rng.choice([0.0, 0.05, 0.1, 0.3, 0.6]),
            faults=rng.sample(FAULTS, rng.randint(1, len(FAULTS))),
            outages=self.outages(),
            latency=rng.choice([0.0, 0.1, 5.0]),
            disk_error_rate=rng.choice([0.0, 0.0, 0.02, 0.1]),
            ends=[self.end() for _ in range(rng.choice([0, 1, 1, 2, 3, 5]))],
            shuffle=rng.random() < 0.5,
            on_file=rng.random() < 0.05,
        )

    def generous(self, story: Story) -> Story:
        """The same, where every request must be answered."""
        rng, settings = self.rng, story.settings
        if settings:
            policy = rng.choice(["uniform", "proportional", "index"])
            metered = policy == "index" or settings.accounting == "metered"
            settings = replace(
                settings,
                policy=policy,
                accounting="metered" if metered else "reserved",
                reclaim=True,
                samples=1 if metered else settings.samples,
                attempts=ATTEMPTS,
                max_tokens=max(story.lengths.values()) + 1,
            )
        return replace(
            story,
            settings=settings,
            budget=10**9,
            keeps_limits=True,
            fault_rate=rng.choice([0.0, 0.05]),
            faults=[rng.choice(["busy", "refuses connections"])],
            outages=[],
            tolerance=Tolerance(60.0, 0.1, 10.0),
            generous=True,
            at_fault={
                name: rng.choice(["busy", "refuses connections", "cut", "refused", "maybe refused", "bug", "nonsense"])
                for name in rng.sample(
                    sorted(story.lengths), rng.choice([0, 0, 1, 2, 3]) if len(story.lengths) > 5 else 0
                )
            },
        )

    def request(self, name: str) -> Request:
        own = self.rng.choice([None, None, None, 1, 10, 500])
        text = f"{name}: {'?' * self.rng.randint(1, 30)}"
        body: dict[str, object] = {"messages": [{"role": "user", "content": text}]}
        if own is not None:
            body["max_tokens"] = own
        return Request(name, text, own, body=body)

    def settings(self, longest: int, rates: Rates) -> Settings:
        rng = self.rng
        policy = rng.choice([*PRACTICAL, "index", "index", "auto"])
        accounting = "metered" if policy in ("index", "auto") else rng.choice(["reserved", "metered"])
        reserved = accounting == "reserved"
        samples = rng.choice([1, 1, 2, 3]) if reserved else 1
        return Settings(
            policy,
            accounting,
            max_tokens=rng.choice([None, 8, longest, 2 * longest]),
            reclaim=not reserved or rng.random() < 0.7,
            samples=samples,
            landing=rng.choice([None, LANDINGS["math"], Landing("\nFinal answer:", 5)]) if samples == 1 else None,
            chunk=rng.choice([1, 5, 16, 64]),
            concurrency=rng.randint(1, 8),
            attempts=rng.randint(1, 4),
            rates=rates,
        )

    def budget(self, lengths: dict[str, int], settings: Settings | None, rates: Rates) -> int:
        """From starving to ample."""
        tokens = sum(lengths.values()) * (settings.samples if settings else 2)
        if settings and settings.policy == "tale":
            tokens += 32 * len(lengths)
        needed = rates.bound(400 * len(lengths), tokens) if rates.money else tokens
        return int(needed * self.rng.choice([0.0, 0.1, 0.4, 0.8, 1.0, 2.0, 2.0, 4.0, 8.0]))

    def outages(self) -> list[Outage]:
        rng, found, start = self.rng, [], 1000.0
        for _ in range(rng.choice([0, 0, 0, 1, 2])):
            start += rng.choice([0.0, 0.5, 10.0, 60.0])
            end = start + rng.choice([0.1, 3.0, 30.0, 100.0])
            fault = rng.choice(["busy", "busy", "refuses connections", "cut"])
            found.append(Outage(start, end, fault, rng.choice([None, 0.0, 2.0, 90.0])))
            start = end
        return found

    def end(self) -> End:
        """Early steps are as likely as late ones on a logarithmic scale: a process takes ten to a thousand."""
        return End(self.rng.choice(ENDS), int(2 ** self.rng.uniform(0.0, 8.0)))
