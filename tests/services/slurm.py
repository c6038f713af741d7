"""A SLURM cluster of four nodes with two made-up GPUs each, on one machine and on loopback alone.

Node names stand for this one host, and a GPU is a character device like /dev/null: SLURM hands it out and
sets CUDA_VISIBLE_DEVICES, and nothing can be computed on it. There is no accounting (`sacct`), no job is held
to its cores, and what a job leaves running ends with the test: there are no control groups that would end it
with the job.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from services.processes import UnavailableError, daemon, free_ports, kill_marked, tail, wait_for

NODES = ("node1", "node2", "node3", "node4")
GPUS = 2
"""Of a node."""
CPUS = 4
"""Of a node, whatever the machine has."""
START_SECONDS = 20.0
KILL_SECONDS = 5
"""Between SIGTERM and SIGKILL."""
REQUEUE_SECONDS = 10
"""A job that is queued again starts some 2 s after these: SLURM waits until its credential has expired.

The default is 120 s; too few, and jobs fail to start on a busy machine.
"""

CONF = """\
ClusterName=sweeper
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={requeue}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
KillWait={kill}
JobRequeue=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
{nodes}PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=4000"
    " Gres=gpu:{gpus}\n"
)


@dataclass(frozen=True, slots=True)
class Row:
    """A job, or a task of an array, that waits or runs.

    Attributes:
        job: Its number; `7_3` is a task of an array.
        state: As SLURM has it: PENDING, RUNNING, COMPLETING, ...
        node: Where it runs; empty while it waits.
        reason: Why it waits.
    """

    job: str
    state: str
    node: str
    reason: str
    name: str


@dataclass(frozen=True, slots=True)
class Slurm:
    """A cluster that runs.

    Attributes:
        folder: What it writes, and a place for what jobs print; gone with the cluster.
    """

    folder: Path
    _daemons: list[subprocess.Popen[bytes]] = field(default_factory=list, repr=False)

    @property
    def env(self) -> dict[str, str]:
        """What programs need in their environment to find it."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *words: object, timeout: float = 20) -> str:
        """Runs one of SLURM's programs; returns what it prints.

        Raises:
            AssertionError: It failed.
        """
        done = subprocess.run(
            [*map(str, words)], env=os.environ | self.env, capture_output=True, text=True, timeout=timeout
        )
        assert done.returncode == 0, f"{words}: {done.stderr}\n{self.logs()}"
        return done.stdout

    def sbatch(self, *options: str, script: str) -> str:
        """Queues a shell script, which prints to `job-NUMBER.out` in `folder`; returns the job's number."""
        output = f"--output={self.folder}/job-%j.out"
        return self.run("sbatch", "--parsable", output, *options, f"--wrap={script}").strip()

    def squeue(self) -> list[Row]:
        """Returns what waits and runs."""
        lines = self.run("squeue", "--noheader", "--array", "--format=%i|%T|%N|%r|%j").splitlines()
        return [Row(*line.split("|", 4)) for line in lines]

    def sinfo(self) -> dict[str, str]:
        """Returns each node's state: idle, mixed, allocated, down, ..."""
        lines = self.run("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        return dict(line.split() for line in lines)

    def scancel(self, *jobs: str) -> None:
        """Ends jobs: SIGTERM, and `KILL_SECONDS` later SIGKILL."""
        self.run("scancel", *jobs)

    def requeue(self, job: str) -> None:
        """Ends a job in the same way and queues it again, as maintenance and preemption do."""
        self.run("scontrol", "requeue", job)

    def wait_empty(self, seconds: float = 15) -> None:
        """Returns once nothing waits or runs.

        Raises:
            TimeoutError: Something still does.
        """
        wait_for(lambda: not self.squeue(), seconds, lambda: f"{self.squeue()}\n{self.logs()}")

    def clear(self) -> None:
        """Cancels whatever is left, waits until it is gone, and kills what jobs have left running."""
        if jobs := {row.job.partition("_")[0] for row in self.squeue()}:
            self.scancel(*jobs)
        self.wait_empty()
        for name, value in self.env.items():
            kill_marked(f"{name}={value}", having="SLURM_JOB_ID")

    def logs(self) -> str:
        """Returns the ends of all daemons' logs."""
        return "\n".join(tail(path) for path in sorted(self.folder.glob("*.log")))


@contextlib.contextmanager
def cluster() -> Iterator[Slurm]:
    """Yields a cluster whose nodes are all idle, and ends it with all of its jobs.

    Raises:
        UnavailableError: There can be none here.
        TimeoutError: It did not come up; the message has the logs.
    """
    if lacking := [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(name)]:
        raise UnavailableError(f"no {lacking[0]} on this machine: `make services` installs SLURM")
    if os.geteuid() != 0:
        raise UnavailableError("SLURM's daemons and their made-up devices need root")
    folder = Path(tempfile.mkdtemp(prefix="sweeper-slurm-"))
    made = Slurm(folder)
    try:
        _lay_out(folder)
        _start(made)
        yield made
    finally:
        # Daemons, steps and jobs alike.
        for name, value in made.env.items():
            kill_marked(f"{name}={value}")
        for each in made._daemons:
            each.wait()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def _slurm_of_all() -> Iterator[Slurm]:
    try:
        with cluster() as made:
            yield made
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def slurm(_slurm_of_all: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """The cluster of this test process, which this process's children find; empty before and after."""
    for name, value in _slurm_of_all.env.items():
        monkeypatch.setenv(name, value)
    yield _slurm_of_all
    _slurm_of_all.clear()


def _lay_out(folder: Path) -> None:
    # Munge wants its socket where everyone may reach it, and its key where nobody may write.
    folder.chmod(0o755)
    for name in ("state", "spool", "devices"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    try:
        # SLURM takes a plain file for a GPU as well, but then leaves CUDA_VISIBLE_DEVICES empty.
        for index in range(GPUS):
            os.mknod(folder / f"devices/gpu{index}", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    except OSError as error:
        raise UnavailableError(f"no device can be made here: {error}") from None
    ports = iter(free_ports(1 + len(NODES)))
    host, names = socket.gethostname().partition(".")[0], ",".join(NODES)
    conf = CONF.format(
        host=host,
        port=next(ports),
        folder=folder,
        names=names,
        kill=KILL_SECONDS,
        requeue=REQUEUE_SECONDS,
        nodes="".join(
            NODE.format(name=name, host=host, port=next(ports), cpus=CPUS, gpus=GPUS) for name in NODES
        ),
    )
    (folder / "slurm.conf").write_text(conf)
    gres = f"NodeName={names} Name=gpu File={folder}/devices/gpu[0-{GPUS - 1}]\n"
    (folder / "gres.conf").write_text(gres)


def _start(made: Slurm) -> None:
    folder = made.folder

    def start(*words: str, log: str) -> None:
        made._daemons.append(daemon(words, folder / f"{log}.log", {**os.environ, **made.env}))

    # Nothing of the machine's own munge is used.
    files = {"key-file": "key", "pid-file": "pid", "seed-file": "seed", "socket": "socket"}
    options = [f"--{option}={folder}/munge.{name}" for option, name in files.items()]
    start("munged", "--foreground", *options, log="munged")
    wait_for((folder / "munge.socket").exists, START_SECONDS, made.logs)
    start("slurmctld", "-D", "-c", log="slurmctld")
    for name in NODES:
        start("slurmd", "-D", "-c", "-N", name, log=f"slurmd-{name}")

    def idle() -> bool:
        with contextlib.suppress(AssertionError):
            return set(made.sinfo().values()) == {"idle"}
        return False

    wait_for(idle, START_SECONDS, made.logs)
