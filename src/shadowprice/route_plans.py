"""A plan with several routes: one batch file for each, all of them within one budget in money.

As in `planning` the budget is divided once, and every limit counts in full: the most that the requests can cost is
within the budget. A request goes to the route that leaves it the largest surplus at the price (`market.menu`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from shadowprice.cost import parse_budget, prompt_bound
from shadowprice.errors import InputError
from shadowprice.formats.batch import BatchLine, with_limit
from shadowprice.formats.declined import declined
from shadowprice.formats.results import result_line
from shadowprice.formats.routes import Route, check_contexts
from shadowprice.market.curves import Expected
from shadowprice.market.menu import clear_menu, whole_grants
from shadowprice.market.options import DECLINE, Option
from shadowprice.types import Forecast


@dataclass(frozen=True, eq=False)
class RoutePlan:
    """What each request may use, and where.

    route   its number in `routes`; DECLINE: declined
    limits  tokens of its answer
    costs   the most nano-dollars that it can cost; together never more than `budget`
    """

    routes: Sequence[Route]
    budget: int
    price: float
    utility: float
    bound: float
    status: str
    route: NDArray[np.int64] = field(repr=False)
    limits: NDArray[np.int64] = field(repr=False)
    costs: NDArray[np.int64] = field(repr=False)
    forecast: Forecast = field(repr=False)
    lines: Sequence[BatchLine] = field(repr=False)

    @property
    def declined(self) -> int:
        return int(np.count_nonzero(self.route == DECLINE))

    def summary(self) -> dict[str, Any]:
        by_route = {
            route.name: {
                "requests": int(np.count_nonzero(self.route == number)),
                "granted": int(self.limits[self.route == number].sum()),
                "cost": int(self.costs[self.route == number].sum()),
            }
            for number, route in enumerate(self.routes)
        }
        whole = {"requests": len(self.lines), "budget": self.budget, "cost": int(self.costs.sum())}
        more = {"declined": self.declined, "price": self.price, "utility": self.utility, "bound": self.bound}
        return {**whole, **more, "status": self.status, "routes": by_route}

    def write_to(self, files: Sequence[IO[bytes]], errors: IO[bytes]) -> None:
        """Writes the requests of each route to its file, with their limits and its model; the others to `errors`."""
        for place, line in enumerate(self.lines):
            number = int(self.route[place])
            if number == DECLINE:
                errors.write(result_line(declined(line.request.id, self.forecast, place, self.price)) + b"\n")
                continue
            limited = orjson.loads(with_limit(line.raw, line.limit_field, int(self.limits[place])))
            if self.routes[number].model:
                limited["body"]["model"] = self.routes[number].model
            files[number].write(orjson.dumps(limited) + b"\n")


def plan_routes(
    lines: Sequence[BatchLine],
    budget: int | float | str,
    routes: Sequence[Route],
    forecasts: Sequence[Forecast],
    *,
    max_tokens: int | None = None,
) -> RoutePlan:
    """Divides `budget` among the requests of a batch. `forecasts` has one forecast of all requests per route."""
    requests = [line.request for line in lines]
    if several := next((request.id for request in requests if request.answers > 1), None):
        raise InputError(f"request {several!r:.60} asks for several answers", fix="ask for one, or plan without routes")
    check_contexts(routes, requests)
    supply = parse_budget(budget, len(requests), routes[0].rates)
    prompt = np.array([prompt_bound(request.body) for request in requests], dtype=np.float64)
    own = np.array([request.max_tokens for request in requests], dtype=np.float64)  # NaN: no limit of the caller's
    limit = np.fmin(own, np.inf if max_tokens is None else max_tokens)
    menu = []
    for route, forecast in zip(routes, forecasts, strict=True):
        room = np.array([route.room(request) for request in requests], dtype=np.float64)
        rates = route.rates
        # Every cost is rounded up by less than a unit.
        entry = prompt * max(rates.input, rates.cached) / 10**6
        curves = Expected(
            forecast.solved_tokens,
            forecast.solved_spread,
            forecast.solve,
            forecast.tail,
            np.floor(np.fmin(limit, room)),
        )
        menu.append(Option(curves, rates.output / 10**6, entry).within(supply))
    cleared = clear_menu(menu, max(0, supply - len(requests)))
    grants, _ = whole_grants(menu, cleared, max(0, supply - len(requests)))
    served = np.where(grants > 0, cleared.option, DECLINE)
    costs = np.array(
        [
            routes[number].rates.bound(int(tokens), grant) if number != DECLINE else 0
            for number, tokens, grant in zip(served.tolist(), prompt.tolist(), grants.tolist(), strict=True)
        ],
        dtype=np.int64,
    )
    assert costs.sum() <= supply
    return RoutePlan(
        routes, supply, cleared.price, cleared.utility, cleared.bound, cleared.status, served, grants, costs,
        forecasts[0], lines,
    )  # fmt: skip
