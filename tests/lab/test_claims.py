"""Every claim has a row, whatever became of it."""

from shadowprice.lab.claims import CLAIMS


def test_one_row_for_every_claim(results):
    rows = results.table("findings")
    assert [row["claim"] for row in rows] == [claim.text for claim in CLAIMS]
    assert {row["held"] for row in rows} <= {"yes", "no", "not tested"}
    assert all(row["measured"] for row in rows)
    assert all(row["held"] == "no" for row in rows if row["why"])
