"""A PostgreSQL server with a folder of its own, on 127.0.0.1 and a socket in that folder.

Over TCP it wants its password (SCRAM), so that a test can look for where that gets to; through the socket it
lets everyone in.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest

from services.processes import UnavailableError, daemon, free_ports, kill_tree, tail, wait_for

USER = "sweeper"
START_SECONDS = 20.0
# Only a power cut would miss the fsync: what is written survives a SIGKILL. Shared memory would too, were it
# no file.
CONF = """\
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{folder}'
max_connections = 200
fsync = off
dynamic_shared_memory_type = mmap
"""


@dataclass(slots=True)
class Postgres:
    """A server; it can be killed and started again.

    Attributes:
        folder: What it writes; gone with it.
        port: Of 127.0.0.1.
        password: Of the user `USER`, over TCP.
    """

    folder: Path
    port: int
    password: str = field(repr=False)
    _bin: Path
    _process: subprocess.Popen[bytes] | None = None
    # A test that starts it again does not make it its own: the server serves those after it, too.
    _environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)

    def url(self, database: str) -> str:
        """Returns a database's address with user and password, as SQLAlchemy takes it."""
        return f"postgresql+psycopg2://{USER}:{self.password}@127.0.0.1:{self.port}/{database}"

    def create(self, database: str) -> None:
        """Makes an empty database, in place of one of that name."""
        self.query("postgres", f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')
        self.query("postgres", f'CREATE DATABASE "{database}"')

    def query(self, database: str, statement: str) -> list[tuple[str, ...]]:
        """Runs a statement; returns its rows as text.

        Raises:
            AssertionError: It failed.
        """
        psql = [self._bin / "psql", "-h", self.folder, "-p", str(self.port), "-U", USER, "-d", database]
        words = [*psql, "-X", "-q", "-A", "-t", "-F", "\x1f", "-R", "\x1e", "-c", statement]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        rows = done.stdout.rstrip("\n").split("\x1e") if done.stdout.strip("\n") else []
        return [tuple(row.split("\x1f")) for row in rows]

    def start(self) -> None:
        """Starts the server on its port, after a kill too; returns when it takes connections.

        Raises:
            TimeoutError: It does not.
        """
        words = [self._bin / "postgres", "-D", self.folder / "data"]
        self._process = daemon(words, self.folder / "server.log", self._environment, user=_user())
        ready = [self._bin / "pg_isready", "-q", "-h", self.folder, "-p", str(self.port), "-U", USER]
        wait_for(
            lambda: subprocess.run(ready, timeout=10).returncode == 0,
            START_SECONDS,
            lambda: tail(self.folder / "server.log"),
        )

    def kill(self) -> None:
        """Kills the server and all of its processes, as a machine that fails does."""
        if self._process is not None:
            kill_tree(self._process)
            self._process = None

    def stall(self) -> None:
        """Has the server stop answering: who connects is left waiting, until `kill` or for good."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """Ends the server for good."""
        self.kill()
        # The one thing left by a kill that is no file: a segment which tells a second server of the first.
        pid_file = self.folder / "data/postmaster.pid"
        lines = pid_file.read_text().splitlines() if pid_file.exists() else []
        if len(lines) > 6:
            subprocess.run(["ipcrm", "-m", lines[6].split()[1]], check=False, timeout=10)


@contextlib.contextmanager
def server() -> Iterator[Postgres]:
    """Yields a new server that runs.

    Raises:
        UnavailableError: There can be none here.
        TimeoutError: It did not come up; the message has its log.
    """
    if find_spec("psycopg2") is None:
        raise UnavailableError("PostgreSQL is reached through psycopg2: `make services` installs it")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not found:
        raise UnavailableError("no PostgreSQL server on this machine: `make services` installs one")
    folder = Path(tempfile.mkdtemp(prefix="sweeper-postgres-"))
    made = Postgres(folder, free_ports(1)[0], f"pAsSwOrD{secrets.token_hex(8)}", found[-1].parent)
    try:
        _lay_out(made, found[-1])
        made.start()
        yield made
    finally:
        made.close()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def _postgres_of_all() -> Iterator[Postgres]:
    try:
        with server() as made:
            yield made
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def postgres(_postgres_of_all: Postgres) -> Postgres:
    """The server of this test process; it runs, also where the test before has killed it."""
    if _postgres_of_all._process is None:
        _postgres_of_all.start()
    return _postgres_of_all


def _user() -> str | None:
    """Whom the server runs as: it refuses to be root's."""
    return "postgres" if os.geteuid() == 0 else None


def _lay_out(made: Postgres, initdb: Path) -> None:
    if (user := _user()) is not None:
        shutil.chown(made.folder, user, user)
    password = made.folder / "password"
    password.write_text(made.password)
    options = [
        f"--username={USER}",
        f"--pwfile={password}",
        "--auth-local=trust",
        "--auth-host=scram-sha-256",
    ]
    done = subprocess.run(
        [initdb, "-D", made.folder / "data", *options, "--no-sync", "--encoding=UTF8", "--locale=C"],
        **({"user": user, "group": user, "extra_groups": []} if user else {}),
        cwd=made.folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode:
        raise UnavailableError(f"initdb failed: {done.stderr.strip()}")
    with open(made.folder / "data/postgresql.conf", "a", encoding="utf-8") as file:
        file.write(CONF.format(port=made.port, folder=made.folder))
