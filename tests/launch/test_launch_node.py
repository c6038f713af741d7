"""The node's side of a cluster: what a worker says of itself, and parcels that are really run."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from launch.quick_node import QUICK
from parts import faults

from sweeper.core.config import TrialConfig
from sweeper.core.job import LOG, OUTCOME, PREPARE_RUNNER, TRIAL_RUNNER, Job, read_outcome
from sweeper.core.measurement import Failure, FailureKind, Measurement, Outcome, Report
from sweeper.errors import EnvironmentStopError
from sweeper.launch import node
from sweeper.launch.local import leftovers
from sweeper.launch.parcel import Parcel, unpack_into
from sweeper.system.flock import open_locked

SOON = 60.0
SECRET = "s3cr3t-value-of-mine"
NAMED = {"WANDB_API_KEY": SECRET, "LAB_ROOM": "4.17"}
TINY = """\
import os
import time

import numpy as np

from sweeper.trainer.pipeline import Prepared


def prepare(data):
    with open(data["log"], "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(0.3)
    if data.get("broken"):
        raise ValueError("no such table")
    return Prepared(arrays={"x": np.zeros(3)}, synthetic=True)


def build(config, prepared):
    print("the token is", os.environ.get("WANDB_API_KEY"))
    raise ValueError(f"{os.environ.get('WANDB_API_KEY')} {os.environ.get('LAB_ROOM')} {sorted(os.environ)}")
"""
Wait = Callable[..., bool]


def end_all(root: Path) -> None:
    """Leaves every sweep there; nothing runs then, and only what is shared is left."""
    found = works(root)
    for sweep, each in list(node._NODES.items()):
        if each._scratch in found:
            node.leave(sweep)
    assert [leftovers(work) for work in found] == [[] for _ in found]
    assert works(root) == []


def root_in(folder: Path) -> Path:
    return folder / f"sweeper-{os.getuid()}"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where everything of a node's is."""
    monkeypatch.setattr(node, "LocalLauncher", QUICK)
    monkeypatch.setenv(node.SCRATCH, str(tmp_path / "scratch"))
    yield root_in(tmp_path / "scratch")
    end_all(root_in(tmp_path / "scratch"))


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the nodes of two sweeps, `one` and `two`, are that have imported torch."""
    folder = tmp_path_factory.mktemp("warm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(node.SCRATCH, str(folder))
        patch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-worker-alone")
        patch.setenv("WORKERS_OWN", "1")
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(node.run_parcel, parcel(sweep=sweep, env=NAMED)) for sweep in ("one", "two")]
            for each in asked:
                each.result(SOON)
            yield root_in(folder)
            end_all(root_in(folder))


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Threads that last, as those of a cluster's workers do: a server ends with the one that started it."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


def parcel(uid: str = "1", fault: str = "", *, sweep: str = "s", epoch: int = 1, **changes: object) -> bytes:
    code, env = changes.pop("code", {}), changes.pop("env", {})
    config = TrialConfig(model={"fault": fault})
    job = Job(uid=uid, config=config, **{"runner": faults.RUNNER, **changes})  # type: ignore[arg-type]
    return Parcel(
        job=job,
        sweep=sweep,
        epoch=epoch,
        code=code,  # type: ignore[arg-type]
        env=env,  # type: ignore[arg-type]
        pass_env=tuple(env),  # type: ignore[arg-type,call-overload]
    ).to_bytes()


def outcome_of(data: bytes, folder: Path) -> Outcome | Report | None:
    folder.mkdir()
    unpack_into(folder, data)
    return read_outcome(folder)


def works(root: Path) -> list[Path]:
    return sorted(root.glob("work-*"))


def is_sleeping(root: Path) -> bool:
    """Whether a trial that sleeps has begun: its keeper has told of it."""
    return any("sleep" in _comm(pid) for work in works(root) for pid in leftovers(work))


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


# -- what a worker is ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, None),
        ({"SLURM_JOB_END_TIME": "{in_100}"}, 100),
        ({node.ENDS_AT: "{in_100}"}, 100),
        ({"SLURM_JOB_END_TIME": "{in_100}", node.ENDS_AT: "99999999999"}, 100),
        ({node.ENDS_AT: "soon"}, None),
    ],
)
def test_a_worker_knows_when_its_time_is_up(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], seconds: float | None
) -> None:
    for name in ("SLURM_JOB_END_TIME", node.ENDS_AT):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(in_100=int(time.time()) + 100))
    left = node.describe_worker(False).seconds_left
    assert left == (None if seconds is None else pytest.approx(seconds, abs=3))


@pytest.mark.parametrize("visible", [None, "", "NoDevFiles", "-1"])
def test_a_worker_that_was_to_have_a_gpu_and_sees_none_refuses(
    monkeypatch: pytest.MonkeyPatch, visible: str | None
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert node.describe_worker(True).refusal == "GPUs were requested, but CUDA_VISIBLE_DEVICES names none"
    assert node.describe_worker(False).refusal == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert (node.describe_worker(True).refusal, node.describe_worker(True).gpu) == ("", "1")


@pytest.mark.parametrize(
    ("visible", "listed", "files", "device"),
    [
        (None, 2, 2, "0,1"),
        ("3", 1, 4, "3"),
        ("3", 0, 4, "3"),
        (None, 0, 1, "0"),
        (None, 0, 0, "cpu"),
        ("0", 0, 0, "cpu"),
        ("", 0, 4, "cpu"),
    ],
)
def test_a_workers_own_device(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, listed: int, files: int, device: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(node, "gpu_names", lambda: ["NVIDIA A10"] * listed)
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter([self] * files))
    assert node._own_device() == device


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"])
def test_a_worker_knows_its_job_and_its_node(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for each in (*node._JOB_IDS, "SLURMD_NODENAME"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, "4711.pbs")
    assert node.describe_worker(False).job == "4711.pbs"
    assert node.describe_worker(False).host == os.uname().nodename
    assert node.describe_worker(False).model
    monkeypatch.setenv("SLURMD_NODENAME", "node3")
    assert node.describe_worker(False).host == "node3"


# -- parcels ------------------------------------------------------------------------------------------


def test_a_parcel_is_run_to_its_outcome_and_leaves_nothing(scratch: Path, tmp_path: Path) -> None:
    data = node.run_parcel(parcel("1"))
    assert isinstance(outcome_of(data, tmp_path / "1"), Measurement)
    assert (tmp_path / "1" / LOG).exists()
    (work,) = works(scratch)
    assert list((work / "jobs").iterdir()) == []
    again = outcome_of(node.run_parcel(parcel("2", "oom")), tmp_path / "2")
    assert isinstance(again, Failure)
    assert again.kind is FailureKind.OOM
    assert works(scratch) == [work], "the server is kept from trial to trial"


def tiny(uid: str, log: Path, **changes: object) -> bytes:
    data = {"log": str(log), **changes.pop("data", {})}  # type: ignore[dict-item]
    prepared = f"/home/somebody/mlruns/cache/{log.stem}"
    about = {"sweep": "one", "pipeline": "tiny", "prepared": prepared, "data": data, "env": NAMED}
    return parcel(uid, code={"tiny.py": TINY}, **{**about, **changes})  # type: ignore[arg-type]


def test_data_is_prepared_once_on_a_machine_whoever_comes_first(
    warm: Path, tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    log = tmp_path / "0123abcd"
    both = [threads.submit(node.run_parcel, tiny("1", log, sweep=sweep)) for sweep in ("one", "two")]
    for number, each in enumerate(both):
        assert isinstance(outcome_of(each.result(SOON), tmp_path / f"{number}"), Measurement)
    assert len(log.read_text().splitlines()) == 1
    assert sorted(path.name for path in (warm / "cache" / "0123abcd").iterdir()) == ["prepared.json", "x.npy"]
    asked = node.run_parcel(tiny("prepare", log, runner=PREPARE_RUNNER))
    assert isinstance(outcome_of(asked, tmp_path / "asked"), Report)
    assert len(log.read_text().splitlines()) == 1


def test_data_that_cannot_be_prepared_is_a_failure_that_says_where(warm: Path, tmp_path: Path) -> None:
    log = tmp_path / "broken"
    for number in (1, 2):
        data = node.run_parcel(tiny("1", log, data={"broken": True}))
        outcome = outcome_of(data, tmp_path / f"{number}")
        assert isinstance(outcome, Failure)
        assert outcome.kind is FailureKind.USER_ERROR
        assert outcome.message.startswith(f"preparing the data on {os.uname().nodename}: ")
        assert "no such table" in outcome.message
    assert len(log.read_text().splitlines()) == 2


def test_variables_that_are_named_arrive_and_no_log_has_a_secret(warm: Path, tmp_path: Path) -> None:
    folder = tmp_path / "1"
    outcome = outcome_of(node.run_parcel(tiny("1", tmp_path / "env", runner=TRIAL_RUNNER)), folder)
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.USER_ERROR
    assert "*** 4.17" in outcome.message
    assert "the token is ***" in (folder / LOG).read_text()
    told = outcome.message + outcome.detail + (folder / LOG).read_text()
    assert "'WANDB_API_KEY'" in told
    assert "AWS_SECRET_ACCESS_KEY" not in told
    assert "WORKERS_OWN" not in told
    for path in folder.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path


def test_a_trial_has_the_c_librarys_usual_memory_not_what_dasks_nanny_sets_for_its_worker(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    node.run_parcel(parcel("1"))
    environ = Path(f"/proc/{node._NODES['s']._launcher.pid}/environ").read_bytes().split(b"\0")
    assert [each for each in environ if each.startswith(b"MALLOC_")] == [b"MALLOC_ARENA_MAX=2"]


# -- who asks, and for how long -----------------------------------------------------------------------


def started(threads: ThreadPoolExecutor, scratch: Path, wait_for: Wait, **changes: object) -> Future[bytes]:
    """Runs a parcel whose trial sleeps, with a child and a daemon that do as well."""
    under_way = threads.submit(node.run_parcel, parcel("1", "children, sleep", **changes))  # type: ignore[arg-type]
    assert wait_for(lambda: is_sleeping(scratch), SOON)
    return under_way


def test_an_earlier_supervisors_epoch_is_ended_and_it_gets_no_other(
    scratch: Path, tmp_path: Path, threads: ThreadPoolExecutor, wait_for: Wait
) -> None:
    earlier = started(threads, scratch, wait_for, epoch=1)
    (work,) = works(scratch)
    data = threads.submit(node.run_parcel, parcel("1", epoch=2)).result(SOON)
    assert isinstance(outcome_of(data, tmp_path / "1"), Measurement)
    assert outcome_of(earlier.result(SOON), tmp_path / "earlier") is None
    assert leftovers(work) == []
    assert not work.exists()
    with pytest.raises(ValueError, match="earlier supervisor"):
        node.run_parcel(parcel("2", epoch=1))


def test_a_later_supervisor_need_not_wait_for_what_an_earlier_one_left(
    scratch: Path, tmp_path: Path, threads: ThreadPoolExecutor, wait_for: Wait
) -> None:
    earlier = started(threads, scratch, wait_for, epoch=2)
    node.relieve("s", 2)
    node.relieve("other", 3)
    assert not earlier.done()
    node.relieve("s", 3)
    assert outcome_of(earlier.result(SOON), tmp_path / "earlier") is None
    assert wait_for(lambda: not works(scratch), SOON)


def test_one_job_at_a_time_whatever_the_engine_does(
    scratch: Path, threads: ThreadPoolExecutor, wait_for: Wait
) -> None:
    under_way = started(threads, scratch, wait_for)
    with pytest.raises(ValueError, match="another job"):
        node.run_parcel(parcel("2"))
    assert not under_way.done()
    node.leave("s")
    under_way.result(SOON)


def test_cancelling_ends_the_job_that_is_meant_and_no_other(
    scratch: Path, tmp_path: Path, threads: ThreadPoolExecutor, wait_for: Wait
) -> None:
    under_way = started(threads, scratch, wait_for, attempt=1)
    for sweep, uid, attempt in (("s", "1", 0), ("s", "2", 1), ("other", "1", 1)):
        node.cancel(sweep, [(uid, attempt)])
    with pytest.raises(TimeoutError):
        under_way.result(0.3)
    node.cancel("s", [("0", 1), ("1", 1)])
    assert outcome_of(under_way.result(SOON), tmp_path / "cancelled") is None
    assert not is_sleeping(scratch)
    node.cancel("s", [("0", 1), ("1", 1)])
    data = threads.submit(node.run_parcel, parcel("2")).result(SOON)
    assert isinstance(outcome_of(data, tmp_path / "next"), Measurement)


def test_leaving_ends_everything(
    scratch: Path, tmp_path: Path, threads: ThreadPoolExecutor, wait_for: Wait
) -> None:
    under_way = started(threads, scratch, wait_for)
    (work,) = works(scratch)
    node.leave("s")
    assert outcome_of(under_way.result(SOON), tmp_path / "left") is None
    assert leftovers(work) == []
    assert works(scratch) == []
    node.leave("s")


def test_a_sweep_that_asks_for_nothing_any_more_is_left_and_one_that_runs_is_not(
    scratch: Path, threads: ThreadPoolExecutor, wait_for: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "IDLE_SECONDS", 0.2)
    under_way = started(threads, scratch, wait_for)
    time.sleep(0.5)
    assert not under_way.done()
    assert len(works(scratch)) == 1
    node.cancel("s", [("1", 0)])
    under_way.result(SOON)
    assert wait_for(lambda: not works(scratch), SOON)
    assert "s" not in node._NODES


def test_the_timer_of_a_node_that_has_ended_leaves_the_next_one_alone(
    scratch: Path,
    tmp_path: Path,
    threads: ThreadPoolExecutor,
    wait_for: Wait,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node, "IDLE_SECONDS", 0.3)
    earlier = started(threads, scratch, wait_for, epoch=1)
    later = threads.submit(node.run_parcel, parcel("1", "children, sleep", epoch=2))
    earlier.result(SOON)
    assert wait_for(lambda: is_sleeping(scratch), SOON)
    time.sleep(0.6)
    assert not later.done()
    node.leave("s")
    later.result(SOON)


def test_what_a_job_left_is_packed_before_it_is_cleared(
    scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, leaving = node.pack_folder, threading.Thread(target=node.leave, args=("s",))

    def pack_while_leaving(folder: Path) -> bytes:
        leaving.start()
        leaving.join(0.5)
        return pack(folder)

    monkeypatch.setattr(node, "pack_folder", pack_while_leaving)
    assert isinstance(outcome_of(node.run_parcel(parcel()), tmp_path / "a"), Measurement)
    leaving.join(SOON)
    assert works(scratch) == []


def test_the_scratch_of_workers_that_were_killed_is_cleared(scratch: Path, tmp_path: Path) -> None:
    scratch.mkdir(parents=True)
    old = time.time() - 2 * node.IDLE_SECONDS
    for name in ("work-killed", "work-alive", "work-new"):
        (scratch / name).mkdir()
        (scratch / name / "jobs").mkdir()
        (scratch / name / "lock").touch()
        if name != "work-new":
            os.utime(scratch / name / "lock", (old, old))
    alive = open_locked(scratch / "work-alive" / "lock")
    os.utime(scratch / "work-alive" / "lock", (old, old))
    try:
        node.run_parcel(parcel())
        names = {path.name for path in works(scratch)}
        assert "work-killed" not in names
        assert {"work-alive", "work-new"} <= names
    finally:
        alive.close()
        for name in ("work-alive", "work-new"):
            os.unlink(scratch / name / "lock")
            os.rmdir(scratch / name / "jobs")
            os.rmdir(scratch / name)


def test_a_folder_that_somebody_else_has_made_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(node.SCRATCH, str(tmp_path))
    (tmp_path / "theirs").mkdir()
    (tmp_path / f"sweeper-{os.getuid()}").symlink_to(tmp_path / "theirs")
    with pytest.raises(EnvironmentStopError, match=r"must be this user's own folder.*SWEEPER_SCRATCH"):
        node.run_parcel(parcel())
    assert list((tmp_path / "theirs").iterdir()) == []


def test_many_parcels_at_once_of_different_sweeps_each_come_home(
    scratch: Path, tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    before = threading.active_count()
    asked = {sweep: threads.submit(node.run_parcel, parcel(sweep, sweep=sweep)) for sweep in "abc"}
    for sweep, each in asked.items():
        outcome_of(each.result(SOON), tmp_path / sweep)
        assert json.loads((tmp_path / sweep / OUTCOME).read_text())["type"] == "measurement"
    assert threading.active_count() < before + 20
