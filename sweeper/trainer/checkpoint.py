"""Stores checkpoints: everything a training run needs to continue as if it had never stopped.

checkpoints/000001234/     appears in one rename
    model.safetensors      the weights, for any program
    state.safetensors      optimizer, scaler, random numbers, gradients being accumulated
    position.json          the progress of the run
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sweeper.core.codec import decode, encode
from sweeper.core.training import BEST, CHECKPOINTS, WEIGHTS, checkpoints_of
from sweeper.errors import UserError
from sweeper.system.files import make_folder, read_json, write_json
from sweeper.trainer import tensors
from sweeper.trainer.step.stepper import Stepper

STATE, POSITION = "state.safetensors", "position.json"
_PICKLED = "state.pt"
"""The pickled state of checkpoints up to version 0.1."""

_MAKING = ".making"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The progress of a training run.

    Attributes:
        steps: Micro-batches of each device.
        samples: Training samples of all devices.
        seconds: Wall time so far, validation and checkpoints included.
        timed_samples: Samples of the blocks after warm-up, whose speed counts.
        timed_seconds: Time of those blocks.
        disturbed: The disturbed part of that time, by reason.
        best_loss: Lowest validation loss; None before the first.
        stale: Validations since the best one.
        val_loss: The latest validation loss.
        metrics: Metrics of that validation (`sweeper.trainer.pipeline.Pipeline.evaluate`).
        validated_at: `steps` at that validation.
        history_bytes: Length of the history at this point.
    """

    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    timed_samples: int = 0
    timed_seconds: float = 0.0
    disturbed: Mapping[str, float] = field(default_factory=dict)
    best_loss: float | None = None
    best_epoch: int = 0
    stale: int = 0
    val_loss: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    validated_at: int = -1
    history_bytes: int = 0


def newest_checkpoint(folder: Path) -> Path | None:
    """Returns the latest checkpoint of the run in `folder`, or None."""
    checkpoints = checkpoints_of(folder)
    return checkpoints[-1] if checkpoints else None


def position_of(checkpoint: Path | None) -> Position:
    """Returns the run's progress at a checkpoint; the start if there is none."""
    return decode(Position, read_json(checkpoint / POSITION)) if checkpoint else Position()


def save(folder: Path, stepper: Stepper, position: Position, keep: int) -> None:
    """Writes a checkpoint and removes all but the `keep` latest."""
    home = folder / CHECKPOINTS
    state = {
        "optimizer": stepper.optimizer.state_dict(),
        "scaler": stepper.scaler.state_dict() if stepper.scaler else None,
        "micro_steps": stepper.micro_steps,
        "updates": stepper.updates,
        "gradients": _gradients(stepper),
        "random": _random_state(stepper.device),
    }
    name = f"{position.steps:09d}"
    making = _begin_folder(home, name)
    _save_weights(stepper.model, making / WEIGHTS)
    tensors.write(making / STATE, state)
    _make_readable(making / STATE)
    _fsync(making / STATE)
    write_json(making / POSITION, encode(position))
    _appear(making, home / name)
    for old in checkpoints_of(folder)[:-keep]:
        shutil.rmtree(old)


def save_best(folder: Path, model: nn.Module, facts: Mapping[str, Any]) -> None:
    """Writes the weights with the lowest validation loss so far, and facts about them."""
    making = _begin_folder(folder, BEST)
    _save_weights(model, making / WEIGHTS)
    write_json(making / "about.json", dict(facts))
    _appear(making, folder / BEST)


def recover_best(folder: Path) -> None:
    """Restores the earlier best weights if `save_best` was cut off while it replaced them."""
    old = _old_name(folder / BEST)
    if old.exists() and not (folder / BEST).exists():
        old.rename(folder / BEST)


def restore(checkpoint: Path, stepper: Stepper) -> None:
    """Restores the stepper, except for random numbers (see `restore_random`)."""
    from safetensors.torch import load_model

    load_model(stepper.model, checkpoint / WEIGHTS)
    state = _state(checkpoint)
    stepper.optimizer.load_state_dict(state["optimizer"])
    if stepper.captured is not None:
        # A graph reads the rate from the device, but the state was read on the host.
        for group in stepper.optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=stepper.device)
    if stepper.scaler is not None:
        stepper.scaler.load_state_dict(state["scaler"])
    stepper.micro_steps, stepper.updates = state["micro_steps"], state["updates"]
    for parameter, gradient in zip(stepper.parameters, state["gradients"], strict=False):
        if gradient is not None and parameter.grad is not None:
            parameter.grad.copy_(gradient)
        elif gradient is not None:
            parameter.grad = gradient.to(parameter.device)


def restore_random(checkpoint: Path, device: torch.device) -> None:
    """Restores the state of every random generator."""
    state = _state(checkpoint)["random"]
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["cuda"] is not None:
        # There is none if the run began on a CPU.
        torch.cuda.set_rng_state(state["cuda"], device)
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))


def _state(checkpoint: Path) -> dict[str, Any]:
    if not (checkpoint / STATE).exists() and (checkpoint / _PICKLED).exists():
        raise UserError(
            f"{checkpoint / _PICKLED} is a pickle of an older sweeper; reading it could run arbitrary code."
            " Start a new run with `--new`, or finish this one with the version that started it."
        )
    state: dict[str, Any] = tensors.read(checkpoint / STATE)
    return state


def _random_state(device: torch.device) -> dict[str, Any]:
    kind, keys, *rest = np.random.get_state()
    version, numbers, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": [kind, np.asarray(keys).tolist(), *rest],
        "python": [version, list(numbers), gauss],
    }


def _gradients(stepper: Stepper) -> list[Tensor | None]:
    """Returns the gradients being accumulated; none between optimizer steps."""
    under_way = stepper.micro_steps % stepper.config.accumulate_steps
    return [parameter.grad for parameter in stepper.parameters] if under_way else []


def _save_weights(model: nn.Module, path: Path) -> None:
    from safetensors.torch import save_model

    save_model(model, str(path))
    _make_readable(path)
    _fsync(path)


def _make_readable(path: Path) -> None:
    """Gives a file the folder's permissions; the library makes it readable to its owner only."""
    path.chmod(path.parent.stat().st_mode & 0o666)


def _begin_folder(home: Path, name: str) -> Path:
    """Returns an empty folder to be renamed to `name`."""
    making = home / f"{_MAKING}-{name}"
    shutil.rmtree(making, ignore_errors=True)
    make_folder(making)
    return making


def _appear(making: Path, final: Path) -> None:
    """Gives a folder, whose files are on disk, its final name; replaces a folder of that name."""
    _fsync(making)
    # A folder cannot be renamed over another; one of the two is always complete.
    old = _old_name(final)
    if final.exists():
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
    making.rename(final)
    shutil.rmtree(old, ignore_errors=True)
    _fsync(final.parent)


def _old_name(final: Path) -> Path:
    """Returns the name of a folder while another takes its place."""
    return final.with_name(f"{_MAKING}-old-{final.name}")


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
