"""Questions from files of every usual form."""

import gzip
import json

import pytest

from shadowprice.errors import InputError
from shadowprice.formats.inputs import Fields, read_input

SAME = [("What is 2 + 2?", "4"), ("Name a colour,\nplease.", "red")]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]


@pytest.fixture
def file(tmp_path):
    def write(name: str, content: str | bytes):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def jsonl(*records) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def found(path, **options) -> list[tuple[str, str]]:
    return [(each.problem, each.gold) for each in read_input(path, **options).questions]


FORMS = {
    "comma.csv": 'question,answer\nWhat is 2 + 2?,4\n"Name a colour,\nplease.",red\n',
    "semicolon.csv": 'question;answer\nWhat is 2 + 2?;4\n"Name a colour,\nplease.";red\n',
    "excel.csv": '\ufeffid;Answer;Question\r\na;4;What is 2 + 2?\r\nb;red;"Name a colour,\nplease."\r\n',
    "tabs.tsv": 'prompt\tgold\nWhat is 2 + 2?\t4\n"Name a colour,\nplease."\tred\n',
    "tabs.csv": 'problem\ttarget\nWhat is 2 + 2?\t4\n"Name a colour,\nplease."\tred\n',
    "blank lines.csv": '\nquestion,answer\n\nWhat is 2 + 2?,4\n,\n"Name a colour,\nplease.",red\n\n',
    "plain.jsonl": jsonl(*({"question": q, "answer": a} for q, a in SAME)),
    "other names.jsonl": jsonl(*({"input": q, "target": a, "level": 3} for q, a in SAME)),
    "numbers.jsonl": jsonl({"problem": SAME[0][0], "gold": 4}, {"problem": SAME[1][0], "gold": "red"}),
    "solutions.jsonl": jsonl(*({"question": q, "answer": f"So it is.\n#### {a}"} for q, a in SAME)),
    "json in a text.txt": jsonl(*({"question": q, "answer": a} for q, a in SAME)),
    "without an extension": jsonl(*({"question": q, "answer": a} for q, a in SAME)),
    "a table without an extension": 'question,answer\nWhat is 2 + 2?,4\n"Name a colour,\nplease.",red\n',
}


class TestForms:
    @pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzipped"])
    @pytest.mark.parametrize("name", FORMS)
    def test_each_gives_the_same_questions(self, file, name, packed):
        content = FORMS[name].encode()
        path = file(f"{name}.gz", gzip.compress(content)) if packed else file(name, content)
        assert found(path) == SAME

    def test_a_line_of_text_is_a_question(self, file):
        text = "What is 2, and 2?\r\n\r\n  Why; or not?  \r\n"
        for name in ("questions.txt", "questions"):
            assert found(file(name, text)) == [("What is 2, and 2?", ""), ("Why; or not?", "")]

    def test_a_question_may_begin_with_a_bracket(self, file):
        assert found(file("a.txt", "[Algebra] What is x?\n")) == [("[Algebra] What is x?", "")]

    def test_one_column_needs_no_header(self, file):
        assert found(file("a.csv", "Why?\nHow?\n")) == [("Why?", ""), ("How?", "")]
        assert found(file("b.csv", "question\nWhy?\nHow?\n")) == [("Why?", ""), ("How?", "")]

    def test_a_chat_is_sent_as_it_is(self, file):
        found = read_input(file("a.jsonl", jsonl({"messages": CHAT, "answer": 7})))
        assert [line["body"] for line in found.requests] == [{"messages": CHAT}]
        assert list(found.gold.values()) == [("7", "math")]

    def test_a_batch_file_is_passed_on_unread(self, file):
        path = file("a.jsonl", jsonl({"custom_id": "a", "body": {"prompt": "Why?"}}) + "damaged")
        assert read_input(path).requests == str(path)

    def test_a_number_is_an_id(self, file):
        line = {"custom_id": 17, "url": "/v1/chat/completions", "body": {"messages": CHAT}}
        found = read_input(file("a.jsonl", jsonl(line)))
        assert [each.request.id for each in found.batch()] == ["17"]
        assert found.understood == (
            f"1 request from {found.label} (OpenAI Batch): custom_id is a number; it is text in the results"
        )
        assert read_input(file("b.jsonl", jsonl({"question": "Why?", "id": 17}))).questions[0].id == "17"


class TestIds:
    def test_they_are_made_from_the_text_and_are_the_same_in_every_file(self, file):
        one = read_input(file("a.txt", "Why?\nHow?\nWhy?\n")).questions
        other = read_input(file("b.csv", "level,question\n3,Why?\n4,Who?\n")).questions
        assert one[0].id == other[0].id
        assert len({each.id for each in one}) == 3
        assert one[2].id == f"{one[0].id}-2"

    def test_a_question_may_be_repeated_very_often(self, file):
        rows = "Why?\n" * 30_000  # one more step for each earlier one would take minutes
        found = read_input(file("a.csv", f"question\n{rows}")).questions
        assert len({each.id for each in found}) == 30_000
        assert found[-1].id == f"{found[0].id}-30000"

    def test_they_differ_from_those_that_are_given(self, file):
        made = read_input(file("a.txt", "Why?\n")).questions[0].id
        path = file("b.csv", f"id,question\n{made}-2,How?\n,Why?\n,Why?\n")
        assert [each.id for each in read_input(path).questions] == [f"{made}-2", made, f"{made}-3"]

    def test_an_instruction_does_not_change_them(self, file):
        path = file("a.txt", "Why?\n")
        plain, worded = read_input(path), read_input(path, template="Be kind. {problem}", system="Be brief.")
        assert plain.requests[0]["custom_id"] == worded.requests[0]["custom_id"]
        assert worded.requests[0]["body"]["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Be kind. Why?"},
        ]

    def test_where_some_are_missing_only_those_are_made(self, file):
        path = file("a.csv", "id,question\nx,Why?\n,How?\n")
        assert [each.id[:2] for each in read_input(path).questions] == ["x", "q-"]


class TestWhatIsUnderstood:
    def test_it_is_reported_in_one_line(self, file):
        path = file("a.csv", "id,Question,answer,grader\na,Why?,7,\nb,How?,x,exact\nc,Who?,,\n")
        found = read_input(path, label="a.csv")
        assert found.understood == (
            "3 questions from a.csv: Question -> prompt, answer -> gold (math, exact; 1 without), id -> id"
        )
        assert found.gold == {"a": ("7", "math"), "b": ("x", "exact")}

    def test_names_of_columns_may_be_written_in_capitals(self, file):
        path = file("a.csv", "ID,Question,Answer,Grader,Dataset\na,Why?,7,exact,mine\n")
        found = read_input(path, label="a.csv")
        assert found.gold == {"a": ("7", "exact")}
        assert found.questions[0].dataset == "mine"
        assert "not used" not in found.understood

    def test_fields_may_be_named(self, file):
        path = file("a.csv", "Text of it,question,n,Key\nWhy?,no,7,a\n")
        found = read_input(path, fields=Fields("Text of it", "key", "n"))
        assert [(q.id, q.problem, q.gold) for q in found.questions] == [("7", "Why?", "a")]

    def test_a_template_is_put_around_the_last_question_of_a_batch_line(self, file):
        line = {
            "custom_id": "a",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"messages": CHAT, "seed": 3},
        }
        found = read_input(file("a.jsonl", jsonl(line)), template="{problem} Say.")
        (sent,) = found.requests
        assert sent["body"]["messages"] == [CHAT[0], {"role": "user", "content": "Why? Say."}]
        assert sent["body"]["seed"] == 3


BAD = {
    "no known column": (
        "a.csv",
        "one,two\n1,2\n",
        ": no column is called question, .*: there are one, two .*--prompt-",
    ),
    "no known field": ("a.jsonl", '{"text": "Why?"}\n', ":1: no field is called question, .*: there are text "),
    "an empty question": ("a.csv", "question,answer\nWhy?,1\n,2\n", ":3: question is empty"),
    "an empty question after lines": ("a.csv", 'question,answer\n"a\nb",1\n\n,2\n', ":5: question is empty"),
    "too many fields": ("a.csv", "question,answer\nWhat is 2, and 3?,5\n", ":2: 3 fields, and the header has 2 "),
    "too few fields": ("a.csv", "question,answer\nWhy?\n", ":2: 1 field, and the header has 2 "),
    "an open quote": ("a.csv", 'question,answer\n"Why?,5\n', ":2: not CSV: "),
    "two forms": ("a.jsonl", jsonl({"question": "a"}, {"prompt": "b"}), ":2: has prompt, and the first line has quest"),
    "a batch line among questions": ("a.jsonl", jsonl({"question": "a"}, {"body": {}}), ":2: has body, and the first"),
    "a line without a question": ("a.jsonl", jsonl({"question": "a"}, {"answer": "b"}), ":2: no question "),
    "a question that is none": ("a.jsonl", jsonl({"question": 5}), ":1: question is 5 "),
    "an answer that is none": ("a.jsonl", jsonl({"question": "a", "answer": [1]}), r":1: answer is \[1\] "),
    "a chat that has its answer": (
        "a.jsonl",
        jsonl({"messages": [{"role": "assistant", "content": "x"}]}),
        ":1: the la",
    ),
    "the same id twice": ("a.csv", "id,question\n1,Why?\n1,How?\n", ":3: id '1' was used before"),
    "an unknown grader": ("a.csv", "question,answer,grader\nWhy?,1,vibes\n", ":2: unknown grader 'vibes'"),
    "an array": ("a.json", '[{"question": "Why?"}]', r": is a JSON array, not lines .*jq -c '\.\[\]'"),
    "an object over lines": ("a.json", '{\n"question": "Why?"\n}', ":1: an object over several lines .*jq"),
    "broken JSON": ("a.jsonl", jsonl({"question": "a"}) + "{", ":2: not JSON"),
    "NaN": ("a.jsonl", '{"question": "é", "answer": NaN}', r":1: not JSON: NaN or infinity at column 29 \(write null"),
    "infinity": ("a.jsonl", '{"question": "é", "answer": -Infinity}', ":1: not JSON: NaN or infinity"),
    "a login page": ("a.csv", "\n<!DOCTYPE html>\n<html><body>Sign in</body></html>", ": is a web page .*login"),
    "nothing": ("a.csv", "", ": has no questions"),
    "only a header": ("a.csv", "question,answer\n", ": has no questions"),
    "UTF-16": (
        "a.csv",
        "question,answer\nWhy?,1\n".encode("utf-16"),
        ": looks like UTF-16, not UTF-8 .*iconv -f UTF-16",
    ),
    "Latin-1": (
        "a.csv",
        "question,answer\nWhy?,é\n".encode("latin-1"),
        ":2: invalid UTF-8 at byte 6: .*Latin-1.*iconv",
    ),
    "Latin-1 lines": ("a.txt", "Why?\nÜber?\n".encode("latin-1"), ":2: invalid UTF-8 at byte 1: .*Latin-1"),
    "a spreadsheet": ("a.csv", b"PK\x03\x04\x14\x00", r": is a spreadsheet or a zip file \(save it as CSV"),
    "no text": ("a.txt", b"\x7fELF\x02\x00\x01", ": is binary, not text"),
    "damaged gzip": ("a.txt", gzip.compress(b"Why?\n" * 999)[:-9], ": damaged gzip"),
    "another kind of file": ("a.py", "print(1)\n", r": cannot be read: unknown extension \.py \(name it "),
}


@pytest.mark.parametrize(("name", "content", "message"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_named_with_its_place_and_its_fix(file, name, content, message):
    path = file(name, content)
    with pytest.raises(InputError, match=f"{name}{message}") as caught:
        read_input(path)
    assert str(caught.value).endswith(")")


def test_a_field_that_does_not_exist_is_named_with_those_that_do(file):
    with pytest.raises(InputError, match=r"no column is called 'Answer': there are question, x \(.*--gold-field"):
        read_input(file("a.csv", "question,x\nWhy?,1\n"), fields=Fields(gold="Answer"))
