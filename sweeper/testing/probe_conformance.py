"""Provides the conformance suite of probes. Derive a test class and give it a `name` fixture.

class TestFiles(ProbeConformance):
    @pytest.fixture
    def name(self):
        return "files"
"""

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

import psutil
import pytest

from sweeper.telemetry.probe import Probe
from sweeper.telemetry.probes import PROBES
from sweeper.telemetry.sampler import ANSWER_SECONDS, INTERVAL_SECONDS, TIME, Sampler

UNITS = ("pct", "w", "j", "c", "mhz", "gib", "mib_s", "gib_s", "per_s", "ms", "s")
"""The name of a series ends with one of these; a count has `_num_` in its name instead."""
READ_SECONDS = 0.02
"""Longest reading: there is one every `INTERVAL_SECONDS`, on a core that the trial may need."""
NUM_READINGS = 20
NO_PID = 2**22 + 1
"""A number above Linux's highest process id."""
WAIT_SECONDS = 10.0


def files_and_children() -> set[str]:
    """Returns this process's open files and its descendants."""
    files = {f"{fd}: {path}" for fd in os.listdir("/proc/self/fd") if (path := _target(fd))}
    return files | {f"process {each.pid}" for each in psutil.Process().children(recursive=True)}


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        # The descriptor of the listing itself.
        return ""


class ProbeConformance:
    """Override the fixture `name`; pytest collects the rest."""

    @pytest.fixture
    def series(self, name: str) -> re.Pattern[str]:
        """Returns a pattern for the names of its series; only built-in probes may omit their own name."""
        return re.compile(rf"{name}_[a-z0-9_]+")

    @pytest.fixture
    def reads_here(self) -> bool:
        """Returns whether this machine has what the probe reads; override it if the probe needs a device."""
        return True

    @pytest.fixture
    def make(self, name: str) -> Callable[[], Probe]:
        """Returns the factory of the probe, from its entry point."""
        return PROBES.get(name)

    @pytest.fixture
    def trial(self) -> Iterator[int]:
        """Yields the id of a process that stands in for the trial."""
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        yield process.pid
        process.kill()
        process.communicate()

    @pytest.fixture
    def probe(self, make: Callable[[], Probe], trial: int) -> Iterator[Probe]:
        """Yields an open probe, for a trial without a GPU."""
        probe = make()
        probe.open(trial, "")
        yield probe
        probe.close()

    def test_it_is_called_as_its_entry_point(self, probe: Probe, name: str) -> None:
        """Its cost and the reason it cannot be used are recorded under that name."""
        assert probe.name == name

    def test_its_series_have_names_with_units(self, probe: Probe, series: re.Pattern[str]) -> None:
        """They begin with the probe's name and end with a unit; values are finite numbers."""
        for found in (probe.read(), probe.read(), probe.between()):
            for name, value in found.items():
                assert series.fullmatch(name), name
                assert name.endswith(tuple(f"_{unit}" for unit in UNITS)) or "_num_" in name, name
                assert math.isfinite(float(value)), (name, value)

    def test_there_are_readings(self, probe: Probe, reads_here: bool) -> None:
        """If something is absent, the reason is given in words."""
        assert bool({**probe.read(), **probe.between()}) == reads_here
        assert all(isinstance(why, str) and why for why in probe.missing.values())

    def test_a_reading_takes_bounded_time(self, probe: Probe) -> None:
        """The median of many readings counts, so that a busy machine does not; `between` has more time."""
        seconds = []
        for _ in range(NUM_READINGS):
            began = time.perf_counter()
            probe.read()
            seconds.append(time.perf_counter() - began)
        assert statistics.median(seconds) < READ_SECONDS
        began = time.perf_counter()
        probe.between()
        assert time.perf_counter() - began < ANSWER_SECONDS

    @pytest.mark.parametrize("device_uuid", ["", "GPU-00000000-0000-0000-0000-000000000000"])
    def test_nothing_is_raised_where_there_is_nothing(
        self, make: Callable[[], Probe], device_uuid: str
    ) -> None:
        """Neither the process nor the GPU exists."""
        probe = make()
        probe.open(NO_PID, device_uuid)
        probe.read()
        probe.between()
        probe.close()

    def test_a_trial_may_end_between_two_readings(self, make: Callable[[], Probe]) -> None:
        """A probe is closed only after its trial has ended."""
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        probe = make()
        probe.open(process.pid, "")
        probe.read()
        process.kill()
        process.communicate()
        probe.read()
        probe.between()
        probe.close()

    def test_a_closed_probe_leaves_nothing(self, make: Callable[[], Probe], trial: int) -> None:
        """No file, thread or process is left. A probe may be closed before it is opened, and twice."""
        make().close()
        threads, before = set(threading.enumerate()), files_and_children()
        probe = make()
        probe.open(trial, "")
        probe.read()
        probe.between()
        probe.close()
        probe.close()
        for thread in set(threading.enumerate()) - threads:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive(), thread
        assert files_and_children() - before == set()

    def test_its_series_arrive(self, make: Callable[[], Probe], trial: int, reads_here: bool) -> None:
        """Each series is on the common time axis, with the cost of the readings."""
        if not reads_here:
            pytest.skip("this machine does not have what the probe reads")
        probe, deadline = make(), time.monotonic() + WAIT_SECONDS
        sampler = Sampler([probe], interval_seconds=INTERVAL_SECONDS / 10)
        sampler.start(trial, "")
        while not (columns := sampler.columns()) and time.monotonic() < deadline:
            threading.Event().wait(INTERVAL_SECONDS / 10)
        sampler.stop()
        assert f"{probe.name}_read_ms" in columns
        assert {len(each) for each in columns.values()} == {len(columns[TIME])}
