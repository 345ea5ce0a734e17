"""The endpoint: who asks, what they may have, which server answers, what it cost.

Units are reserved in every account of a tenant's path, durably, before a byte is sent, and the request is sent with its
grant as its limit. What answers and failures cost is in `relay`.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from shadowprice.accounts.notes import Notes
from shadowprice.accounts.owner import Shortage
from shadowprice.accounts.tree import Reservation, Tree
from shadowprice.accounts.windows import Account
from shadowprice.errors import InputError, LedgerError, MarketError, MissingExtra
from shadowprice.forecast import Predictor, load
from shadowprice.formats.limits import ENDPOINTS
from shadowprice.gateway.admission import Decision, Terms, decide, decide_reading, offers_of, surplus
from shadowprice.gateway.appraisal import Appraisal, Appraiser
from shadowprice.gateway.bodies import EMBEDDINGS, Ask, limited, parse_ask
from shadowprice.gateway.config import Config
from shadowprice.gateway.intake import Intake, Refusal
from shadowprice.gateway.landing import LandingAttempt, landing_of
from shadowprice.gateway.metrics import Histogram
from shadowprice.gateway.once import Answered, cost_of, once
from shadowprice.gateway.prices import Prices
from shadowprice.gateway.records import Record, Records
from shadowprice.gateway.relay import Attempt, error_response, pass_on
from shadowprice.gateway.tenants import Directory, Tenant
from shadowprice.gateway.upstreams import AUTO, Route, Upstream, Upstreams, can_fall_back

try:
    from aiohttp import web
except ImportError:
    raise MissingExtra("gateway", "the gateway") from None

__all__ = ["Gateway"]

# They generate, in a form in which no limit can be written.
_UNBOUNDED = re.compile(
    r"completion|messages|responses|generate|chat|batch|threads|runs|audio|images|videos|realtime|fine.?tun|infill"
    r"|invocation|edits",
    re.I,
)
# A path below /v1 stays below it on the server: no "..", and nothing that is decoded once more there.
_PATH = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[^/%?#\\\x00-\x20\x7f]+)+")
_WAIT, _AGAIN = 0.3, 1.0  # seconds: for other processes, which look every 0.2; and until that is worth it again
_ALLOWED = {"/models": "GET", **dict.fromkeys((*ENDPOINTS, EMBEDDINGS), "POST")}


class Gateway:
    """`v1` answers one request to a path under /v1."""

    def __init__(self, config: Config, tree: Tree, notes: Notes, forecaster: Predictor, records: Records) -> None:
        self.config, self.tree, self.notes, self.records = config, tree, notes, records
        self.directory = Directory(config.budgets, config.teams, config.tenants, require_keys=config.require_keys)
        self.prices = Prices(tree, notes, config.policy, config.price, config.shape)
        self.upstreams = Upstreams(config.routes, keys=self.directory.require_keys)
        self.draining = False
        self.counts: Counter[str] = Counter(clients_left=0, fallbacks=0, ledger_errors=0, refused=0)
        self.seconds = Histogram()
        self.open = 0  # requests under way
        folders = {route.forecaster for route in config.routes if route.forecaster}
        self._appraisers = {"": Appraiser(forecaster), **{folder: Appraiser(load(folder)) for folder in folders}}
        self.intake = Intake()
        self._leasing = asyncio.Lock()
        self._in_vain: dict[str, float] = {}  # when other processes had nothing to return, by account

    async def close(self) -> None:
        await self.upstreams.close()

    async def v1(self, request: web.BaseRequest, end: str) -> web.StreamResponse:
        """`end`: the path after /v1."""
        self.open += 1
        try:
            return await self._v1(request, end)
        except Refusal as refusal:
            self.counts["refused"] += 1
            reply = error_response(refusal.status, refusal.code, str(refusal))
            reply.force_close()  # what is still to come of its body is not read
            return reply
        except InputError as error:
            self.counts["refused"] += 1
            return error_response(400, "invalid_request_error", str(error))
        except LedgerError as error:
            self.counts["ledger_errors"] += 1
            return error_response(503, "ledger_unavailable", f"nothing was sent: {error}")
        except MarketError as error:
            return error_response(503, "forecast_unavailable", f"nothing was sent: {error}")
        finally:
            self.open -= 1

    async def _v1(self, request: web.BaseRequest, end: str) -> web.StreamResponse:
        tenant = self.directory.find(bearer(request))
        if tenant is None:
            self.counts["refused"] += 1
            return error_response(401, "invalid_api_key", "no such key", {"WWW-Authenticate": "Bearer"})
        if not _PATH.fullmatch(end):
            return error_response(404, "not_found", f"no such path: /v1{end[:100]}")
        if self.draining:
            return error_response(503, "draining", "the gateway is shutting down", {"Retry-After": "5"})
        if end == "/models" and request.method == "GET" and not self.upstreams.takes_any:
            return self._models(tenant)
        key = request.headers.get("Idempotency-Key", "")
        if request.method == "POST" and (end in ENDPOINTS or end == EMBEDDINGS):
            async with self.intake.body(request) as content:
                record = self.records.start(tenant.name, end)
                if not key:
                    return (await self._answer(request, tenant, end, content, record)).reply
                answer = partial(self._answer, request, tenant, end, content, record)
                whose = self._whose(request, tenant, end, key)
                return await once(self.tree.owner, self.tree.worker, whose, content, answer, lambda: record.output)
        if request.method == "GET" and end in ENDPOINTS and key:
            return await cost_of(self.tree.owner, self._whose(request, tenant, end, key))
        allowed = _ALLOWED.get(end, "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")  # TRACE would show the server's key
        if request.method not in (*allowed.split(", "), "GET", "HEAD", "OPTIONS"):
            return error_response(405, "method_not_allowed", f"use {allowed}", {"Allow": allowed})
        if request.method in ("POST", "PUT", "PATCH") and (
            _UNBOUNDED.search(end) or any(account.money for account in tenant.path)
        ):
            return error_response(404, "not_found", f"/v1{end[:100]} may cost what cannot be limited here")
        async with self.intake.body(request) as content:
            upstream = self.upstreams.takes_any or self.upstreams.choose(self.upstreams.names[0])[0]
            return await pass_on(self.upstreams, upstream, request, end, content)

    def _whose(self, request: web.BaseRequest, tenant: Tenant, end: str, key: str) -> tuple[str, ...]:
        """Names a request. Without keys of its own the gateway tells clients apart by theirs."""
        return tenant.name, "" if self.directory.require_keys else bearer(request), end, key

    def _models(self, tenant: Tenant) -> web.Response:
        names = [name for name in self.upstreams.names if tenant.models is None or name in tenant.models]
        names += [AUTO] if self.upstreams.choices else []
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "shadowprice"} for name in names]
        return web.json_response({"object": "list", "data": models})

    # --- requests for answers ------------------------------------------------------------------

    async def _answer(
        self, request: web.BaseRequest, tenant: Tenant, end: str, content: bytes, record: Record
    ) -> Answered:
        record.status = 499  # unless it ends otherwise: its client has left
        try:
            ask = parse_ask(content, end)
            record.stream, record.answers = ask.stream, ask.answers
            record.value = _value(request.headers.get("x-shadowprice-value"), tenant)
            reply, sent = await self._attempts(request, tenant, ask, record)
            record.status = reply.status
            return Answered(reply, record.output + record.input > 0, sent)
        except InputError:
            record.status = 400
            raise
        except (LedgerError, MarketError):
            record.status = 503
            raise
        finally:
            self.records.end(record)
            self.seconds.add(record.seconds)

    async def _attempts(
        self, request: web.BaseRequest, tenant: Tenant, ask: Ask, record: Record
    ) -> tuple[web.StreamResponse, bytes | None]:
        """The answer of the first route that has one, and what was sent of a stream."""
        allowed = tenant.models is None or (isinstance(ask.model, str) and ask.model in tenant.models)
        if ask.model == AUTO and self.upstreams.choices:
            routes = await self._by_surplus(tenant, ask, record.value)
        else:
            routes = self.upstreams.choose(ask.model) if allowed else []
        if not routes:
            message = f"the model {ask.model!r:.60} does not exist"
            return error_response(404, "model_not_found", message, param="model"), None
        working = [each for each in routes if not each.violation]
        if not working:
            return error_response(503, "limit_ignored", routes[0].violation), None
        reply: web.StreamResponse | None = None
        for number, upstream in enumerate(working):
            record.route = upstream.route.name
            async with upstream.slot():
                attempt, answer = await self._attempt(request, tenant, ask, upstream, record, again=number > 0)
            if attempt is None:  # declined: what an earlier attempt has cost may be the reason
                break
            reply = answer
            if not attempt.failure or not can_fall_back(attempt.failure) or number == len(working) - 1:
                return reply, attempt.sent
            record.fallbacks += 1
            self.counts["fallbacks"] += 1
            self.records.event("fallback", route=upstream.route.name, reason=str(attempt.failure))
        return answer if reply is None else reply, None

    async def _by_surplus(self, tenant: Tenant, ask: Ask, value: float) -> list[Upstream]:
        """The routes that the tenant may use, the one first on which the request gains most at the posted prices."""
        gains = []
        for upstream in self.upstreams.choices:
            if tenant.models is None or upstream.route.name in tenant.models:
                terms = self._terms(ask, tenant, upstream.route, value)
                found = await self._appraisers[upstream.route.forecaster](ask.text, terms)
                assert found.offers is not None
                gains.append((surplus(self.prices.purses(tenant.path, terms), found.offers), upstream))
        ranked = sorted(gains, key=lambda pair: -pair[0])  # stable: the first of those that are alike
        return self.upstreams.usable([upstream for _, upstream in ranked])

    async def _attempt(
        self, request: web.BaseRequest, tenant: Tenant, ask: Ask, upstream: Upstream, record: Record, *, again: bool
    ) -> tuple[Attempt | None, web.StreamResponse]:
        """Decided, reserved, sent and charged on its own; None if it was declined."""
        terms, path = self._terms(ask, tenant, upstream.route, record.value), tenant.path
        appraise = self._appraisers[upstream.route.forecaster]
        wanted = any(self.prices.price(account) > 0 for account in path)
        appraisal = None if terms.reads else await appraise(ask.text, terms, wanted, alone=self.open == 1)
        decision, held = await self._reserve(path, terms, appraisal)
        if appraisal and not again:
            self.prices.arrived(path, decision, appraisal.forecast, terms)
        record.decided(decision)
        shadow = self.config.shadow
        if held is None and not shadow:
            return None, self._declined(decision, path, terms)
        self.prices.granted(path, decision)
        landing = None if shadow else landing_of(upstream, ask, decision, path)
        grant = decision.grant - (landing.tokens if landing else 0)
        body = dict(ask.body) if shadow or terms.reads else limited(ask, grant, upstream.route.limit_field)
        limit = 0 if terms.reads else (terms.most if shadow else grant) * ask.answers

        def headers() -> dict[str, str]:
            return self._headers(decision, path, terms)

        attempt = Attempt(self.upstreams, upstream, ask, limit, terms.prompt, headers, enforced=not shadow)
        if landing:
            attempt = LandingAttempt(landing, self.upstreams, upstream, ask, decision.grant, headers)
        try:
            return attempt, await attempt.run(request, body)
        finally:
            self._settle(path, terms, decision, held, attempt, record)

    def _settle(
        self,
        path: Sequence[Account],
        terms: Terms,
        decision: Decision,
        held: Reservation | None,
        attempt: Attempt,
        record: Record,
    ) -> None:
        costs = [terms.cost(account, attempt.usage) for account in path]
        if held:
            self.tree.settle(held, costs)
        else:
            self.tree.charge(path, costs)
        self.prices.settled(path, decision, costs)
        record.used(attempt.usage)
        if terms.rates:
            record.dollars = (record.dollars or 0.0) + terms.rates.cost(attempt.usage) / 1e9
        if attempt.first is not None:
            record.first = attempt.first - asyncio.get_running_loop().time() + self.tree.clock() - record.time
        self.counts["clients_left"] += attempt.left

    def _terms(self, ask: Ask, tenant: Tenant, route: Route, value: float) -> Terms:
        reads = ask.endpoint == EMBEDDINGS
        prompt = 0
        if reads or any(account.money for account in tenant.path):
            context = None if route.context is None else route.context * ask.prompts
            bounds = [bound for bound in (ask.prompt, context) if bound is not None]
            if not bounds:
                raise InputError(
                    "the prompt has images, files or earlier answers, whose tokens cannot be bounded",
                    fix="give the route's context in the configuration",
                )
            if ask.hosted:
                raise InputError(
                    "a tool that the server runs reads what cannot be bounded", fix="leave it out, or run it yourself"
                )
            prompt = min(bounds)
        cap = min(filter(None, (self.config.cap, tenant.cap, route.context)))
        return Terms(ask.own, cap, value, ask.answers, prompt, route.rates, reads)

    async def _reserve(
        self, path: Sequence[Account], terms: Terms, appraisal: Appraisal | None
    ) -> tuple[Decision, Reservation | None]:
        """The decision, and what it reserved; None if it reserves nothing."""

        def decided() -> Decision:
            purses = self.prices.purses(path, terms)
            if appraisal is None:
                return decide_reading(terms, purses)
            if appraisal.offers is None and any(purse.price > 0 for purse in purses):  # the price has risen since
                offers = {money: offers_of(appraisal.forecast, [terms], money) for money in (False, True)}
                return decide(appraisal.forecast, terms, purses, offers)
            return decide(appraisal.forecast, terms, purses, appraisal.offers)

        waited = False
        for attempt in range(3):
            decision = decided()
            if decision.kind == "exhausted":
                async with self._leasing:
                    self.tree.refresh()
                    decision = decided()
            if decision.kind == "exhausted" and not waited and self._may_return(path, terms):
                waited = True
                with suppress(Shortage):  # asks other processes for what they do not use
                    bounds = [terms.bound(account, 1) for account in path]
                    self.tree.void(await self._held(path, bounds))
                await asyncio.sleep(_WAIT)  # they return it when they look
                continue
            if not decision.grant or self.config.shadow:
                if waited:
                    now = asyncio.get_running_loop().time()
                    self._in_vain.update((each.name, now) for each in self._short(path, terms))
                return decision, None
            try:
                return decision, await self._held(path, [terms.bound(account, decision.grant) for account in path])
            except Shortage as short:
                self.tree.refresh()
                if attempt == 1:
                    if not short.elsewhere:
                        break
                    await asyncio.sleep(_WAIT)
        why = decision.why if decision.kind == "exhausted" else "too little is left"
        nothing = (0.0,) * len(path)
        gone = Decision("exhausted", 0, decision.price, decision.forecast, why, nothing, decision.others)
        return gone, None

    def _short(self, path: Sequence[Account], terms: Terms) -> list[Account]:
        """The accounts that lack what a short answer needs."""
        return [each for each in path if not terms.fits(each, self.tree.available(each))]

    def _may_return(self, path: Sequence[Account], terms: Terms) -> bool:
        """Whether to wait for other processes to return what they do not use: not if they had nothing a moment ago."""
        now = asyncio.get_running_loop().time()
        again = all(now - self._in_vain.get(each.name, -_AGAIN) >= _AGAIN for each in self._short(path, terms))
        return again and not self.config.shadow and self.tree.owner.workers() not in ([], [self.tree.worker])

    async def _held(self, path: Sequence[Account], units: Sequence[int]) -> Reservation:
        if found := self.tree.reserve_held(path, units):
            return found
        async with self._leasing:
            while (found := self.tree.reserve_held(path, units)) is None:
                # A client that leaves meanwhile must not lose the block: it is for others as well.
                await asyncio.shield(self._lease(path, units))
        return found

    async def _lease(self, path: Sequence[Account], units: Sequence[int]) -> None:
        wants = self.tree.wants(path, units)
        self.tree.add(wants, await asyncio.to_thread(self.tree.owner.lease, self.tree.worker, wants))

    def _declined(self, decision: Decision, path: Sequence[Account], terms: Terms) -> web.Response:
        declined = decision.kind == "declined"
        now = self.tree.clock()
        # A declined request may be worth the price soon; an exhausted budget refills when its window ends.
        short = [] if declined else self._short(path, terms)
        spans = [account.window.bounds(now) for account in short]
        ends = [span[1] - now for span in spans if span]
        error = {
            "message": f"not worth the posted price: {decision.why}" if declined else f"the budget: {decision.why}",
            "type": "insufficient_quota",
            "code": "budget_declined" if declined else "budget_exhausted",
            "param": None,
            "price": decision.price,
            "forecast": round(decision.forecast),
            "retry_after": round(max(ends), 1) if ends else None,
        }
        return web.json_response({"error": error}, status=402, headers=self._headers(decision, path, terms))

    def _headers(self, decision: Decision, path: Sequence[Account], terms: Terms) -> dict[str, str]:
        found = {
            "x-shadowprice-price": f"{decision.price:.6g}",
            "x-shadowprice-grant": str(decision.grant),
            "x-shadowprice-forecast": f"{decision.forecast:.0f}",
            "x-shadowprice-decision": decision.kind,
        }
        if path:  # of the account that allows the fewest tokens
            rooms = [self.tree.available(each) / terms.rate(each.money) for each in path]
            tightest = path[rooms.index(min(rooms))]
            bounds = tightest.window.bounds(now := self.tree.clock())
            found["x-ratelimit-limit-tokens"] = str(int(tightest.limit / terms.rate(tightest.money)))
            found["x-ratelimit-remaining-tokens"] = str(int(min(rooms)))
            found["x-ratelimit-reset-tokens"] = f"{bounds[1] - now:.0f}s" if bounds else "never"
        return found if decision.grant else {**found, "x-should-retry": "false"}


# --- forms -------------------------------------------------------------------------------------


def bearer(request: web.BaseRequest) -> str:
    """The key in a request; "" if it has none."""
    kind, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else ""


def _value(text: str | None, tenant: Tenant) -> float:
    """What a correct answer is worth: as the request says, but no more than its tenant may say."""
    if text is None:
        return tenant.value
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1e9:
        raise InputError(f"x-shadowprice-value is {text!r:.40}", fix="give a number from 0 to 1e9")
    return value if tenant.max_value is None else min(value, tenant.max_value)
