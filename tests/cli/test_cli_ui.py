"""`sweeper ui` listens on this machine alone; MLflow looks at who asks, and for which host."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sweeper.errors import EnvironmentStopError, UserError
from sweeper.tracking.ui import UI_ENV, is_loopback, server_command, ui_url

EVERYWHERE = (
    "0.0.0.0",
    "::",
    "10.1.2.3",
    "example.org",
    "localhost.example.org",
    "",
    "0",
    "127.0.0.1.nip.io",
)


@pytest.mark.parametrize("host", EVERYWHERE)
def test_an_address_that_others_reach_is_refused(host: str, finished_home: Path):
    from sweeper.cli.ui import ui_command

    assert not is_loopback(host)
    with pytest.raises(UserError, match=r"`--host` must be a loopback address.*--i-know"):
        ui_command(finished_home, "toy", 5000, host=host)


def test_the_refusal_is_one_line_and_exit_code_2(sweeper, finished_home: Path):
    found = sweeper("ui", "toy", "--home", str(finished_home), "--host", "0.0.0.0")
    assert found.returncode == 2
    assert "--i-know" in found.stdout + found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("host", ["..", "a" * 70, "a b", "host.invalid"])
def test_what_is_no_address_is_refused_in_words(host: str, finished_home: Path):
    from sweeper.cli.ui import _check_free

    with pytest.raises(UserError, match="must be an address of this machine, but got"):
        _check_free(host, 5000)


def test_with_i_know_it_goes_on(finished_home: Path):
    from sweeper.cli.ui import ui_command

    # The toy sweep has sent nothing to MLflow: that is what is said, after the address was taken.
    with pytest.raises(UserError, match="no runs in MLflow yet"):
        ui_command(finished_home, "toy", 5000, host="0.0.0.0", i_know=True)


def test_a_log_that_cannot_be_written_is_one_line(tmp_path: Path):
    from sweeper.cli.ui import _start

    log = tmp_path / "ui.log"
    log.mkdir()
    with pytest.raises(EnvironmentStopError, match="cannot write in"):
        _start(tmp_path, 5000, "127.0.0.1", log)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_loopback_is_this_machine(host: str):
    assert is_loopback(host)


def allowed(home: Path, host: str) -> set[str]:
    command = server_command(home, 5000, host)
    return set(command[command.index("--allowed-hosts") + 1].split(","))


def test_only_hosts_of_this_machine_are_answered(tmp_path: Path):
    local = {"localhost", "127.0.0.1", "[::1]"}
    assert allowed(tmp_path, "127.0.0.1") == local | {f"{host}:5000" for host in local}
    everywhere = allowed(tmp_path, "0.0.0.0")
    addresses = {
        each.address
        for found in psutil.net_if_addrs().values()
        for each in found
        if each.family == socket.AF_INET
    }
    assert addresses | {socket.gethostname()} <= everywhere
    # MLflow's own list takes any name that begins as a private address does.
    assert not [host for host in everywhere if "*" in host or host.startswith("0.0.0.0")]
    assert ui_url(5000, "1", host="::").startswith("http://[::1]:5000/")


def test_what_a_user_has_turned_off_is_on_here():
    assert UI_ENV["MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE"] == "false"
    assert UI_ENV["MLFLOW_DISABLE_TELEMETRY"] == "true"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A real server, in the environment of a user who had no wish for safety."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    careless = {
        "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": "true",
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": "*",
    }
    home = tmp_path_factory.mktemp("home")
    with open(home / "log", "wb") as log:
        server = subprocess.Popen(
            server_command(home, port),
            env={**os.environ, **careless, **UI_ENV},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            time.sleep(0.2)
    yield port
    os.killpg(server.pid, 9)
    server.wait()


def status(port: int, method: str = "GET", **headers: str) -> int:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/2.0/mlflow/experiments/search?max_results=5"
        if method == "GET"
        else f"http://127.0.0.1:{port}/api/2.0/mlflow/experiments/create",
        method=method,
        data=None if method == "GET" else b'{"name": "x"}',
        headers={"Content-Type": "application/json", **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.slow
def test_another_host_or_origin_is_refused(port: int):
    assert status(port) == 200
    assert status(port, Host=f"localhost:{port}") == 200
    for host in ("evil.example", f"evil.example:{port}", "192.168.evil.example", "10.evil.example"):
        assert status(port, Host=host) == 403, host
    assert status(port, "POST", Origin="http://evil.example") == 403
    assert status(port, "POST") == 200


@pytest.mark.slow
def test_nothing_listens_beyond_this_machine(port: int):
    listening = [each for each in psutil.net_connections("inet") if each.laddr and each.laddr.port == port]
    assert {each.laddr.ip for each in listening} == {"127.0.0.1"}
