"""Which faults of a server a command tolerates: --patience and --exposure."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from shadowprice.errors import InputError

if TYPE_CHECKING:
    from shadowprice.engine.executor import Tolerance

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def add_tolerance(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--patience",
        default="5m",
        metavar="TIME",
        help="how long to wait for a server that is down: 30s, 5m, 1h (default: 5m)",
    )
    command.add_argument(
        "--exposure",
        default="10%",
        metavar="SHARE",
        help="stop when the grants of failures that the server says cost nothing exceed this share of the budget "
        "(default: 10%%)",
    )


def tolerance(options: argparse.Namespace) -> Tolerance:
    from shadowprice.engine.executor import Tolerance

    return Tolerance(patience=_seconds(options.patience), exposure=_share(options.exposure))


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None:
        raise InputError(f"--patience {text}", fix="write it as 30s, 5m or 1h")
    return float(match[1]) * _UNITS[match[2]]


def _share(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text.strip())
    share = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= share <= 1:
        raise InputError(f"--exposure {text}", fix="write it as 10% or 0.1")
    return share
