"""Jobs on the workers of a pool: who waits, who runs where, and what becomes of them."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launch.pools import ScriptedPool

from sweeper.core.job import PREPARE_RUNNER, PROBE_RUNNER, Job, read_outcome, write_job
from sweeper.core.measurement import Failure, FailureKind, Outcome, Report
from sweeper.core.place import TrialPlace
from sweeper.errors import EnvironmentStopError
from sweeper.launch import cluster, parcel
from sweeper.launch import workers as roster
from sweeper.launch.cluster import JOBS, RemoteHandle, RemoteLauncher
from sweeper.launch.launcher import PlacedHandle
from sweeper.launch.parcel import Parcel
from sweeper.launch.pool import WorkerLostError

SOON, A_LOOK = 5.0, 0.1
TIMEOUT = 100.0
"""Of each job."""


class Sweep:
    """A launcher over a scripted pool, with what it has said."""

    def __init__(self, folder: Path, pool: ScriptedPool, *, most: int = 4, model: str = "") -> None:
        self.folder, self.pool, self.said = folder, pool, list[str]()
        template = Parcel(job=Job(uid=""), sweep="s", epoch=1)
        self.launcher = RemoteLauncher(
            pool,
            template,
            max_workers=most,
            needs_gpu=False,
            model=model,
            folder=folder,
            say=self.said.append,
        )
        self._sent = 0

    def submit(self, uid: str, **changes: object) -> RemoteHandle:
        write_job(self.folder / uid, Job(uid=uid, timeout_seconds=TIMEOUT, **changes))  # type: ignore[arg-type]
        return self.launcher.submit(self.folder / uid)

    def finish(self, worker: str, outcome: Outcome | Report) -> None:
        self._sent += 1
        self.pool.finish(worker, outcome, self.folder / f"sent-{self._sent}")


Wait = Callable[..., bool]
Make = Callable[..., Sweep]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.01)
    made: list[Sweep] = []

    def make(*, owned: bool = True, **options: object) -> Sweep:
        made.append(Sweep(tmp_path, ScriptedPool(owned=owned), **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for sweep in made:
        sweep.launcher.close()


def report(number: int) -> Report:
    return Report(values={"number": number}, finished_at=1.0)


def lost(handle: RemoteHandle) -> str:
    """Waits for a job that is lost; returns why."""
    outcome = handle.result(timeout=SOON)
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.LOST
    return outcome.message


def test_jobs_wait_for_workers_and_the_capacity_is_how_many_there_are(make: Make, wait_for: Wait) -> None:
    sweep = make(most=2)
    assert sweep.launcher.capacity == 0
    first, second = sweep.submit("1"), sweep.submit("2")
    assert isinstance(first, PlacedHandle)
    assert first.place is None
    sweep.pool.come("a")
    assert wait_for(lambda: sweep.pool.job_on("a"), SOON)
    assert sweep.launcher.capacity == 1
    sweep.finish("a", report(1))
    assert first.result(timeout=SOON) == report(1) == read_outcome(sweep.folder / "1")
    assert wait_for(lambda: sweep.pool.job_on("a"), SOON)
    for name in "bc":
        sweep.pool.come(name)
    assert wait_for(lambda: sweep.launcher.capacity == 2, SOON)
    assert sweep.pool.wanted == 2
    sweep.finish("a", report(2))
    assert second.result(timeout=SOON) == report(2)


def test_a_worker_that_answers_no_more_is_given_up(
    make: Make, wait_for: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = make(owned=False)
    sweep.pool.come("a")
    handle = sweep.submit("1")
    assert wait_for(lambda: sweep.pool.job_on("a"), SOON)
    monkeypatch.setattr(roster, "PREPARE_SECONDS", 0.0)
    sweep.pool.hanging.add("a")
    (known,) = sweep.launcher.workers
    known.since -= TIMEOUT
    time.sleep(A_LOOK)
    assert not handle.done()
    known.since -= roster.MARGIN_SECONDS
    assert "was lost" in lost(handle)
    assert sweep.launcher.capacity == 0
    assert any("has been silent" in line for line in sweep.said)


def test_a_worker_hears_which_supervisor_it_is(make: Make, wait_for: Wait) -> None:
    sweep = make()
    sweep.pool.come("a")
    assert wait_for(lambda: sweep.pool.relieved == [("a", "s", 1)], SOON)


def test_the_parcel_is_the_template_with_the_job(make: Make, wait_for: Wait) -> None:
    sweep = make()
    sweep.pool.come("a")
    sweep.submit("7", attempt=1)
    assert wait_for(lambda: sweep.pool.job_on("a"), SOON)
    sent, _ = sweep.pool.running["a"]
    assert (sent.sweep, sent.epoch, sent.job.uid, sent.job.attempt) == ("s", 1, "7", 1)


def test_a_vanished_workers_job_is_lost_and_a_late_result_of_it_is_ignored(
    make: Make, wait_for: Wait
) -> None:
    sweep = make()
    sweep.pool.come("a")
    handle = sweep.submit("1")
    assert wait_for(lambda: sweep.pool.job_on("a"), SOON)
    sweep.pool.vanish("a")
    assert lost(handle) == "the worker on host-a was lost"
    sweep.finish("a", report(1))
    assert read_outcome(sweep.folder / "1") is None
    assert lost(handle)


@pytest.mark.parametrize("when", ["before it runs", "while it runs"])
def test_what_a_worker_raises_loses_the_job_and_says_why(make: Make, wait_for: Wait, when: str) -> None:
    sweep = make()
    sweep.pool.come("a", job="42")
    assert wait_for(lambda: sweep.launcher.capacity == 1, SOON)
    if when == "before it runs":
        sweep.pool.run = lambda *arguments: (_ for _ in ()).throw(KeyError("a"))  # type: ignore[method-assign]
        handle = sweep.submit("1")
    else:
        handle = sweep.submit("1")
        sweep.pool.running.pop("a")[1].set_exception(OSError("no space\non the node"))
    assert lost(handle).startswith("the worker on host-a (job 42) failed (")
    assert "on the node" not in lost(handle)
    assert sweep.launcher.capacity == 1


def test_nothing_more_is_sent_to_a_worker_that_was_lost_unless_it_answers(make: Make, wait_for: Wait) -> None:
    sweep = make()
    sweep.pool.come("a")
    handle = sweep.submit("1")
    assert wait_for(lambda: sweep.pool.job_on("a"), SOON)
    sweep.pool.deaf.add("a")
    sweep.pool.running.pop("a")[1].set_exception(WorkerLostError("a"))
    assert lost(handle) == "the worker on host-a was lost"
    again = sweep.submit("1", attempt=1)
    assert again.place is None
    assert not wait_for(lambda: sweep.pool.job_on("a"), A_LOOK)
    sweep.pool.deaf.clear()
    assert wait_for(lambda: sweep.pool.job_on("a"), SOON)


def test_cancel_while_it_waits(make: Make) -> None:
    sweep = make()
    handle = sweep.submit("1")
    assert handle.cancel() is True
    assert "cancelled" in lost(handle)
    assert handle.cancel() is False


def test_cancel_while_it_runs_is_told_until_it_has_ended(make: Make, wait_for: Wait) -> None:
    sweep = make()
    for name in "ab":
        sweep.pool.come(name)
    assert wait_for(lambda: sweep.launcher.capacity == 2, SOON)
    handle, _ = sweep.submit("1", attempt=2), sweep.submit("2")
    assert handle.place is not None
    worker = handle.place.worker
    assert handle.cancel() is True
    assert wait_for(lambda: len(sweep.pool.cancelled) > 1, SOON)
    assert set(sweep.pool.cancelled) == {(worker, "1", 2)}
    sweep.finish(worker, Failure(kind=FailureKind.LOST, message="it was ended"))
    assert lost(handle) == "it was ended"
    told = len(sweep.pool.cancelled)
    assert not wait_for(lambda: len(sweep.pool.cancelled) > told + 1, A_LOOK)


def test_a_worker_without_enough_time_left_is_let_go_of(make: Make, wait_for: Wait) -> None:
    sweep = make()
    sweep.pool.come("short", seconds_left=TIMEOUT + roster.MARGIN_SECONDS - 1)
    probe = sweep.submit("probe", runner=PROBE_RUNNER)
    assert wait_for(lambda: sweep.pool.job_on("short"), SOON)
    trial = sweep.submit("1")
    sweep.finish("short", report(0))
    assert probe.result(timeout=SOON) == report(0)
    assert wait_for(lambda: sweep.pool.retired == ["short"], SOON)
    assert trial.place is None
    sweep.pool.come("long", seconds_left=TIMEOUT + roster.MARGIN_SECONDS + 10)
    assert wait_for(lambda: sweep.pool.job_on("long"), SOON)


def test_setting_up_runs_wherever_there_is_a_worker(make: Make, wait_for: Wait) -> None:
    sweep = make()
    sweep.pool.come("short", seconds_left=60.0)
    sweep.submit("prepare", runner=PREPARE_RUNNER)
    assert wait_for(lambda: sweep.pool.job_on("short"), SOON)
    assert sweep.pool.retired == []


def test_a_worker_that_ends_soon_counts_for_nothing(make: Make, wait_for: Wait) -> None:
    sweep = make(owned=False)
    sweep.submit("1")
    sweep.pool.come("short", seconds_left=60.0)
    assert wait_for(lambda: "short" in sweep.pool.retired, SOON)
    assert sweep.launcher.capacity == 0


def test_another_model_is_refused_with_its_line(make: Make, wait_for: Wait) -> None:
    sweep = make(most=3)
    sweep.pool.come("a")
    assert wait_for(lambda: sweep.launcher.capacity == 1, SOON)
    sweep.pool.come("b", model="V100", job="9")
    assert wait_for(lambda: sweep.said, SOON)
    (line,) = sweep.said
    assert line.startswith(
        "The worker on host-b (job 9) takes no trials: it has V100, but this sweep is on A10"
    )
    assert "`execution.job.constraint`" in line
    assert wait_for(lambda: sweep.pool.retired == ["b"], SOON)
    assert wait_for(lambda: sweep.pool.wanted == 2, SOON), "another in its place would likely be the same"


def test_refusals_of_workers_that_stay_take_nobodys_place(make: Make, wait_for: Wait) -> None:
    sweep = make(most=2, owned=False, model="A10")
    for name in "abcde":
        sweep.pool.come(name, model="A10" if name in "de" else "V100")
    assert wait_for(lambda: len(sweep.said) == 3, SOON)
    assert wait_for(lambda: sweep.launcher.capacity == 2, SOON)


def test_jobs_that_are_always_too_short_are_not_replaced_for_ever(make: Make, wait_for: Wait) -> None:
    sweep = make(most=3)
    soak = sweep.submit("soak")
    for name in "abc":
        sweep.pool.come(name, seconds_left=60.0)
        assert wait_for(lambda name=name: name in sweep.pool.retired, SOON)
    assert sweep.said[0] == (
        f"The worker on host-a takes no trials: it ends in 60 s, but a trial needs {TIMEOUT + 30:.0f} s."
    )
    with pytest.raises(EnvironmentStopError, match="3 workers joined, but none can take a trial"):
        soak.result(timeout=SOON)


def test_three_refusals_and_nobody_else_stop_the_sweep(make: Make, wait_for: Wait) -> None:
    sweep = make(model="H100")
    waiting = sweep.submit("1")
    for name in "abc":
        sweep.pool.come(name)
    with pytest.raises(EnvironmentStopError, match=r"3 workers joined, but none can take a trial"):
        waiting.result(timeout=SOON)
    with pytest.raises(EnvironmentStopError):
        _ = sweep.launcher.capacity
    with pytest.raises(EnvironmentStopError):
        sweep.submit("2")


def test_refusals_are_forgotten_once_somebody_takes_trials(make: Make, wait_for: Wait) -> None:
    sweep = make()
    for name in "ab":
        sweep.pool.come(name, refusal="GPUs were requested, but it has none")
        assert wait_for(lambda name=name: name in sweep.pool.retired, SOON)
    sweep.pool.come("good")
    assert wait_for(lambda: sweep.launcher.capacity == 1, SOON)
    for name in "cde":
        sweep.pool.come(name, refusal="GPUs were requested, but it has none")
        assert wait_for(lambda name=name: name in sweep.pool.retired, SOON)
    assert sweep.launcher.capacity == 1
    sweep.pool.vanish("good")
    sweep.pool.come("better")
    assert wait_for(lambda: list(sweep.launcher._workers) == ["better"], SOON)
    sweep.pool.come("f", refusal="GPUs were requested, but it has none")
    assert wait_for(lambda: "f" in sweep.pool.retired, SOON)
    assert sweep.launcher.capacity == 1
    sweep.pool.vanish("better")
    assert wait_for(lambda: sweep.launcher.capacity == 0, SOON)
    waiting = sweep.submit("1")
    sweep.pool.come("next")
    assert wait_for(lambda: sweep.pool.job_on("next"), SOON)
    assert not waiting.done()


def test_what_is_confirmed_runs_on_one_worker_and_the_others_go(make: Make, wait_for: Wait) -> None:
    sweep = make(most=3)
    for name in "abc":
        sweep.pool.come(name)
    assert wait_for(lambda: sweep.launcher.capacity == 3, SOON)
    for name, handle in [(name, sweep.submit(name)) for name in "ab"]:
        sweep.finish(name, report(0))
        assert handle.result(timeout=SOON) == report(0)
    workers = []
    for number in range(3):
        handle = sweep.submit(f"r{number}", stage="race")
        assert sweep.launcher.capacity == 1
        assert handle.place is not None
        workers.append(handle.place.worker)
        if number == 0:
            assert wait_for(lambda: len(sweep.pool.retired) == 2, SOON)
            assert sweep.pool.wanted == 1
        sweep.finish(workers[-1], report(number))
        assert handle.result(timeout=SOON) == report(number)
    assert workers == ["b"] * 3, "the one that was busy last has its caches warm"
    assert sorted(sweep.pool.retired) == ["a", "c"]


def test_another_stage_wants_all_workers_again(make: Make, wait_for: Wait) -> None:
    sweep = make(most=3, owned=False)
    for name in "abc":
        sweep.pool.come(name)
    assert wait_for(lambda: sweep.launcher.capacity == 3, SOON)
    handle = sweep.submit("r", stage="race")
    assert handle.place is not None
    assert wait_for(lambda: len(set(sweep.pool.retired)) == 2, SOON)
    for number in range(2):
        sweep.submit(f"{number}")
    assert sweep.launcher.capacity == 3
    assert sorted(sweep.pool.running) == ["a", "b", "c"], "what is somebody else's stays, and is used again"


def test_a_lost_device_ends_its_worker(make: Make, wait_for: Wait) -> None:
    sweep = make()
    sweep.pool.come("a")
    handle = sweep.submit("1")
    assert wait_for(lambda: sweep.pool.job_on("a"), SOON)
    failure = Failure(kind=FailureKind.DEVICE_LOST, message="Xid 79")
    sweep.finish("a", failure)
    assert handle.result(timeout=SOON) == failure
    again = sweep.submit("1", attempt=1)
    assert wait_for(lambda: sweep.pool.retired == ["a"], SOON)
    assert again.place is None
    assert sweep.said == ["The worker on host-a takes no more trials: its GPU was lost."]


def test_neighbours_count_the_trials_of_a_machine(make: Make, wait_for: Wait) -> None:
    sweep = make()
    for name, host in (("a", "node1"), ("b", "node1"), ("c", "node2")):
        sweep.pool.come(name, host=host, gpu=name.upper(), job=f"4{name}")
    assert wait_for(lambda: sweep.launcher.capacity == 3, SOON)
    handles = [sweep.submit(str(number)) for number in range(3)]
    assert [handle.place for handle in handles] == [
        TrialPlace(host="node1", gpu="A", job="4a", worker="a", num_neighbours=1),
        TrialPlace(host="node1", gpu="B", job="4b", worker="b", num_neighbours=1),
        TrialPlace(host="node2", gpu="C", job="4c", worker="c", num_neighbours=0),
    ]
    sweep.finish("a", report(0))
    handles[0].result(timeout=SOON)
    sweep.finish("b", report(1))
    handles[1].result(timeout=SOON)
    alone = sweep.submit("3")
    assert alone.place is not None
    assert alone.place.num_neighbours == 0
    assert handles[0].place is not None
    assert handles[0].place.num_neighbours == 1, "what was, was"


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (EnvironmentStopError("SLURM takes no job: invalid partition"), "^SLURM takes no job"),
        (OSError("connection reset"), r"can no longer be used \(OSError: connection reset\)"),
    ],
)
def test_a_pool_that_raises_is_heard_of_by_everybody_who_waits(
    make: Make, wait_for: Wait, problem: Exception, message: str
) -> None:
    sweep = make()
    sweep.pool.come("a")
    running, waiting = sweep.submit("1"), sweep.submit("2")
    assert wait_for(lambda: sweep.pool.job_on("a"), SOON)
    sweep.pool.problem = problem
    for handle in (running, waiting):
        with pytest.raises(EnvironmentStopError, match=message):
            handle.result(timeout=SOON)


def test_the_jobs_are_listed_while_there_are_any(make: Make, wait_for: Wait) -> None:
    sweep = make()
    path = sweep.folder / JOBS

    def listed() -> object:
        return json.loads(path.read_text()) if path.exists() else None

    sweep.pool.numbers = ["11", "12"]
    sweep.pool.come("a", gpu="0", job="11")
    busy = {"host": "host-a", "gpu": "0", "job": "11", "busy": False}
    assert wait_for(lambda: listed() == {"jobs": ["11", "12"], "workers": [busy]}, SOON)
    sweep.submit("1")
    assert wait_for(lambda: listed() == {"jobs": ["11", "12"], "workers": [{**busy, "busy": True}]}, SOON)
    sweep.launcher.close()
    assert not path.exists()


@pytest.mark.parametrize("owned", [True, False])
def test_closing_ends_what_runs_and_what_waits(make: Make, wait_for: Wait, owned: bool) -> None:
    sweep = make(owned=owned)
    sweep.pool.come("a")
    running, waiting = sweep.submit("1"), sweep.submit("2")
    assert wait_for(lambda: sweep.pool.job_on("a"), SOON)
    sweep.launcher.close()
    sweep.launcher.close()
    assert "launcher was closed" in lost(running)
    assert "launcher was closed" in lost(waiting)
    assert sweep.pool.left == ([] if owned else ["a"]), "what belongs to the pool ends with it"
    assert sweep.pool.closed == 1
    assert not sweep.launcher._watcher.is_alive()


def test_a_full_disk_reaches_whoever_waits(
    make: Make, wait_for: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, outcome: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(parcel, "write_outcome", full)
    sweep = make()
    sweep.pool.come("a")
    handle = sweep.submit("1")
    assert wait_for(lambda: sweep.pool.job_on("a"), SOON)
    sweep.finish("a", report(1))
    with pytest.raises(OSError, match="No space left"):
        handle.result(timeout=SOON)
    assert sweep.launcher.capacity == 1, "the worker is free"


def test_what_is_no_parcel_loses_the_job(make: Make, wait_for: Wait) -> None:
    sweep = make()
    sweep.pool.come("a")
    handle = sweep.submit("1")
    assert wait_for(lambda: sweep.pool.job_on("a"), SOON)
    sweep.pool.answer("a", b"PK nothing")
    assert "damaged parcel" in lost(handle)


@pytest.mark.parametrize("how", ["cancelled", "lost", "never started", "finished", "not stored"])
def test_a_callback_may_wait_for_a_thread_that_asks_the_launcher(
    make: Make, wait_for: Wait, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    sweep, answers = make(), list[int]()

    def ask(_: object) -> None:
        thread = threading.Thread(target=lambda: answers.append(sweep.launcher.capacity), daemon=True)
        thread.start()
        thread.join(SOON)
        answers.append(-1)

    handle = sweep.submit("1")
    handle.add_done_callback(ask)
    if how == "cancelled":
        handle.cancel()
    elif how == "never started":
        sweep.pool.run = lambda *arguments: (_ for _ in ()).throw(KeyError("a"))  # type: ignore[method-assign]
        sweep.pool.come("a")
    else:
        sweep.pool.come("a")
        assert wait_for(lambda: sweep.pool.job_on("a"), SOON)
    if how == "lost":
        sweep.pool.vanish("a")
    if how == "not stored":
        monkeypatch.setattr(cluster, "unpack_into", lambda *arguments: 1 / 0)
    if how in ("finished", "not stored"):
        sweep.finish("a", report(1))
    assert wait_for(lambda: -1 in answers, 2 * SOON)
    assert len(answers) == 2, "the launcher was locked"
    assert answers[0] >= 0


def test_a_lost_job_is_heard_of_even_if_the_same_look_fails(
    make: Make, wait_for: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = make()
    sweep.pool.come("a")
    handle = sweep.submit("1")
    assert wait_for(lambda: sweep.pool.job_on("a"), SOON)

    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sweep.launcher, "_dispatch", fail)
    sweep.pool.vanish("a")
    assert lost(handle) == "the worker on host-a was lost"


def test_without_anybody_who_takes_trials_it_is_said_once(
    make: Make, wait_for: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "WAITING_SECONDS", 0.05)
    sweep = make()
    sweep.pool.numbers = ["11"]
    assert wait_for(lambda: sweep.said == ["Waiting for workers (jobs 11)."], SOON)
    assert not wait_for(lambda: len(sweep.said) > 1, A_LOOK)


def test_jobs_from_many_threads_each_get_their_own_outcome(make: Make, wait_for: Wait) -> None:
    sweep = make()
    for name in "abcd":
        sweep.pool.come(name)
    assert wait_for(lambda: sweep.launcher.capacity == 4, SOON)
    found: dict[int, object] = {}

    def one(number: int) -> None:
        found[number] = sweep.submit(str(number)).result(timeout=SOON)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(8):
        assert wait_for(lambda: sweep.pool.running, SOON)
        worker = next(iter(sweep.pool.running))
        job = sweep.pool.job_on(worker)
        assert job is not None
        sweep.finish(worker, report(int(job.uid)))
    for thread in threads:
        thread.join(timeout=SOON)
    assert found == {number: report(number) for number in range(8)}
