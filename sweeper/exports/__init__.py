"""Exports a measured, feasible trial for production, with its origin."""

from sweeper.exports.document import Setting, make_export
from sweeper.exports.flags import read_map
from sweeper.exports.formats import Options, render_export
from sweeper.exports.job_script import reads_export
from sweeper.exports.reading import pass_env, read, variables_of
from sweeper.exports.schema import SCHEMA

__all__ = [
    "SCHEMA",
    "Options",
    "Setting",
    "make_export",
    "pass_env",
    "read",
    "read_map",
    "reads_export",
    "render_export",
    "variables_of",
]
