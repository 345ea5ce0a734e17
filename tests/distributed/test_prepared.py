"""Ids of all blocks are compared."""

import numpy as np
import pytest

from shadowprice.distributed.demand import find_twice
from shadowprice.distributed.prepared import Table, _refuse_same_names
from shadowprice.distributed.tables import digest
from shadowprice.errors import InputError
from shadowprice.types import Forecast


class Held(Table):
    """Blocks in this process."""

    def named(self):
        return ((names, Forecast(np.ones(len(names)))) for names in self.blocks)


def test_an_id_that_is_used_twice_is_refused():
    table = Held([["a", "b"], ["c", "b"]], [2, 2])
    names = np.array([digest(name) for block in table.blocks for name in block], dtype=np.uint64)
    with pytest.raises(InputError, match="id 'b' is used twice"):
        _refuse_same_names(table, find_twice(names))
    assert table.size == 4


def test_ids_of_equal_digest_are_not_the_same():
    table = Held([["a"], ["c"]], [1, 1])
    _refuse_same_names(table, np.array([digest("a"), digest("c")], dtype=np.uint64))
