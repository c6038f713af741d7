"""Limits the batch size so that the loss comparison rests on enough steps."""

from __future__ import annotations

from sweeper.spec.space import CategoricalParameter, Parameter
from sweeper.spec.sweep_spec import SweepSpec

MIN_STEPS_OF_LARGEST = 50
"""Of the quality pass: with fewer, its loss says little of the largest batch."""


def with_enough_steps(spec: SweepSpec, samples: int) -> tuple[SweepSpec, list[str]]:
    """Returns `spec` with no batch so large that `samples` make too few steps, and a line where one was.

    Args:
        samples: Training samples of the quality pass.
    """
    # How long a script trains is its own matter.
    if "batch_size" not in spec.space or spec.command:
        return spec, []
    high = max(samples // MIN_STEPS_OF_LARGEST, whole_range(spec.space["batch_size"])[0])
    clipped = spec.clipped("batch_size", high)
    if clipped == spec:
        return spec, []
    line = (
        f"batch_size: at most {high} here, so that the loss after {samples:,} samples "
        f"rests on {MIN_STEPS_OF_LARGEST} steps (measure.quality_samples)."
    )
    return clipped, [line]


def whole_range(parameter: Parameter) -> tuple[int, int]:
    """Returns the least and the largest value of a whole number."""
    if isinstance(parameter, CategoricalParameter):
        numbers = [int(choice) for choice in parameter.choices if choice is not None]
        return min(numbers), max(numbers)
    return int(parameter.low), int(parameter.high)
