"""Implements the kinds of work (`sweeper.core.workload`), a module for each, and the fingerprint of a sweep.

A third party's kind is an instance of a `Workload` of theirs, named by the import string in its traits.
"""

from __future__ import annotations

import importlib.metadata
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeper.core.job import Job
from sweeper.core.measurement import Measurement
from sweeper.core.registry import resolve
from sweeper.errors import UserError
from sweeper.schema import SweepSpec
from sweeper.sweep.folder.fingerprint import settings_of


class Workload(ABC):
    """What a sweep does in its own way for one kind of work. The defaults are for work without data of ours.

    Attributes:
        loss_runner: The runner of a job that trains only for its loss.
    """

    loss_runner: str

    @abstractmethod
    def marks(self, spec: SweepSpec) -> Mapping[str, Any]:
        """Returns the parts of the fingerprint that say what is trained; `code` is a digest of its code.

        Raises:
            UserError: Its code or its data cannot be read.
        """

    @abstractmethod
    def template(self, spec: SweepSpec, home: Path) -> Job:
        """Returns what the jobs of all trials have in common."""

    def absent_file(self, spec: SweepSpec) -> str:
        """Returns the file of what is trained that is not in the current folder; empty if none is missing."""
        return ""

    def code(self, spec: SweepSpec) -> Mapping[str, str]:
        """Returns the files that travel to a cluster's workers, as texts by relative path."""
        return {}

    def prepared_folder(self, spec: SweepSpec, home: Path) -> Path:
        """Returns the folder of the prepared data; `Path()` if nothing is prepared."""
        return Path()

    def prepare_job(self, spec: SweepSpec, prepared: Path) -> Job | None:
        """Returns the job that prepares the data; None if nothing is prepared."""
        return None

    def quality_samples(self, spec: SweepSpec, baseline: Measurement, batch_size: int, seconds: float) -> int:
        """Returns after how many training samples losses are compared (`measure.quality_samples: auto`).

        By default, these are the samples after warm-up and windows: every trial trains on that many to be
        timed. Disturbed windows of the baseline do not count.

        Args:
            batch_size: The baseline's.
            seconds: Time that a pass for the loss alone may take.
        """
        max_seconds = spec.measure.repeats * spec.measure.window_seconds
        timed = min(max_seconds, sum(window.seconds for window in baseline.windows))
        return max(1, int(baseline.throughput * (timed + min(baseline.warmup_seconds, max_seconds))))


def workload_of(spec: SweepSpec) -> Workload:
    """Returns the implementation of a specification's kind of work.

    Raises:
        UserError: It is not here, or cannot be imported.
    """
    if not spec.traits.implementation:
        raise UserError(f"`workload` must be a kind that can be imported here, but got {spec.workload!r}.")
    work: Workload = resolve(spec.traits.implementation)
    return work


def fingerprint(spec: SweepSpec, device: str) -> dict[str, Any]:
    """Returns the parts that must be equal for a sweep to be continued.

    Comments and layout of a pipeline's code do not count; its syntax tree does.
    """
    tree = spec.to_dict()
    parts = {key: tree[key] for key in ("space", "fix", "baseline", "also_try", "objectives", "constraints")}
    return {
        "workload": tree["workload"],
        **parts,
        **workload_of(spec).marks(spec),
        "measure": settings_of(spec.measure),
        "seed": spec.search.seed,
        "device": device,
        "torch": _version_of_torch(),
    }


def _version_of_torch() -> str:
    """Returns the version of torch in this environment; empty if it has none, and only scripts have one."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""
