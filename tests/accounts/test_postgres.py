"""The tests of `test_owner` and `test_tree` against a real PostgreSQL."""

import pytest

from . import test_owner, test_tree
from .owners import open_owner, postgres


@pytest.fixture(scope="module")
def server():
    with postgres() as address:
        yield address


@pytest.fixture
def place(server):
    owner = open_owner(server)
    for table in ("used", "leases", "wanted", "answers"):
        owner.run(f"DELETE FROM {table}")
    owner.close()
    return server


class TestOwner(test_owner.Contract):
    def test_an_address_without_a_server_is_one_line_without_the_password(self):
        from shadowprice.errors import LedgerError

        with pytest.raises(LedgerError, match="PostgreSQL cannot be used") as error:
            open_owner("postgresql://me:hunter22@127.0.0.1:1/nowhere")
        assert "hunter22" not in str(error.value)


class TestTree(test_tree.Contract):
    pass
