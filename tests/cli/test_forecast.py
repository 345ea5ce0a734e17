"""`shadowprice forecast`, as a user runs it."""

import json
import os
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest

from shadowprice.cli import main
from shadowprice.datasets.shipped import shipped_traces
from shadowprice.forecast import ForecastTable, default, load
from shadowprice.forecast.text import TextForecaster
from shadowprice.formats.batch import read_batch
from shadowprice.types import Forecast

from ..conftest import read_jsonl, request_line

COMMAND = [sys.executable, "-m", "shadowprice"]


def same(one: Forecast, other: Forecast, **close) -> bool:
    """Equal; or close, with rtol: a folder stores the weights in single precision."""
    equal = (lambda a, b: np.allclose(a, b, **close)) if close else np.array_equal
    assert one.shape is not None
    assert other.shape is not None
    if not all(equal(a, b) for a, b in zip(*(f.shape.to_dict().values() for f in (one, other)), strict=True)):
        return False
    for field in fields(Forecast):
        if field.name == "shape":
            continue
        a, b = (np.inf if (v := getattr(f, field.name)) is None else v for f in (one, other))
        if not equal(np.broadcast_to(a, len(one)), np.broadcast_to(b, len(other))):
            return False
    return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A forecaster that is not the one in the package."""
    place = tmp_path_factory.mktemp("trained") / "forecaster"
    TextForecaster().fit(shipped_traces("eval", "smollm2")[:200]).save(place)
    return place


def test_every_request_in_order(folder, asked, tmp_path):
    out = tmp_path / "lengths.jsonl"
    assert main(["forecast", str(asked), "--forecaster", str(folder), "--out", str(out)]) == 0
    requests = [line.request for line in read_batch(asked)]
    assert [line["custom_id"] for line in read_jsonl(out)] == [request.id for request in requests]
    assert same(ForecastTable(out).predict(requests), load(folder).predict(requests))


def test_to_standard_output_and_from_standard_input(folder, asked):
    with asked.open("rb") as source:
        done = subprocess.run(
            [*COMMAND, "forecast", "-", "--forecaster", folder],
            stdin=source, capture_output=True, timeout=120,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"100 requests from standard input (OpenAI Batch)\n")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 100
    assert all(line["tokens"] >= 1 and 0 < line["solve"] < 1 for line in lines)


def test_more_requests_than_one_chunk(batch, tmp_path):
    path = batch([request_line(f"r{i}", "word " * (i % 50 + 1)) for i in range(9000)])
    out = tmp_path / "lengths.jsonl"
    assert main(["forecast", str(path), "--out", str(out)]) == 0
    lines = read_jsonl(out)
    assert [line["custom_id"] for line in lines] == [f"r{i}" for i in range(9000)]
    assert lines[8050] == {**lines[50], "custom_id": "r8050"}
    assert lines[8051]["tokens"] != lines[8050]["tokens"]


def test_the_default_is_the_forecaster_in_the_package(asked, tmp_path):
    assert main(["forecast", str(asked), "--out", str(tmp_path / "lengths.jsonl")]) == 0
    requests = [line.request for line in read_batch(asked)]
    assert same(ForecastTable(tmp_path / "lengths.jsonl").predict(requests), default().predict(requests))


def test_a_reader_that_stops_early_causes_no_error(batch):
    path = batch([request_line(f"r{i}") for i in range(20_000)])
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m shadowprice forecast {path} --quiet | head -n 1"],
        capture_output=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_bad_line_leaves_no_file(batch, tmp_path, capsys):
    path = batch([request_line("a"), '{"custom_id": "b"}'])
    assert main(["forecast", str(path), "--out", str(tmp_path / "lengths.jsonl"), "--quiet"]) == 2
    assert capsys.readouterr().err.startswith(f"shadowprice: {path}:2: no body")
    assert sorted(os.listdir(tmp_path)) == ["requests.jsonl"]


def test_an_empty_file(batch, capsys):
    path = batch([])
    assert main(["forecast", str(path)]) == 2
    assert "has no requests" in capsys.readouterr().err


def test_the_input_is_not_overwritten(asked, capsys):
    before = asked.read_bytes()
    assert main(["forecast", str(asked), "--out", str(asked)]) == 2
    assert asked.read_bytes() == before
