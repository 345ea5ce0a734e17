import re

import pytest

from shadowprice.gateway.metrics import Histogram, Telemetry, exposition
from shadowprice.gateway.records import Record

LINE = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"\})? [0-9.e+-]+|# (TYPE|HELP) .*')


def shown(**changes):
    given = {
        "decisions": {"granted": 3},
        "counters": {"clients_left": 1},
        "gauges": {"open_requests": 2.0},
        "statuses": {200: 3, 402: 1},
        "seconds": Histogram(),
        "accounts": {"available": {"all day": 70.0}},
        "tenants": {},
    }
    return exposition(**{**given, **changes})


def test_every_line_is_in_the_format():
    page = shown(tenants={"a": 5})
    assert all(LINE.fullmatch(line) for line in page.splitlines())
    assert 'shadowprice_requests_total{decision="declined"} 0' in page
    assert 'shadowprice_available{account="all day"} 70' in page
    assert 'shadowprice_tenant_tokens_total{tenant="a"} 5' in page


def test_the_number_of_labels_is_bounded_and_no_token_is_lost():
    page = shown(tenants={f"t{i}": i for i in range(1000)})
    counts = [int(line.split()[-1]) for line in page.splitlines() if line.startswith("shadowprice_tenant_tokens")]
    assert len(counts) == 201
    assert sum(counts) == sum(range(1000))


def test_a_histogram_adds_up():
    seconds = Histogram()
    for each in (0.001, 0.03, 0.03, 1000.0):
        seconds.add(each)
    lines = list(seconds.lines("x"))
    assert 'x_bucket{le="0.05"} 3' in lines
    assert 'x_bucket{le="+Inf"} 4' in lines
    assert "x_count 4" in lines


def test_opentelemetry_gets_the_usage_with_the_names_for_generative_ai():
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult

    class Kept(MetricExporter):
        found = ()

        def export(self, metrics_data, timeout_millis=0, **options):
            for resource in metrics_data.resource_metrics:
                for scope in resource.scope_metrics:
                    self.found = (*self.found, *scope.metrics)
            return MetricExportResult.SUCCESS

        def force_flush(self, timeout_millis=0):
            return True

        def shutdown(self, timeout_millis=0, **options):
            pass

    exporter = Kept()
    telemetry = Telemetry(exporter)
    telemetry(Record("alice", "/chat/completions", "small", "granted", output=30, input=7, status=200, seconds=1.5))
    telemetry.close()
    found = {metric.name: metric for metric in exporter.found}
    points = {
        point.attributes["gen_ai.token.type"]: point.sum
        for point in found["gen_ai.client.token.usage"].data.data_points
    }
    assert points == {"output": 30, "input": 7}
    (duration,) = found["gen_ai.client.operation.duration"].data.data_points
    assert dict(duration.attributes) == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "small",
    }  # fmt: skip
