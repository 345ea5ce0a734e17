"""Metrics in the text format of Prometheus, and for OpenTelemetry.

Labels are bounded: decisions, statuses and routes; with the admin key also names of tenants and accounts.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

from shadowprice.errors import MissingExtra
from shadowprice.gateway.admission import KINDS
from shadowprice.gateway.records import Record

__all__ = ["Histogram", "Telemetry", "exposition"]

_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_MOST_LABELS = 200  # tenants or accounts; the rest is summed up


class Histogram:
    """How long requests took."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_SECONDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(_SECONDS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str) -> Iterable[str]:
        yield f"# TYPE {name} histogram"
        total = 0
        for edge, count in zip((*_SECONDS, math.inf), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{"+Inf" if edge == math.inf else f"{edge:g}"}"}} {total}'
        yield f"{name}_sum {self._sum:.6f}"
        yield f"{name}_count {total}"


def exposition(
    decisions: Mapping[str, int],
    counters: Mapping[str, int],
    gauges: Mapping[str, float],
    statuses: Mapping[int, int],
    seconds: Histogram,
    accounts: Mapping[str, Mapping[str, float]],
    tenants: Mapping[str, int],
) -> str:
    """The page at /metrics. `accounts`: a gauge and its value by account; `tenants`: output tokens."""
    lines = ["# HELP shadowprice_requests_total Requests by what was decided about them."]
    lines += ["# TYPE shadowprice_requests_total counter"]
    lines += [f'shadowprice_requests_total{{decision="{kind}"}} {decisions.get(kind, 0)}' for kind in KINDS]
    lines.append("# TYPE shadowprice_responses_total counter")
    lines += [f'shadowprice_responses_total{{status="{each}"}} {count}' for each, count in sorted(statuses.items())]
    for name, count in counters.items():
        lines += [f"# TYPE shadowprice_{name}_total counter", f"shadowprice_{name}_total {count}"]
    for name, value in gauges.items():
        lines += [f"# TYPE shadowprice_{name} gauge", f"shadowprice_{name} {value:.6g}"]
    lines += seconds.lines("shadowprice_request_seconds")
    for name, values in accounts.items():
        lines.append(f"# TYPE shadowprice_{name} gauge")
        lines += [f'shadowprice_{name}{{account="{each}"}} {v:.10g}' for each, v in [*values.items()][:_MOST_LABELS]]
    if tenants:
        shown = sorted(tenants.items(), key=lambda pair: -pair[1])
        rest = sum(count for _, count in shown[_MOST_LABELS:])
        lines.append("# TYPE shadowprice_tenant_tokens_total counter")
        named = [*shown[:_MOST_LABELS], *([("other tenants", rest)] if rest else [])]
        lines += [f'shadowprice_tenant_tokens_total{{tenant="{each}"}} {count}' for each, count in named]
    return "\n".join(lines) + "\n"


class Telemetry:
    """OpenTelemetry's metrics for generative AI, exported as the environment says (OTEL_EXPORTER_OTLP_ENDPOINT, ...).

    exporter  instead of OTLP over HTTP
    """

    def __init__(self, exporter: Any = None) -> None:
        try:
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource

            if exporter is None:
                from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

                exporter = OTLPMetricExporter()
        except ImportError:
            raise MissingExtra("otel", "OpenTelemetry") from None
        resource = Resource.create({"service.name": "shadowprice-gateway"})
        self._provider = MeterProvider([PeriodicExportingMetricReader(exporter)], resource=resource)
        meter = self._provider.get_meter("shadowprice")
        self._usage = meter.create_histogram(
            "gen_ai.client.token.usage", unit="{token}", description="Number of input and output tokens used"
        )
        self._duration = meter.create_histogram(
            "gen_ai.client.operation.duration", unit="s", description="GenAI operation duration"
        )
        self._decisions = meter.create_counter("shadowprice.requests", unit="{request}")

    def __call__(self, record: Record) -> None:
        operations = {"/chat/completions": "chat", "/embeddings": "embeddings"}
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": operations.get(record.endpoint, "text_completion"),
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": record.route,
        }
        if record.decision:
            self._decisions.add(1, {"shadowprice.decision": record.decision, "shadowprice.tenant": record.tenant})
        if record.output or record.input:
            self._usage.record(record.output, {**attributes, "gen_ai.token.type": "output"})
            self._usage.record(record.input, {**attributes, "gen_ai.token.type": "input"})
        failed = {"error.type": str(record.status)} if record.status >= 400 else {}
        self._duration.record(record.seconds, {**attributes, **failed})

    def close(self) -> None:
        self._provider.shutdown()
