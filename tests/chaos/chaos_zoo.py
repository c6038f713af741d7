"""The leak zoo: whatever a trial leaves behind, and however it ends, nothing of it is left 3 s later.

    python tests/chaos/chaos_zoo.py COUNT SEED          prints what `run_zoo` returns, as JSON

A run is one animal in one end: zoo ──► supervisor ──► server ──► keeper ──► trial ──► the animal's processes
                                                             └──► keeper ──► a sibling, which must finish
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import multiprocessing.managers
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sweeper.core.config import TrialConfig
from sweeper.core.job import Job, read_outcome, write_job
from sweeper.core.measurement import Failure, FailureKind, Report
from sweeper.core.progress import Progress

HERE = Path(__file__).resolve()
LIFE_SECONDS = 60
"""An animal that nobody ends does so itself."""
SLEEP = (sys.executable, "-S", "-c", f"import time; time.sleep({LIFE_SECONDS})")
DEAF_TO = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
GONE_SECONDS = 3.0
START_SECONDS = 40.0
TIMEOUT_SECONDS = 2.0
_PR_SET_NAME = 15
_LIBC = ctypes.CDLL(None)

# -- in the trial: the animals -------------------------------------------------------------------------


class Pen:
    """How an animal's processes are found again, whatever they do to themselves.

    Attributes:
        marker: The name of each (`/proc/PID/comm`), or among its arguments.
    """

    def __init__(self, marker: str, pids: Path) -> None:
        self.marker, self._pids = marker, pids

    def enter(self) -> None:
        """Called by each process of an animal."""
        signal.alarm(LIFE_SECONDS)
        _LIBC.prctl(_PR_SET_NAME, self.marker.encode(), 0, 0, 0)
        self.note(os.getpid())

    def note(self, pid: int) -> None:
        """Writes a process down."""
        with open(self._pids, "a") as file:
            file.write(f"{pid}\n")

    def fork(self, then: Callable[[], object]) -> int:
        """Starts a process that does `then` and lives on."""
        pid = os.fork()
        if pid:
            return pid
        with contextlib.suppress(BaseException):
            self.enter()
            then()
            time.sleep(LIFE_SECONDS)
        os._exit(0)

    def daemon(self, then: Callable[[], object] = lambda: None) -> None:
        """Starts one whose parent has ended, in a session of its own."""
        first = os.fork()
        if first == 0:
            os.setsid()
            self.fork(then)
            os._exit(0)
        os.waitpid(first, 0)

    def sleeper(self, **options: Any) -> None:
        """Starts another program, with the marker among its arguments."""
        self.note(subprocess.Popen([*SLEEP, self.marker], **options).pid)


def _scrubbed(pen: Pen) -> None:
    pen.daemon(lambda: os.execve(sys.executable, [*SLEEP, pen.marker], {}))


def _renamed(pen: Pen) -> None:
    os.chdir("/")
    os.umask(0)
    # Known by what was written down alone.
    _LIBC.prctl(_PR_SET_NAME, b"kworker/0:1", 0, 0, 0)


def _chain(pen: Pen, of_sessions: bool = False) -> None:
    """Each forks its successor and ends: at no moment is there one that lives for long."""

    def link() -> None:
        # A fork sets the alarm aside.
        end = time.monotonic() + LIFE_SECONDS
        while time.monotonic() < end:
            if os.fork():
                os._exit(0)
            if of_sessions:
                os.setsid()

    pen.fork(link)


def _from_a_thread(pen: Pen) -> None:
    thread = threading.Thread(target=pen.daemon)
    thread.start()
    thread.join()


def _workers(pen: Pen) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    for _ in range(3):
        context.Process(target=lambda: (pen.enter(), queue.get())).start()


def _manager(pen: Pen) -> None:
    manager = multiprocessing.managers.SyncManager(ctx=multiprocessing.get_context("fork"))
    manager.start(pen.enter)
    pen.kept = manager.list()  # type: ignore[attr-defined]


ANIMALS: Mapping[str, Callable[[Pen], object]] = {
    "child": lambda pen: pen.fork(lambda: None),
    "program": lambda pen: pen.sleeper(),
    "grandchild": lambda pen: pen.fork(lambda: pen.fork(lambda: None)),
    "session": lambda pen: pen.sleeper(start_new_session=True),
    "daemon": lambda pen: pen.daemon(),
    "scrubbed daemon": _scrubbed,
    "ignores signals": lambda pen: pen.fork(
        lambda: [signal.signal(number, signal.SIG_IGN) for number in DEAF_TO]
    ),
    "blocks signals": lambda pen: pen.daemon(
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ),
    "stopped": lambda pen: pen.daemon(lambda: os.kill(os.getpid(), signal.SIGSTOP)),
    "closed descriptors": lambda pen: pen.daemon(lambda: os.closerange(0, 65536)),
    "renamed": lambda pen: pen.daemon(lambda: _renamed(pen)),
    "chain": _chain,
    "chain of sessions": lambda pen: _chain(pen, of_sessions=True),
    "from a thread": _from_a_thread,
    "workers": _workers,
    "manager": _manager,
}

ENDS = (
    "returns",
    "raises",
    "exits",
    "killed",
    "timeout",
    "keeper killed",
    "server killed",
    "supervisor killed",
)
TAKES_ALL = ("server killed", "supervisor killed")
"""Ends that are the siblings' as well."""


def run(job: Job, progress: Progress) -> Report:
    """The trial: lets the animal loose, says so, and ends as it is told."""
    options = job.config.model
    pen = Pen(str(options["marker"]), Path(job.folder) / "pids")
    ANIMALS[str(options["animal"])](pen)
    _say(Path(job.folder))
    end = options["end"]
    if end in ("returns", "raises", "exits"):
        _wait_for(Path(job.folder) / "go")
        if end == "raises":
            raise ValueError("a mistake in the model")
        if end == "exits":
            os._exit(0)
    else:
        time.sleep(LIFE_SECONDS)
    return Report(values={})


def run_sibling(job: Job, progress: Progress) -> Report:
    """A trial that has nothing to do with it."""
    _say(Path(job.folder))
    _wait_for(Path(job.folder) / "go")
    return Report(values={"untouched": True})


def _say(folder: Path) -> None:
    (folder / "ready.part").write_text(f"{os.getpid()} {os.getppid()}")
    (folder / "ready.part").rename(folder / "ready")


def _wait_for(path: Path, seconds: float = LIFE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {path.name} in {path.parent}")
        time.sleep(0.01)


# -- in a process of its own: supervisor and server ----------------------------------------------------


def supervise(home: Path) -> None:
    """Runs both trials as a sweep does; ends when they have."""
    from sweeper.launch.local import LocalLauncher

    launcher = LocalLauncher(home, capacity=2, program=(str(HERE), "--server"))
    handles = [launcher.submit(home / name) for name in ("trial", "sibling")]
    (home / "server").write_text(str(launcher.pid))
    for handle in handles:
        handle.result()
    _wait_for(home / "close")
    launcher.close()


def serve() -> None:
    """The server, without torch: what is looked at here does not need it."""
    import sweeper.worker.trial  # noqa: F401
    from sweeper.launch import server

    del sys.argv[1]
    server.main(lambda: None)


# -- outside: the zoo ----------------------------------------------------------------------------------


def one_run(home: Path, animal: str, end: str) -> dict[str, Any]:
    """Runs one animal in one end; returns how long it took, who survived, and what was wrong beside that."""
    marker = f"zoo-{os.urandom(5).hex()}"
    model = {"animal": animal, "end": end, "marker": marker}
    timeout = TIMEOUT_SECONDS if end == "timeout" else 300.0
    common: dict[str, Any] = {"timeout_seconds": timeout, "config": TrialConfig(model=model)}
    write_job(home / "trial", Job(uid="trial", runner="chaos_zoo:run", **common))
    common["timeout_seconds"] = 300.0
    write_job(home / "sibling", Job(uid="sibling", runner="chaos_zoo:run_sibling", **common))
    paths = os.pathsep.join([str(HERE.parents[2]), str(HERE.parent)])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), paths])}
    supervisor = subprocess.Popen(
        [sys.executable, str(HERE), "--supervise", str(home)], env=environment, start_new_session=True
    )
    try:
        for name in ("trial", "sibling"):
            _wait_for(home / name / "ready", START_SECONDS)
        _wait_for(home / "server", START_SECONDS)
        trial, keeper = map(int, (home / "trial" / "ready").read_text().split())
        theirs = list(map(int, (home / "sibling" / "ready").read_text().split()))
        # Whoever is still on its way out of its parent.
        time.sleep(0.1)
        if end in TAKES_ALL:
            written = [*theirs, trial, keeper]
        else:
            written = [trial] + ([keeper] if end == "keeper killed" else [])
        began = _end(end, home, trial, keeper, supervisor.pid)
        left, seconds = _wait_until_gone(marker, home / "trial" / "pids", written, began)
        wrong = _wrong_beside(home, end)
    finally:
        (home / "close").touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            supervisor.wait(timeout=20)
        for pid in _living(marker, home / "trial" / "pids", []):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if supervisor.poll() is None:
            supervisor.kill()
            supervisor.wait()
    return {"animal": animal, "end": end, "seconds": round(seconds, 3), "survivors": left, "wrong": wrong}


def _end(end: str, home: Path, trial: int, keeper: int, supervisor: int) -> float:
    """Brings the end about; returns when that was."""
    server = int((home / "server").read_text())
    victims = {
        "killed": trial,
        "keeper killed": keeper,
        "server killed": server,
        "supervisor killed": supervisor,
    }
    if end in victims:
        os.kill(victims[end], signal.SIGKILL)
    else:
        (home / "trial" / "go").touch()
        with contextlib.suppress(ProcessLookupError), open(os.pidfd_open(trial), "rb") as ended:
            select.select([ended], [], [], START_SECONDS)
    return time.monotonic()


def _wait_until_gone(marker: str, pids: Path, written: list[int], began: float) -> tuple[list[str], float]:
    while True:
        left = _living(marker, pids, written)
        seconds = time.monotonic() - began
        if not left or seconds > GONE_SECONDS:
            return [f"{pid} {_read(pid, 'comm')}" for pid in left], seconds
        time.sleep(0.01)


def _wrong_beside(home: Path, end: str) -> str:
    """Returns what is wrong with the outcomes; empty where nothing is."""
    if end in TAKES_ALL:
        return "" if read_outcome(home / "sibling") is None else "the sibling has an outcome"
    (home / "sibling" / "go").touch()
    deadline = time.monotonic() + START_SECONDS
    while (found := read_outcome(home / "sibling")) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    if not isinstance(found, Report):
        return f"the sibling was touched: {found}"
    if end == "keeper killed":
        return ""
    kinds = {
        "raises": FailureKind.USER_ERROR,
        "exits": FailureKind.NO_RESULT,
        "killed": FailureKind.LOST,
        "timeout": FailureKind.TIMEOUT,
    }
    while (found := read_outcome(home / "trial")) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    kind = found.kind if isinstance(found, Failure) else None
    return "" if kind is kinds.get(end) else f"its outcome is {found}"


def _living(marker: str, pids: Path, written: list[int]) -> list[int]:
    """Returns the processes of an animal, and those of `written`, which have not ended."""
    known = set(written)
    with contextlib.suppress(OSError):
        known |= set(map(int, pids.read_text().split()))
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or (pid := int(entry)) == os.getpid():
            continue
        is_its = pid in known or marker in _read(pid, "comm") or marker in _read(pid, "cmdline")
        if is_its and _read(pid, "stat").rpartition(")")[2].split()[:1] not in ([], ["Z"], ["X"]):
            found.append(pid)
    return found


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def run_zoo(count: int, seed: int) -> dict[str, Any]:
    """Runs `count` animals in ends, each pair as often as any other, in an order drawn from `seed`.

    Returns:
        `count`, `violations` (the runs in which something survived, or was wrong), and seconds until all
        had gone.
    """
    pairs = [(animal, end) for animal in ANIMALS for end in ENDS]
    draw = random.Random(seed)
    found: list[dict[str, Any]] = []
    while len(found) < count:
        draw.shuffle(pairs)
        for animal, end in pairs[: count - len(found)]:
            with tempfile.TemporaryDirectory(prefix="zoo-", ignore_cleanup_errors=True) as home:
                try:
                    found.append(one_run(Path(home), animal, end))
                except TimeoutError as error:
                    about = {"animal": animal, "end": end, "wrong": str(error)}
                    found.append({"seconds": 0.0, "survivors": [], **about})
    seconds = sorted(each["seconds"] for each in found)
    return {
        "count": len(found),
        "violations": [each for each in found if each["survivors"] or each["wrong"]],
        "median_gone_s": statistics.median(seconds),
        "slowest_gone_s": seconds[-1],
    }


def main() -> None:
    """Zoo, supervisor or server, as the arguments say."""
    if sys.argv[1] == "--server":
        serve()
    elif sys.argv[1] == "--supervise":
        supervise(Path(sys.argv[2]))
    else:
        result = run_zoo(int(sys.argv[1]), int(sys.argv[2]))
        print(json.dumps(result, indent=1))
        sys.exit(1 if result["violations"] else 0)


if __name__ == "__main__":
    main()
