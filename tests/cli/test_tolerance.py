"""How long an outage is waited out, and for how much a server is believed."""

import argparse

import pytest

from shadowprice.cli.tolerance import add_tolerance, tolerance
from shadowprice.engine.executor import Tolerance
from shadowprice.errors import InputError


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    add_tolerance(parser)
    return tolerance(parser.parse_args(arguments))


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("30", 30), ("30s", 30), ("5m", 300), ("1.5h", 5400), (" 2 m ", 120)]
)
def test_patience(text, seconds):
    assert parsed("--patience", text).patience == seconds


@pytest.mark.parametrize(
    ("text", "share"), [("0", 0), ("10%", 0.1), ("0.25", 0.25), ("100%", 1), ("1", 1), ("2.5%", 0.025)]
)
def test_exposure(text, share):
    assert parsed("--exposure", text).exposure == pytest.approx(share)


def test_the_defaults_of_the_command_are_those_of_python():
    assert parsed() == Tolerance()


@pytest.mark.parametrize("text", ["", "-5s", "5 minutes", "5d", "m", "1e3", "inf", "nan"])
def test_a_patience_that_makes_no_sense_is_named(text):
    with pytest.raises(InputError, match=r"--patience .*\(write it as 30s, 5m or 1h\)$"):
        parsed(f"--patience={text}")


@pytest.mark.parametrize("text", ["", "-1%", "101%", "1.1", "half", "nan", "10 %"])
def test_an_exposure_that_makes_no_sense_is_named(text):
    with pytest.raises(InputError, match=r"--exposure .*\(write it as 10% or 0.1\)$"):
        parsed(f"--exposure={text}")
