"""Tracking URIs: which are taken, what of them is shown, and what a server that refuses is called."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tracking_records import SWEEP

from sweeper.errors import StorageError, UserError
from sweeper.tracking import RejectedError, TrackerRefusedError
from sweeper.tracking.failures import reported
from sweeper.tracking.mlflow import MlflowTracker
from sweeper.tracking.ui import store_uri
from sweeper.tracking.uri import TrackingPlace, is_folder

SECRET = "hunter2%2Fx"


@pytest.mark.parametrize(
    ("uri", "shown", "is_server"),
    [
        (f"http://me:{SECRET}@mlflow:5000", "http://mlflow:5000", True),
        (f"https://me:a@{SECRET}@mlflow/base/", "https://mlflow/base/", True),
        (f"postgresql+psycopg2://me:{SECRET}@db/mlflow", "postgresql+psycopg2://db/mlflow", False),
        ("sqlite:////data/m.db", "sqlite:////data/m.db", False),
        ("sqlite:////data/me@home/m.db", "sqlite:////data/me@home/m.db", False),
        (f"postgresql://db/mlflow?user=me&password={SECRET}", "postgresql://db/mlflow?user=me&***", False),
        ("databricks://profile", "databricks://profile", True),
    ],
)
def test_user_and_password_are_not_shown(uri: str, shown: str, is_server: bool, tmp_path: Path) -> None:
    place = TrackingPlace.of(tmp_path, uri)
    assert (place.uri, place.shown, place.is_server) == (uri, shown, is_server)
    assert SECRET not in repr(place)
    assert MlflowTracker(tmp_path, uri).place == shown


def test_the_home_s_own_database_is_the_usual_place(tmp_path: Path) -> None:
    assert (
        TrackingPlace.of(tmp_path, store_uri(tmp_path)).shown == TrackingPlace.of(tmp_path, None).shown == ""
    )
    assert TrackingPlace.of(tmp_path, "") == TrackingPlace()


def test_the_home_s_own_database_may_be_spelled_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for uri in ("sqlite:///x%20y/mlflow.db", "sqlite+pysqlite:///x y/mlflow.db"):
        assert TrackingPlace.of(Path("x y"), uri) == TrackingPlace()
    assert TrackingPlace.of(Path("x y"), "sqlite:///mlflow.db").uri == "sqlite:///mlflow.db"
    for uri in ("sqlite://", "sqlite:///"):
        with pytest.raises(UserError, match=f"names a file, such as .*, but got '{uri}'"):
            TrackingPlace.of(tmp_path, uri)


@pytest.mark.parametrize("uri", ["./mlruns", "mlruns", "/data/mlruns", "file:///data", "FILE:mlruns", "a b"])
def test_folders_are_told_from_mistyped_servers(uri: str) -> None:
    assert is_folder(uri)
    assert not any(map(is_folder, ("mlflow:5000", "htp://a", "databricks", "sqlite:///x", "http://a/b")))


@pytest.mark.parametrize(
    "uri", [f"me:{SECRET}@mlflow:5000", f"ftp://me:{SECRET}@mlflow", f"http://me:a/{SECRET}@mlflow:5000"]
)
def test_a_uri_that_cannot_be_is_refused_without_being_repeated(uri: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^A tracking URI ") as told:
        TrackingPlace.of(tmp_path, uri)
    assert "hunter2" not in str(told.value)


def test_a_password_is_hidden_in_whatever_form_it_comes() -> None:
    place = TrackingPlace(f"http://me:{SECRET}@mlflow:5000")
    said = place.hide(f"GET http://me:{SECRET}@mlflow:5000/api failed; password {SECRET}, or hunter2/x.")
    assert said == "GET http://mlflow:5000/api failed; password ***, or ***."
    place = TrackingPlace(f"postgresql://db/mlflow?user=me&password={SECRET}")
    assert place.hide(f"cannot open {place.uri}") == "cannot open postgresql://db/mlflow?user=me&***"


def test_no_message_has_the_password_whatever_was_thrown() -> None:
    place = TrackingPlace(f"http://me:{SECRET}@mlflow:5000")
    with pytest.raises(StorageError) as told, reported("MLflow did not accept `x`", place):
        raise ValueError(f"cannot parse {place.uri}/api\nand more")
    assert str(told.value) == "MLflow did not accept `x`: cannot parse http://mlflow:5000/api"


def test_where_mlflow_is_not_installed_it_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def client_class() -> None:
        raise ModuleNotFoundError("No module named 'mlflow'", name="mlflow")

    monkeypatch.setattr("sweeper.tracking.mlflow.client_class", client_class)
    with pytest.raises(TrackerRefusedError) as told:
        MlflowTracker(tmp_path).open(SWEEP)
    assert (
        str(told.value)
        == "mlflow is not installed here. Install the whole of sweeper: `pip install sweeper-torch`"
    )


def test_a_driver_that_is_missing_is_named() -> None:
    with (
        pytest.raises(StorageError) as told,
        reported("MLflow did not accept `x`", TrackingPlace("sqlite:///a.db")),
    ):
        raise ModuleNotFoundError("No module named 'psycopg2'", name="psycopg2")
    assert str(told.value) == "MLflow did not accept `x`: No module named 'psycopg2'"


class Refusing(http.server.BaseHTTPRequestHandler):
    """Answers everything with one status and text."""

    status, text = 403, "Invalid Host header - possible DNS rebinding attack detected"
    asked: list[str | None]

    def answer(self) -> None:
        type(self).asked.append(self.headers.get("Authorization"))
        body = self.text.encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        if 300 <= self.status < 400:
            self.send_header("Location", "/login")
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PATCH = do_PUT = answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def refusing() -> Iterator[tuple[type[Refusing], str]]:
    handler = type("Handler", (Refusing,), {"asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield handler, f"http://me:{SECRET}@127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "text", "kind", "says"),
    [
        (
            403,
            Refusing.text,
            TrackerRefusedError,
            r"\(Invalid Host header\)\. Start it with `--allowed-hosts 127\.0",
        ),
        (401, "no", TrackerRefusedError, "MLFLOW_TRACKING_USERNAME"),
        (302, "over there", TrackerRefusedError, "redirects requests .HTTP 302.*--tracking-uri"),
        (308, "over there", TrackerRefusedError, "redirects requests .HTTP 308"),
        (400, '{"error_code": "INVALID_PARAMETER_VALUE", "message": "too odd"}', RejectedError, "too odd"),
        (413, "too much", RejectedError, "error code 413"),
        (404, "not here", StorageError, "error code 404"),
        (429, "later", StorageError, r"http://127\.0\.0\.1:\d+ answers with HTTP 429$"),
        (500, '{"error_code": "INTERNAL_ERROR", "message": "oops"}', StorageError, "answers with HTTP 500$"),
        (200, "<html>a login page", StorageError, "not in a valid JSON format"),
    ],
)
def test_what_a_server_says_decides_whether_it_is_asked_again(
    refusing: tuple[type[Refusing], str],
    tmp_path: Path,
    status: int,
    text: str,
    kind: type[StorageError],
    says: str,
) -> None:
    handler, uri = refusing
    handler.status, handler.text = status, text
    tracker = MlflowTracker(tmp_path, uri)
    with pytest.raises(StorageError, match=says) as told:
        tracker.open(SWEEP)
    assert type(told.value) is kind
    assert "\n" not in str(told.value)
    assert "hunter2" not in str(told.value)
    # Asked once; the password goes where it belongs.
    (sent,) = handler.asked
    assert sent is not None
    assert sent.startswith("Basic ")


def test_a_server_that_hangs_is_given_up_after_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        tracker = MlflowTracker(tmp_path, f"http://me:{SECRET}@127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(StorageError, match=r"http://127\.0\.0\.1:\d+ does not answer in time$"):
            tracker.open(SWEEP)
