"""Every error is one of the tree, in one line, and says what a command needs to know."""

import inspect

import pytest

from shadowprice import errors
from shadowprice.errors import (
    BackendError,
    Denied,
    InputError,
    LimitViolated,
    MissingExtra,
    Refused,
    ShadowpriceError,
    Unavailable,
)
from shadowprice.redact import register_secret


def test_the_tree_in_the_documentation_is_the_tree():
    classes = {
        name: each
        for name, each in vars(errors).items()
        if inspect.isclass(each) and each.__module__ == errors.__name__
    }
    drawn, above = {}, {}
    for line in errors.__doc__.splitlines():
        name = line.lstrip(" │├└─").split(" ")[0]
        if name in classes:
            depth = line.index(name)
            drawn[name] = next((above[d] for d in sorted(above, reverse=True) if d < depth), "Exception")
            above = {d: each for d, each in above.items() if d < depth} | {depth: name}
    assert drawn == {name: each.__bases__[0].__name__ for name, each in classes.items()}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InputError("no custom_id"), "no custom_id"),
        (InputError("no custom_id", fix="add one"), "no custom_id (add one)"),
        (InputError("is empty", path="a.jsonl"), "a.jsonl: is empty"),
        (InputError("no id", path="a.jsonl", line=17, fix="add one"), "a.jsonl:17: no id (add one)"),
        (MissingExtra("math", "grading"), "grading needs an extra (pip install 'shadowprice[math]')"),
    ],
)
def test_messages(error, text):
    assert str(error) == text


def test_bad_input_is_also_a_value_error_and_a_missing_extra_an_import_error():
    assert isinstance(InputError("x"), ValueError)
    assert isinstance(MissingExtra("math", "grading"), ImportError)
    assert issubclass(InputError, ShadowpriceError)


def test_what_failures_have_in_common_is_the_message_where_nothing_else_is_given():
    assert Unavailable("503: busy", tokens=0).cause == "503: busy"
    assert Unavailable("503: node 7 is busy", tokens=0, cause="503").cause == "503"


def test_what_an_attempt_has_cost_and_whether_it_was_sent():
    assert (Unavailable("lost", tokens=None).tokens, Unavailable("lost", tokens=None).sent) == (None, True)
    assert (Refused("no").tokens, Refused("no").code) == (0, "request_refused")
    assert (LimitViolated("it ignored a limit").tokens, LimitViolated("it ignored a limit").sent) == (0, False)
    assert Unavailable("busy", tokens=0, delay=2.5).delay == 2.5
    assert isinstance(Denied("401"), Refused)


@pytest.mark.parametrize("kind", [BackendError, Unavailable, Refused, Denied])
def test_neither_secrets_nor_half_characters_leave_a_backend(kind):
    register_secret("sk-a-secret-of-this-test")
    error = kind("key sk-a-secret-of-this-test \ud800", tokens=0, cause="sk-a-secret-of-this-test \udfff")
    assert str(error) == "key *** ?"
    assert error.cause == "*** ?"
