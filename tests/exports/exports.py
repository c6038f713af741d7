"""Exports of configurations that nobody measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from parts.noop import synthetic
from replays import spec_of

from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.measurement import DeviceInfo, Measurement
from sweeper.core.record import TrialRecord
from sweeper.exports import Setting, make_export
from sweeper.results.numbers.limits import Yardstick
from sweeper.results.numbers.summary import Summary
from sweeper.schema import SweepSpec

A10 = DeviceInfo(
    kind="cuda", name="NVIDIA A10", uuid="GPU-1", memory_gib=22.5, capability="8.6", host_memory_gib=64.0
)


def summary_of(config: TrialConfig, measured: Measurement, **changes: Any) -> Summary:
    """A finished sweep of two trials: the baseline, and one of `config`."""
    records = tuple(
        TrialRecord(number=number, uid=f"uid-{number}", stage=stage, config=each, outcome=measured)
        for number, stage, each in ((0, "baseline", TrialConfig()), (1, "search", config))
    )
    summary = Summary(
        name="toy",
        state="finished",
        device="1 x NVIDIA A10",
        reason="",
        synthetic=False,
        yardstick=Yardstick(records[0]),
        winner=records[1],
        ratio=None,
        baseline_throughput=None,
        per_size=(),
        per_loader=(),
        counts={},
        production_samples=None,
        records=records,
    )
    return dataclasses.replace(summary, **changes)


def export_of(
    settings: Mapping[str, Scalar],
    spec: SweepSpec | None = None,
    *,
    device: DeviceInfo | None = None,
    setting: Setting | None = None,
    about: Mapping[str, Any] | None = None,
    **measured: Any,
) -> dict[str, Any]:
    """The export of a configuration, measured on the CPU unless `device` says otherwise."""
    found = synthetic(1000.0)
    found = dataclasses.replace(found, device=device or found.device, **measured)
    summary = summary_of(TrialConfig().replace(settings), found, **(about or {}))
    return make_export(summary, spec or spec_of(), None, setting)
