"""Defines Training: the options of a production run besides its configuration, and its file names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]

HISTORY = "history.jsonl"
"""File in the run's folder with a line for every block of steps and every validation."""

STOP = "stop"
"""A file that asks the run to write a last checkpoint and end."""

CHECKPOINTS = "checkpoints"
BEST = "best"
WEIGHTS = "model.safetensors"


def checkpoints_of(folder: Path) -> list[Path]:
    """Returns the complete checkpoints of the run in `folder`, the latest last."""
    # From 1,000,000,000 steps on, a name has more than nine digits.
    return sorted((folder / CHECKPOINTS).glob("[0-9]*"), key=lambda path: (len(path.name), path.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A production run.

    Attributes:
        folder: The run's folder, with its history, checkpoints and best weights.
        epochs: Passes over the training samples.
        schedule: Learning rate after warm-up: constant, or falling to zero at the last step.
        validate_epochs: Epochs between validations; the run also ends with one.
        patience: Validations without a better loss after which it ends; 0 for no limit.
        checkpoint_seconds: Seconds between checkpoints.
        keep: Number of the latest checkpoints that are kept.
        max_seconds: Time after which it ends, counted across resumptions; 0 for no limit.
        stall_seconds: Time without a step after which it fails; 0 for no limit.
    """

    folder: str
    epochs: int
    schedule: Schedule = "constant"
    validate_epochs: int = 1
    patience: int = 0
    checkpoint_seconds: float = 300.0
    keep: int = 2
    max_seconds: float = 0.0
    stall_seconds: float = 600.0
