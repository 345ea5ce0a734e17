"""What happened to each request: counted, logged as one line of JSON, and shown on the dashboard.

It never contains text of a prompt or an answer, or a key.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from shadowprice.gateway.admission import Decision
from shadowprice.types import Usage

__all__ = ["Record", "Records"]

_KEPT = 200  # requests between two writes that are shown; others are only counted


@dataclass(slots=True)
class Record:
    """One request. `dollars` is None where the cost of its tokens is unknown."""

    tenant: str
    endpoint: str
    route: str = ""
    decision: str = ""
    why: str = ""
    value: float = 1.0
    price: float = 0.0
    forecast: int = 0
    grant: int = 0
    answers: int = 1
    output: int = 0
    input: int = 0
    dollars: float | None = None
    status: int = 0
    fallbacks: int = 0
    stream: bool = False
    time: float = 0.0
    seconds: float = 0.0
    first: float | None = None  # seconds until the first part of a stream

    def decided(self, decision: Decision) -> None:
        self.decision, self.why, self.price = decision.kind, decision.why, decision.price
        self.forecast, self.grant = round(decision.forecast), decision.grant

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def used(self, usage: Usage) -> None:
        self.output += usage.output
        self.input += usage.input + usage.cached


class Records:
    """Takes records of requests.

    log     called with every line of the log; None: no log
    listen  called with every record, for metrics
    """

    def __init__(
        self, log: Callable[[str], None] | None = None, listen: Callable[[Record], None] | None = None
    ) -> None:
        self._log, self._listen = log, listen
        self._number = 0
        self._latest: list[tuple[int, Record]] = []
        self._minutes: Counter[tuple[int, str, str]] = Counter()
        self._tokens: Counter[tuple[int, str, str]] = Counter()
        self.total: Counter[str] = Counter()  # requests by decision
        self.tokens: Counter[str] = Counter()  # output tokens by tenant
        self.statuses: Counter[int] = Counter()

    def start(self, tenant: str, endpoint: str) -> Record:
        return Record(tenant, endpoint, time=time.time())

    def end(self, record: Record) -> None:
        record.seconds = time.time() - record.time
        self.statuses[record.status] += 1
        self.tokens[record.tenant] += record.output
        if record.decision:
            self.total[record.decision] += 1
            key = int(record.time // 60), record.tenant, record.decision
            self._minutes[key] += 1
            self._tokens[key] += record.output
        self._number += 1
        if record.decision and len(self._latest) < _KEPT:
            self._latest.append((self._number, record))
        if self._listen:
            self._listen(record)
        if self._log:
            self._log(orjson.dumps({"event": "request", **record.to_dict()}).decode())

    def event(self, event: str, **fields: Any) -> None:
        """Logs another event."""
        if self._log:
            self._log(orjson.dumps({"event": event, "time": time.time(), **fields}).decode())

    def taken(self) -> tuple[dict[tuple[int, str, str], tuple[int, int]], list[tuple[int, float, Record]]]:
        """What has happened since the last call: counts by minute, tenant and decision; and the latest requests."""
        minutes = {key: (count, self._tokens[key]) for key, count in self._minutes.items()}
        latest = [(number, record.time, record) for number, record in self._latest]
        self._minutes.clear()
        self._tokens.clear()
        self._latest = []
        return minutes, latest
