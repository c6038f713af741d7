"""Exports a measured, feasible trial for production, with its origin."""

from sweeper.export.document import Setting, exported
from sweeper.export.flags import read_map
from sweeper.export.formats import Options, rendered
from sweeper.export.job_script import reads_export
from sweeper.export.reading import pass_env, read
from sweeper.export.schema import SCHEMA

__all__ = [
    "SCHEMA",
    "Options",
    "Setting",
    "exported",
    "pass_env",
    "read",
    "read_map",
    "reads_export",
    "rendered",
]
