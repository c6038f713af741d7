"""Training: what a production run is asked for beyond its configuration, and its file names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]

HISTORY = "history.jsonl"
"""A line for every block of steps and every validation, in the run's folder."""

STOP = "stop"
"""A file whose presence asks the run for a last checkpoint and its end."""

CHECKPOINTS = "checkpoints"
BEST = "best"
WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A production run.

    Attributes:
        folder: Of the run: its history, its checkpoints, its best weights.
        epochs: Passes over the training samples.
        schedule: How the learning rate goes after warm-up: it stays, or falls to zero with the last step.
        validate_epochs: A validation after each so many epochs, and at the end.
        patience: Validations without a better loss after which it ends; 0 for no such end.
        checkpoint_seconds: A checkpoint after each so many seconds.
        keep: Checkpoints that are kept, the latest ones.
        max_seconds: It ends after so many, those before a resumption included; 0 for no such end.
        stall_seconds: It fails once no step has come for so long; 0 turns that off.
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
