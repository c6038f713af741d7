"""Implements pipelines: a module with `prepare` and `build`, which sweeper's own trainer trains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeper.core.codec import encode
from sweeper.core.job import PREPARE_RUNNER, QUALITY_RUNNER, TRIAL_RUNNER, Job, MeasurePlan
from sweeper.core.measurement import Measurement
from sweeper.core.modules import import_paths
from sweeper.schema import SweepSpec
from sweeper.sweep.folder.code import code_of
from sweeper.sweep.folder.fingerprint import digest_of_code, digest_of_files, prepared_folder
from sweeper.sweep.workloads import Workload

PREPARE_SECONDS = 3600


class PipelineWork(Workload):
    """A pipeline: its data is prepared once, and its code travels to the workers of a cluster."""

    loss_runner = QUALITY_RUNNER

    def marks(self, spec: SweepSpec) -> Mapping[str, Any]:
        """Returns the module, and the digests of its code and its data."""
        return {
            "pipeline": spec.pipeline,
            "code": digest_of_code(spec.pipeline),
            "data": {"options": spec.to_dict()["data"], "files": digest_of_files(spec.data)},
        }

    def template(self, spec: SweepSpec, home: Path) -> Job:
        """Returns what the jobs of all trials have in common."""
        return Job(
            uid="",
            runner=TRIAL_RUNNER,
            pipeline=spec.pipeline,
            import_paths=import_paths(),
            data=encode(spec.data),
            probes=spec.measure.probes,
            cold_cache=spec.measure.cold_cache,
        )

    def code(self, spec: SweepSpec) -> Mapping[str, str]:
        """Returns the pipeline and the neighbouring modules that it imports."""
        return code_of(spec.pipeline)

    def prepared_folder(self, spec: SweepSpec, home: Path) -> Path:
        """Returns the folder of the prepared data, which sweeps of the same data share."""
        return prepared_folder(home, spec.pipeline, spec.to_dict()["data"])

    def prepare_job(self, spec: SweepSpec, prepared: Path) -> Job | None:
        """Returns the job that prepares the data."""
        return Job(
            uid="prepare",
            runner=PREPARE_RUNNER,
            pipeline=spec.pipeline,
            import_paths=import_paths(),
            data=spec.to_dict()["data"],
            prepared=str(prepared),
            plan=MeasurePlan(repeats=0),
            timeout_seconds=PREPARE_SECONDS,
        )

    def quality_samples(self, spec: SweepSpec, baseline: Measurement, batch_size: int, seconds: float) -> int:
        """Returns how many samples the baseline trains on in `seconds`, without the cost of its data path.

        The quality pass gathers batches on the device, so the baseline's loader does not slow it down.
        """
        per_second = batch_size / max(baseline.breakdown.compute_s, 1e-9)
        samples = max(per_second, baseline.throughput) * seconds
        return max(1000, int(samples) // 1000 * 1000)


PIPELINE = PipelineWork()
