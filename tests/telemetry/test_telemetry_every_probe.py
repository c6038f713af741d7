"""What every built-in probe does, and third parties' probes that go wrong."""

from __future__ import annotations

import math
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from sweeper.core.probes import Probe
from sweeper.telemetry.probes import BUILTIN, ThirdPartyProbe, make_probes
from sweeper.telemetry.sampler import ANSWER_SECONDS, INTERVAL_SECONDS, TIME, ProbeSampler

UNITS = ("pct", "w", "j", "c", "mhz", "gib", "mib_s", "gib_s", "per_s", "ms", "s")
"""The name of a series ends with one of these; a count has `_num_` in its name instead."""
SERIES = {
    "host": re.compile(r"(cpu|tree|loader|host|memory|disk|shm)_[a-z0-9_]+"),
    "nvml": re.compile(r"gpu_[a-z0-9_]+"),
}
READS_HERE = {"host": True, "nvml": False}
"""Without a GPU; `test_telemetry_nvml` has the readings of one."""
READ_SECONDS = 0.02
"""Longest reading: there is one every `INTERVAL_SECONDS`, on a core that the trial may need."""
NO_PID = 2**22 + 1
"""A number above Linux's highest process id."""
WAIT_SECONDS = 10.0


def files_and_children() -> set[str]:
    """This process's open files and its descendants."""
    files = {f"{fd}: {path}" for fd in os.listdir("/proc/self/fd") if (path := _target(fd))}
    return files | {f"process {each.pid}" for each in psutil.Process().children(recursive=True)}


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        # The descriptor of the listing itself.
        return ""


@pytest.fixture(params=BUILTIN)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def trial() -> Iterator[int]:
    """The id of a process that stands in for the trial."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.kill()
    process.communicate()


@pytest.fixture
def probe(name: str, trial: int) -> Iterator[Probe]:
    """An open probe, for a trial without a GPU."""
    probe = BUILTIN[name]()
    probe.open(trial, "")
    yield probe
    probe.close()


def test_its_readings_are_finite_numbers_with_units(probe: Probe, name: str):
    assert probe.name == name
    readings = [probe.read(), probe.read(), probe.read_between_windows()]
    for series, value in {**readings[0], **readings[1], **readings[2]}.items():
        assert SERIES[name].fullmatch(series), series
        assert series.endswith(tuple(f"_{unit}" for unit in UNITS)) or "_num_" in series, series
        assert math.isfinite(float(value)), (series, value)
    assert any(readings) == READS_HERE[name]
    assert all(isinstance(why, str) and why for why in probe.missing.values())


def test_a_reading_takes_bounded_time(probe: Probe):
    """The median of many counts, so that a busy machine does not; `read_between_windows` has more time."""
    seconds = []
    for _ in range(20):
        began = time.perf_counter()
        probe.read()
        seconds.append(time.perf_counter() - began)
    assert statistics.median(seconds) < READ_SECONDS
    began = time.perf_counter()
    probe.read_between_windows()
    assert time.perf_counter() - began < ANSWER_SECONDS


@pytest.mark.parametrize("device_uuid", ["", "GPU-00000000-0000-0000-0000-000000000000"])
def test_nothing_is_raised_where_there_is_nothing(name: str, device_uuid: str):
    probe = BUILTIN[name]()
    probe.open(NO_PID, device_uuid)
    probe.read()
    probe.read_between_windows()
    probe.close()


def test_a_trial_may_end_between_two_readings(name: str):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    probe = BUILTIN[name]()
    probe.open(process.pid, "")
    probe.read()
    process.kill()
    process.communicate()
    probe.read()
    probe.read_between_windows()
    probe.close()


def test_a_closed_probe_leaves_nothing(name: str, trial: int):
    BUILTIN[name]().close()
    threads, before = set(threading.enumerate()), files_and_children()
    probe = BUILTIN[name]()
    probe.open(trial, "")
    probe.read()
    probe.read_between_windows()
    probe.close()
    probe.close()
    for thread in set(threading.enumerate()) - threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive(), thread
    assert files_and_children() - before == set()


def test_its_series_arrive(trial: int):
    deadline = time.monotonic() + WAIT_SECONDS
    sampler = ProbeSampler([BUILTIN["host"]()], interval_seconds=INTERVAL_SECONDS / 10)
    sampler.start(trial, "")
    while not (columns := sampler.columns()) and time.monotonic() < deadline:
        threading.Event().wait(INTERVAL_SECONDS / 10)
    sampler.stop()
    assert "host_read_ms" in columns
    assert {len(each) for each in columns.values()} == {len(columns[TIME])}


# -- third parties' -----------------------------------------------------------------------------------------

MODULE = """\
from pathlib import Path
from sweeper.core.probes import Probe

class Odd(Probe):
    name, count = {name!r}, 0
    def open(self, pid, device_uuid): pass
    def read(self):
        self.count += 1
        {read}
    def between(self): return {{"odd_slow_pct": 1.0}}
    def close(self): Path({path!r}).write_text("closed")
"""


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ThirdPartyProbe]:
    """Opens the probe of a module whose `read` ends with a statement."""

    def make(module: str, read: str = "return {}", name: str = "odd", path: str = "") -> ThirdPartyProbe:
        text = MODULE.format(name=name, read=read, path=str(tmp_path / "closed"))
        (tmp_path / f"{module}.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        *others, probe = make_probes([path or f"{module}:Odd"])
        assert [type(each) for each in others] == list(BUILTIN.values())
        # Only the thread that reads it imports it: the process may still fork.
        assert module not in sys.modules
        probe.open(1, "")
        return probe

    return make


def test_a_probe_that_raises_is_given_up_with_the_reason_and_closed(added, tmp_path):
    probe = added("odd_raising", "return {'odd_x_pct': 1 / (3 - self.count)}")
    assert [probe.read() for _ in range(4)] == [{"odd_x_pct": 0.5}, {"odd_x_pct": 1.0}, {}, {}]
    assert (probe.name, probe.missing) == ("odd", {"odd_raising:Odd": "ZeroDivisionError: division by zero"})
    probe.close()
    assert (tmp_path / "closed").read_text() == "closed"


def test_slow_readings_may_have_the_name_that_they_had_in_0_2(added):
    assert added("odd_slow").read_between_windows() == {"odd_slow_pct": 1.0}


def test_series_that_are_not_its_own_or_no_numbers_are_left_out(added):
    own = "'odd_a_pct': 7, 'odd_b_w': float('nan'), 'odd_c_w': 'a'"
    probe = added("odd_naming", f"return {{'gpu_util_pct': 1.0, 'odd_../x': 1.0, {own}}}")
    assert probe.read() == {"odd_a_pct": 7.0}
    rule = "a series must be called odd_..., in lower-case letters, digits and `_`"
    assert probe.missing == {
        "gpu_util_pct": rule,
        "odd_../x": rule,
        "odd_b_w": "a reading must be a finite number, but got nan",
        "odd_c_w": "a reading must be a finite number, but got 'a'",
    }


@pytest.mark.parametrize("name", ["host", "other_gpus", "../odd", ""])
def test_a_probe_needs_a_name_of_its_own(added, name):
    module = f"odd_named_{len(name)}"
    probe = added(module, name=name)
    assert probe.read() == {}
    assert probe.missing == {
        f"{module}:Odd": f"a probe must have a name of its own such as `files`, but got {name!r}."
    }


def test_a_probe_that_cannot_be_imported_is_said(added):
    probe = added("odd_absent", path="nowhere_to_be_found:Odd")
    assert (probe.read(), probe.read_between_windows()) == ({}, {})
    assert "'nowhere_to_be_found:Odd' cannot be imported" in probe.missing["nowhere_to_be_found:Odd"]
    probe.close()
