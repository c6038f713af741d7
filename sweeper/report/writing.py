"""Writes a report as HTML, Markdown or PNG, and the files that a sweep leaves at its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sweeper.errors import UserError
from sweeper.report.markdown import markdown
from sweeper.report.page import html
from sweeper.report.png import pngs
from sweeper.report.report_data import ReportData, gather
from sweeper.sweep.folder.load import LoadedSweep
from sweeper.system.files import write_atomic

FORMATS = {"html": "report.html", "md": "report.md", "png": "report"}
"""Formats and their names in the sweep's folder; `png` is a folder of files."""


def files(sweep: LoadedSweep, say: Callable[[str], None]) -> list[Path]:
    """Writes `report.html` and `report/*.png` into the sweep's folder, and returns their paths.

    Args:
        say: Is given a line if the figures are left out, since matplotlib is not installed.

    Raises:
        OSError: The folder cannot be written.
    """
    data, folder = gather(sweep), sweep.journal.folder
    page = _write(data, "html", folder / FORMATS["html"])
    try:
        return [*page, *pngs(data, folder / FORMATS["png"])]
    except UserError as error:
        say(f"The report has no figures beside it: {error}")
        return page


def write(sweep: LoadedSweep, form: str, out: Path | None = None) -> list[Path]:
    """Writes a report in a format of `FORMATS`, and returns the paths of what was written.

    Args:
        out: A file, or a folder for `png`; in the sweep's folder by default.

    Raises:
        OSError: It cannot be written there.
        UserError: It needs a library that is not installed.
    """
    return _write(gather(sweep), form, out or sweep.journal.folder / FORMATS[form])


def text(sweep: LoadedSweep, form: str) -> str:
    """Returns a report in a format that is text: `html` or `md`."""
    return _text(gather(sweep), form)


def _text(m: ReportData, form: str) -> str:
    return html(m) if form == "html" else markdown(m)


def _write(m: ReportData, form: str, out: Path) -> list[Path]:
    if form == "png":
        return pngs(m, out)
    write_atomic(out, _text(m, form))
    return [out]
