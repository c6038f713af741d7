"""The cluster of the tests: every job its own GPU, jobs cancelled and queued again, workers of Dask on it."""

from __future__ import annotations

import os
import sys
import time

import psutil
import pytest

from services.processes import marked, wait_for
from services.slurm import GPUS, KILL_SECONDS, NODES, Slurm, cluster

pytestmark = [pytest.mark.slurm, pytest.mark.soak]

SAYS = 'echo "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $SLURM_JOB_GPUS $(nproc)"'


def test_jobs_that_run_at_once_have_a_gpu_each(slurm: Slurm) -> None:
    said = slurm.folder / "said"
    said.mkdir()
    slurm.sbatch("--array=0-9", "--gpus=1", script=f"{SAYS} > {said}/$SLURM_ARRAY_TASK_ID; sleep 600")
    slots = len(NODES) * GPUS

    def running() -> list[str]:
        return [row.node for row in slurm.squeue() if row.state == "RUNNING"]

    wait_for(lambda: len(list(said.iterdir())) == slots, 15, lambda: f"{slurm.squeue()}\n{slurm.logs()}")
    pairs = {tuple(path.read_text().split()[:2]) for path in said.iterdir()}
    assert pairs == {(node, str(gpu)) for node in NODES for gpu in range(GPUS)}
    assert sorted(running()) == sorted(NODES * GPUS)
    waiting = [row for row in slurm.squeue() if row.state == "PENDING"]
    assert len(waiting) == 2
    assert {row.node for row in waiting} == {""}
    assert set(slurm.sinfo().values()) == {"mixed"}


def test_a_job_is_cancelled_and_another_queued_again(slurm: Slurm) -> None:
    starts = slurm.folder / "starts"
    again = slurm.sbatch(
        script=f"trap 'exit 3' TERM; echo $SLURM_RESTART_COUNT >> {starts}; sleep 600 & wait"
    )
    deaf = slurm.sbatch(script="trap '' TERM; sleep 600")
    wait_for(lambda: [row.state for row in slurm.squeue()] == ["RUNNING"] * 2, 10, slurm.logs)
    wait_for(starts.exists, 10, slurm.logs)
    slurm.requeue(again)
    slurm.scancel(deaf)
    begun = time.monotonic()
    wait_for(lambda: deaf not in {row.job for row in slurm.squeue()}, 20, slurm.logs)
    assert time.monotonic() - begun > KILL_SECONDS / 2, "a job that is deaf to SIGTERM was not given its time"
    # The default delay is two minutes.
    wait_for(lambda: len(starts.read_text().splitlines()) == 2, 30, lambda: str(slurm.squeue()))
    assert starts.read_text() == "\n1\n"


def test_what_a_job_leaves_running_ends_with_the_test(slurm: Slurm) -> None:
    begun = slurm.folder / "begun"
    job = slurm.sbatch(script=f"setsid sh -c 'touch {begun}; sleep 600; true' & sleep 1")
    wait_for(begun.exists, 10, slurm.logs)
    slurm.wait_empty()
    assert marked(f"SLURM_JOB_ID={job}")
    slurm.clear()
    assert not marked(f"SLURM_JOB_ID={job}")
    assert set(slurm.sinfo().values()) == {"idle"}


def test_dask_has_its_workers_here(slurm: Slurm) -> None:
    jobqueue = pytest.importorskip("dask_jobqueue")
    from distributed import Client

    def where() -> tuple[str | None, str | None]:
        time.sleep(0.5)
        return os.environ.get("SLURMD_NODENAME"), os.environ.get("CUDA_VISIBLE_DEVICES")

    with (
        jobqueue.SLURMCluster(
            cores=1,
            processes=1,
            memory="500MB",
            job_cpu=1,
            job_mem="500M",
            walltime="00:10:00",
            job_extra_directives=["--gpus=1"],
            worker_extra_args=["--resources", "gpu=1", "--dashboard-address", "127.0.0.1:0"],
            python=sys.executable,
            interface="lo",
            log_directory=str(slurm.folder),
            # Its own default is port 8787 of every address, and a warning where that is taken.
            scheduler_options={"dashboard_address": "127.0.0.1:0", "interface": "lo"},
        ) as made,
        Client(made) as client,
    ):
        made.scale(jobs=4)
        client.wait_for_workers(4, timeout=60)
        jobs = [client.submit(where, resources={"gpu": 1}, pure=False) for _ in range(4)]
        found = client.gather(jobs)
        assert len(set(found)) == 4
        assert {node for node, _ in found} <= set(NODES)
        addresses = _listening(f"SLURM_CONF={slurm.env['SLURM_CONF']}", psutil.Process())
        assert len(addresses) > 4 + 1 + len(NODES)
        assert all(address.startswith("127.") for address in addresses), addresses
    slurm.wait_empty()


def test_two_clusters_do_not_know_each_other_and_nothing_is_left(slurm: Slurm) -> None:
    with cluster() as other:
        daemon = "import os, time; os.setsid(); time.sleep(600)"
        other.run(
            "sbatch", f"--output={other.folder}/out", f'--wrap={sys.executable} -c "{daemon}" & sleep 600'
        )
        wait_for(lambda: [row.state for row in other.squeue()] == ["RUNNING"], 10, other.logs)
        assert slurm.squeue() == []
        mark = f"SLURM_CONF={other.env['SLURM_CONF']}"
        wait_for(lambda: any(daemon in each.cmdline() for each in marked(mark)), 10, other.logs)
        addresses = _listening(mark)
        assert len(addresses) == 1 + len(NODES)
        assert all(address.startswith("127.") for address in addresses), addresses
    assert not marked(mark)
    assert not other.folder.exists()
    assert set(slurm.sinfo().values()) == {"idle"}


def _listening(mark: str, *others: psutil.Process) -> list[str]:
    """The addresses at which a cluster's processes listen, and some others."""
    return [
        each.laddr.ip
        for process in (*marked(mark), *others)
        for each in process.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    ]
