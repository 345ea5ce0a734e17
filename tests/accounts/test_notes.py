from contextlib import closing

import pytest

from shadowprice.accounts.notes import Notes, Price

from .owners import open_owner, postgres


@pytest.fixture(params=["sqlite", "postgresql"])
def owner(request, tmp_path):
    if request.param == "sqlite":
        with closing(open_owner(str(tmp_path / "accounts.sqlite"))) as owner:
            yield owner
    else:
        with postgres() as address, closing(open_owner(address)) as owner:
            yield owner


def test_what_one_process_notes_the_others_see(owner):
    one, two = Notes(owner, "w1"), Notes(owner, "w2")
    one.put_tenant("a", {"name": "a", "value": 1})
    one.put_tenant("a", {"name": "a", "value": 2})
    two.put_tenant("b", {"name": "b"})
    assert two.tenants() == {"a": {"name": "a", "value": 2}, "b": {"name": "b"}}
    two.remove_tenant("a")
    assert list(one.tenants()) == ["b"]
    one.signal("drain x")
    one.signal("drain x")
    assert two.signals() == {"drain x"}

    one.write([Price("all", 10.0, 0.5, 70)], {(7, "a", "granted"): (2, 30)}, [(1, 10.0, {"n": 1})])
    two.write([Price("all", 11.0, 0.6, 60)], {(7, "a", "granted"): (1, 5)}, [(1, 11.0, {"n": 2})])
    assert one.prices() == [Price("all", 10.0, 0.5, 70), Price("all", 11.0, 0.6, 60)]
    assert one.prices(10.5, "all") == [Price("all", 11.0, 0.6, 60)]
    assert one.prices(0.0, "other") == []
    assert (one.last_price("all"), one.last_price("other")) == (0.6, 0.0)
    assert one.minutes() == [(7, "a", "granted", 3, 35)]
    assert one.latest(5) == [{"n": 2}, {"n": 1}]


def test_what_is_kept_is_bounded(tmp_path):
    with closing(open_owner(str(tmp_path / "accounts.sqlite"))) as owner:
        notes = Notes(owner, "w")
        for start in (0, 1500):
            prices = [Price("all", float(at), 0.0, 0) for at in range(start, start + 1500)]
            notes.write(
                prices, {(start, "a", "granted"): (1, 1)}, [(n, float(n), {}) for n in range(start, start + 400)]
            )
        notes.write(minutes={(10_000, "a", "granted"): (1, 1)})
        assert [price.at for price in notes.prices()] == [float(at) for at in range(1000, 3000)]
        assert len(notes.latest(10_000)) == 400
        assert [row[0] for row in notes.minutes()] == [10_000]
