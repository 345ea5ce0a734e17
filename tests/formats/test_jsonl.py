"""One reader for every file of JSON lines: plain, gzipped, from Windows, from a pipe, damaged."""

import gzip
import os
import re
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shadowprice.errors import InputError
from shadowprice.formats.jsonl import read_lines, read_objects, write_lines

MARK = b"\xef\xbb\xbf"
LINES = [b'{"a":%d}' % i for i in range(5)]


@pytest.fixture
def file(tmp_path):
    def write(content: bytes, name: str = "lines.jsonl"):
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return write


class TestLines:
    def test_blank_lines_are_skipped_and_counted(self, file):
        assert list(read_lines(file(b'\n{"a":1}\n \t\n\n{"a":2}'))) == [(2, b'{"a":1}'), (5, b'{"a":2}')]

    def test_byte_order_mark_and_windows_line_ends(self, file):
        assert list(read_lines(file(MARK + b'{"a":1}\r\n\r\n{"a":2}\r\n'))) == [(1, b'{"a":1}'), (3, b'{"a":2}')]

    def test_a_byte_order_mark_is_removed_only_at_the_start(self, file):
        assert list(read_lines(file(b"1\n" + MARK + b"2\n"))) == [(1, b"1"), (2, MARK + b"2")]

    @pytest.mark.parametrize("name", ["lines.jsonl", "lines.jsonl.gz", "lines"])
    @pytest.mark.parametrize("pack", [gzip.compress, bytes])
    def test_the_content_decides_about_gzip_not_the_name(self, file, name, pack):
        path = file(pack(MARK + b"\r\n".join(LINES)), name)
        assert list(read_lines(path)) == list(enumerate(LINES, start=1))

    def test_several_gzip_members_are_one_file(self, file):
        path = file(gzip.compress(LINES[0] + b"\n") + gzip.compress(LINES[1] + b"\n"))
        assert list(read_lines(path)) == [(1, LINES[0]), (2, LINES[1])]

    @pytest.mark.parametrize("pack", [gzip.compress, bytes])
    def test_a_pipe_that_delivers_its_first_byte_alone(self, tmp_path, pack):
        pipe, content = tmp_path / "pipe", pack(b"\n".join(LINES))
        os.mkfifo(pipe)

        def send():
            with pipe.open("wb", buffering=0) as out:
                out.write(content[:1])
                out.write(content[1:])

        sender = threading.Thread(target=send)
        sender.start()
        assert [line for _, line in read_lines(pipe)] == LINES
        sender.join()

    def test_an_empty_file_has_no_lines(self, file):
        assert list(read_lines(file(b""))) == []

    def test_a_truncated_gzip_names_the_first_line_that_is_lost(self, file):
        noise = [os.urandom(200).hex().encode() for _ in range(2000)]
        whole = gzip.compress(b"\n".join(noise))
        path = file(whole[: len(whole) // 2], "cut.jsonl.gz")
        got = []
        with pytest.raises(InputError, match=r"cut\.jsonl\.gz:\d+: damaged gzip: .*\(.+\)$") as caught:  # noqa: PT012
            for line in read_lines(path):
                got.append(line)
        assert 0 < len(got) < 2000
        assert [line for _, line in got] == noise[: len(got)]
        assert caught.value.line == len(got) + 1

    def test_a_gzip_with_a_flipped_byte_is_an_error(self, file):
        whole = bytearray(gzip.compress(b"\n".join(os.urandom(50).hex().encode() for _ in range(500))))
        whole[len(whole) // 2] ^= 0xFF
        with pytest.raises(InputError, match="damaged gzip"):
            list(read_lines(file(bytes(whole))))

    def test_a_label_replaces_the_path_in_errors(self, file):
        with pytest.raises(InputError, match=r"^standard input:1: damaged gzip"):
            list(read_lines(file(b"\x1f\x8bnot really"), "standard input"))


BAD = [
    (b"{", r"not JSON: .* at column \d+ \(fix or remove the line\)"),
    (b'{"a": NaN}', "not JSON"),
    (b'{"a": 1} {"a": 2}', "not JSON"),
    (b"[]", r'not a JSON object \(write {"id": ...}\)'),
    (b"null", "not a JSON object"),
    (b'{"a": "\xff"}', r"invalid UTF-8 at byte 8: it looks like Latin-1 or .* \(save the file as UTF-8: iconv "),
    (b'{"a": "\xed\xa0\x80"}', "invalid UTF-8"),
    (b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", r"nested too deeply \(fix or remove the line\)"),
]


class TestObjects:
    def test_records_with_their_line_numbers(self, file):
        assert list(read_objects(file(b'{"a":1}\n\n{"b":[]}\n'))) == [(1, {"a": 1}), (3, {"b": []})]

    @pytest.mark.parametrize(("line", "message"), BAD)
    def test_an_invalid_line_is_one_error_with_file_line_and_fix(self, file, line, message):
        path = file(b'{"a":1}\n' + line + b"\n")
        with pytest.raises(InputError, match=f"^{re.escape(str(path))}:2: {message}") as caught:
            list(read_objects(path, form='{"id": ...}'))
        assert str(caught.value).endswith(")")
        assert "\n" not in str(caught.value)

    def test_utf_16_is_named_as_an_encoding_problem(self, file):
        with pytest.raises(InputError, match=r":1: looks like UTF-16, not UTF-8 .*iconv -f UTF-16 "):
            list(read_objects(file('{"a": 1}\n'.encode("utf-16"))))

    def test_skip_receives_the_errors_and_the_rest_is_read(self, file):
        path = file(b"\n".join([b'{"a":1}', *(line for line, _ in BAD), b'{"a":2}']))
        errors = []
        assert [record for _, record in read_objects(path, skip=errors.append)] == [{"a": 1}, {"a": 2}]
        assert [error.line for error in errors] == list(range(2, 2 + len(BAD)))
        assert all(error.path == path for error in errors)

    def test_skip_does_not_hide_a_damaged_file(self, file):
        path = file(gzip.compress(b'{"a":1}\n')[:-4])
        with pytest.raises(InputError, match="damaged"):
            list(read_objects(path, skip=lambda error: None))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(lines=st.lists(st.dictionaries(st.text(), st.text() | st.integers()).map(str).map(str.encode)), gz=st.booleans())
def test_written_lines_are_read_back(lines, gz, tmp_path):
    path = tmp_path / ("out.gz" if gz else "out")
    assert write_lines(path, lines) == len(lines)
    assert path.read_bytes().startswith(b"\x1f\x8b") == gz
    assert [line for _, line in read_lines(path)] == lines


def test_the_same_lines_give_the_same_bytes_under_any_name(tmp_path):
    for name in ("one.gz", "two.gz"):
        write_lines(tmp_path / name, LINES)
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()


def test_writing_that_fails_leaves_the_old_file(tmp_path):
    (tmp_path / "out.gz").write_bytes(b"old")

    def lines():
        yield b"{}"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_lines(tmp_path / "out.gz", lines())
    assert (tmp_path / "out.gz").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1
