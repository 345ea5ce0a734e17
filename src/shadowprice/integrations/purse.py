"""One budget that calls of a model buy from as they arrive, where it is known how many samples there are."""

from __future__ import annotations

from dataclasses import dataclass

from shadowprice.forecast import Predictor
from shadowprice.market import Expected
from shadowprice.market.pacing import Pacer
from shadowprice.market.posted import Offers
from shadowprice.types import Forecast, Request

_FEW = 8  # grants
_USUAL = 0.9  # of answers have ended by then


@dataclass(frozen=True)
class Reservation:
    """Tokens that a call may use, and those that it is expected to."""

    grant: int
    expected: float


class Purse:
    """spent + reserved never exceeds the budget, as long as servers keep to their limits.

    The pacer's clock is the share of the samples that have begun. Calls that have no place in it (a second call of a
    sample, a grader's) buy at the same price.
    """

    def __init__(self, budget: int, forecaster: Predictor) -> None:
        self.budget, self.spent, self.reserved = budget, 0, 0
        self.samples = self.begun = 0
        self._forecaster = forecaster
        self._pacer = Pacer(budget, 1.0)
        self._pacer.update(0.0, 0.0, 0.0)
        self._charged = self._demanded = self._in_flight = 0.0

    @property
    def price(self) -> float:
        return self._pacer.price

    @property
    def free(self) -> int:
        return max(0, self.budget - self.spent - self.reserved)

    def wanted(self, text: str, limit: int | None = None, answers: int = 1) -> int:
        """Tokens that a call would buy if those under way had ended and left all that they hold."""
        forecast = self._forecaster.predict([Request("", text)])
        return self._fair(forecast, int(self._offers(forecast, limit).at(self.price).grant[0]), answers)

    def buy(self, text: str, limit: int | None = None, answers: int = 1) -> Reservation:
        """Reserves what a call buys at the price, for all its answers, within its limit; a grant of 0 declines it."""
        forecast = self._forecaster.predict([Request("", text)])
        offers = self._offers(forecast, limit)
        self._pacer.observe(offers)
        now = self.begun / max(self.samples, self.begun, 1)
        price = self._pacer.update(now, self._charged, self._demanded, in_flight=self._in_flight)
        self._charged = self._demanded = 0.0
        bought = offers.at(price)
        if bought.grant[0] > self.free:
            bought = Offers(forecast, self.free).at(price)
        grant = self._fair(forecast, int(bought.grant[0]), answers)
        reservation = Reservation(grant, min(grant, float(bought.cost[0])))
        self.reserved += reservation.grant
        self._demanded += reservation.expected
        self._in_flight += reservation.expected
        return reservation

    def _offers(self, forecast: Forecast, limit: int | None) -> Offers:
        return Offers(forecast, self.budget if limit is None else min(limit, self.budget))

    def _fair(self, forecast: Forecast, grant: int, answers: int) -> int:
        """No more than its answers need as a rule, if few such grants are left: other calls are made meanwhile."""
        if grant <= self.free // _FEW:
            return grant
        usual = Expected(forecast.tokens, forecast.spread, 1.0, forecast.tail).quantile(_USUAL)[0]
        return min(grant, max(answers * int(usual), self.free // _FEW))

    def settle(self, reservation: Reservation, usage: int | None = None) -> None:
        """Charges what a call has used; where that is unknown, all that it might have."""
        used = reservation.grant if usage is None else usage
        self.reserved -= reservation.grant
        self.spent += used
        self._charged += used
        self._in_flight = max(0.0, self._in_flight - reservation.expected)
