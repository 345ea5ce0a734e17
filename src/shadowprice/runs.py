"""The folder of a run: what was asked (manifest.json), expected (forecast.jsonl) and what happened (ledger.sqlite)."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any

from shadowprice import __version__
from shadowprice.accounts.sqlite import Ledger
from shadowprice.errors import InputError
from shadowprice.formats.files import replacing
from shadowprice.formats.forecasts import forecast_line
from shadowprice.types import Forecast


class RunFolder:
    """Keeps a run so that it can be continued after Ctrl-C, a crash or kill -9.

    `asked` is everything the results depend on; a run is only continued with the same.
    """

    def __init__(self, path: str | os.PathLike[str], manifest: dict[str, Any], ledger: Ledger) -> None:
        self.path, self.manifest, self.ledger = Path(path), manifest, ledger

    @classmethod
    def create(cls, path: str | os.PathLike[str], budget: int, asked: Mapping[str, Any]) -> RunFolder:
        folder = Path(path)
        manifest = {
            "shadowprice": __version__,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "budget": budget,
            "asked": dict(asked),
            "rounds": [],
            "done": False,
        }
        folder.parent.mkdir(parents=True, exist_ok=True)
        new = folder.parent / f".shadowprice-{token_hex(8)}"
        try:
            new.mkdir()
            _write(new, manifest)
            new.rename(folder)  # it appears with its manifest: killed at any moment, what is there can be continued
        except BaseException as error:
            shutil.rmtree(new, ignore_errors=True)
            if isinstance(error, OSError) and os.path.lexists(folder):
                raise InputError(
                    "is there already", path=path, fix="--resume continues it; --run-folder names another"
                ) from None
            raise
        return cls(folder, manifest, Ledger.create(folder / "ledger.sqlite", budget))

    @classmethod
    def resume(cls, path: str | os.PathLike[str], budget: int, asked: Mapping[str, Any]) -> RunFolder:
        folder = Path(path)
        try:
            manifest = json.loads((folder / "manifest.json").read_text())
            before, started = {"budget": manifest["budget"], **manifest["asked"]}, bool(manifest["rounds"])
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
        ledger = folder / "ledger.sqlite"
        if not started and not ledger.exists():  # killed before anything was sent
            return cls(folder, manifest, Ledger.create(ledger, budget))
        return cls(folder, manifest, Ledger.reopen(ledger))

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do: it ended, and not because of its server."""
        return bool(self.manifest["done"]) and not (self.manifest.get("summary") or {}).get("stopped")

    def keep_forecast(self, names: Iterable[str], forecast: Forecast) -> None:
        """Keeps what was expected of each query, in the form that --forecast reads; the first time only."""
        path = self.path / "forecast.jsonl"
        if not path.exists():
            with replacing([path]) as (file,):
                file.writelines(forecast_line(name, forecast, i) + b"\n" for i, name in enumerate(names))

    def save(self, **changes: Any) -> None:
        self.manifest.update(changes)
        _write(self.path, self.manifest)


def _write(folder: Path, manifest: dict[str, Any]) -> None:
    with replacing([folder / "manifest.json"]) as (file,):
        file.write(json.dumps(manifest, indent=2).encode() + b"\n")
