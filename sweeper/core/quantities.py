"""Lists the quantities that a script's output can report: the names of groups in patterns."""

from __future__ import annotations

from collections.abc import Mapping

COUNTS = ("step", "samples")
"""Quantities that count the progress of training, in this epoch or overall."""

RATES = ("s_per_step", "ms_per_step", "steps_per_s", "samples_per_s", "tokens_per_s", "epoch_seconds")
"""Quantities that give the speed, in the script's own units."""

LOSSES = ("loss", "val_loss")

QUANTITIES: Mapping[str, str] = {
    "step": "training steps so far",
    "steps": "training steps per epoch",
    "samples": "training samples so far",
    "s_per_step": "seconds per step",
    "ms_per_step": "milliseconds per step",
    "steps_per_s": "steps per second",
    "samples_per_s": "samples per second",
    "tokens_per_s": "tokens per second",
    "epoch_seconds": "seconds per epoch",
    "loss": "training loss",
    "val_loss": "validation loss",
}


def samples_per_second(
    quantity: str,
    value: float,
    *,
    per_step: float = 0.0,
    per_epoch: float = 0.0,
    tokens: float = 0.0,
) -> float | None:
    """Returns a rate in samples per second; None if it is not a rate or cannot be converted.

    Args:
        per_step: Samples per step; 0 if unknown, like `per_epoch` and `tokens` (per sample).
    """
    if value <= 0:
        return None
    rate = {
        "s_per_step": per_step / value,
        "ms_per_step": 1e3 * per_step / value,
        "steps_per_s": per_step * value,
        "samples_per_s": value,
        "tokens_per_s": value / tokens if tokens else 0.0,
        "epoch_seconds": per_epoch / value,
    }.get(quantity)
    return rate or None
