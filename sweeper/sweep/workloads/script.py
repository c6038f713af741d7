"""Implements scripts: a command line whose parameters are the user's own, such as flags."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeper.core.job import SCRIPT_QUALITY_RUNNER, SCRIPT_RUNNER, Job
from sweeper.core.modules import import_paths
from sweeper.core.script import Script
from sweeper.launch.local import own_environment
from sweeper.schema import SweepSpec
from sweeper.script.run.command_line import parse_command
from sweeper.sweep.folder.fingerprint import digest_of_command, settings_of
from sweeper.sweep.workloads import Workload
from sweeper.system.environment import PASS_ENV, pass_env_names
from sweeper.tracking.script_store import empty_store


class ScriptWork(Workload):
    """A script: it loads its data itself, on the machine where its files are."""

    loss_runner = SCRIPT_QUALITY_RUNNER

    def marks(self, spec: SweepSpec) -> Mapping[str, Any]:
        """Returns the command, its options, and a digest of the files that it names."""
        tree = spec.to_dict()
        code = digest_of_command(spec.command, _script(spec).files)
        return {"command": tree["command"], "script": settings_of(spec.script), "code": code}

    def absent_file(self, spec: SweepSpec) -> str:
        """Returns the script if it is a file that is not in the current folder."""
        script = parse_command(shlex.join(spec.command)).script
        return script if script.endswith(".py") and "{" not in script and not os.path.isfile(script) else ""

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


def _script(spec: SweepSpec) -> Script:
    script = spec.script_in(Path.cwd())
    assert script is not None
    return script


def _environment(spec: SweepSpec) -> dict[str, str]:
    """Returns the variables that a script sees as the user set them, and the names of those it may see."""
    names = "\n".join((*spec.execution.pass_env, *pass_env_names(os.environ)))
    return {**own_environment(), **({PASS_ENV: names} if names else {})}


SCRIPT = ScriptWork()
