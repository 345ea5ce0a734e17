"""The folder of a run: what was asked (manifest.json) and what happened (ledger.sqlite)."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shadowprice import __version__
from shadowprice.batchfile import replacing
from shadowprice.errors import InputError
from shadowprice.ledger import Ledger


class RunFolder:
    """Keeps a run so that it can be continued after Ctrl-C, a crash or kill -9.

    `asked` is everything the results depend on; a run is only continued with the same.
    """

    def __init__(self, path: str | os.PathLike[str], manifest: dict[str, Any], ledger: Ledger) -> None:
        self.path, self.manifest, self.ledger = Path(path), manifest, ledger

    @classmethod
    def create(cls, path: str | os.PathLike[str], budget: int, asked: Mapping[str, Any]) -> RunFolder:
        folder = Path(path)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise InputError(
                "is there already", path=path, fix="--resume continues it; --run-folder names another"
            ) from None
        manifest = {
            "shadowprice": __version__,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "budget": budget,
            "asked": dict(asked),
            "rounds": [],
            "done": False,
        }
        run = cls(folder, manifest, Ledger.create(folder / "ledger.sqlite", budget))
        run.save()
        return run

    @classmethod
    def resume(cls, path: str | os.PathLike[str], budget: int, asked: Mapping[str, Any]) -> RunFolder:
        folder = Path(path)
        try:
            manifest = json.loads((folder / "manifest.json").read_text())
            before = {"budget": manifest["budget"], **manifest["asked"]}
        except FileNotFoundError:
            raise InputError("is no run to continue", path=path, fix="leave out --resume to start one") from None
        except (ValueError, KeyError, TypeError):
            raise InputError("has a damaged manifest.json", path=path, fix="start a new run") from None
        now = {"budget": budget, **json.loads(json.dumps(dict(asked)))}
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                raise InputError(
                    f"was started with another {name} ({before.get(name)!r:.60}, now {now.get(name)!r:.60})",
                    path=path,
                    fix="continue with the same, or start a new run",
                )
        return cls(folder, manifest, Ledger.reopen(folder / "ledger.sqlite"))

    def save(self, **changes: Any) -> None:
        self.manifest.update(changes)
        with replacing([self.path / "manifest.json"]) as (file,):
            file.write(json.dumps(self.manifest, indent=2).encode() + b"\n")


def sha256_of(path: str | os.PathLike[str]) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
