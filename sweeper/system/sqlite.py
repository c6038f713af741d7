"""Translates between paths of SQLite databases and their URIs, as the installed SQLAlchemy reads them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from sweeper.errors import UserError


def sqlite_uri(path: Path) -> str:
    """Returns the URI by which SQLAlchemy opens the database at an absolute path.

    Raises:
        UserError: The path has a character that the installed SQLAlchemy can express in no URI.
    """
    plain = f"sqlite:///{path}"
    if not {*"%?"} & {*str(path)}:
        return plain
    # Of a URI that begins with `sqlite:///`, MLflow makes the folders before it decodes their names.
    for uri in (plain, f"sqlite+pysqlite:///{quote(str(path))}"):
        if database_in(uri) == str(path):
            return uri
    raise UserError(
        "The path of an MLflow database must not contain ?, or % before two hexadecimal digits, with this"
        f" version of SQLAlchemy, but got {str(path)!r}. Choose another folder with --home."
    )


def database_in(uri: str) -> str:
    """Returns the path of the database that a URI names; empty for one that is not of SQLite."""
    if not uri.startswith("sqlite"):
        return ""
    # Imported late: it is slow to import, and rarely needed.
    import sqlalchemy

    return sqlalchemy.make_url(uri).database or ""
