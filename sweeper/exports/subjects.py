"""Builds what an export is of: a pipeline's configuration, or the command line of a script."""

from __future__ import annotations

from pathlib import Path

from sweeper.core.codec import encode
from sweeper.core.job import read_job
from sweeper.core.record import TrialRecord
from sweeper.core.registry import resolve
from sweeper.core.script import FOLDER
from sweeper.core.template import arguments, render
from sweeper.core.workload import script_of
from sweeper.errors import UserError
from sweeper.exports.schema import OfPipeline, OfScript
from sweeper.spec import SweepSpec


def subject_of(spec: SweepSpec, record: TrialRecord) -> OfPipeline | OfScript:
    """Returns what the export of a trial is of.

    Raises:
        UserError: Work of its kind cannot be exported.
    """
    if not spec.traits.exported:
        raise UserError(f"`{spec.name}` cannot be exported: its `workload` has no `exported`.")
    subject: OfPipeline | OfScript = resolve(spec.traits.exported)(spec, record)
    return subject


def of_pipeline(spec: SweepSpec, record: TrialRecord) -> OfPipeline:
    """Returns the pipeline, its data and the trial's configuration."""
    config = record.config.canonical()
    return OfPipeline(pipeline=spec.pipeline, data=spec.to_dict()["data"], config=encode(config))


def of_script(spec: SweepSpec, record: TrialRecord) -> OfScript:
    """Returns the script as it ran in the trial."""
    config = record.config.canonical()
    # From the job: the templates' files may have changed since it ran.
    script = script_of(read_job(Path(record.folder)))
    values = {**(config.args or {}), FOLDER: "."}
    return OfScript(
        command=arguments(script.command, values),
        env=script.own_environment(values),
        files={path: render(text, values) for path, text in script.files.items()},
        params=config.flatten(),
    )
