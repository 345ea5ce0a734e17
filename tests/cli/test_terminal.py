"""What reaches a terminal: nothing that could command it, and frames that replace each other."""

import io
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import time
from contextlib import redirect_stderr
from fcntl import ioctl
from termios import TIOCSWINSZ

import pytest

from shadowprice.cli import main
from shadowprice.cli.terminal import Screen, clean, cleaned_streams, fitted

from ..backends import hostile
from ..conftest import request_line
from ..talking import talks

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202e"


class Terminal:
    """As much of a terminal as our sequences need: what is on it after some output."""

    def __init__(self, columns=80):
        self.columns, self.lines, self.row, self.column = columns, [""], 0, 0

    def feed(self, text):
        for move, erase, character in re.findall(r"\x1b\[(\d+)A|(\x1b\[J)|([\s\S])", text):
            if move:
                self.row = max(0, self.row - int(move))
            elif erase:
                self.lines = [*self.lines[: self.row], self.lines[self.row][: self.column]]
            else:
                self._put(character)
        return self

    def _put(self, character):
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.row, self.column = self.row + 1, 0
        else:
            assert character.isprintable(), repr(character)
            if self.column == self.columns:
                self._put("\n")
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1
        if self.row == len(self.lines):
            self.lines.append("")


class TestClean:
    @pytest.mark.parametrize("text", ["plain", "two\nlines", "a\ttab", "Zürich 東京 🙂", ""])
    def test_text_stays_as_it_is(self, text):
        assert clean(text) == text

    @pytest.mark.parametrize("code", [0, 7, 8, 0x0B, 0x0D, 0x1B, 0x7F, 0x85, 0x9B, 0x200F, 0x202E, 0x2066])
    def test_control_characters_are_spelled_out(self, code):
        assert clean(f"a{chr(code)}b") == f"a{chr(code).encode('unicode_escape').decode()}b"

    def test_everything_that_is_printed_is_cleaned(self, capsys):
        with cleaned_streams():
            print(ESCAPE)
            print(ESCAPE, file=sys.stderr)
        printed = capsys.readouterr()
        assert printed.out == printed.err == clean(ESCAPE) + "\n"

    def test_a_closed_stream_is_no_error(self, monkeypatch):
        monkeypatch.setattr(sys, "stderr", None)
        with cleaned_streams():
            assert sys.stderr is None

    def test_errors_of_a_command(self, capsys):
        assert main(["report", f"/no/such{ESCAPE}"]) == 2
        assert not set("\x1b\x07\x9b\u202e") & set(capsys.readouterr().err)

    def test_options_that_are_refused(self, capsys):
        with pytest.raises(SystemExit):
            main(["report", "x", f"--{ESCAPE}"])
        assert "\x1b" not in capsys.readouterr().err

    def test_what_a_server_says(self, batch, tmp_path, capsys):
        with hostile.Server(hostile.fails(400, ESCAPE)) as server:
            path = batch([request_line(f"q{ESCAPE}")])
            options = [
                "--budget",
                "100",
                "--base-url",
                server.url,
                "--model",
                ESCAPE,
                "--out",
                str(tmp_path / ESCAPE[2]),
            ]
            main(["run", str(path), *options])
        printed = capsys.readouterr()
        assert not set("\x1b\x07\x9b\u202e\r") & set(printed.out + printed.err)


class TestFitted:
    @pytest.mark.parametrize(
        ("line", "width", "shown"),
        [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("東京都", 4, "東…"), ("e\u0301e\u0301", 2, "e\u0301e\u0301")],
    )
    def test_a_line_never_wraps(self, line, width, shown):
        assert fitted(line, width) == shown


class TestScreen:
    @pytest.fixture
    def stream(self):
        return io.StringIO()

    def shown(self, stream):
        return Terminal().feed(stream.getvalue()).lines

    def test_a_frame_replaces_the_one_before(self, stream):
        lines = ["one", "two", "three"]
        screen = Screen(lambda width: lines, stream, every=60)
        screen.redraw()
        lines[:] = ["1", "2"]
        screen.redraw(least=0)
        assert self.shown(stream) == ["1", "2"]
        screen.close()
        assert self.shown(stream) == [""]

    def test_other_output_stays_above_it(self, stream):
        screen = Screen(lambda width: ["bar", "words"], stream, every=60)
        screen.redraw()
        screen.say(f"hello {ESCAPE}")
        screen.redraw(least=0)
        assert self.shown(stream) == [f"hello {clean(ESCAPE)}", "bar", "words"]
        screen.close()
        assert self.shown(stream) == [f"hello {clean(ESCAPE)}", ""]

    def test_it_moves_while_nothing_happens(self, stream):
        calls = []
        screen = Screen(lambda width: [str(len(calls)) for _ in [calls.append(1)]], stream, every=0.01)
        deadline = time.monotonic() + 10
        while len(calls) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        screen.close()
        assert len(calls) >= 3

    def test_frames_are_cleaned_and_fit(self, stream):
        screen = Screen(lambda width: [ESCAPE + "x" * 200], stream, every=60)
        screen.redraw()
        (line,) = self.shown(stream)
        assert len(line) == 79
        screen.close()


def on_a_terminal(arguments, columns=80, **environment):
    """All that a command writes to a terminal of its own."""
    own, other = pty.openpty()
    ioctl(other, TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-m", "shadowprice", *map(str, arguments)]
    settings = {**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **environment}
    process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=settings)
    os.close(other)
    printed = b""
    while select.select([own], [], [], 60)[0]:
        try:
            printed += os.read(own, 65536)
        except OSError:  # the command has ended
            break
    process.wait(timeout=60)
    os.close(own)
    return printed.decode()


class TestARun:
    @pytest.fixture(params=[80, 40])
    def columns(self, request):
        return request.param

    def test_its_frames_fit_the_terminal_and_are_removed_at_the_end(self, batch, columns):
        path = batch([request_line(f"q{i}") for i in range(6)])
        with hostile.Server(talks(20, pause=0.04)) as server:
            options = ["--budget", "120", "--policy", "uniform", "--concurrency", "2", "--model", ESCAPE]
            printed = on_a_terminal(["run", path, "--base-url", server.url, *options], columns)
        frames = printed.split("\x1b[J")
        assert len(frames) > 4
        assert frames[0].startswith(f"6 requests from {path} (OpenAI Batch)")
        for frame in frames[1:-1]:
            assert all(len(line) < columns for line in re.sub(r"\x1b\[\d+A", "", frame).splitlines())
        assert re.search(r"[1-5] of 6 answered, 0 cut", printed)
        assert re.search(r"\d+% █+░+  0:0\d", printed)
        end = "\n".join(Terminal(columns).feed(printed).lines)
        assert "█" not in end
        assert "\n6 requests, 120 tokens" in end

    def test_without_a_terminal_that_can_redraw_it_is_lines(self, batch):
        path = batch([request_line(f"q{i}") for i in range(4)])
        with hostile.Server(talks(15, pause=0.1)) as server:
            options = ["--budget", "60", "--policy", "uniform", "--concurrency", "1"]
            printed = on_a_terminal(["run", path, "--base-url", server.url, "--model", "m", *options], TERM="dumb")
        assert "\x1b" not in printed
        assert re.search(r"\d+%, 0:0\d.* of 4 answered, .* in flight; \d+ of 60 tokens used, \d+ per second", printed)

    @pytest.mark.parametrize("accounting", ["reserved", "metered"])
    def test_it_moves_while_the_first_answer_is_generated(self, batch, accounting):
        path = batch([request_line("q")])
        with hostile.Server(talks(40, pause=0.06)) as server:
            options = ["--budget", "40", "--policy", "uniform", "--accounting", accounting]
            printed = on_a_terminal(["run", path, "--base-url", server.url, "--model", "m", *options])
        used = [int(found) for found in re.findall(r"(\d+) of 40 tokens used", printed.partition("1 of 1 answered")[0])]
        assert any(0 < tokens < 40 for tokens in used)
        assert re.search(r"[1-9]\d* per second", printed)

    def test_quiet_is_quiet(self, batch):
        path = batch([request_line("a")])
        with hostile.Server(talks(2)) as server:
            printed = on_a_terminal(
                ["run", path, "--base-url", server.url, "--model", "m", "--budget", "9", "--quiet", "--json"]
            )
        assert json.loads(printed)["requests"] == 1


def test_standard_error_may_be_redirected_inside():
    """As tests and notebooks do."""
    with redirect_stderr(io.StringIO()) as kept, cleaned_streams():
        print("\x1b", file=sys.stderr)
    assert kept.getvalue() == "\\x1b\n"
