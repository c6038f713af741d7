"""Jobs as dask-jobqueue really submits and cancels them; the batch system is a script that takes notes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is missing (pip install 'sweeper-torch[dask]')")

from sweeper.errors import UserError
from sweeper.launch.batch import BatchPool
from sweeper.schema.cluster import BatchJob

pytestmark = pytest.mark.slow

COMMANDS = {
    "sbatch": """\
[ ! -e {folder}/full ] || {{ echo "sbatch: error: no node has room." >&2; exit 1; }}
number=1
until mkdir {folder}/$number 2>/dev/null; do number=$((number + 1)); done
cp "$1" {folder}/$number/script
echo "Submitted batch job $number"
""",
    "scancel": 'printf "%s\\n" "$@" >> {folder}/cancelled\n',
    "squeue": "",
}


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the batch system takes notes."""
    commands, notes, current = (tmp_path / name for name in ("commands", "notes", "current"))
    for folder in (commands, notes, current):
        folder.mkdir()
    for name, text in COMMANDS.items():
        (commands / name).write_text("#!/bin/sh\n" + text.format(folder=notes))
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)
    monkeypatch.chdir(current)
    return notes


@pytest.fixture
def pool(notes: Path, tmp_path: Path) -> Iterator[BatchPool]:
    pool = BatchPool("slurm", BatchJob(interface="lo"), 0, tmp_path / "logs")
    yield pool
    left = set(pool.jobs())
    pool.close()
    assert pool._cluster.status.name == "closed"
    assert left <= cancelled(notes)


def cancelled(notes: Path) -> set[str]:
    return set((notes / "cancelled").read_text().split())


def test_jobs_are_as_many_as_are_wanted(pool: BatchPool, notes: Path) -> None:
    pool.want(3)
    assert pool.jobs() == ["1", "2", "3"]
    pool.want(1)
    (kept,) = pool.jobs()
    assert cancelled(notes) == {"1", "2", "3"} - {kept}
    pool.want(2)
    assert pool.jobs() == [kept, "4"]


def test_a_job_is_replaced_and_another_one_given_up(pool: BatchPool, notes: Path) -> None:
    pool.want(2)
    names = {job.job_id: name for name, job in pool._jobs.submitted.items()}
    pool._jobs.forget(names["1"])
    pool.want(2)
    assert pool.jobs() == ["2", "3"]
    pool._jobs.release(names["2"])
    pool.want(1)
    assert pool.jobs() == ["3"]
    assert cancelled(notes) == {"2"}


def test_a_job_that_is_rejected_is_not_kept(pool: BatchPool, notes: Path) -> None:
    (notes / "full").touch()
    with pytest.raises(UserError, match=r"SLURM rejects the jobs of `execution\.job`: no node has room"):
        pool.want(2)
    assert pool.jobs() == []
    (notes / "full").unlink()
    pool._retry_at = 0.0
    pool.want(2)
    assert pool.jobs() == ["1", "2"]


def test_the_keys_are_in_the_script_and_in_no_other_file(pool: BatchPool, notes: Path) -> None:
    pool.want(1)
    script = (notes / "1" / "script").read_text()
    assert script.count("-----BEGIN PRIVATE KEY-----") == 1
    for name in ("CA_FILE", "WORKER__CERT", "WORKER__KEY"):
        assert f"export DASK_DISTRIBUTED__COMM__TLS__{name}='-----BEGIN" in script
    assert "--tls-" not in script
    assert list(Path().iterdir()) == []
