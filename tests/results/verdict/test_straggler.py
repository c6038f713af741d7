"""The GPU that the others wait for."""

from __future__ import annotations

import dataclasses

import pytest
from measurements import measurement

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Measurement, Stats
from sweeper.results.trial_card import card
from sweeper.results.verdict.straggler import straggler


def measured(**means: float) -> Measurement:
    telemetry = {name: Stats(mean=mean, p50=mean, p95=mean) for name, mean in means.items()}
    return dataclasses.replace(measurement(), telemetry=telemetry)


def test_the_slow_one_is_named_with_the_reason():
    found = measured(
        gpu_sm_clock_mhz=1750, gpu1_sm_clock_mhz=1740, gpu2_sm_clock_mhz=1170, gpu2_throttled=0.8
    )
    said = straggler(found, 3)
    assert said == (
        "GPU 2 of 3 is the straggler: it ran at 1170 MHz (heat or a power brake holds it down), "
        "the others at 1745 MHz"
    )
    config = TrialConfig().replace({"device.count": 3})
    assert said in list(card(found, config))


@pytest.mark.parametrize(
    "clocks",
    [{"gpu_sm_clock_mhz": 1750, "gpu1_sm_clock_mhz": 1700}, {"gpu_sm_clock_mhz": 1750}, {}],
    ids=["alike", "of one", "unknown"],
)
def test_nothing_is_said_of_clocks_that_are_alike_or_not_known(clocks):
    assert straggler(measured(**clocks), 2) == ""
