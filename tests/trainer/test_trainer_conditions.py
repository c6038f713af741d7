"""What else went on while a window was open: counted of real processes."""

from __future__ import annotations

import hashlib
import mmap
import os
import resource
import threading
import time
from pathlib import Path

import pytest
from burning import TELL, child, strangers
from pace import disturbed, undisturbed

from sweeper.core.progress import SilentProgress
from sweeper.trainer import measure
from sweeper.trainer.timing import conditions, step_timer
from sweeper.trainer.timing.conditions import Conditions, canary_ms, read_conditions, undisturbed_canary_ms

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def own_seconds() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime


MAX_SECONDS = 3.0
"""Of processor time for a child that burns 0.4 s, the start of its interpreter on a slow machine included."""
BURNING = "import threading; threading.Thread(target=burn, args=(60,), daemon=True).start()"
IN_A_CHILD_OF_ITS_OWN = "\nif os.fork():\n    os.wait()\nelse:\n    burn(0.4); os._exit(0)"


@pytest.mark.parametrize("code", ["burn(0.4)", IN_A_CHILD_OF_ITS_OWN], ids=["itself", "reaped"])
def test_processor_time_has_that_of_children_alive_and_waited_for(code: str):
    before, own = read_conditions(), own_seconds()
    with child(code + TELL) as process:
        alive = read_conditions().cpu_seconds - before.cpu_seconds - (own_seconds() - own)
        assert 0.35 <= alive < MAX_SECONDS
    assert process.returncode is not None
    # Counted once, as a child that was waited for.
    reaped = read_conditions().cpu_seconds - before.cpu_seconds - (own_seconds() - own)
    assert alive - 0.03 <= reaped < alive + 0.35


def test_processor_time_has_that_of_children_of_children():
    code = "r, w = os.pipe()\nif not os.fork():\n    burn(0.4); os.write(w, b'x'); sys.stdin.readline()\n"
    before, own = read_conditions(), own_seconds()
    with child(code + "    os._exit(0)\nos.read(r, 1)" + TELL) as process:
        alive = read_conditions().cpu_seconds - before.cpu_seconds - (own_seconds() - own)
        assert 0.35 <= alive < MAX_SECONDS
        process.communicate("\n\n")


def test_processor_time_has_that_of_this_process():
    before, own = read_conditions(), own_seconds()
    while own_seconds() < own + 0.1:
        pass
    assert read_conditions().cpu_seconds - before.cpu_seconds >= 0.1


@pytest.mark.alone
def test_two_that_share_a_core_are_taken_off_it():
    core = min(os.sched_getaffinity(0))
    code = f"os.sched_setaffinity(0, {{{core}}})\nif os.fork():\n    burn(0.4); os.wait()\n"
    before = read_conditions()
    with child(code + "else:\n    burn(0.4); os._exit(0)" + TELL):
        # Of both: the one that lives on, and the one it has waited for counts with its processor time.
        assert read_conditions().involuntary_switches - before.involuntary_switches >= 5
    assert read_conditions().involuntary_switches - before.involuntary_switches >= 10


@pytest.mark.alone
@undisturbed
def test_the_canary_takes_its_time_again_and_again():
    first, second = (min(canary_ms() for _ in range(4)) for _ in range(2))
    assert 1 < first < 1000
    assert 0.5 < first / second < 2


@pytest.mark.alone
def test_the_canary_takes_longer_on_a_core_it_has_to_share():
    core = {min(os.sched_getaffinity(0))}
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, core)
    try:
        is_disturbed = disturbed()
        alone = min(canary_ms() for _ in range(4))
        was_disturbed = is_disturbed()
        with child(BURNING + TELL):
            shared = max(canary_ms() for _ in range(6))
    finally:
        os.sched_setaffinity(0, before)
    if shared <= 1.3 * alone and was_disturbed:
        pytest.skip("this machine is busy")
    assert shared > 1.3 * alone


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("", None),
        ("some avg10=0.00 avg60=0.10 total=1234567\nfull avg10=0.00 total=99\n", 1.234567),
    ],
)
def test_pressure_is_none_where_the_kernel_does_not_tell(tmp_path: Path, monkeypatch, text, seconds):
    path = tmp_path / "cpu"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(conditions, "Path", lambda name: {"/proc/pressure/cpu": path}[name])
    assert conditions._pressure_seconds() == seconds
    assert read_conditions().pressure_seconds == seconds


def proc_stat(path: Path, *cores: tuple[int, ...]) -> None:
    """Writes what /proc/stat has of cores: each column in seconds."""
    ticks = os.sysconf("SC_CLK_TCK")
    lines = [f"cpu{i} " + " ".join(str(ticks * each) for each in core) for i, core in enumerate(cores)]
    path.write_text("\n".join(["cpu  9 9 9 9 9 9 9 9 9 9", *lines, "intr 1 2 3"]) + "\n")


def test_busy_and_stolen_time_are_of_the_cores_that_may_be_used(tmp_path: Path, monkeypatch):
    path = tmp_path / "stat"
    monkeypatch.setattr(conditions, "open", lambda name, **_: path.open(), raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 10})
    # User, nice, system, idle, waiting for a disk, interrupts (two kinds), stolen, guests.
    proc_stat(path, (1, 2, 4, 999, 999, 8, 16, 32, 999, 999), (100,) * 10)
    assert (read_conditions().busy_seconds, read_conditions().steal_seconds) == (31, 32)
    proc_stat(path, *[(0,) * 10] * 10, (3, 0, 0, 0, 0, 0, 0, 5, 0, 0))
    assert (read_conditions().busy_seconds, read_conditions().steal_seconds) == (3, 5)
    for odd in ("cpu0 1 2 3 4\n", "cpu0 a b c d e f g h\n"):
        path.write_text(odd)
        assert (read_conditions().busy_seconds, read_conditions().steal_seconds) == (0, 0)


@pytest.mark.alone
def test_busy_time_has_that_of_strangers():
    before = read_conditions()
    with strangers():
        began = read_conditions()
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            time.sleep(0.01)
        after = read_conditions()
    # What a hypervisor takes from them is stolen, and not busy.
    taken = after.steal_seconds - began.steal_seconds
    assert after.busy_seconds - began.busy_seconds + taken >= 0.1 * len(os.sched_getaffinity(0))
    # None of it is this tree's own.
    assert after.cpu_seconds - began.cpu_seconds < 0.1
    assert after.helper_cpu_seconds - before.helper_cpu_seconds < 0.2


def test_of_the_trees_time_that_of_its_helpers_is_told_apart():
    before = read_conditions()
    with child("burn(0.3)" + TELL):
        end = own_seconds() + 0.1
        while own_seconds() < end:
            pass
        after = read_conditions()
    helped = after.helper_cpu_seconds - before.helper_cpu_seconds
    assert 0.25 <= helped < MAX_SECONDS
    assert after.cpu_seconds - before.cpu_seconds >= helped + 0.1


@pytest.mark.alone
def test_threads_that_want_a_core_and_have_none_have_waited():
    """Two that share one: of the time that both run, each has half."""
    core = min(os.sched_getaffinity(0))
    code = (
        f"os.sched_setaffinity(0, {{{core}}})\npid = os.fork()\nburn(0.3)\nif not pid: os._exit(0)\nos.wait()"
    )
    before = read_conditions()
    with child(code + TELL):
        shared = read_conditions().waited_seconds - before.waited_seconds
    assert shared > 0.1


def test_what_the_kernel_does_not_tell_of_waiting_is_none(monkeypatch):
    monkeypatch.setattr(conditions, "waited_seconds", lambda pid: None)
    assert read_conditions().waited_seconds is None


def test_page_faults_are_counted():
    before = read_conditions().minor_faults
    block = mmap.mmap(-1, 500 * mmap.PAGESIZE)
    for page in range(500):
        block[page * mmap.PAGESIZE] = 1
    assert 500 <= read_conditions().minor_faults - before < 5000


BY_ITSELF = "print('ready', flush=True); burn(60)"


@pytest.mark.parametrize("code", [BY_ITSELF, BURNING + TELL], ids=["itself", "in a thread"])
def test_a_canary_beside_a_helper_at_work_is_none(code: str):
    with child(code) as helper:
        for _ in range(20):
            began, before = time.perf_counter(), conditions.ran_seconds(helper.pid) or 0.0
            found = undisturbed_canary_ms()
            ran = (conditions.ran_seconds(helper.pid) or 0.0) - before
            # On a busy machine it may have had no core beside the canary.
            if ran > 0.2 * (time.perf_counter() - began):
                assert found == 0
                return
    pytest.skip("this machine is busy")


def test_a_canary_beside_another_thread_at_work_is_none():
    assert undisturbed_canary_ms() > 1
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            hashlib.blake2b(bytes(2**20))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert undisturbed_canary_ms() == 0
    finally:
        ended.set()
        thread.join()


@pytest.mark.alone
def test_a_canary_beside_idle_helpers_and_strangers_is_one():
    with child(TELL), strangers():
        assert undisturbed_canary_ms() > 1


# -- of a trial's windows -------------------------------------------------------------------------------


@pytest.mark.usefixtures("quiet")
def test_windows_have_what_went_on_in_them(make_job):
    result = measure.run(make_job(warmup_cap_seconds=0.05), SilentProgress())
    for window in result.windows:
        # On a busy machine it waits for a core as well.
        assert 0.5 * window.seconds <= window.cpu_seconds + (window.waited_seconds or 0)
        assert window.cpu_seconds <= 1.5 * window.seconds + 0.02
        assert window.canary_ms > 1
        assert window.load >= 0
        assert window.helper_cpu_seconds < 0.02
        # Of all threads together: it may be longer than the window.
        assert window.waited_seconds is None or window.waited_seconds >= 0
        assert window.foreign_cpu_seconds >= 0
        assert window.minor_faults >= 0
        assert window.steal_seconds >= 0
        assert window.pressure_seconds is None or window.pressure_seconds >= 0
    assert any(window.load > 0 for window in result.windows)


def test_windows_have_differences_and_the_load_at_their_end(make_job, monkeypatch):
    readings = iter(
        [
            Conditions(10.0, 4.0, 1.0, 20.0, 2.0, 50.0, 100, 1000, 0.5),
            Conditions(11.5, 4.5, 1.02, 24.0, 2.01, 50.5, 130, 1700, 0.75),
            Conditions(12.0, 9.0, 2.0, 30.0, 3.0, None, 140, 2000, 0.25),
            # A thread and a helper that have ended took their counts with them.
            Conditions(12.5, 8.0, 1.5, 30.25, 3.0, 51.0, 135, 2000, 1.25),
        ]
    )
    canaries = iter([3.0, 5.0, 4.0])
    monkeypatch.setattr(step_timer, "read_conditions", lambda: next(readings))
    monkeypatch.setattr(step_timer, "undisturbed_canary_ms", lambda: next(canaries))
    first, second = measure.run(make_job(warmup_cap_seconds=0.05), SilentProgress()).windows
    assert (first.cpu_seconds, first.involuntary_switches, first.steal_seconds) == (
        1.5,
        30,
        pytest.approx(0.01),
    )
    assert (first.pressure_seconds, first.load, first.canary_ms) == (0.5, 0.75, 5.0)
    assert (first.helper_cpu_seconds, first.waited_seconds) == (0.5, pytest.approx(0.02))
    # Of all that was computed, what is not the trial's own.
    assert (first.foreign_cpu_seconds, first.minor_faults) == (2.5, 700)
    assert (second.cpu_seconds, second.involuntary_switches, second.steal_seconds) == (0.5, 0, 0.0)
    assert (second.helper_cpu_seconds, second.waited_seconds) == (0.0, 0.0)
    assert (second.foreign_cpu_seconds, second.minor_faults) == (0.0, 0)
    # Of the canaries before and after, the slower.
    assert (second.pressure_seconds, second.load, second.canary_ms) == (None, 1.25, 5.0)


@pytest.mark.usefixtures("quiet")
def test_processor_time_of_loader_workers_is_their_trials(make_sequence_job, monkeypatch):
    own = []

    def spy():
        own.append(own_seconds())
        return read_conditions()

    monkeypatch.setattr(step_timer, "read_conditions", spy)
    options = {"loader.kind": "rows", "loader.num_workers": 2, "model.row_seconds": 2e-4, "batch_size": 50}
    job = make_sequence_job(options, window_seconds=0.3, repeats=1, warmup_cap_seconds=0.2)
    (window,) = measure.run(job, SilentProgress()).windows
    before, after = own
    # Two workers compute nearly all the time, or wait for a core.
    helped = window.cpu_seconds - (after - before)
    assert helped > 0.01
    assert helped + (window.waited_seconds or 0) >= 0.3 * window.seconds
    # The trial's own goes into reading its counters, too.
    assert window.helper_cpu_seconds == pytest.approx(helped, abs=0.02)
    assert window.steps > 1
