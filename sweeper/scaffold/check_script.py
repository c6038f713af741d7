"""`sweeper check --deep` for a script: runs its baseline for a few seconds and reads its output."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweeper.core.job import RECORD, MeasurePlan
from sweeper.core.measurement import Failure, Measurement
from sweeper.schema import SweepSpec
from sweeper.sweep.job_runner import JobRunner
from sweeper.sweep.start.bootstrap import Launch, launcher_to_try_out, probe_machine
from sweeper.sweep.workloads import workload_of
from sweeper.system.files import read_json

PLAN = MeasurePlan(window_seconds=0.5, repeats=2, warmup_cap_seconds=10.0, cap_seconds=10.0, diagnose=False)
LIMIT_SECONDS = 120.0
PATIENCE_SECONDS = 20.0
"""Time after which a script is stopped if it prints, but nothing that is understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptCheck:
    """A script that was run for a few seconds.

    Attributes:
        device: The device in one line.
        record: The record of what ran and what was read (`sweeper.core.job.RECORD`); empty if the script
            could not be started.
    """

    device: str
    outcome: Measurement | Failure
    record: Mapping[str, Any]


def try_out(spec: SweepSpec, launch: Launch | None = None) -> ScriptCheck:
    """Runs the baseline of a command until it is measured, for at most `LIMIT_SECONDS`.

    Leaves nothing on disk.
    """
    with launcher_to_try_out(spec, launch) as (launcher, folder):
        machine = probe_machine(launcher, folder / "probe", spec)
        job = dataclasses.replace(
            workload_of(spec).template(spec, folder),
            uid="deep",
            config=spec.baseline_config(),
            plan=PLAN,
            timeout_seconds=LIMIT_SECONDS,
            patience_seconds=PATIENCE_SECONDS,
        )
        outcome = JobRunner(launcher, machine.slots, lambda: None).run(folder / "trial", job)
        assert isinstance(outcome, Measurement | Failure)
        record = folder / "trial" / RECORD
        return ScriptCheck(
            device=machine.line, outcome=outcome, record=read_json(record) if record.exists() else {}
        )
