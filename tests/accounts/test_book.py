"""Whatever an execution writes into has the methods of a ledger."""

import inspect

from shadowprice.accounts.book import Book
from shadowprice.accounts.sqlite import Ledger
from shadowprice.distributed.leases import Leases


def test_a_ledger_and_a_workers_part_of_one_are_books():
    wanted = {name for name, _ in inspect.getmembers(Book) if not name.startswith("_")}
    assert wanted >= {"available", "reserve_many", "settle_many", "note_many", "together"}
    assert wanted <= set(dir(Ledger))
    assert wanted <= set(dir(Leases)) | {"budget", "reserved", "spent", "usage"}
