"""What is written of a result is what is read; anything else is refused."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice.errors import InputError
from shadowprice.formats.results import (
    StoredPart,
    chunk_line,
    dropped_parts,
    parse_chunk,
    parse_result,
    parse_routes,
    result_line,
    routes_line,
    text_of_response,
)
from shadowprice.types import Completion, Failure, Result, Usage

texts = st.text(max_size=20)
counts = st.integers(0, 2**53)
details = st.dictionaries(
    texts.filter(lambda name: name not in ("code", "message", "fix")),
    st.integers(-(2**63), 2**63 - 1) | texts,
    max_size=2,
)
failures = st.builds(Failure, texts.filter(bool), texts, details)
extras = st.fixed_dictionaries({}, optional={"samples": st.lists(counts, max_size=3), "probes": details})
finishes = st.sampled_from(["stop", "length"])
sources = st.sampled_from(["server", "counted", "assumed"])
flags = st.lists(texts, max_size=2).map(tuple)


@st.composite
def answers(draw):
    """As a file has them: it keeps no token ids and no prompt, whose tokens are in the usage of the result."""
    text = draw(texts)
    choice = draw(st.sampled_from([{"message": {"content": text}}, {"text": text}]))
    body = {"id": draw(texts), "choices": [choice]}
    return Completion(text, draw(counts), draw(finishes), draw(sources), draw(flags), body)


usages = st.builds(Usage, counts, counts, counts)
grades = st.sampled_from([None, True, False])
answered = st.builds(
    Result, texts, st.sampled_from(["finished", "landed", "truncated"]), usages, counts, answers(),
    st.none() | failures, grades, extras,
)  # fmt: skip
unanswered = st.builds(
    Result, texts, st.sampled_from(["declined", "failed", "not_sent"]), usages, counts, st.none(), failures, grades,
    extras,
)  # fmt: skip


@given(answered | unanswered)
def test_a_result_is_read_back_as_it_was_written(result):
    line = result_line(result)
    assert b"\n" not in line
    assert parse_result(line) == result


@given(answered)
def test_an_answer_is_a_line_of_a_batch_output_file(result):
    line = json.loads(result_line(result))
    assert line["custom_id"] == result.id
    assert line["error"] is None
    assert line["response"]["status_code"] == 200
    assert line["response"]["body"] == result.completion.body
    assert line["shadowprice"]["outcome"] == result.outcome


@given(unanswered)
def test_a_request_without_an_answer_is_a_line_of_its_error_file(result):
    line = json.loads(result_line(result))
    assert line["custom_id"] == result.id
    assert line["response"] is None
    fix = line["error"].pop("fix", None)
    assert line["error"] == {"code": result.failure.code, "message": result.failure.message, **result.failure.details}
    assert bool(fix) is (result.outcome != "declined")  # a declined request needs a larger budget, no fix


def test_without_a_cause_the_outcome_is_the_cause():
    line = json.loads(result_line(Result("q", "not_sent")))
    assert line["error"] == {"code": "not_sent", "message": "not sent", "fix": "--resume tries again"}


@given(
    st.builds(
        Completion,
        texts,
        counts,
        finishes,
        sources,
        flags,
        st.dictionaries(texts, counts, max_size=2),
        st.lists(counts, max_size=3).map(tuple),
        counts,
        counts,
    ),
    st.integers(0, 9),
    st.booleans(),
    texts,
    st.booleans(),
)
def test_a_chunk_is_read_back_as_it_was_written(part, sample, landing, route, anew):
    line = chunk_line(part, sample=sample, landing=landing, route=route, anew=anew)
    assert parse_chunk(line) == (part, sample, landing, route, anew)


RESULT = Result(
    "q", "finished", Usage(5, 7, 1), 5, Completion("Paris", 5, "stop", "server", ("slow",), {"choices": []})
)
FAILED = Result("q", "failed", failure=Failure("refused", "no"))
CHUNK = Completion("Par", 3, "length", "server", (), {"choices": []}, (1, 2, 3))


def changed(line, path, value):
    record = orjson.loads(line)
    place = record
    for name in path[:-1]:
        place = place[name]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return orjson.dumps(record)


@pytest.mark.parametrize(
    "line", [b"", b"{}", b"[]", b"7", b"null", b"\xff", b'{"shadowprice": {}', result_line(RESULT)[:-1]]
)
def test_what_is_no_line_of_ours_is_refused(line):
    with pytest.raises(InputError, match=r"a row of the ledger is not a result: .*\(start a new run\)$"):
        parse_result(line)
    with pytest.raises(InputError, match=r"a row of the ledger is not a part of an answer: .*\(start a new run\)$"):
        parse_chunk(line)


@pytest.mark.parametrize(
    ("result", "path", "value"),
    [
        (RESULT, ["custom_id"], 7),
        (RESULT, ["response"], None),
        (RESULT, ["response", "body"], []),
        (RESULT, ["shadowprice"], KeyError),
        (RESULT, ["shadowprice", "outcome"], "solved"),
        (RESULT, ["shadowprice", "outcome"], KeyError),
        (RESULT, ["shadowprice", "correct"], "yes"),
        (RESULT, ["shadowprice", "cost"], 5.0),
        (RESULT, ["shadowprice", "cost"], True),
        (RESULT, ["shadowprice", "tokens"], "5"),
        (RESULT, ["shadowprice", "flags"], "slow"),
        (RESULT, ["shadowprice", "flags"], [1]),
        (RESULT, ["shadowprice", "usage"], [5, 7, 1]),
        (RESULT, ["shadowprice", "usage", "output"], None),
        (RESULT, ["shadowprice", "usage", "gold"], 1),
        (FAILED, ["error"], None),
        (FAILED, ["error"], [1]),
        (FAILED, ["error", "code"], 500),
        (FAILED, ["error", "message"], KeyError),
    ],
)
def test_a_result_with_a_field_of_another_kind_is_refused(result, path, value):
    with pytest.raises(InputError, match="is not a result"):
        parse_result(changed(result_line(result), path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["sample"], "0"),
        (["landing"], 0),
        (["route"], 1),
        (["anew"], 1),
        (["part"], None),
        (["part", "text"], 3),
        (["part", "tokens"], 3.0),
        (["part", "flags"], None),
        (["part", "ids"], None),
        (["part", "finish"], KeyError),
        (["part", "other"], 1),
    ],
)
def test_a_chunk_with_a_field_of_another_kind_is_refused(path, value):
    line = chunk_line(CHUNK, sample=0, landing=False)
    with pytest.raises(InputError, match="is not a part of an answer"):
        parse_chunk(changed(line, path, value))


class TestDroppedParts:
    """A part that begins an answer of which there are parts: those were dropped."""

    @staticmethod
    def found(*stored):
        return dropped_parts([("q", each) for each in stored])

    def test_parts_that_were_continued_are_not_dropped(self):
        first, more = StoredPart(CHUNK, anew=True), StoredPart(CHUNK)
        assert self.found(first, more, more) == set()

    def test_with_the_parts_before_it_their_landings_are_dropped(self):
        first, more = StoredPart(CHUNK, anew=True), StoredPart(CHUNK)
        landing = StoredPart(CHUNK, landing=True)
        assert self.found(first, more, landing, first, more, landing) == {0, 1, 2}

    def test_a_landing_without_a_part_drops_the_parts_before_it_and_stays(self):
        first, landing = StoredPart(CHUNK, anew=True), StoredPart(CHUNK, landing=True, anew=True)
        assert self.found(first, landing) == {0}
        assert self.found(landing, first, StoredPart(CHUNK)) == set()

    def test_other_samples_routes_and_requests_have_answers_of_their_own(self):
        first = StoredPart(CHUNK, anew=True)
        assert self.found(first, first._replace(sample=1), first._replace(route="two")) == set()
        assert dropped_parts([("q", first), ("r", first), ("q", first)]) == {0}

    def test_parts_that_an_older_version_stored_are_not_dropped(self):
        older = parse_chunk(changed(chunk_line(CHUNK, sample=0, landing=False, anew=True), ["anew"], KeyError))
        assert self.found(older, older) == set()


@given(st.dictionaries(counts, texts, max_size=5))
def test_the_routes_of_reservations_are_read_back_as_they_were_written(routes):
    assert parse_routes(routes_line(routes)) == routes


@pytest.mark.parametrize("line", [b"", b"[]", b"7", b'{"one": 7}', b'{"one": ["7"]}', b'{"one": [true]}'])
def test_what_names_no_routes_is_refused(line):
    with pytest.raises(InputError, match=r"a row of the ledger does not name routes: .*\(start a new run\)$"):
        parse_routes(line)


def test_unknown_fields_of_a_result_are_kept():
    line = changed(result_line(RESULT), ["shadowprice", "later"], [1])
    assert parse_result(line).extra == {"later": [1]}
    assert result_line(parse_result(line)) == line


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"choices": [{"message": {"content": "a"}}, {"message": {"content": "b"}}]}, "a"),
        ({"choices": [{"text": "a"}]}, "a"),
        ({"choices": [{"message": {"content": None, "tool_calls": []}}]}, ""),
        ({"choices": []}, ""),
        ({}, ""),
    ],
)
def test_the_text_of_a_response(body, text):
    assert text_of_response(body) == text
