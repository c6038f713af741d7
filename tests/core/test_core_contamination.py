"""What disturbs a window: each rule at both sides of its bound, and what does not."""

from __future__ import annotations

import pytest

from sweeper.core.contamination import of_gpu, of_host
from sweeper.core.measurement import Window

OTHERS = ("other processes took cores",)
STOLEN = ("the host took cores (steal)",)
SLOW = ("the processor was slow (canary)",)
FOREIGN = "other processes used the GPU"
HOT = "heat or a power brake held the GPU's clocks down"
LOW = "the GPU's clock was below 75% of its default"


def window(seconds: float = 4.0, **more) -> Window:
    return Window(start_s=0.0, seconds=seconds, steps=1, samples=1, cpu_seconds=2 * seconds, **more)


def test_a_quiet_window_is_clean():
    assert of_host(window(waited_seconds=0.0, canary_ms=20.0), 20.0) == ()
    assert of_gpu({}) == ()


# A twentieth of a window of 4 s; of a short one, what the kernel's clock can tell at all.
@pytest.mark.parametrize(("seconds", "least"), [(4.0, 0.2), (0.5, 0.04)])
@pytest.mark.parametrize("place", ["waited_seconds", "pressure_seconds"])
def test_others_disturb_as_far_as_the_trial_waited(seconds: float, least: float, place: str):
    for others, waited, found in (
        (1.01 * least, 9.0, OTHERS),
        (9.0, 1.01 * least, OTHERS),
        (least, least, OTHERS),
        (0.99 * least, 9.0, ()),
        (9.0, 0.99 * least, ()),
    ):
        assert of_host(window(seconds, foreign_cpu_seconds=others, **{place: waited}), 0.0) == found


def test_its_own_workers_disturb_nothing():
    assert of_host(window(waited_seconds=30.0, pressure_seconds=4.0, foreign_cpu_seconds=0.0), 0.0) == ()


def test_others_on_cores_that_are_free_disturb_nothing():
    assert of_host(window(waited_seconds=0.0, pressure_seconds=0.0, foreign_cpu_seconds=30.0), 0.0) == ()


def test_the_trials_own_waiting_is_told_better_than_the_machines():
    # Others wait for one another on cores that the trial does not use.
    assert of_host(window(waited_seconds=0.0, pressure_seconds=4.0, foreign_cpu_seconds=9.0), 0.0) == ()


def test_where_the_kernel_tells_nothing_of_waiting_nothing_is_said():
    assert of_host(window(waited_seconds=None, pressure_seconds=None, foreign_cpu_seconds=9.0), 0.0) == ()


# Of 8 s of processor time; of little, what the kernel's clock can tell.
@pytest.mark.parametrize(("seconds", "least"), [(4.0, 0.4), (0.2, 0.04)])
def test_stolen_cores(seconds: float, least: float):
    assert of_host(window(seconds, steal_seconds=1.01 * least), 0.0) == STOLEN
    assert of_host(window(seconds, steal_seconds=0.99 * least), 0.0) == ()


def test_the_canary_says_what_the_kernel_does_not():
    assert of_host(window(canary_ms=26.1), 20.0) == SLOW
    assert of_host(window(canary_ms=26.0), 20.0) == ()
    # Neither known: of the machine, or beside this window.
    assert of_host(window(canary_ms=99.0), 0.0) == ()
    assert of_host(window(canary_ms=0.0), 20.0) == ()


def test_the_canary_is_slow_for_a_reason_that_is_known():
    disturbed = window(canary_ms=99.0, foreign_cpu_seconds=2.0, waited_seconds=2.0, steal_seconds=2.0)
    assert of_host(disturbed, 20.0) == OTHERS + STOLEN


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"gpu_foreign_processes": 0.0}, ()),
        ({"gpu_foreign_processes": 1.0}, (FOREIGN,)),
        # Seen once in many readings.
        ({"gpu_foreign_processes": 0.01}, (FOREIGN,)),
        ({"gpu_throttled": 0.05}, ()),
        ({"gpu_throttled": 0.051}, (HOT,)),
        ({"gpu_clock_pct": 75.0}, ()),
        ({"gpu_clock_pct": 74.9}, (LOW,)),
        ({"gpu_clock_pct": 130.0, "gpu_throttled": 0.0, "gpu_foreign_processes": 0.0}, ()),
        (
            {"gpu_clock_pct": 50.0, "gpu_throttled": 1.0, "gpu_foreign_processes": 2.0},
            (FOREIGN, HOT, LOW),
        ),
        # What has nothing to do with it.
        ({"gpu_util_pct": 0.0, "gpu_temperature_c": 99.0}, ()),
    ],
)
def test_the_gpu(values: dict[str, float], found: tuple[str, ...]):
    assert of_gpu(values) == found


def test_what_counting_in_hundredths_loses_on_many_cores_is_nobody():
    many = {"cpu_seconds": 128.0, "waited_seconds": 30.0}
    plain = Window(start_s=0.0, seconds=4.0, steps=1, samples=1, **many, foreign_cpu_seconds=2.5)
    assert of_host(plain, 0.0) == ()
    others = Window(start_s=0.0, seconds=4.0, steps=1, samples=1, **many, foreign_cpu_seconds=2.6)
    assert of_host(others, 0.0) == OTHERS


def test_a_low_clock_under_a_power_cap_is_how_the_card_runs():
    assert of_gpu({"gpu_clock_pct": 60.0, "gpu_power_capped": 1.0}) == ()
    assert of_gpu({"gpu_clock_pct": 60.0, "gpu_power_capped": 0.0}) == (LOW,)
