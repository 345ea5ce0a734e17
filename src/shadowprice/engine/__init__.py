"""Decisions without I/O, one loop, one simulator.

scheduler   the protocol of a scheduler, and what all schedulers share
reserved    any policy, cleared in rounds
metered     serving by index
lessons     when a run corrects its forecasts
readings    what was read in the answers of a run
guard       whether a run follows the index, or lets all answers grow to one level
landing     wraps a scheduler: landings for what it leaves without a finished answer
probing     which requests are asked for their final answer while they run
routed      several models at one price: `market.menu`, in expected cost
sites       what `routed` knows of each route
parts       which of its answers were cut and may be continued
answers     what its requests have while they wait for more: cascades, samples, votes
voting      answers that are not graded: what leads, and what more would change (`market.votes`)
auto        the index if answers can be continued, else `expected`: the default of `run`
fixed       the same grant for every request: collecting traces, asking a teacher
granted     grants that were decided elsewhere: the workers of a job on Ray
prompts     prompts that state the limit
context     what the context of a local model leaves for answers
breaker     how many attempts may be in flight; outages
executor    `execute`, the only loop that reserves, sends, retries and settles
progress    the progress of an execution, and which faults it tolerates
lost        attempts that were in flight when a run crashed
simulate    the same schedulers over recorded answers
recall      what simulations of the same requests compute only once
bulk        the same if only lengths matter, a whole round at a time
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shadowprice.cost import TOKENS, Rates
from shadowprice.engine.auto import Auto
from shadowprice.engine.landing import Lander
from shadowprice.engine.metered import Metered
from shadowprice.engine.readings import PartReader
from shadowprice.engine.reserved import Reserved
from shadowprice.engine.scheduler import CanContinue, Scheduler
from shadowprice.errors import InputError
from shadowprice.formats.landings import LANDINGS, Landing, read_landing
from shadowprice.market import check_policy
from shadowprice.market.anytime import Anytime

HINDSIGHT = ("oracle", "clairvoyant")  # policies that need to know the answers


@dataclass(frozen=True)
class Settings:
    """Everything that a scheduler's decisions depend on.

    policy       a name in `market.POLICIES`; `index` (metered accounting only); or `auto`: the index in metered
                 accounting if the backend continues answers, else `expected` in reserved accounting
    accounting   reserved: grants count against the budget until their answers end; metered: tokens count when
                 they are generated, and answers continue where they stopped. If only one of policy and accounting is
                 given, the other follows from it; without both, the policy is `auto`
    options      of the policy
    max_tokens   the most tokens that an answer may get
    reclaim      clear again with what was not used (reserved accounting; metered accounting always does)
    samples      the most answers that a request may have from its grant, one after the other
    chunk        minimum tokens of a chunk (index)
    concurrency  requests in flight
    attempts     at one piece of work, as long as they generate nothing
    rates        units per token
    landing      how to ask for the final answer of answers that are stopped: a `formats.landings.Landing`, or its
                 name; None: not at all
    """

    policy: str = ""
    accounting: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    reclaim: bool = True
    samples: int = 1
    chunk: int = 64
    concurrency: int = 8
    attempts: int = 4
    rates: Rates = TOKENS
    landing: Landing | str | None = None

    def __post_init__(self) -> None:
        policy, accounting = self.policy, self.accounting
        if not policy and not accounting and self.samples == 1 and self.reclaim and not self.options:
            policy = "auto"
        policy = policy or ("index" if accounting == "metered" else "expected")
        accounting = accounting or ("metered" if policy in ("index", "auto", "routes") else "reserved")
        object.__setattr__(self, "policy", policy)
        object.__setattr__(self, "accounting", accounting)
        if isinstance(self.landing, str):
            object.__setattr__(self, "landing", read_landing(self.landing))

    def check(self) -> None:
        """Raises an error if settings cannot be combined."""
        if self.accounting not in ("reserved", "metered"):
            raise InputError(f"accounting {self.accounting!r}", fix="choose reserved or metered")
        if self.samples < 1 or self.concurrency < 1:
            raise InputError("samples and concurrency must be at least 1", fix="give 1 or more")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InputError(f"max_tokens is {self.max_tokens}", fix="give 1 or more, or leave it out")
        if self.policy == "auto":
            if self.options or self.samples != 1 or not self.reclaim or self.accounting != "metered":
                raise InputError("policy auto cannot be combined with other settings", fix="name a policy")
        elif self.policy == "routes":
            if self.options or not self.reclaim or self.accounting != "metered" or self.landing:
                raise InputError("routes cannot be combined with other policies or landings", fix="leave them out")
        elif self.policy == "index":
            if self.accounting != "metered":
                raise InputError("policy index needs metered accounting", fix="use metered")
            if self.options:
                raise InputError("policy index takes no options", fix="leave them out")
        else:
            check_policy(self.policy, self.options)
        if self.landing is not None and self.samples != 1:
            raise InputError("several samples cannot be combined with landings", fix="leave one of them out")
        if self.accounting == "metered":
            if not self.reclaim:
                raise InputError(
                    "no reclaim in metered accounting: only what is used counts", fix="use reserved accounting"
                )
            if self.samples != 1 and self.policy != "routes":
                raise InputError("several samples in metered accounting", fix="use reserved accounting")

    def command(self, budget: str) -> str:
        """The command line with the same settings."""
        if self.policy in HINDSIGHT:
            return ""
        words = ["shadowprice run QUESTIONS", f"--budget {shlex.quote(budget)}"]
        if self.policy != "auto":
            words += [f"--policy {self.policy}"]
            words += [f"--option {name}={float(value)!r}" for name, value in self.options.items()]
            words += [f"--accounting {self.accounting}"]
        if self.accounting == "reserved" and not self.reclaim:
            words.append("--no-reclaim")
        if self.samples > 1:
            words.append(f"--samples {self.samples}")
        if self.max_tokens is not None:
            words.append(f"--max-tokens {self.max_tokens}")
        if self.landing is not None:
            words.append(f"--landing {next((name for name, each in LANDINGS.items() if each == self.landing), 'FILE')}")
        return " ".join(words)


def make_scheduler(
    settings: Settings,
    can_continue: CanContinue = lambda request: True,
    anytime: Anytime | None = None,
    reader: PartReader | None = None,
) -> Scheduler:
    """The scheduler for these settings.

    can_continue  which answers the backend can continue
    anytime       what landings are worth; None: unknown
    reader        reads parts of answers; None: they are not read. Neither are those that may land
    """
    settings.check()
    if not isinstance(settings.landing, Landing):
        return _scheduler(settings, can_continue, None, reader)
    return Lander(_scheduler(settings, can_continue, anytime, None), settings.landing, can_continue, anytime)


def _scheduler(
    settings: Settings, can_continue: CanContinue, anytime: Anytime | None, reader: PartReader | None
) -> Metered | Reserved | Auto:
    common: dict[str, Any] = {
        "max_tokens": settings.max_tokens, "attempts": settings.attempts, "rates": settings.rates,
    }  # fmt: skip
    if settings.policy in ("index", "auto"):
        metered = Metered(
            chunk=settings.chunk,
            concurrency=settings.concurrency,
            can_continue=can_continue,
            anytime=anytime,
            reader=reader,
            end_loops=settings.landing is not None,  # only then simulations have texts; the lab has lengths alone
            **common,
        )
        return metered if settings.policy == "index" else Auto(metered, Reserved(**common), can_continue)
    return Reserved(
        settings.policy,
        options=settings.options,
        reclaim=settings.reclaim,
        samples=settings.samples,
        can_continue=can_continue if settings.accounting == "metered" else None,
        announce=settings.policy == "tale",
        **common,
    )
