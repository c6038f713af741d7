"""Reports on a sweep: one page to read, Markdown for a pull request, figures as PNG."""

from sweeper.report.writing import FORMATS, files, text, write

__all__ = ["FORMATS", "files", "text", "write"]
