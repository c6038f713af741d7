"""Job scripts, as dask-jobqueue writes them: what was asked for, in each batch system's own words."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence

import pytest

pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is missing (pip install 'sweeper-torch[dask]')")

from pydantic import ValidationError

from sweeper.core.launchers import BUILTIN
from sweeper.launch.batch import job_script
from sweeper.launch.job_options import BATCH_LAUNCHERS, LIFETIME_SECONDS
from sweeper.launch.node import ENDS_AT
from sweeper.schema.cluster import BatchJob

FULL = BatchJob(
    partition="gpu",
    account="proj1",
    constraint="a100",
    time="1-02:30:15",
    cores=6,
    memory="16GB",
    exclusive=True,
    python="/opt/py/bin/python",
    directives=("--first", "--second"),
    prologue=("module load cuda", "export A='b c'"),
)
HEADS = {"slurm": "#SBATCH ", "pbs": "#PBS ", "lsf": "#BSUB ", "sge": "#$ "}
ASKED = {
    "slurm": [
        *("-J sweeper", "-p gpu", "-A proj1", "-n 1", "--cpus-per-task=6", "--mem=15G", "-t 26:30:15"),
        *("--gres=gpu:2", "--constraint=a100", "--exclusive", "--first", "--second"),
    ],
    # 16 GB are 15,258.8 MiB.
    "pbs": [
        *("-N sweeper", "-q gpu", "-A proj1", "-l select=1:ncpus=6:mem=15259mb:ngpus=2:a100"),
        *("-l walltime=26:30:15", "-l place=excl", "--first", "--second"),
    ],
    "lsf": [
        *("-J sweeper", "-q gpu", '-P "proj1"', "-n 6", '-R "span[hosts=1]"', "-M 16000000", "-W 26:30"),
        *('-gpu "num=2:mode=shared:j_exclusive=yes"', '-R "select[a100]"', "-x", "--first", "--second"),
    ],
    "sge": [
        *("-N sweeper", "-q gpu", "-P proj1", "-l gpu=2,a100,exclusive=true", "-l h_rt=26:30:15", "-cwd"),
        *("-j y", "-S /bin/bash", "--first", "--second"),
    ],
}


def heads(kind: str, job: BatchJob, gpus: int) -> list[str]:
    """Returns the directives of a job's script."""
    lines = job_script(kind, job, gpus).splitlines()
    return [line.removeprefix(HEADS[kind]) for line in lines if line.startswith(HEADS[kind])]


def body(kind: str, job: BatchJob, gpus: int) -> Sequence[str]:
    """Returns what its shell runs."""
    lines = job_script(kind, job, gpus).splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    return [line for line in lines[1:] if line and not line.startswith(HEADS[kind])]


def test_every_batch_system_has_its_words() -> None:
    assert set(BATCH_LAUNCHERS) == {name for name, row in BUILTIN.items() if row.is_batch} == set(HEADS)


@pytest.mark.parametrize("kind", BATCH_LAUNCHERS)
def test_a_job_asks_for_what_was_asked_and_nothing_else(kind: str) -> None:
    assert heads(kind, FULL, 2) == ASKED[kind]


@pytest.mark.parametrize("kind", BATCH_LAUNCHERS)
def test_what_was_not_asked_for_is_left_to_the_site(kind: str) -> None:
    text = "\n".join(heads(kind, BatchJob(), 0))
    for word in ("gpu", "a100", "excl", "proj1", "-x", "-q", "-p ", "-A", "-P", "None", "constraint", "[]"):
        assert word not in text, word


@pytest.mark.parametrize("kind", BATCH_LAUNCHERS)
def test_a_name_is_as_long_as_the_batch_system_takes(kind: str) -> None:
    name = "sweeper-long-na" if kind == "pbs" else "sweeper-long-name"
    assert f" {name}\n" in job_script(kind, BatchJob(), 0, sweep="long-name")


@pytest.mark.parametrize("kind", BATCH_LAUNCHERS)
def test_the_worker_runs_one_trial_at_a_time_and_knows_when_its_time_is_up(kind: str) -> None:
    keys, ends_at, profiler, *prologue, worker = body(kind, FULL, 2)
    assert keys.startswith("# Here: keys")
    seconds = 95_400 if kind == "lsf" else 95_415
    told = subprocess.run(
        ["sh", "-c", f"{ends_at}; echo ${ENDS_AT}"], capture_output=True, text=True, check=True
    )
    assert int(told.stdout) == pytest.approx(time.time() + seconds, abs=5)
    assert profiler == "export DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED=False"
    assert tuple(prologue) == FULL.prologue
    assert worker.startswith(
        "/opt/py/bin/python -m distributed.cli.dask_worker tls://SCHEDULER --name WORKER "
    )
    for option in ("--nthreads 1", "--resources gpu=1", f"--lifetime {seconds - LIFETIME_SECONDS:.0f}s"):
        assert option in worker
    assert "--nworkers" not in worker


@pytest.mark.parametrize(
    ("kind", "time", "said"),
    [
        ("slurm", "4:00:00", "-t 04:00:00"),
        ("slurm", "10-00:00:00", "-t 240:00:00"),
        ("pbs", "0:30:00", "-l walltime=00:30:00"),
        ("lsf", "5-04:30:00", "-W 124:30"),
        ("lsf", "0:30:59", "-W 00:30"),
        ("sge", "100:00:00", "-l h_rt=100:00:00"),
    ],
)
def test_times_in_their_words(kind: str, time: str, said: str) -> None:
    assert said in heads(kind, BatchJob(time=time), 1)


@pytest.mark.parametrize(
    ("memory", "said"), [("800MB", "mem=763mb"), ("2GiB", "mem=2048mb"), ("1.5TB", "mem=1430512mb")]
)
def test_pbs_takes_whole_numbers_alone(memory: str, said: str) -> None:
    (select,) = [line for line in heads("pbs", BatchJob(memory=memory), 1) if "select" in line]
    assert select == f"-l select=1:ncpus=4:{said}:ngpus=1"


@pytest.mark.parametrize("name", [*BatchJob.model_fields])
@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_no_key_of_a_job_takes_a_second_line(name: str, end: str) -> None:
    default = getattr(FULL, name)
    if not isinstance(default, str | tuple):
        value: object = f"1{end}rm"
    else:
        value = (f"a{end}rm -rf /",) if isinstance(default, tuple) else f"{default}{end}rm -rf /"
    with pytest.raises(ValidationError):
        BatchJob(**{name: value})


@pytest.mark.parametrize("kind", BATCH_LAUNCHERS)
def test_a_script_is_one_that_bash_reads(kind: str) -> None:
    for job, gpus in ((FULL, 2), (BatchJob(), 0)):
        script = job_script(kind, job, gpus)
        checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
        assert (checked.returncode, checked.stderr) == (0, "")
