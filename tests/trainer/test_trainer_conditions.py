"""What else went on while a window was open: counted of real processes."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from burning import TELL, child

from sweeper.core.progress import Silent
from sweeper.trainer import conditions, measure
from sweeper.trainer.conditions import canary_ms, read_conditions

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def own_seconds() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime


IN_A_CHILD_OF_ITS_OWN = "\nif os.fork():\n    os.wait()\nelse:\n    burn(0.4); os._exit(0)"


@pytest.mark.parametrize("code", ["burn(0.4)", IN_A_CHILD_OF_ITS_OWN], ids=["itself", "reaped"])
def test_processor_time_has_that_of_children_alive_and_waited_for(code: str):
    before, own = read_conditions(), own_seconds()
    with child(code + TELL) as process:
        alive = read_conditions().cpu_seconds - before.cpu_seconds - (own_seconds() - own)
        assert 0.35 <= alive < 0.8
    assert process.returncode is not None
    # Counted once, as a child that was waited for.
    reaped = read_conditions().cpu_seconds - before.cpu_seconds - (own_seconds() - own)
    assert alive - 0.03 <= reaped < 0.8


def test_processor_time_has_that_of_children_of_children():
    code = "r, w = os.pipe()\nif not os.fork():\n    burn(0.4); os.write(w, b'x'); sys.stdin.readline()\n"
    before, own = read_conditions(), own_seconds()
    with child(code + "    os._exit(0)\nos.read(r, 1)" + TELL) as process:
        alive = read_conditions().cpu_seconds - before.cpu_seconds - (own_seconds() - own)
        assert 0.35 <= alive < 0.8
        process.communicate("\n\n")


def test_processor_time_has_that_of_this_process():
    before, own = read_conditions(), own_seconds()
    while own_seconds() < own + 0.1:
        pass
    assert read_conditions().cpu_seconds - before.cpu_seconds >= 0.1


def test_two_that_share_a_core_are_taken_off_it():
    core = min(os.sched_getaffinity(0))
    code = f"os.sched_setaffinity(0, {{{core}}})\nif os.fork():\n    burn(0.4); os.wait()\n"
    before = read_conditions()
    with child(code + "else:\n    burn(0.4); os._exit(0)" + TELL):
        # Of both: the one that lives on, and the one it has waited for counts with its processor time.
        assert read_conditions().involuntary_switches - before.involuntary_switches >= 5
    assert read_conditions().involuntary_switches - before.involuntary_switches >= 10


def test_the_canary_takes_its_time_again_and_again():
    first, second = (min(canary_ms() for _ in range(4)) for _ in range(2))
    assert 1 < first < 1000
    assert 0.5 < first / second < 2


def test_the_canary_takes_longer_on_a_core_it_has_to_share():
    core = {min(os.sched_getaffinity(0))}
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, core)
    try:
        alone = min(canary_ms() for _ in range(4))
        with child("import threading; threading.Thread(target=burn, args=(60,), daemon=True).start()" + TELL):
            shared = max(canary_ms() for _ in range(6))
    finally:
        os.sched_setaffinity(0, before)
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


def test_stolen_time_is_the_eighth_figure_in_seconds(tmp_path: Path, monkeypatch):
    path = tmp_path / "stat"
    ticks = os.sysconf("SC_CLK_TCK")
    path.write_text(f"cpu  1 2 3 4 5 6 7 {8 * ticks} 9 10\ncpu0 0 0 0 0 0 0 0 0 0 0\n")
    monkeypatch.setattr(conditions, "open", lambda name, **_: path.open(), raising=False)
    assert read_conditions().steal_seconds == 8
    path.write_text("cpu  1 2 3 4\n")
    assert read_conditions().steal_seconds == 0


# -- of a trial's windows -------------------------------------------------------------------------------


def test_windows_have_what_went_on_in_them(make_job):
    result = measure.run(make_job(), Silent())
    for window in result.windows:
        assert 0.5 * window.seconds <= window.cpu_seconds <= 1.5 * window.seconds + 0.02
        assert window.canary_ms > 1
        assert window.load >= 0
        assert window.steal_seconds >= 0
        assert window.pressure_seconds is None or window.pressure_seconds >= 0
    assert any(window.load > 0 for window in result.windows)


def test_windows_have_differences_and_the_load_at_their_end(make_job, monkeypatch):
    readings = iter(
        [
            conditions.Conditions(10.0, 100, 2.0, 50.0, 0.5),
            conditions.Conditions(11.5, 130, 2.25, 50.5, 0.75),
            conditions.Conditions(12.0, 140, 3.0, None, 0.25),
            conditions.Conditions(12.5, 150, 3.0, 51.0, 1.25),
        ]
    )
    canaries = iter([3.0, 5.0, 4.0])
    monkeypatch.setattr(measure, "read_conditions", lambda: next(readings))
    monkeypatch.setattr(measure, "canary_ms", lambda: next(canaries))
    first, second = measure.run(make_job(), Silent()).windows
    assert (first.cpu_seconds, first.involuntary_switches, first.steal_seconds) == (1.5, 30, 0.25)
    assert (first.pressure_seconds, first.load, first.canary_ms) == (0.5, 0.75, 5.0)
    assert (second.cpu_seconds, second.involuntary_switches, second.steal_seconds) == (0.5, 10, 0.0)
    # Of the canaries before and after, the slower.
    assert (second.pressure_seconds, second.load, second.canary_ms) == (None, 1.25, 5.0)


def test_processor_time_of_loader_workers_is_their_trials(make_sequence_job, monkeypatch):
    own = []

    def spy():
        own.append(own_seconds())
        return read_conditions()

    monkeypatch.setattr(measure, "read_conditions", spy)
    options = {"loader.kind": "rows", "loader.num_workers": 2, "model.row_seconds": 2e-4, "batch_size": 50}
    job = make_sequence_job(options, window_seconds=0.3, repeats=1, warmup_cap_seconds=0.2)
    (window,) = measure.run(job, Silent()).windows
    before, after = own
    # Two workers compute nearly all the time, on whatever share of the machine they get.
    assert window.cpu_seconds - (after - before) >= 0.3 * window.seconds
    assert window.steps > 1
