"""How an encoder is trained: the loss (`losses`), and the Hugging Face Trainer that minimises it.

A truncated answer is longer than what was recorded, by an unknown amount. So a forecast is penalised only where it is
below the recorded length: by a one-sided squared error, or by the likelihood of anything longer.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shadowprice.errors import InputError, MissingExtra
from shadowprice.forecast.encoder.network import Network, device
from shadowprice.forecast.shared import without_shared_text
from shadowprice.forecast.splits import question_key
from shadowprice.types import Trace

try:
    import torch
    from torch import Tensor
    from torch.nn.functional import binary_cross_entropy_with_logits, relu
    from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_callback import PrinterCallback
except ImportError:
    raise MissingExtra("encoder", "the encoder forecaster") from None

HEADS = ("spread", "correct")  # outputs after that of the length, in this order


@dataclass(frozen=True)
class Recipe:
    """See `EncoderForecaster`."""

    epochs: int
    batch: int
    learning_rate: float
    weight_decay: float
    patience: int | None
    seed: int


@dataclass(frozen=True)
class Example:
    """One answer, or the mean of several to one question."""

    text: str
    length: float  # log
    truncated: bool
    correct: float  # NaN: not graded
    weight: float = 1.0


@dataclass(frozen=True)
class Epoch:
    loss: float
    held_out: float


# --- examples and losses -----------------------------------------------------------------------


def examples(traces: Sequence[Trace]) -> list[Example]:
    """One per trace that generated anything. Grades are taken as recorded, those of truncated answers too."""
    used = [trace for trace in traces if trace.tokens > 0]
    return [
        Example(text, math.log(t.tokens), t.truncated, math.nan if t.correct is None else float(t.correct))
        for text, t in zip(without_shared_text([t.prompt for t in used]), used, strict=True)
    ]


def per_question(each: Sequence[Example]) -> list[Example]:
    """The answers to a question as one example, or two: those that ended and those that were truncated."""
    groups: dict[tuple[str, bool], list[Example]] = {}
    answers: dict[str, int] = {}
    for example in each:
        key = question_key(example.text)
        groups.setdefault((key, example.truncated), []).append(example)
        answers[key] = answers.get(key, 0) + 1
    merged = []
    for (key, _), group in groups.items():
        graded = [example.correct for example in group if not math.isnan(example.correct)]
        merged.append(
            replace(
                group[0],
                length=float(np.mean([example.length for example in group])),
                correct=float(np.mean(graded)) if graded else math.nan,
                weight=len(group) / answers[key],
            )
        )
    return merged


def losses(outputs: Tensor, heads: Sequence[str], length: Tensor, truncated: Tensor, correct: Tensor) -> Tensor:
    """The loss of each row of outputs: the first column is the length, the others are those of `heads`, in order."""
    short = length - outputs[:, 0]
    column = {head: outputs[:, i] for i, head in enumerate(heads, start=1)}
    if "spread" in column:
        log_spread = column["spread"].clamp(-4.0, 3.0)
        z = short / log_spread.exp()
        loss = torch.where(truncated, -torch.special.log_ndtr(-z), z**2 / 2 + log_spread)
    else:
        loss = torch.where(truncated, relu(short), short) ** 2
    if "correct" in column:
        graded = ~correct.isnan()
        loss = loss + graded * binary_cross_entropy_with_logits(
            column["correct"], correct.nan_to_num(), reduction="none"
        )
    return loss


# --- training ----------------------------------------------------------------------------------


def train(
    network: Network,
    heads: Sequence[str],
    training: Sequence[Example],
    held_out: Sequence[Example],
    recipe: Recipe,
    *,
    checkpoints: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Callable[[str], None] | None = None,
) -> list[Epoch]:
    """Trains the network in place, on lengths that are centred and scaled."""
    with contextlib.ExitStack() as stack:
        if checkpoints is None:
            folder, start = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shadowprice-"))), None
        else:
            folder = Path(checkpoints)
            start = _last_checkpoint(folder, _fingerprint(training, held_out, heads, recipe, network), resume)
        trainer = _Trainer(
            network.model,
            TrainingArguments(
                str(folder),
                num_train_epochs=recipe.epochs,
                per_device_train_batch_size=recipe.batch,
                per_device_eval_batch_size=recipe.batch,
                learning_rate=recipe.learning_rate,
                weight_decay=recipe.weight_decay,
                optim="adamw_torch",
                seed=recipe.seed,
                eval_strategy="epoch",
                logging_strategy="epoch",
                save_strategy="no" if checkpoints is None and recipe.patience is None else "epoch",
                save_total_limit=1,  # and the best one
                load_best_model_at_end=recipe.patience is not None,
                metric_for_best_model="loss",
                prediction_loss_only=True,
                remove_unused_columns=False,
                label_names=["length"],
                dataloader_pin_memory=device() == "cuda",
                use_cpu=device() == "cpu",
                disable_tqdm=True,
                report_to="none",
            ),
            data_collator=lambda rows: _collated(network, rows),
            train_dataset=_rows(network, training),
            eval_dataset=_rows(network, held_out),
        )
        trainer.heads = heads
        trainer.remove_callback(PrinterCallback)
        if progress is not None:
            trainer.add_callback(_Progress(progress, recipe.epochs))
        if recipe.patience is not None:
            trainer.add_callback(EarlyStoppingCallback(recipe.patience))
        try:
            trainer.train(resume_from_checkpoint=start)
        except OSError as error:
            raise InputError(
                f"checkpoints cannot be written: {error}", path=folder, fix="give another folder"
            ) from None
        log = trainer.state.log_history
    on_training = [entry["loss"] for entry in log if "loss" in entry]
    on_held_out = [entry["eval_loss"] for entry in log if "eval_loss" in entry]
    return [Epoch(float(a), float(b)) for a, b in zip(on_training, on_held_out, strict=True)]


class _Trainer(Trainer):
    heads: Sequence[str]

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        weight, *targets = (inputs.pop(name) for name in ("weight", "length", "truncated", "correct"))
        outputs = model(**inputs)
        loss = (weight * losses(outputs.logits, self.heads, *targets)).sum() / weight.sum()
        return (loss, outputs) if return_outputs else loss


class _Progress(TrainerCallback):
    def __init__(self, progress: Callable[[str], None], epochs: int) -> None:
        self.progress, self.epochs = progress, epochs

    def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        for name, label in (("loss", "loss"), ("eval_loss", "held out")):
            if name in more["logs"]:
                self.progress(f"epoch {state.epoch:.0f} of {self.epochs}: {label} {more['logs'][name]:.4f}")


def _rows(network: Network, each: Sequence[Example]) -> list[tuple[list[int], Example]]:
    return list(zip(network.pieces([example.text for example in each]), each, strict=True))


def _collated(network: Network, rows: Sequence[tuple[list[int], Example]]) -> dict[str, Tensor]:
    inputs = network.padded([pieces for pieces, _ in rows])
    for name in ("length", "truncated", "correct", "weight"):
        inputs[name] = torch.tensor([getattr(example, name) for _, example in rows])
    return inputs


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers from the seed inside; the state of every generator outside is restored."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


# --- checkpoints -------------------------------------------------------------------------------


def _fingerprint(
    training: Sequence[Example], held_out: Sequence[Example], heads: Sequence[str], recipe: Recipe, network: Network
) -> str:
    shape = {name: list(each.shape) for name, each in network.model.state_dict().items()}
    whole = [[asdict(example) for example in (*training, *held_out)], list(heads), asdict(recipe), shape]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def _last_checkpoint(folder: Path, fingerprint: str, resume: bool) -> str | None:
    """The checkpoint to continue from; None: from the start. A folder is only ever used for one training."""
    mark = folder / "training.sha256"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            if not mark.is_file():
                raise InputError("holds something other than checkpoints", path=folder, fix="name a new folder")
            if not resume:
                raise InputError("checkpoints exist", path=folder, fix="resume, or give a new folder")
            if mark.read_text().strip() != fingerprint:
                raise InputError(
                    "the checkpoints are of other traces or settings", path=folder, fix="give the same, or a new folder"
                )
        else:
            mark.write_text(fingerprint + "\n")
        for path in folder.glob("checkpoint-*"):
            if not _is_complete(path):  # training was interrupted while it was written
                shutil.rmtree(path)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror or error}", path=folder, fix="give another folder"
        ) from None
    steps = [int(path.name.partition("-")[2]) for path in folder.glob("checkpoint-*")]
    return str(folder / f"checkpoint-{max(steps)}") if steps else None


def _is_complete(checkpoint: Path) -> bool:
    # The state is the last file to be written.
    try:
        return isinstance(json.loads((checkpoint / "trainer_state.json").read_text()), dict)
    except (OSError, ValueError):
        return False
