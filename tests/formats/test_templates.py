"""A question is put into a prompt, and nothing but the question is changed."""

import pytest

from shadowprice import InputError
from shadowprice.formats.templates import TEMPLATES, read_template


def test_a_template_must_have_a_place_for_the_question(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("Answer!")
    with pytest.raises(InputError, match=r"has no \{problem\}"):
        read_template(str(path))


@pytest.mark.parametrize("name", TEMPLATES)
def test_those_that_come_with_the_package_have_one(name):
    assert "{problem}" in read_template(name)
