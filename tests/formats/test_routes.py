"""A file of routes: what it says is what is used, and every mistake in it is one line with its place."""

import pytest

from shadowprice.cost import Rates
from shadowprice.errors import InputError
from shadowprice.formats.routes import Route, check_contexts, read_routes
from shadowprice.types import Request

SMALL = """\
[[route]]
name = "small"
base_url = "http://127.0.0.1:8000/v1"
model = "llama-3.1-8b"
rates = { input = 0.05, output = 0.10, cached = 0.02 }
context = 8192
max_concurrency = 4
"""
LOCAL = """
[[route]]
name = "here"
local = "smollm2-135m"
[route.rates]
input = 0.1
output = 1
"""


def read(tmp_path, text, **environ):
    path = tmp_path / "routes.toml"
    path.write_text(text)
    return read_routes(path, environ)


def test_a_file_of_routes_is_read(tmp_path):
    small, here = read(tmp_path, SMALL + LOCAL)
    assert small == Route(
        "small", Rates.dollars("0.05", "0.10", "0.02"), "http://127.0.0.1:8000/v1", "", "llama-3.1-8b", 8192, "", 4
    )
    assert (here.local, here.rates) == ("smollm2-135m", Rates.dollars("0.1", "1"))
    assert here.api_key() == "none"


def test_keys_come_from_the_environment_alone(tmp_path):
    (route,) = read(tmp_path, SMALL + 'api_key_env = "SMALL_KEY"\n', SMALL_KEY=" sk-1 ")
    assert route.api_key({"SMALL_KEY": " sk-1 "}) == "sk-1"
    assert "sk-1" not in repr(route)


def test_a_forecaster_is_relative_to_the_file(tmp_path):
    (tmp_path / "mine").mkdir()
    (route,) = read(tmp_path, SMALL + 'forecaster = "mine"\n')
    assert route.forecaster == str(tmp_path / "mine")


def swap(old, new):
    assert old in SMALL
    return SMALL.replace(old, new)


@pytest.mark.parametrize(
    ("text", "line", "problem", "fix"),
    [
        ("", None, "has no [[route]]", "one table per model"),
        ("route = 3\n", None, "has no [[route]]", "one table per model"),
        ("[[route]\n", 1, "is not TOML", "docs/routes.md"),
        ("[[routes]]\nname = 'x'\n", 1, "unknown key 'routes'", "[[route]]"),
        (SMALL + "max_concurency = 3\n", 8, "unknown key 'max_concurency'", "did you mean max_concurrency?"),
        (SMALL + "colour = 'red'\n", 8, "unknown key 'colour'", "known are name, rates"),
        (swap('name = "small"\n', ""), 1, "route 1: no name", 'add name = "small"'),
        (swap('"small"', '""'), 2, "name is ''", "quotes"),
        (swap('"small"', '"two words"'), 2, "its name has other characters", "short name"),
        (swap("rates = { input = 0.05, output = 0.10, cached = 0.02 }\n", ""), 1, "no rates", "rates = {"),
        (swap("input = 0.05, ", ""), 5, "no rate of input", "rates = {"),
        (swap("output = 0.10, ", ""), 5, "no rate of output", "rates = {"),
        (swap("0.05", "-0.05"), 5, "the rate of input is -0.05", "0.15"),
        (swap("0.10", "nan"), 5, "the rate of output is nan", "0.15"),
        (swap("0.10", "inf"), 5, "the rate of output is inf", "0.15"),
        (swap("0.10", "0"), 5, "the rate of output is 0", "0.60"),
        (swap("0.10", "1e300"), 5, "the rate of output", "0.15"),
        (swap("0.02", "'free'"), 5, "the rate of cached is 'free'", "0.15"),
        (swap("cached", "cache"), 5, "unknown key 'cache' in rates", "input, output, cached"),
        (swap("{ input = 0.05, output = 0.10, cached = 0.02 }", "0.5"), 5, "rates is 0.5", "rates = {"),
        (swap("8192", "0"), 6, "context is 0", "whole number"),
        (swap("8192", "'8k'"), 6, "context is '8k'", "whole number"),
        (swap("= 4", "= true"), 7, "max_concurrency is True", "whole number"),
        (swap('base_url = "http://127.0.0.1:8000/v1"\n', ""), 1, "neither base_url nor local", "where the model is"),
        (SMALL + "local = 'smollm2-135m'\n", 8, "both base_url and local", "one of them"),
        (LOCAL.replace("local", "model = 'x'\nlocal"), 4, "model of a model on this machine", "leave it out"),
        (swap("http://127.0.0.1:8000/v1", "127.0.0.1:8000"), 3, "is not an address", "http://"),
        (swap("http://127.0.0.1:8000/v1", "http://127.0.0.1:80000/v1"), 3, "is not an address", "http://"),
        (swap("http://127.0.0.1:8000/v1", "http://[::1/v1"), 3, "is not an address", "http://"),
        (swap("http://127.0.0.1:8000/v1", "http://local host/v1"), 3, "is not an address", "http://"),
        (SMALL + "api_key_env = 'NOT_SET'\n", 8, "the environment variable NOT_SET is not set", "export NOT_SET"),
        (SMALL + "forecaster = 'nowhere'\n", 8, "no folder", "shadowprice train"),
        (SMALL + SMALL, 9, "a second route 'small'", "its own name"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(tmp_path, text, line, problem, fix):
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    place = f"{tmp_path / 'routes.toml'}:" + (f"{line}: " if line else " ")
    assert message.startswith(place), message
    assert problem in message
    assert fix in message or fix in caught.value.problem, message
    assert "\n" not in message


def test_a_missing_file_is_a_plain_error(tmp_path):
    with pytest.raises(OSError, match=r"nowhere\.toml"):
        read_routes(tmp_path / "nowhere.toml")


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "routes.toml"
    path.write_bytes(b"\xff\xfe[")
    with pytest.raises(InputError, match=r"routes\.toml"):
        read_routes(path)


def test_a_context_too_short_for_every_prompt_is_refused(tmp_path):
    (route,) = read(tmp_path, swap("8192", "300"))
    long = Request("a", "", body={"messages": [{"role": "user", "content": "x" * 500}]})
    short = Request("b", "", body={"messages": [{"role": "user", "content": "x"}]})
    with pytest.raises(InputError, match=r"route small: its context of 300 tokens is too short .*\(raise its context"):
        check_contexts([route], [long])
    tight = Route("tight", route.rates, "http://x/v1", context=330)
    check_contexts([tight], [long, short])
    assert tight.room(long) == 0
    assert 0 < tight.room(short) < 74
