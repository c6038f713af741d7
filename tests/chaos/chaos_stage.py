"""The stage of the chaos tests: a small sweep in a folder, and lives of its supervisor, one after another.

A life is the real command line in a forked process: the harness has imported everything once, so
that a life takes tenths of a second and not the seconds of the imports.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
for _each in (str(HERE), str(HERE.parent), str(REPOSITORY)):
    if _each not in sys.path:
        sys.path.insert(0, _each)

NAME = "chaos"
TRIALS = 6
SPACE = """\
name: {name}
pipeline: chaos_pipeline
space:
  batch_size: {{type: int, low: 64, high: 4096, log: true}}
  precision.amp: {{type: categorical, choices: [fp32, bf16]}}
baseline: {{batch_size: 64}}
search: {{trials: {trials}, minutes: null, sampler: {sampler}}}
confirm: {{top: 1, rounds: {rounds}}}
measure: {{quality_samples: 0, trace: false}}
execution: {{gpus: 0, pass_env: [LD_PRELOAD, SHIM_HOME, SHIM_COUNTER, SHIM_AT, SHIM_FAULT, SHIM_DIRTY]}}
"""
PIPELINE = '''\
"""A pipeline that nobody builds: the stub takes the trainer's place."""


def prepare(data):
    raise NotImplementedError


def build(config, prepared):
    raise NotImplementedError
'''
CRASH_AT = "crash-at"
MODULES = (
    "sweeper.cli.app",
    "sweeper.cli.run",
    "sweeper.report.page",
    # What a life would take a second and more for, most of it at its end.
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "mlflow.store.tracking.sqlalchemy_store",
    "optuna._hypervolume",
    "plotly.offline",
    "scipy.special",
    "scipy.stats",
)


@dataclass(frozen=True, slots=True)
class Stage:
    """A folder with a sweep in it.

    Attributes:
        real: Whether the real trainer runs the user's pipeline; else the stub.
    """

    folder: Path
    real: bool = False

    @property
    def home(self) -> Path:
        """The state folder."""
        return self.folder / "home"

    @property
    def sweep(self) -> Path:
        """The sweep's folder."""
        return self.home / "sweeps" / NAME

    @property
    def witness(self) -> Path:
        """What the trials testify to."""
        return self.folder / "witness"

    @property
    def space(self) -> Path:
        """The space's YAML."""
        return self.folder / "chaos.yaml"

    @property
    def database(self) -> Path:
        """MLflow's."""
        return self.home / "mlflow.db"

    def environment(self) -> dict[str, str]:
        """Returns what a life's environment has beyond the harness's own."""
        return {
            "SWEEPER_CHAOS_WITNESS": str(self.witness),
            "SWEEPER_CRASH_AT": str(self.folder / CRASH_AT),
            "PYTHONPATH": os.pathsep.join(map(str, (self.folder, REPOSITORY, HERE.parent))),
        }

    def words(self) -> list[str]:
        """Returns the command's arguments."""
        return ["run", str(self.space), "--home", str(self.home)]

    def crash_at(self, point: str, count: int) -> None:
        """Has the next life die at a named point, as the count-th to pass it."""
        (self.folder / CRASH_AT).write_text(f"{point}:{count}", encoding="utf-8")

    def crashed(self) -> bool:
        """Returns whether the point was reached, and forgets it."""
        path = self.folder / CRASH_AT
        left = path.exists()
        path.unlink(missing_ok=True)
        return not left

    def log(self) -> str:
        """Returns all that the lives have printed."""
        path = self.folder / "lives.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def outcomes(self) -> dict[Path, bytes]:
        """Returns every finished trial's outcome, as it is on disk."""
        found = {}
        for place in ("trials/*", "races/*"):
            for path in self.sweep.glob(f"{place}/outcome.json"):
                found[path] = path.read_bytes()
        return found


def stage(
    folder: Path,
    *,
    trials: int = TRIALS,
    rounds: int = 2,
    sampler: str = "auto",
    template: Path | None = None,
    space: str = SPACE,
    pipeline: str = PIPELINE,
    real: bool = False,
) -> Stage:
    """Lays a sweep into a new folder.

    Args:
        template: An MLflow database to begin with: making one takes seconds.
    """
    folder.mkdir(parents=True)
    made = Stage(folder, real)
    made.space.write_text(
        space.format(name=NAME, trials=trials, rounds=rounds, sampler=sampler), encoding="utf-8"
    )
    (folder / "chaos_pipeline.py").write_text(pipeline, encoding="utf-8")
    made.witness.touch()
    if template is not None:
        made.home.mkdir()
        shutil.copy(template, made.database)
    return made


def warm_up() -> None:
    """Imports what a life needs, and makes sure that this process may fork."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    import sweeper.tracking.mlflow as tracking

    for name in MODULES:
        importlib.import_module(name)
    tracking.preload()
    gc.collect()
    gc.freeze()
    # Arrow's allocator has a thread of its own, which no life needs.
    threads = threading.enumerate()
    assert len(threads) == 1, f"a process with {threads} must not fork"


def begin(stage: Stage, words: Sequence[str] = ()) -> int:
    """Starts a life of the command line; returns its process."""
    pid = os.fork()
    if pid:
        return pid
    status = 99
    try:
        _become(stage, words or stage.words())
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _become(stage: Stage, words: Sequence[str]) -> None:
    os.setsid()
    os.chdir(stage.folder)
    os.environ.update(stage.environment())
    sys.path.insert(0, str(stage.folder))
    log = os.open("lives.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = ["sweeper", *words]
    _place_witnesses(["real"] if stage.real else [])
    from sweeper.__main__ import main

    main()


def _place_witnesses(words: Sequence[str]) -> None:
    """Has sweeps run on a server whose trials testify."""
    from sweeper.launch.local import LocalLauncher
    from sweeper.report import png
    from sweeper.sweep.start import bootstrap

    def launcher_for(folder, spec, **_):  # type: ignore[no-untyped-def]
        return LocalLauncher(
            folder, program=[str(HERE / "chaos_server.py"), *words], pass_env=spec.execution.pass_env
        )

    bootstrap.launcher_for = launcher_for
    # Drawing is half of a life's time, and what it draws is of no interest; the files are.
    png._draw_panels = lambda *_: _Blank()


class _Blank:
    """A figure of nothing."""

    def savefig(self, path: Path, **_: object) -> None:
        Path(path).write_bytes(b"nothing")


def end_of(pid: int, seconds: float = 60.0) -> int | None:
    """Waits for a life's end: its exit code, a signal's number below zero; None where it does not end."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def live(stage: Stage, seconds: float = 60.0) -> int | None:
    """Has the command run to its end; returns its exit code."""
    return end_of(begin(stage), seconds)


@contextlib.contextmanager
def theatre() -> Iterator[tuple[Path, Path]]:
    """Yields a new folder for stages, and a database for each to begin with; a fault's stage is kept."""
    warm_up()
    folder = Path(tempfile.mkdtemp(prefix="sweeper-chaos-"))
    database, calm = template(folder)
    shutil.rmtree(calm.folder)
    yield folder, database
    database.unlink()
    if not any(path.is_file() for path in folder.rglob("*")):
        shutil.rmtree(folder)


def template(folder: Path) -> tuple[Path, Stage]:
    """Runs a sweep that nothing disturbs; returns an MLflow database to begin with, and that sweep."""
    calm = stage(folder / "calm")
    code = live(calm, 180.0)
    assert code == 0, f"the undisturbed sweep ended with {code}:\n{calm.log()}"
    empty = folder / "mlflow.db"
    shutil.copy(calm.database, empty)
    with sqlite3.connect(empty) as database:
        tables = ("metrics", "latest_metrics", "params", "tags", "input_tags", "inputs", "datasets")
        for table in (*tables, "runs", "experiment_tags"):
            database.execute(f"DELETE FROM {table}")
        database.execute("DELETE FROM experiments WHERE experiment_id != 0")
    database.close()
    return empty, calm
