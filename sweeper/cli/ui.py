"""`sweeper ui`: opens the MLflow UI on a sweep's comparison."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Annotated

import typer

from sweeper.cli.options import Home, Uri
from sweeper.cli.screen import console, say
from sweeper.core.home import DEFAULT_HOME, home_option
from sweeper.errors import EnvironmentStopError, UserError
from sweeper.sweep.folder.catalog import all_sweeps, find_sweep
from sweeper.sweep.hints import look_command, uri_option
from sweeper.system.files import writing
from sweeper.tracking.mlflow import MlflowTracker
from sweeper.tracking.ui import (
    UI_ENV,
    find_experiment,
    is_loopback,
    reachable_host,
    repair_artifact_locations,
    server_command,
    ui_url,
    view_url,
)

START_SECONDS = 90


def ui(
    name: Annotated[str | None, typer.Argument(help="Sweep to open. Default: the latest.")] = None,
    home: Home = DEFAULT_HOME,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Local port.")] = 5000,
    host: Annotated[str, typer.Option("--host", help="Local address to listen on.")] = "127.0.0.1",
    i_know: Annotated[
        bool,
        typer.Option(
            "--i-know", help="Allow any --host: whoever reaches it can read, change and delete every run."
        ),
    ] = False,
    uri: Uri = None,
) -> None:
    """Open a sweep's comparison in the MLflow UI.

    Ctrl-C stops the UI. With a tracking server, prints the address instead.

    Example: sweeper ui stocks-a10
    """
    raise typer.Exit(ui_command(home, name, port, uri, host, i_know=i_know))


def ui_command(
    home: Path,
    name: str | None,
    port: int,
    uri: str | None = None,
    host: str = "127.0.0.1",
    *,
    i_know: bool = False,
) -> int:
    """Serves the UI until it is stopped, or prints its address on a server; returns the exit code.

    Args:
        i_know: Accepts that whoever reaches a `host` that is not local can read, change and delete
            everything, as MLflow has no authentication.
    """
    if not (is_loopback(host) or i_know):
        raise UserError(
            f"`--host` must be a loopback address such as 127.0.0.1, but got {host}: whoever reaches it"
            " could read and delete every run without a password. Use `ssh -L`, or add `--i-know`."
        )
    sweeps = all_sweeps(home)
    if name is None and not sweeps:
        raise UserError(f"There are no sweeps in {home}. Start one with `sweeper run quick`.")
    chosen = find_sweep(home, name).name if name else sweeps[0].name
    tracker = MlflowTracker(home, uri)
    if tracker.place:
        return _print_address(tracker, uri, chosen, home)
    experiment = find_experiment(home, chosen)
    if experiment is None:
        raise UserError(_missing_text(tracker, uri, chosen, home))
    _check_free(host, port)
    repair_artifact_locations(home)
    out = console()
    out.print(f"Starting MLflow on {host}:{port} ...")
    log = home / "ui.log"
    server = _start(home, port, host, log)
    try:
        try:
            _wait(server, reachable_host(host), port, log)
        except EnvironmentStopError:
            # It may be the database, which MLflow's client says more plainly.
            tracker.find(chosen)
            raise
        say(out, f"{chosen}: {ui_url(port, experiment, host=host)}", "Press Ctrl-C to stop.")
        return server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(timeout=10)


def _start(home: Path, port: int, host: str, log: Path) -> subprocess.Popen[bytes]:
    with writing(home), open(log, "wb") as file:
        command = server_command(home, port, host)
        return subprocess.Popen(command, env={**os.environ, **UI_ENV}, stdout=file, stderr=file)


def _missing_text(tracker: MlflowTracker, uri: str | None, name: str, home: Path) -> str:
    place = f"at {tracker.place}" if tracker.place else "in MLflow"
    command = f"sweeper sync {name}{home_option(home)}{uri_option(tracker, uri)}"
    return f"`{name}` has no runs {place} yet; `{command}` sends them."


def _print_address(tracker: MlflowTracker, uri: str | None, name: str, home: Path) -> int:
    if not tracker.place.startswith(("http:", "https:")):
        raise UserError(
            f"`--tracking-uri` must be the address of a server here, but got {tracker.place}."
            f" `{look_command(tracker, uri, name, home)}` serves a database."
        )
    experiment = tracker.find(name)
    if experiment is None:
        raise UserError(_missing_text(tracker, uri, name, home))
    say(console(), f"{name}: {view_url(tracker.place, experiment)}")
    return 0


def _check_free(host: str, port: int) -> None:
    """Checks that the address is free.

    Raises:
        UserError: It is in use, or not an address of this machine.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise UserError(f"`--port` must be free, but {port} is in use. Choose another one.") from None
        raise UserError(
            f"`--host` and `--port` must be an address of this machine, but got {host}:{port}"
            f" ({getattr(error, 'strerror', None) or 'unknown host'}). Choose another one."
        ) from None


def _wait(server: subprocess.Popen[bytes], host: str, port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise EnvironmentStopError(f"MLflow exited immediately with code {server.returncode}; see {log}.")
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
            return
        time.sleep(0.2)
    raise EnvironmentStopError(f"MLflow did not answer on port {port} within {START_SECONDS} s; see {log}.")
