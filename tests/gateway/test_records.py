import json

from shadowprice.gateway.admission import Decision
from shadowprice.gateway.records import Records
from shadowprice.types import Usage


def ended(records, tenant="alice", kind="granted", tokens=10):
    record = records.start(tenant, "/chat/completions")
    record.decided(Decision(kind, 100, 0.001, 55.5, "as asked"))
    record.used(Usage(tokens, 5))
    record.status = 200
    records.end(record)


def test_requests_are_counted_by_minute_tenant_and_decision():
    records = Records()
    for tenant, kind in (("a", "granted"), ("a", "granted"), ("b", "shrunk")):
        ended(records, tenant, kind)
    minutes, latest = records.taken()
    assert {(tenant, kind): counts for (_, tenant, kind), counts in minutes.items()} == {
        ("a", "granted"): (2, 20),
        ("b", "shrunk"): (1, 10),
    }
    assert [number for number, _, _ in latest] == [1, 2, 3]
    assert records.taken() == ({}, [])
    assert (records.total["granted"], records.tokens["a"]) == (2, 20)


def test_the_log_is_one_line_of_json_for_a_request():
    lines = []
    records = Records(lines.append)
    ended(records)
    records.event("fallback", route="small")
    request, event = map(json.loads, lines)
    assert request["tenant"] == "alice"
    assert (request["decision"], request["grant"], request["output"], request["input"]) == ("granted", 100, 10, 5)
    assert (event["event"], event["route"]) == ("fallback", "small")
    assert not set(request) & {"text", "messages", "prompt", "key", "body"}


def test_what_is_shown_of_very_many_requests_is_bounded():
    records = Records()
    for _ in range(1000):
        ended(records)
    minutes, latest = records.taken()
    assert len(latest) == 200
    assert sum(count for count, _ in minutes.values()) == 1000
