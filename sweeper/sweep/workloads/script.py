"""Implements scripts: a command line whose parameters are the user's own, such as flags."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeper.core.config import TrialConfig
from sweeper.core.job import SCRIPT_QUALITY_RUNNER, SCRIPT_RUNNER, Job
from sweeper.core.measurement import Measurement
from sweeper.core.modules import import_paths
from sweeper.core.script import Script
from sweeper.execution.local import own_environment
from sweeper.spec import SweepSpec
from sweeper.sweep.store.fingerprint import digest_of_command
from sweeper.system.environment import PASS_ENV, named
from sweeper.tracking.script_store import empty_store


class ScriptWork:
    """A script: it loads its data itself, on the machine where its files are."""

    loss_runner = SCRIPT_QUALITY_RUNNER

    def marks(self, spec: SweepSpec) -> Mapping[str, Any]:
        """Returns the command, its options, and a digest of the files that it names."""
        tree = spec.to_dict()
        code = digest_of_command(spec.command, _script(spec).files)
        return {"command": tree["command"], "script": tree["script"], "code": code}

    def template(self, spec: SweepSpec, home: Path) -> Job:
        """Returns what the jobs of all trials have in common."""
        script = _script(spec)
        if script.mlflow != "off":
            store, run_id = empty_store(home / "cache")
            script = dataclasses.replace(script, mlflow_store=str(store), mlflow_run=run_id)
        return Job(
            uid="",
            runner=SCRIPT_RUNNER,
            script=script,
            env=_environment(spec),
            import_paths=import_paths(),
            probes=spec.measure.probes,
            cold_cache=spec.measure.cold_cache,
        )

    def code(self, spec: SweepSpec) -> Mapping[str, str]:
        """Returns nothing: a worker needs the script's folder."""
        return {}

    def prepared_folder(self, spec: SweepSpec, home: Path) -> Path:
        """Returns that nothing is prepared."""
        return Path()

    def prepare_job(self, spec: SweepSpec, prepared: Path) -> Job | None:
        """Returns None: nothing is prepared."""
        return None

    def config_for_loss(self, spec: SweepSpec, config: TrialConfig) -> TrialConfig:
        """Returns `config`: of a script's own parameters, it is unknown which affect the loss."""
        return config

    def quality_samples(self, spec: SweepSpec, baseline: Measurement, batch_size: int, seconds: float) -> int:
        """Returns how many samples the script has trained on after its warm-up and its windows.

        Every trial trains on that many to be timed. Disturbed windows of the baseline do not count.
        """
        usual = spec.measure.repeats * spec.measure.window_seconds
        timed = min(usual, sum(window.seconds for window in baseline.windows))
        return max(1, int(baseline.throughput * (timed + min(baseline.warmup_seconds, usual))))


def _script(spec: SweepSpec) -> Script:
    script = spec.script_in(Path.cwd())
    assert script is not None
    return script


def _environment(spec: SweepSpec) -> dict[str, str]:
    """Returns the variables that a script sees as the user set them, and the names of those it may see."""
    names = "\n".join((*spec.execution.pass_env, *named(os.environ)))
    return {**own_environment(), **({PASS_ENV: names} if names else {})}


SCRIPT = ScriptWork()
