"""What a user types: mistakes are named in one line, with what was meant."""

import pytest

from shadowprice.cli import main


def refused(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    return printed


def test_a_mistyped_option_or_command_is_named_with_the_nearest(capsys):
    assert "no option --bugdet; did you mean --budget?" in refused(capsys, "plan", "x", "--bugdet", 5)
    assert "no option --max-token; " not in refused(capsys, "plan", "x", "--max-token", 5)  # short for it
    printed = refused(capsys, "run", "x", "--budget", 5, "--local", "--acounting", "metered")
    assert "did you mean --accounting?" in printed
    assert "did you mean forecast?" in refused(capsys, "forcast", "x", "--budget", 5)
    assert "unexpected arguments: y" in refused(capsys, "plan", "x", "y", "--budget", 5)


def test_the_input_given_as_the_model(capsys):
    printed = refused(capsys, "run", "--budget", "5k", "--local", "questions.csv")
    assert "questions.csv is not a model" in printed
    assert "give the input before --local" in printed


@pytest.mark.parametrize("arguments", [[], ["--help"], ["help"]])
def test_help(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    assert stop.value.code == 0
    assert "usage: shadowprice [-h]" in capsys.readouterr().out


def test_help_about_a_command(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["help", "run"])
    assert stop.value.code == 0
    assert "usage: shadowprice run [-h]" in capsys.readouterr().out
