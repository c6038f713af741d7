"""Reports on a sweep: an HTML page, Markdown for a pull request, PNG figures."""

from sweeper.report.writing import FORMATS, files, text, write

__all__ = ["FORMATS", "files", "text", "write"]
