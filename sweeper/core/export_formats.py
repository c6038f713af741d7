"""Lists the export formats and their traits. Imports no writer.

A new format is one function and one row of the table; a third party's format is the import string of a row.
No other module branches on a format's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sweeper.core.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFormat:
    """One format of an export.

    Attributes:
        render: Import string of a function `(value, options) -> str`. `value` is the export as plain
            values, `options` a `sweeper.exports.Options`. The function raises a UserError for anything
            that the format cannot express.
        about: A description in a few words, for `--help`.
        suffix: Suffix of the file in the sweep's folder, such as `.yaml`; empty if the text is
            printed unless `--out` names a file.
        reads_back: `sweeper train` can read the text, which is complete YAML or JSON.
        runs_export: The text trains from a YAML export, which is written next to it.
        takes_map: It can write the user's own flags (`--map`).
        gives_reasons: It explains each value; `Options.reasons` is filled for it.
    """

    render: str
    about: str = ""
    suffix: str = ""
    reads_back: bool = False
    runs_export: bool = False
    takes_map: bool = False
    gives_reasons: bool = False


YAML = "yaml"
"""The default format, and the one that a text with `runs_export` trains from."""

BUILTIN: Mapping[str, ExportFormat] = {
    YAML: ExportFormat(render="sweeper.exports.formats:as_yaml", suffix=".yaml", reads_back=True),
    "json": ExportFormat(render="sweeper.exports.formats:as_json", suffix=".json", reads_back=True),
    "args": ExportFormat(render="sweeper.exports.formats:as_arguments", about="flags", takes_map=True),
    "sbatch": ExportFormat(
        render="sweeper.exports.job_script:job_script",
        about="a SLURM job",
        suffix=".sbatch",
        runs_export=True,
    ),
    "python": ExportFormat(
        render="sweeper.exports.python_lines:python_lines",
        about="lines to paste",
        gives_reasons=True,
    ),
}
FORMATS = Registry("`--format`", ExportFormat, BUILTIN)
"""What `--format` can name."""


def describe_formats() -> str:
    """Returns the built-in formats for `--help`: `yaml, args (flags), ...`."""
    return ", ".join(f"{name} ({row.about})" if row.about else name for name, row in BUILTIN.items())


def printed_formats() -> Iterator[str]:
    """Yields the built-in formats that are printed."""
    return (name for name, row in BUILTIN.items() if not row.suffix)


def formats_with(option: str) -> str:
    """Returns the built-in formats that have the trait `option`, such as `args`."""
    return " or ".join(name for name, row in BUILTIN.items() if getattr(row, option))
