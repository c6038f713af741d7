"""The distribution `house-formats`: `compact` is a file that reads back, `dotenv` is printed."""

from __future__ import annotations

from pathlib import Path

from distributions import install

MODULE = """\
import json
import shlex

from sweeper.errors import UserError
from sweeper.core.export_formats import ExportFormat

COMPACT = ExportFormat(
    render="house_formats:compact", about="one line of JSON", suffix=".min.json", reads_back=True
)
DOTENV = ExportFormat(render="house_formats:dotenv", about="environment variables")


def compact(value, options):
    return json.dumps(value, separators=(",", ":")) + "\\n"


def dotenv(value, options):
    if "config" not in value:
        raise UserError("`--format dotenv` needs the sweep of a pipeline, but this is one of a `command`.")
    found = {"BATCH_SIZE": value["config"]["batch_size"], "AMP": value["config"]["precision"]["amp"]}
    return "".join(f"{name}={shlex.quote(str(each))}\\n" for name, each in found.items())
"""


def install_house_formats(folder: Path, module: str = MODULE) -> Path:
    """Writes the distribution into `folder`, which is to be on the path, and returns it."""
    points = {"compact": "house_formats:COMPACT", "dotenv": "house_formats:DOTENV"}
    return install(folder, "house-formats", {"sweeper.export_formats": points}, {"house_formats.py": module})
