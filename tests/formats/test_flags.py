"""What was wrong with answers, in words."""

from shadowprice.formats.flags import flag_in_words


def test_a_flag_says_how_many_answers_what_and_what_it_cost():
    assert flag_in_words("limit_ignored", 1) == "1 answer: longer than their limit: charged for all that arrived"
    assert flag_in_words("usage_wrong", 1200).startswith("1,200 answers: counted by the server in a way that cannot be")


def test_one_of_a_newer_version_is_shown_as_it_is():
    assert flag_in_words("bent", 2) == "2 answers: bent"
