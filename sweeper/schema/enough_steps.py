"""Limits the batch size so that the loss comparison rests on enough steps."""

from __future__ import annotations

from sweeper.schema.space import CategoricalParameter, Parameter
from sweeper.schema.sweep_spec import SweepSpec

MIN_STEPS_OF_LARGEST = 50
"""Minimum number of steps of a quality pass: with fewer, the loss says little about the largest batch."""


def with_enough_steps(spec: SweepSpec, samples: int) -> tuple[SweepSpec, list[str]]:
    """Returns `spec` without batch sizes that leave too few steps, and a line if there are any.

    Args:
        samples: Training samples of the quality pass.
    """
    if "batch_size" not in spec.space or not spec.traits.counts_samples:
        return spec, []
    high = max(samples // MIN_STEPS_OF_LARGEST, whole_range(spec.space["batch_size"])[0])
    clipped = spec.clip("batch_size", high)
    if clipped == spec:
        return spec, []
    line = (
        f"batch_size: at most {high} here, so that {samples:,} samples (measure.quality_samples) "
        f"make {min(MIN_STEPS_OF_LARGEST, samples // high)} steps."
    )
    return clipped, [line]


def whole_range(parameter: Parameter) -> tuple[int, int]:
    """Returns the smallest and the largest value of an integer parameter."""
    if isinstance(parameter, CategoricalParameter):
        numbers = [int(choice) for choice in parameter.choices if choice is not None]
        return min(numbers), max(numbers)
    return int(parameter.low), int(parameter.high)
