"""Requests for a run, in any form; what a run could not keep apart or bound is refused."""

import pytest

from shadowprice.errors import InputError
from shadowprice.formats.requests import check_requests, requests_from
from shadowprice.formats.results import ESTIMATE, ROUTES
from shadowprice.types import Request

from ..conftest import request_line


def chat(*parts):
    return {"messages": [{"role": "user", "content": list(parts)}]}


def test_texts_bodies_and_batch_lines_are_requests():
    found = requests_from(["Why?", {"prompt": "Once", "max_tokens": 9}, request_line("c", "How?")])
    assert [request.text for request in found] == ["Why?", "Once", "How?"]
    assert [request.max_tokens for request in found] == [None, 9, None]
    assert [request.id for request in found] == ["request-1", "request-2", "c"]


def test_a_body_may_bring_its_name():
    (request,) = requests_from([{"custom_id": "mine", "prompt": "Hi"}])
    assert (request.id, request.body) == ("mine", {"prompt": "Hi"})


def test_a_batch_file_is_what_its_lines_are(batch):
    lines = [request_line("a", "Why?"), request_line("b", "How?", max_tokens=9)]
    path = batch(lines)
    assert requests_from(path) == requests_from(str(path)) == requests_from(lines)


def test_requests_are_taken_as_they_are():
    made = [Request("a", "Why?"), Request("b", "How?")]
    assert requests_from(made) == made
    assert requests_from(iter(made)) == made


def test_requests_and_others_are_not_mixed():
    with pytest.raises(InputError, match="both Request objects and others"):
        requests_from([Request("a", "Why?"), "How?"])


def test_errors_name_what_was_given(batch):
    path = batch([request_line("a"), "not JSON"])
    with pytest.raises(InputError, match=rf"^{path}:2: "):
        requests_from(path)
    with pytest.raises(InputError, match=r"^mine\.jsonl:2: "):
        requests_from(path, "mine.jsonl")


@pytest.mark.parametrize(
    ("requests", "problem"),
    [
        ([], "has no requests"),
        ([Request("a", "?"), Request("b", "?", answers=2)], r"request 'b' asks for several answers \(n\)"),
        ([Request(f"{ESTIMATE}a", "?")], "begins with .* which is reserved"),
        ([Request(ROUTES, "?")], f"custom_id '{ROUTES}' is reserved"),
        ([Request("a", "?"), Request("b", "?"), Request("a", "!")], "custom_id 'a' is used 2 times"),
    ],
)
@pytest.mark.parametrize("priced", [False, True])
def test_what_a_run_cannot_keep_apart_is_refused(requests, problem, priced):
    with pytest.raises(InputError, match=problem):
        check_requests(requests, priced=priced)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_where_prompts_cost_only_text_has_a_bound(kind):
    requests = [Request("a", "?", body=chat({"type": "text", "text": "?"}, {"type": kind, kind: {}}))]
    check_requests(requests, priced=False)
    with pytest.raises(InputError, match=r"request 'a' has more than text.*\(use a budget of output tokens\)"):
        check_requests(requests, priced=True)


@pytest.mark.parametrize("body", [{}, {"prompt": "?"}, chat({"type": "text", "text": "?"}, {"text": "?"}, "plain")])
def test_text_in_any_form_can_be_paid_for(body):
    check_requests([Request("a", "?", body=body)], priced=True)
