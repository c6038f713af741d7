"""When warm-up is over, of step times that fall, drift, jitter and jump."""

from __future__ import annotations

import numpy as np
import pytest

from sweeper.trainer.timing.steady import is_steady


def first_steady(blocks: list[float]) -> int | None:
    """After how many blocks warm-up would end."""
    return next((n for n in range(1, len(blocks) + 1) if is_steady(blocks[:n])), None)


def test_equal_blocks_are_steady_after_three():
    assert first_steady([0.2] * 5) == 3
    assert not is_steady([])


def test_three_within_five_percent_and_the_last_three_only():
    assert is_steady([1.0, 1.05, 1.02])
    assert not is_steady([1.0, 1.06, 1.02])
    assert is_steady([9.0, 9.0, 9.0, 1.0, 1.05, 1.02])
    assert not is_steady([1.0, 1.0, 1.0, 9.0])


@pytest.mark.parametrize("scale", [1e-6, 1.0, 100.0])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_a_fall_to_a_plateau_is_steady_at_its_foot(share: float, scale: float):
    blocks = [scale * (1 + 5 * share**k) for k in range(80)]
    steady = first_steady(blocks)
    assert blocks[steady - 1] < 1.1 * scale
    at_plateau = next(k for k, block in enumerate(blocks) if block < 1.01 * scale)
    assert steady <= at_plateau + 3
    # Three and eight blocks on the slope are told from the foot of it.
    on_the_slope = [scale * (1 + 5 * share**k) for k in range(80) if 5 * share**k > 0.25]
    assert first_steady(on_the_slope) is None


def test_a_slow_fall_is_not_steady():
    """2 % from block to block are 15 % over eight."""
    falling = [0.98**k for k in range(30)]
    assert falling[22] / falling[29] > 1.15
    assert first_steady(falling) is None


@pytest.mark.parametrize("drift", [0.03, -0.03])
def test_a_drift_is_never_steady(drift: float):
    assert first_steady([(1 + drift) ** k for k in range(60)]) is None
    # Nor where single blocks jump from it, so that no three agree.
    jumping = [(1 + drift) ** k * (1.3 if k % 5 == 4 else 1.0) for k in range(60)]
    assert first_steady(jumping) is None


def test_noise_around_a_constant_becomes_steady():
    ends = [first_steady(list(np.random.default_rng(seed).normal(1.0, 0.15, 40))) for seed in range(50)]
    assert None not in ends
    # Not by three blocks that agree alone.
    assert any(end >= 8 for end in ends)


@pytest.mark.parametrize("drift", [0.1, -0.1])
def test_noise_around_a_steep_drift_does_not_soon(drift: float):
    ends = []
    for seed in range(50):
        noise = np.random.default_rng(seed).normal(1.0, 0.05, 12)
        ends.append(first_steady([(1 + drift) ** k * factor for k, factor in enumerate(noise)]))
    assert sum(end is not None for end in ends) <= 10


@pytest.mark.parametrize("outlier", [0.2, 1.5, 30.0])
@pytest.mark.parametrize("place", range(8))
def test_one_block_apart_does_not_prevent_it_for_long(place: int, outlier: float):
    blocks = [1.0] * 12
    blocks[place] = outlier
    assert first_steady(blocks) <= max(3, min(place + 4, 8))
    # Among eight no trend comes of it, wherever it is.
    assert is_steady(blocks[:8])


def test_alternating_blocks_are_steady_by_their_trend():
    blocks = [1.0, 1.2] * 6
    assert first_steady(blocks[:7]) is None
    assert first_steady(blocks) == 8
    falling = [value * 0.97**k for k, value in enumerate(blocks)]
    assert first_steady(falling) is None
