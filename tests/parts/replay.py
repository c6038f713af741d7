"""Provides a launcher that answers every job from a function of the configuration. It runs nothing.

Whole sweeps take milliseconds, for tests of the supervisor and for comparing samplers on recorded
surfaces.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from parts.noop import CPU
from sweeper.core.codec import encode
from sweeper.core.config import TrialConfig
from sweeper.core.job import (
    PREFLIGHT_RUNNER,
    PREPARE_RUNNER,
    PROBE_RUNNER,
    QUALITY_RUNNER,
    Job,
    MeasurePlan,
    read_job,
    write_outcome,
)
from sweeper.core.measurement import (
    DeviceInfo,
    Failure,
    FailureKind,
    Measurement,
    Outcome,
    Quality,
    Report,
)
from sweeper.launch.launcher import Launcher, outcome_or_lost

Surface = Callable[[TrialConfig], Measurement | Failure]
"""Returns the outcome of a configuration's trial, noisy or not; an exception ends the supervisor."""

Loss = Callable[[TrialConfig], float]

FALL = 0.25
"""Exponent with which a loss falls: it is proportional to `samples ** -FALL`."""


class ReplayLauncher(Launcher):
    """Answers jobs by `surface`, in threads of this process.

    A Failure of kind `lost` leaves no outcome, as a lost worker does.

    Attributes:
        jobs: Every job submitted, in order.
    """

    capacity: int = 1

    def __init__(
        self,
        surface: Surface,
        *,
        loss: Loss = lambda config: 1.0,
        constant_loss: float | None = 2.0,
        devices: Sequence[DeviceInfo] = (CPU,),
        usable_cpus: int = 16,
        lacks: Mapping[str, str] | None = None,
        prepared: Report | Failure | None = None,
        refuses: Callable[[TrialConfig], Failure | None] = lambda config: None,
        sleep_seconds: float = 0.0,
    ) -> None:
        """Runs nothing yet.

        Args:
            loss: Validation loss after the samples of the first quality pass; it falls with more samples.
            constant_loss: Validation loss of the best constant predictor; None if unknown.
            devices: The devices that the probe finds, with `usable_cpus` and `lacks` (`field=value` -> why).
            prepared: The result of the prepare job; synthetic data by default.
            refuses: Returns a configuration's failure in the preflight; by default, none fails.
            sleep_seconds: Duration of each trial.
        """
        self.capacity = len(devices)
        self.jobs: list[Job] = []
        self._surface, self._loss, self._constant_loss = surface, loss, constant_loss
        self._probed = {
            "devices": encode(list(devices)),
            "usable_cpus": usable_cpus,
            "lacks": dict(lacks or {}),
            "versions": {},
        }
        self._prepared = prepared or Report(values={"synthetic": True, "notes": ["The data is synthetic."]})
        self._refuses = refuses
        self._sleep_seconds = sleep_seconds
        self._usual_samples = 0
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(max(2, self.capacity))

    def submit(self, folder: Path) -> Future[Outcome | Report]:
        """Answers the job in `folder`."""
        job = read_job(folder)
        self.jobs.append(job)
        return self._pool.submit(self._run, folder, job)

    def close(self) -> None:
        """Cuts sleeping trials short; they leave no outcome."""
        self._closed.set()
        self._pool.shutdown()

    def _run(self, folder: Path, job: Job) -> Outcome | Report:
        answer = self._answer(job)
        if isinstance(answer, Failure) and answer.kind is FailureKind.LOST:
            return answer
        if not self._closed.is_set():
            write_outcome(folder, dataclasses.replace(answer, finished_at=time.time()))
        return outcome_or_lost(folder)

    def _answer(self, job: Job) -> Outcome | Report:
        if job.runner == PROBE_RUNNER:
            return Report(values=self._probed)
        if job.runner == PREPARE_RUNNER:
            return self._prepared
        if job.runner == PREFLIGHT_RUNNER:
            return self._refuses(job.config) or Report(values={"steps": 2})
        if job.runner == QUALITY_RUNNER:
            values: Mapping[str, Any] = encode(self._quality(job))
            return Report(values=values)
        self._closed.wait(self._sleep_seconds)
        outcome = self._surface(job.config)
        plan = job.plan
        if isinstance(outcome, Failure):
            return outcome
        if outcome.windows[0].samples < plan.screen_above * outcome.windows[0].seconds:
            return dataclasses.replace(outcome, windows=outcome.windows[:1], is_screened=True)
        if not plan.quality_samples:
            return outcome
        could_win = outcome.throughput >= plan.quality_above
        return dataclasses.replace(outcome, quality=self._quality(job)) if could_win else outcome

    def _quality(self, job: Job) -> Quality:
        loss, samples, until = self._loss(job.config), job.plan.quality_samples, job.plan.until_loss
        curve = [(samples, loss)]
        # `loss` is the one after the samples of the first pass.
        self._usual_samples = self._usual_samples or samples
        if job.plan.quality_parts != MeasurePlan().quality_parts:
            points = [
                samples * part // job.plan.quality_parts for part in range(1, job.plan.quality_parts + 1)
            ]
            curve = [(point, loss * (self._usual_samples / point) ** FALL) for point in points]
            reached = [at for at, (_, value) in enumerate(curve) if until is not None and value <= until]
            curve = curve[: reached[0] + 1] if reached else curve
        samples, loss = curve[-1]
        return Quality(
            key=f"{job.config.quality_key()}-{job.plan.quality_samples}",
            samples=samples,
            seconds=0.0,
            train_loss=loss,
            val_loss=loss,
            constant_loss=self._constant_loss,
            curve=tuple(curve),
        )
