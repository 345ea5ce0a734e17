"""A question is put into a prompt, and nothing but the question is changed."""

import pytest

from shadowprice import InputError
from shadowprice.formats.templates import INSTRUCTIONS, PLAIN, TEMPLATES, in_template, prompted, read_template


def test_a_template_must_have_a_place_for_the_question(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("Answer!")
    with pytest.raises(InputError, match=r"has no \{problem\}"):
        read_template(str(path))


@pytest.mark.parametrize("name", TEMPLATES)
def test_those_that_come_with_the_package_have_one(name):
    assert "{problem}" in read_template(name)


@pytest.mark.parametrize("place", ["{problem}", "{question}", "{prompt}"])
def test_all_names_for_the_question_mean_the_same(tmp_path, place):
    path = tmp_path / "mine.txt"
    path.write_bytes(f"\ufeffQ: {place}\r\nA:\r\n".encode())
    assert read_template(str(path)) == "Q: {problem}\r\nA:"


def test_neither_a_name_nor_a_file():
    with pytest.raises(
        InputError, match=r"^nowhere: no such template, and no such file \(choose one of plain, none, math"
    ):
        read_template("nowhere")


def test_what_looks_like_a_place_in_a_question_is_text():
    assert in_template("{problem} {answer}", "Why {problem} and {answer}?") == "Why {problem} and {answer}? {answer}"


def test_instructions_are_what_templates_add():
    for instruction in INSTRUCTIONS:
        assert instruction
        assert any(instruction in in_template(each, "") for each in TEMPLATES.values())
    assert len(INSTRUCTIONS) == len([each for each in TEMPLATES.values() if each != PLAIN])


class TestPrompted:
    TEMPLATE = "Q: {problem}\nA:"

    def test_a_plain_template_changes_nothing(self):
        body = {"messages": [{"role": "user", "content": "Why?"}], "n": 1}
        assert prompted(body) == body

    def test_the_last_question_of_a_chat_is_put_into_the_template(self):
        chat = [
            {"role": "user", "content": "First?"},
            {"role": "user", "content": "Last?", "name": "me"},
            {"role": "assistant", "content": "It is"},
        ]
        found = prompted({"messages": chat, "n": 1}, self.TEMPLATE)
        assert found["messages"] == [chat[0], {**chat[1], "content": "Q: Last?\nA:"}, chat[2]]
        assert found["n"] == 1
        assert chat[1]["content"] == "Last?"  # what was given stays as it was

    @pytest.mark.parametrize("field", ["prompt", "input"])
    def test_a_text_is_put_into_the_template(self, field):
        assert prompted({field: "Why?", "n": 1}, self.TEMPLATE) == {field: "Q: Why?\nA:", "n": 1}

    def test_a_system_message_comes_first(self):
        chat = [{"role": "user", "content": "Why?"}]
        assert prompted({"messages": chat}, system="Be brief.")["messages"] == [
            {"role": "system", "content": "Be brief."}, *chat,
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("body", "options", "problem"),
        [
            ({"prompt": [1, 2]}, {"template": "{problem}!"}, "prompt is not a text, so no template fits"),
            ({}, {"template": "{problem}!"}, "input is not a text"),
            ({"messages": []}, {"template": "{problem}!"}, "no message of the user is a text"),
            ({"messages": [{"role": "user", "content": []}]}, {"template": "{problem}!"}, "no message of the user"),
            ({"prompt": "Why?"}, {"system": "s"}, "not a chat, so it has no system message"),
            ({"messages": [{"role": "developer"}]}, {"system": "s"}, "already has a system message"),
        ],
    )
    def test_what_does_not_fit_is_refused_with_the_option_to_leave_out(self, body, options, problem):
        option = "--prompt-template" if "template" in options else "--system"
        with pytest.raises(InputError, match=rf"{problem}.*\(leave out {option}\)$"):
            prompted(body, **options)
