"""Results are written as plain JSON and a CSV file per table, and read back as they were."""

import csv
import json

import numpy as np
import pytest

from shadowprice.errors import InputError
from shadowprice.lab.results import Results, refuse_other_content

RESULTS = Results(
    [
        {"table": "main", "policy": "clear", "solved": 12.3456789, "price": None, "ok": np.bool_(True)},
        {"table": "main", "policy": 'ümlaut, "quoted"', "solved": float("nan"), "budget": np.int64(256)},
        {"table": "beta", "beta": float("inf"), "tokens": np.array([1, 2])},
    ],
    {"model": "m", "seeds": (0, 1)},
    [{"id": "a", "grant": 3}],
)


def test_what_is_written_is_read(tmp_path):
    RESULTS.write(tmp_path / "deep" / "out")
    back = Results.read(tmp_path / "deep" / "out")
    assert back.tables == ["main", "beta"]
    assert back.table("main")[0] == {"table": "main", "policy": "clear", "solved": 12.3457, "price": None, "ok": True}
    assert back.table("main")[1]["budget"] == 256
    assert back.table("beta")[0]["tokens"] == [1, 2]
    assert back.meta == {"model": "m", "seeds": [0, 1]}
    assert back.queries == [{"id": "a", "grant": 3}]


def test_a_column_of_version_0_1_is_read_under_its_new_name(tmp_path):
    Results([{"table": "waterfall", "right": 7}]).write(tmp_path)
    assert Results.read(tmp_path).rows == [{"table": "waterfall", "correct": 7}]


def test_json_has_no_nan(tmp_path):
    RESULTS.write(tmp_path)

    def refuse(name):
        raise AssertionError(name)

    record = json.loads((tmp_path / "results.json").read_text(), parse_constant=refuse)
    assert record["rows"][1]["solved"] is None
    assert record["rows"][2]["beta"] is None


def test_a_csv_per_table(tmp_path):
    RESULTS.write(tmp_path)
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {"main.csv", "beta.csv", "queries.csv"}
    with open(tmp_path / "tables" / "main.csv", newline="") as file:
        first, second = csv.DictReader(file)
    assert first["policy"] == "clear"
    assert first["budget"] == ""
    assert second["policy"] == 'ümlaut, "quoted"'
    assert second["solved"] == ""


def test_the_same_results_give_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        RESULTS.write(tmp_path / name)
    assert (tmp_path / "one" / "results.json").read_bytes() == (tmp_path / "two" / "results.json").read_bytes()


@pytest.mark.parametrize("content", ["{", "[]", '{"rows": [1], "meta": {}, "queries": []}', '{"rows": []}'])
def test_damaged_results_are_an_error(tmp_path, content):
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(InputError, match=r"results.json: damaged"):
        Results.read(tmp_path)


def test_a_folder_without_results_is_an_error(tmp_path):
    with pytest.raises(InputError, match="holds no results"):
        Results.read(tmp_path)


class TestTheFolder:
    def test_may_be_new_empty_or_hold_results(self, tmp_path):
        refuse_other_content(tmp_path / "new")
        refuse_other_content(tmp_path)
        RESULTS.write(tmp_path)
        refuse_other_content(tmp_path)

    def test_may_not_hold_anything_else(self, tmp_path):
        (tmp_path / "thesis.tex").write_text("x")
        with pytest.raises(InputError, match="not results"):
            refuse_other_content(tmp_path)
        with pytest.raises(InputError, match="not a folder"):
            refuse_other_content(tmp_path / "thesis.tex")
