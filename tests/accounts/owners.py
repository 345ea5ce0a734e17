"""Every kind of owner, for the tests that all of them must pass."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shadowprice.accounts.owner import Owner, SqliteOwner


def _program(name: str) -> str | None:
    found = shutil.which(name)
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return found or (str(places[-1]) if places else None)


@contextmanager
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL that runs for as long as the tests need it."""
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("psycopg is not installed (pip install 'shadowprice[postgres]')")
    initdb, server = _program("initdb"), _program("postgres")
    if not initdb or not server:
        pytest.skip("no PostgreSQL here (Debian: apt-get install postgresql)")
    with tempfile.TemporaryDirectory(prefix="sp-pg-") as folder:
        user: dict = {}
        if os.getuid() == 0:  # PostgreSQL does not run as root
            if subprocess.run(["id", "nobody"], capture_output=True).returncode:
                pytest.skip("PostgreSQL does not run as root, and there is no user nobody")
            os.chmod(folder, 0o777)
            user = {"user": "nobody"}
        data = f"{folder}/data"
        made = subprocess.run(
            [initdb, "-D", data, "-U", "test", "-A", "trust", "--no-locale", "-E", "UTF8"],
            capture_output=True, text=True, cwd=folder, **user,
        )  # fmt: skip
        if made.returncode:
            pytest.skip(f"initdb: {made.stderr.strip()[-200:]}")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [server, "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", folder]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder, **user
        ) as process:
            address = f"postgresql://test@127.0.0.1:{port}/postgres"
            try:
                _wait_for(address)
                yield address
            finally:
                process.terminate()
                process.wait(20)


def _wait_for(address: str) -> None:
    """Until the server accepts connections: it refuses them while it starts."""
    import psycopg

    last = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(address).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > last:
                raise
            time.sleep(0.05)


def open_owner(place: str) -> Owner:
    if place.startswith("postgresql:"):
        from shadowprice.accounts.postgres import PostgresOwner

        return PostgresOwner(place)
    return SqliteOwner(Path(place))
