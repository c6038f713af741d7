"""Checks tracking URIs, the addresses of MLflow, and makes them safe to show: without passwords."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sweeper.errors import UserError
from sweeper.system.secrets import strike
from sweeper.system.sqlite import database_in
from sweeper.tracking.ui import DATABASE, store_uri

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_SCHEMES = re.compile(r"(https?|(sqlite|postgresql|mysql|mssql)(\+\w+)?)://|databricks\b")


@dataclass(frozen=True, slots=True)
class TrackingPlace:
    """A tracking server or database.

    Attributes:
        uri: The URI as MLflow accepts it; empty for the database in the home folder.
        home_uri: The URI of that database.
    """

    uri: str = field(default="", repr=False)
    home_uri: str = field(default="", repr=False, compare=False)

    @classmethod
    def of(cls, home: Path, uri: str | None) -> TrackingPlace:
        """Returns the place that `uri` names, or the database in `home`.

        Raises:
            UserError: MLflow cannot use `uri`, or `home` has a name that no database URI can hold.
        """
        home_uri = store_uri(home)
        if not uri or uri == home_uri:
            return cls(home_uri=home_uri)
        place = cls(uri)
        if not _SCHEMES.match(uri):
            raise UserError(
                "A tracking URI starts with sqlite:///, http:// or https://"
                f" (MLflow no longer writes to plain folders), but got {place.shown!r}."
            )
        if uri.startswith("sqlite"):
            database = database_in(uri)
            if not database:
                raise UserError(
                    "A tracking URI of SQLite names a file, such as sqlite:////data/mlflow.db, but got"
                    f" {place.shown!r}."
                )
            return cls(home_uri=home_uri) if Path(database).resolve() == home.resolve() / DATABASE else place
        try:
            assert place.netloc is not None
        except ValueError:
            raise UserError(
                "A tracking URI must look like http://HOST:PORT, with special characters of a password"
                " percent-encoded, but the host of this one cannot be read."
            ) from None
        return place

    @property
    def store(self) -> str:
        """The URI of the server or database, whichever it is."""
        return self.uri or self.home_uri

    @property
    def shown(self) -> str:
        """The URI without user and password."""
        # A database's password may also be an option after the question mark.
        return strike(re.sub(r"(^|://)[^/?#\s]*@", r"\1", self.uri))

    @property
    def netloc(self) -> str:
        """Host and port."""
        parts = urlsplit(self.uri)
        return f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"

    @property
    def is_server(self) -> bool:
        """Whether it is an HTTP server, which decides where its artifacts go."""
        return self.uri.startswith(("http:", "https:", "databricks"))

    def hide(self, text: str) -> str:
        """Returns `text` without the password, in whatever form it appears."""
        clean = strike(re.sub(r"(://)[^/?#\s]*@", r"\1", text))
        if "@" in self.uri:
            secret = urlsplit(self.uri).password or ""
            for form in filter(None, {secret, unquote(secret)}):
                clean = clean.replace(form, "***")
        return clean


def is_folder(uri: str) -> bool:
    """Returns whether a URI names a folder, as the stores of earlier versions of MLflow were."""
    return uri.lower().startswith("file:") or not (_SCHEME.match(uri) or _SCHEMES.match(uri))
