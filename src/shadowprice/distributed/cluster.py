"""Imports Ray, and connects to a cluster or starts one."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from shadowprice.errors import InputError, MissingExtra, ShadowpriceError

# A cluster that is started here is for this machine: its processes are addressed by the loopback interface.
_LOCAL = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
_QUIET = {"log_to_driver": False, "logging_level": logging.WARNING}
_PATIENCE = 5.0  # seconds for a first connection


def load_ray() -> ModuleType:
    """Ray without its datasets, which take a second to load."""
    try:
        return import_module("ray")
    except ImportError:
        raise MissingExtra("ray", "running on several machines") from None


def load_data() -> ModuleType:
    """Ray's datasets."""
    load_ray()
    try:
        return import_module("ray.data")
    except ImportError:
        raise MissingExtra("ray", "Ray's datasets") from None


def connect(address: str | None = None, **options: object) -> ModuleType:
    """Ray, connected: to the cluster at `address`, to the one in use, or to a new one on this machine."""
    ray = load_ray()
    if address and address.startswith("ray://"):
        raise InputError(f"--ray {address}: the ledger is kept where this runs", fix="run it on a node of the cluster")
    if not ray.is_initialized():
        if address and address != "auto":
            _check(address)
        try:
            if address:
                ray.init(address=address, **{**_QUIET, **options})
            else:
                ray.init(address="local", **{**_LOCAL, **_QUIET, **options})
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            line = " ".join(str(error).split())[:200]
            fix = "check the address, and RAY_AUTH_TOKEN if the cluster wants a token"
            raise InputError(f"--ray {address or ''}: no connection: {line}", fix=fix) from None
    return ray


def _check(address: str) -> None:
    """Refuses an address where nothing listens: Ray itself would try for many minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(f"--ray {address!r:.80}: not an address", fix="write HOST:PORT, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"--ray {address}: no connection: {error}", fix="check the address") from None


# How Ray shows an error that was raised in another process.
_OWN = re.compile(r"^shadowprice\.errors\.(?:InputError|MarketError|PolicyError|MissingExtra): (.+)$", re.MULTILINE)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raises an error of this package from another process without Ray's traceback around it."""
    try:
        yield
    except ShadowpriceError as error:
        # Ray raises a class of its own that is also of ours, with a traceback as its text.
        raise getattr(error, "cause", None) or error from None
    except Exception as error:
        if match := _OWN.search(str(error)):
            raise InputError(match[1].strip()) from None
        raise
