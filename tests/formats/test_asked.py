"""Questions and correct answers, as a run folder keeps them."""

import json

from shadowprice.formats.asked import Asked, asked_lines, read_asked
from shadowprice.types import Request


def test_questions_and_gold_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "requests.jsonl"
    requests = [Request("a", "Why?\n\x1b[2J"), Request("b", "2 + 2?")]
    path.write_bytes(b"".join(asked_lines(requests, {"b": ("4", "numeric")})))
    assert list(read_asked(path)) == [("a", Asked("Why?\n\x1b[2J")), ("b", Asked("2 + 2?", "4"))]
    assert json.loads(path.read_text().splitlines()[1])["grader"] == "numeric"


def test_half_a_character_is_written_as_a_question_mark(tmp_path):
    path = tmp_path / "requests.jsonl"
    path.write_bytes(b"".join(asked_lines([Request("a", "x\ud800y")])))
    assert dict(read_asked(path))["a"].question == "x?y"


def test_a_missing_or_damaged_file_is_read_as_far_as_it_goes(tmp_path):
    assert list(read_asked(tmp_path / "none")) == []
    (tmp_path / "cut").write_text('{"custom_id": "a", "question": "x"}\n{"custom')
    assert dict(read_asked(tmp_path / "cut")) == {"a": Asked("x")}
