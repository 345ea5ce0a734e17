"""Open routes: a backend and a forecaster for each.

    with open_routing(read_routes("routes.toml")) as routing:
        Run(questions, budget="$5", routes=routing)

A route may have a forecaster of its own; the others share one. A folder made by `train --routes` also has revisers:
what an answer of one route says about the others (`forecast.revise`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from shadowprice.backends.base import AsyncContext, Backend
from shadowprice.engine.executor import Channel
from shadowprice.engine.routed import Routed
from shadowprice.engine.scheduler import CanContinue
from shadowprice.errors import InputError
from shadowprice.forecast import Predictor, default, load, predict_all
from shadowprice.forecast.folder import fingerprint
from shadowprice.forecast.revise import Reviser
from shadowprice.forecast.routes import (
    REVISERS,
    Together,
    believed,
    half_folder,
    load_agreement,
    load_correlation,
    load_revisers,
    trained_together,
)
from shadowprice.formats.files import sha256_of
from shadowprice.formats.routes import Route, check_contexts
from shadowprice.market.votes import AGREEMENT, CORRELATION
from shadowprice.types import Forecast, Request

__all__ = ["Routing", "open_routing"]


@dataclass(frozen=True)
class Routing(AsyncContext):
    """Routes, with a backend and a forecaster for each, in the same order.

    revisers     by the names of two routes: what an answer of the first says about the second
    revised      the forecasters whose forecasts they revise; empty: those of the routes
    names        of the forecasters, as a run folder keeps them
    together     routes whose forecasters were trained together: how far differences between them can be believed
    correlation  between the grades of two answers to a question: it says what several samples are worth
    agreement    the chance that two wrong answers to a question agree: it says what votes are worth
    """

    routes: Sequence[Route]
    backends: Sequence[Backend]
    forecasters: Sequence[Predictor]
    revisers: Mapping[tuple[str, str], Reviser] = field(default_factory=dict)
    revised: Sequence[Predictor] = ()
    names: Sequence[str] = ()
    correlation: float = CORRELATION
    together: Sequence[Together] = ()
    agreement: float = AGREEMENT

    def __post_init__(self) -> None:
        if not len(self.routes) == len(self.backends) == len(self.forecasters) or not self.routes:
            raise InputError("one backend and one forecaster per route are needed")

    @property
    def model(self) -> str:
        return " | ".join(route.name for route in self.routes)

    @property
    def channels(self) -> dict[str, Channel]:
        pairs = zip(self.routes, self.backends, strict=True)
        return {route.name: Channel(backend, route.rates, route.max_concurrency) for route, backend in pairs}

    def scheduler(self, max_tokens: int | None, attempts: int, samples: int = 1) -> Routed:
        return Routed(
            self.routes,
            max_tokens=max_tokens,
            attempts=attempts,
            revisers=self.revisers,
            samples=samples,
            correlation=self.correlation,
            agreement=self.agreement,
            can_continue={
                route.name: _continues(backend) for route, backend in zip(self.routes, self.backends, strict=True)
            },
        )

    def predict(self, requests: Sequence[Request]) -> list[Forecast]:
        """For each route, a forecast of the requests."""
        return self._predict(self.forecasters, requests)

    def predict_revised(self, requests: Sequence[Request]) -> list[Forecast] | None:
        """The forecasts that revisers start from; None: those of `predict`."""
        return self._predict(self.revised, requests) if self.revised else None

    def _predict(self, forecasters: Sequence[Predictor], requests: Sequence[Request]) -> list[Forecast]:
        forecasts: dict[int, Forecast] = {}  # by forecaster: a shared one predicts once
        for forecaster in forecasters:
            if id(forecaster) not in forecasts:
                forecasts[id(forecaster)] = predict_all(forecaster, requests)
        return believed([forecasts[id(forecaster)] for forecaster in forecasters], self.together)

    def check(self, requests: Sequence[Request]) -> None:
        """Raises InputError if a route could never be used."""
        check_contexts(self.routes, requests)

    def described(self) -> list[dict[str, Any]]:
        """What the results of a run depend on, without keys."""
        return [
            {**asdict(route), "forecaster": name, "scouts": bool(self.revisers)}
            for route, name in zip(self.routes, self.names or [""] * len(self.routes), strict=True)
        ]

    async def close(self) -> None:
        for backend in self.backends:
            await backend.close()


def open_routing(
    routes: Sequence[Route],
    *,
    forecaster: Predictor | None = None,
    name: str = "default",
    scouts: bool = False,
    local: Callable[[Route], Backend] | None = None,
) -> Routing:
    """Connects to every route; nothing is sent yet.

    forecaster  for routes that have none of their own; None: the one in the package
    name        identifies that forecaster in a run folder
    scouts      whether an answer of one route revises the forecasts of the others, as learned by `train --routes`
    local       starts a model on this machine; None: with the defaults of `LlamaCppBackend`
    """
    forecasters = [load(route.forecaster) if route.forecaster else None for route in routes]
    if None in forecasters and forecaster is None:
        forecaster = default()
    chosen: list[Predictor] = [own or forecaster for own in forecasters]  # type: ignore[misc]
    names = [_name(Path(route.forecaster), scouts) if route.forecaster else name for route in routes]
    folders = dict.fromkeys(Path(route.forecaster).parent for route in routes if route.forecaster)
    correlation = _mean([load_correlation(folder) for folder in folders], CORRELATION)
    agreement = _mean([load_agreement(folder) for folder in folders], AGREEMENT)
    revisers = _revisers(routes) if scouts else {}
    revised = [
        _revised(route.forecaster) if route.forecaster and any(name == route.name for _, name in revisers) else own
        for route, own in zip(routes, chosen, strict=True)
    ]
    together = trained_together([route.forecaster for route in routes])
    # Servers come first: a mistake is found before a model is downloaded or loaded.
    backends = {route.name: _backend(route) for route in routes if route.base_url}
    backends |= {route.name: (local or _local)(route) for route in routes if not route.base_url}
    opened = []
    for route in routes:
        context = getattr(getattr(backends[route.name], "server", None), "context", None)
        opened.append(replace(route, context=context) if route.context is None and context else route)
    ordered = [backends[route.name] for route in routes]
    return Routing(
        opened, ordered, chosen, revisers, revised if scouts else (), names, correlation, together, agreement
    )


def _continues(backend: Backend) -> CanContinue:
    return lambda request: backend.can_continue(request.body)


def _mean(learned: Sequence[float | None], otherwise: float) -> float:
    known = [value for value in learned if value is not None]
    return sum(known) / len(known) if known else otherwise


def _name(folder: Path, scouts: bool) -> str:
    """The name of a forecaster in a run folder; it also identifies the revisers and halves it was trained with."""
    others, half = folder.parent / REVISERS, half_folder(folder)
    more = f" with {sha256_of(others)}" if others.exists() else ""
    if scouts and half.exists():
        more += f" and {fingerprint(half)}"
    return f"forecaster {fingerprint(folder)}{more}"


def _revised(folder: str) -> Predictor:
    """The forecaster that revisers were fitted to."""
    half = half_folder(folder)
    if not half.is_dir():
        fix = "make them again with `shadowprice train --routes`"
        raise InputError("is missing: the forecasters are of an earlier version", path=half, fix=fix)
    return load(half)


def _revisers(routes: Sequence[Route]) -> dict[tuple[str, str], Reviser]:
    """The revisers of routes whose forecasters were trained together, which means that they are in one folder."""
    places = {route.name: Path(route.forecaster) for route in routes if route.forecaster}
    revisers = {}
    for folder in {place.parent for place in places.values()}:
        by_model = load_revisers(folder)
        inside = {name: place.name for name, place in places.items() if place.parent == folder}
        for one, first in inside.items():
            for other, second in inside.items():
                if (first, second) in by_model:
                    revisers[one, other] = by_model[first, second]
    if not revisers:
        raise InputError(
            "scouts need forecasters that were trained together", fix="make them with `shadowprice train --routes`"
        )
    return revisers


def _backend(route: Route) -> Backend:
    from shadowprice.backends.openai import OpenAIBackend

    try:
        return OpenAIBackend(route.base_url, route.model, api_key=route.api_key())
    except InputError as error:
        raise InputError(f"route {route.name}: {error.problem}", fix=error.fix) from None


def _local(route: Route) -> Backend:
    from shadowprice.backends.llamacpp import LlamaCppBackend

    return LlamaCppBackend(route.local, context=route.context, slots=min(8, route.max_concurrency or 4))
