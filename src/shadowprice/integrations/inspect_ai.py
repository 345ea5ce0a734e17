"""Inspect AI: a hard budget of output tokens for a whole eval, with per-sample limits from the market.

    SHADOWPRICE_BUDGET=200k inspect eval task.py --model openai-api/...

Inspect finds this hook by its entry point as soon as both are installed; without the variable it does nothing. Every
call of a model, graders included, buys at the posted price before it is sent: its `max_tokens` is set to its grant. It
waits while calls under way hold what it would buy. A call that is declined ends its sample as a limit does in Inspect:
the sample is scored as it stands, the eval continues, and the log is complete. `SHADOWPRICE_FORECASTER` is the folder
of a forecaster of one's own.

A call that fails, or that is retried, has spent its grant: what the server generated is not known.
"""

from __future__ import annotations

import os
from contextvars import ContextVar

import anyio
from inspect_ai.hooks import (
    BeforeModelGenerate,
    Hooks,
    ModelCacheUsageData,
    ModelUsageData,
    RunStart,
    SampleStart,
    TaskStart,
    hooks,
)
from inspect_ai.util import LimitExceededError

from shadowprice.cost import parse_budget
from shadowprice.forecast import default, load
from shadowprice.integrations.purse import Purse, Reservation

BUDGET, FORECASTER = "SHADOWPRICE_BUDGET", "SHADOWPRICE_FORECASTER"

_PATIENCE, _LOOK = 60.0, 0.05  # seconds

# The reservation of the call that the current task is making: the events of one call happen in one task.
_calling: ContextVar[tuple[Purse, Reservation] | None] = ContextVar("calling", default=None)


@hooks(name="shadowprice", description="A hard budget of output tokens for the whole eval")
class Budget(Hooks):
    """`purse` is that of the latest run."""

    purse: Purse | None = None
    _held = (0, 0.0)  # what calls under way held when that last changed, and when that was

    def enabled(self) -> bool:
        return bool(os.environ.get(BUDGET))

    async def on_run_start(self, data: RunStart) -> None:
        self.purse = Budget.purse = _purse()

    async def on_task_start(self, data: TaskStart) -> None:
        samples = len(data.spec.dataset.sample_ids or []) or data.spec.dataset.samples or 0
        _open(self).samples += samples * (data.spec.config.epochs or 1)

    async def on_sample_start(self, data: SampleStart) -> None:
        _open(self).begun += 1

    async def on_before_model_generate(self, data: BeforeModelGenerate) -> None:
        try:
            await self._buy(data)
        except LimitExceededError:
            raise
        except Exception as error:  # Inspect would go on, without a limit
            raise LimitExceededError("token", value=0, limit=0, message=f"no budget: {error}") from error

    async def _buy(self, data: BeforeModelGenerate) -> None:
        purse = _open(self)
        _settle(None)  # an earlier attempt of this call has ended without an answer
        answers = max(1, data.config.num_choices or 1)
        limit = None if data.config.max_tokens is None else data.config.max_tokens * answers
        text = "\n".join(message.text for message in data.input)
        await self._others(purse, purse.wanted(text, limit, answers))
        reservation = purse.buy(text, limit, answers)
        if reservation.grant < answers:
            purse.settle(reservation, 0)
            raise LimitExceededError(
                "token",
                value=purse.spent + purse.reserved,
                limit=purse.budget,
                message=f"declined at a price of {purse.price:.3g}: {purse.free} of {purse.budget} tokens are left",
            )
        data.config.max_tokens = reservation.grant // answers
        _calling.set((purse, reservation))

    async def _others(self, purse: Purse, wanted: int) -> None:
        """Waits while calls under way hold what is wanted, as long as they end: one that has failed keeps its grant."""
        while purse.reserved and purse.free < wanted:
            if purse.reserved != self._held[0]:
                self._held = purse.reserved, anyio.current_time()
            if anyio.current_time() - self._held[1] > _PATIENCE:
                return
            await anyio.sleep(_LOOK)
        self._held = 0, 0.0

    async def on_model_usage(self, data: ModelUsageData) -> None:
        _settle(data.usage.output_tokens)

    async def on_model_cache_usage(self, data: ModelCacheUsageData) -> None:
        _settle(0)


def _purse() -> Purse:
    folder = os.environ.get(FORECASTER)
    return Purse(parse_budget(os.environ[BUDGET], 1), load(folder) if folder else default())


def _open(hook: Budget) -> Purse:
    if hook.purse is None:
        hook.purse = Budget.purse = _purse()
    return hook.purse


def _settle(usage: int | None) -> None:
    if call := _calling.get():
        purse, reservation = call
        purse.settle(reservation, usage)
        _calling.set(None)
