"""The host's probe: readings of busy children, of files made for it, and of files that are not there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sweeper.system.process import children, tree
from sweeper.telemetry.host import machine as host_machine
from sweeper.telemetry.host import tree as host_tree
from sweeper.telemetry.host.probe import HostProbe

# The root waits, and its child computes; each has 64 MiB that it has written to.
LOADER = """
import os, signal, sys, time
block = bytearray(b"x" * 64 * 1024 * 1024)
if os.fork() == 0:
    block[:] = b"y" * len(block)
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    while True: pass
signal.pause()
"""


@pytest.fixture
def start():
    """Starts Python code that says when it is ready; all of it ends with the test."""
    started = []

    def start(code: str, *arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-c", code, *arguments]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(command, **pipes, start_new_session=True)
        started.append(process)
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.fixture
def opened():
    """Opens probes, and closes them when the test ends."""
    probes = []

    def opened(pid: int) -> HostProbe:
        probe = HostProbe()
        probes.append(probe)
        probe.open(pid, "")
        return probe

    yield opened
    for probe in probes:
        probe.close()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of files: two disks of three, four cores; its clock goes when the test says so."""
    made = Machine(tmp_path)
    for name in ("PROC", "BLOCK", "POWERCAP"):
        monkeypatch.setattr(host_machine, name, tmp_path / name.lower())
    monkeypatch.setattr(host_tree, "PROC", tmp_path / "proc")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 3})
    monkeypatch.setattr(host_machine, "perf_counter", lambda: made.now)
    return made


class Machine:
    def __init__(self, folder: Path):
        self.now, self.folder = 1000.0, folder
        self.write("proc/stat", self.stat((0, 0), (0, 0), (0, 0), (0, 0)))
        self.write(
            "proc/meminfo",
            "MemTotal:  8388608 kB\nMemFree:  1 kB\nMemAvailable:  2097152 kB\nBuffers: 0 kB\n",
        )
        for resource in ("cpu", "io", "memory"):
            self.pressure(resource, 0)
        for name in ("sda", "nvme0n1", "nvme0c0n1", "loop0"):
            self.disk(name, 0)
        for name in ("sda", "nvme0n1", "nvme0c0n1"):
            (folder / "block" / name / "device").mkdir()
        self.write("block/nvme0c0n1/hidden", "1\n")
        zones = {"0": "package-0", "0:0": "core", "0:1": "dram", "1": "package-1", "2": "psys"}
        for zone, name in zones.items():
            self.write(f"powercap/intel-rapl:{zone}/name", f"{name}\n")
            self.write(f"powercap/intel-rapl:{zone}/max_energy_range_uj", "99999999\n")
            self.energy(zone, 0)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def energy(self, zone: str, microjoules: int) -> None:
        self.write(f"powercap/intel-rapl:{zone}/energy_uj", f"{microjoules}\n")

    @staticmethod
    def stat(*busy_and_idle: tuple[int, int]) -> str:
        # Some of what is idle waits for a disk; a guest's time is in its host's user time as well.
        lines = [
            f"cpu{i} {busy} 0 0 {idle - idle // 3} {idle // 3} 0 0 0 {busy} {busy}"
            for i, (busy, idle) in enumerate(busy_and_idle)
        ]
        return "\n".join(["cpu  9 9 9 9 9 9 9 9 0 0", *lines, "intr 1 2 3", "cpu_not 1"]) + "\n"

    def pressure(self, resource: str, microseconds: int) -> None:
        text = f"some avg10=9.00 avg60=9.00 avg300=9.00 total={microseconds}\nfull avg10=0 total=5\n"
        self.write(f"proc/pressure/{resource}", text)

    def disk(self, name: str, sectors: int) -> None:
        self.write(f"block/{name}/stat", f"  77 0 {sectors} 5 6 7 8 9 0 0 0\n")


def test_the_machines_figures_are_of_the_usable_cores_the_disks_and_the_time_between(machine, opened):
    probe = opened(os.getpid())
    machine.now += 0.25
    machine.write("proc/stat", machine.stat((90, 1), (10, 30), (90, 1), (30, 10)))
    machine.pressure("io", 50_000)
    machine.pressure("cpu", 500_000)
    machine.disk("sda", 4096)
    machine.disk("nvme0n1", 2048)
    machine.disk("nvme0c0n1", 2048)
    machine.disk("loop0", 2048)
    values = probe.read()
    expected = {
        "cpu_util_pct": 50,
        "cpu_max_core_pct": 75,
        "cpu_core_1_pct": 25,
        "cpu_core_3_pct": 75,
        "host_mem_used_gib": 6,
        "host_mem_used_pct": 75,
        "disk_read_mib_s": 12,
        "disk_wait_pct": 20,
        # Its counter is a little behind the clock that it is divided by.
        "cpu_pressure_pct": 100,
        "memory_pressure_pct": 0,
    }
    assert {name: pytest.approx(values[name]) for name in expected} == expected
    assert not {"cpu_core_0_pct", "cpu_core_2_pct"} & set(values)


def test_rates_are_over_the_time_since_they_were_last_told(machine, opened):
    probe = opened(os.getpid())
    machine.now += 0.01
    machine.disk("sda", 2048)
    # Over less than some ticks a rate says nothing; what is a state is told.
    values = probe.read()
    assert "disk_read_mib_s" not in values
    assert "cpu_util_pct" not in values
    assert values["host_mem_used_pct"] == 75
    machine.now += 0.49
    assert probe.read()["disk_read_mib_s"] == pytest.approx(2)
    machine.now += 0.5
    assert probe.read()["disk_read_mib_s"] == 0


def test_the_power_of_the_processors_and_their_memory_is_told(machine, opened):
    machine.energy("1", 99_000_000)
    probe = opened(os.getpid())
    for zone, microjoules in (("0", 20_000_000), ("0:0", 9_000_000), ("0:1", 2_000_000), ("2", 50_000_000)):
        machine.energy(zone, microjoules)
    # Its counter has begun anew: 3 J.
    machine.energy("1", 2_000_000)
    machine.now += 0.5
    assert probe.read()["cpu_power_w"] == pytest.approx((20 + 2 + 3) / 0.5)


def test_single_cores_are_told_where_there_are_few(machine, opened, monkeypatch):
    monkeypatch.setattr(host_machine, "MAX_CORE_SERIES", 1)
    probe = opened(os.getpid())
    machine.now += 0.25
    machine.write("proc/stat", machine.stat((0, 0), (10, 30), (0, 0), (30, 10)))
    values = probe.read()
    assert values["cpu_max_core_pct"] == 75
    assert not [name for name in values if name.startswith("cpu_core_")]


def test_ticks_that_run_backwards_give_no_negative_share(machine, opened):
    machine.write("proc/stat", machine.stat((10, 20), (10, 20), (10, 20), (10, 20)))
    probe = opened(os.getpid())
    machine.now += 0.25
    machine.write("proc/stat", machine.stat((0, 0), (40, 18), (0, 0), (9, 60)))
    values = probe.read()
    assert (values["cpu_core_1_pct"], values["cpu_core_3_pct"]) == (100, 0)


@pytest.mark.parametrize(
    ("absent", "series"),
    [
        ("proc/stat", {"cpu_util_pct", "cpu_max_core_pct"}),
        ("proc/meminfo", {"host_mem_used_gib", "host_mem_used_pct"}),
        ("proc/pressure/io", {"disk_wait_pct"}),
        ("proc/pressure/cpu", {"cpu_pressure_pct"}),
        ("proc/pressure/memory", {"memory_pressure_pct"}),
        ("powercap/intel-rapl:0:1/energy_uj", {"cpu_power_w"}),
    ],
)
def test_a_file_that_is_not_there_leaves_out_its_series_with_the_reason(machine, opened, absent, series):
    (machine.folder / absent).unlink()
    probe = opened(os.getpid())
    machine.now += 0.25
    if absent != "proc/stat":
        machine.write("proc/stat", machine.stat((9, 9), (9, 9), (9, 9), (9, 9)))
    values = probe.read()
    assert set(probe.missing) == series
    assert all(f"{absent}: No such file" in probe.missing[name] for name in series)
    assert not series & set(values)
    rest = {"cpu_util_pct", "host_mem_used_gib", "disk_wait_pct", "cpu_pressure_pct", "tree_mem_gib"}
    assert rest - series <= set(values)


def test_a_file_that_no_longer_makes_sense_ends_its_series(machine, opened):
    probe = opened(os.getpid())
    machine.write("proc/pressure/io", "")
    machine.write("proc/meminfo", "MemTotal:  0 kB\n")
    machine.now += 0.25
    assert "disk_wait_pct" not in probe.read()
    assert set(probe.missing) == {"disk_wait_pct", "host_mem_used_gib", "host_mem_used_pct"}
    machine.pressure("io", 5)
    machine.now += 0.25
    assert "disk_wait_pct" not in probe.read()


def test_without_disks_or_shared_memory_their_series_are_absent_with_the_reason(machine, opened, monkeypatch):
    monkeypatch.setattr(host_machine, "BLOCK", machine.folder / "proc")
    monkeypatch.setattr(host_machine, "SHM", machine.folder / "block")
    probe = opened(os.getpid())
    assert "no disk in" in probe.missing["disk_read_mib_s"]
    assert "is not mounted" in probe.missing["shm_free_gib"]
    assert set(probe.missing) == {"disk_read_mib_s", "shm_used_gib", "shm_free_gib"}


def test_shared_memory_is_told_in_use_and_as_what_is_left_for_this_user(machine, opened, monkeypatch):
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path).endswith("shm"))
    gib = 2**30 // 4096
    found = os.statvfs_result((1, 4096, 8 * gib, 5 * gib, 4 * gib, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: found)
    values = opened(os.getpid()).read()
    assert (values["shm_used_gib"], values["shm_free_gib"]) == (3, 4)


def test_the_tree_of_the_trial_and_its_loader_are_told_apart(start, opened):
    root = start(LOADER)
    probe = opened(root.pid)
    assert "tree_cpu_pct" not in probe.read()
    began, ticks = time.perf_counter(), burnt(root.pid)
    time.sleep(0.5)
    values = probe.read()
    seconds, ticks = time.perf_counter() - began, burnt(root.pid) - ticks
    assert ticks > 0
    assert values["tree_cpu_pct"] == pytest.approx(100 * ticks / os.sysconf("SC_CLK_TCK") / seconds, rel=0.3)
    # All of it is the child's.
    assert values["loader_cpu_pct"] == values["tree_cpu_pct"] > 0
    assert 2 * 64 / 1024 < values["tree_mem_gib"] < 1
    assert values["host_mem_used_gib"] > values["tree_mem_gib"] / 2
    assert 0 < values["cpu_util_pct"] <= values["cpu_max_core_pct"] <= 100
    alone = opened(next(iter(children(root.pid))))
    time.sleep(0.2)
    values = alone.read()
    assert values["loader_cpu_pct"] == 0 < values["tree_cpu_pct"]


def burnt(pid: int) -> int:
    """Returns the ticks that a tree has taken."""
    fields = [Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split() for each in tree(pid)]
    return sum(int(each[11]) + int(each[12]) for each in fields)


# A worker for each line that it is told: it computes for 0.2 s and waits.
WORKERS = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
sys.stdout.write("ready\\n")
sys.stdout.flush()
while sys.stdin.readline():
    if os.fork() == 0:
        end = time.process_time() + 0.2
        while time.process_time() < end: pass
        signal.pause()
"""


def test_workers_count_with_all_they_took_and_take_nothing_back_when_they_end(start, opened, monkeypatch):
    monkeypatch.setattr(host_tree, "LOOK_SECONDS", 0.0)
    root = start(WORKERS)
    probe = opened(root.pid)
    began = time.perf_counter()
    for _ in range(2):
        tell(root)
        until(lambda: has_worked(root.pid))
        values, ended = probe.read(), time.perf_counter()
        taken = values["loader_cpu_pct"] / 100 * (ended - began)
        assert taken == pytest.approx(0.2, abs=0.06)
        time.sleep(0.06)
        began = time.perf_counter()
        assert probe.read()["loader_cpu_pct"] == 0
        (worker,) = children(root.pid)
        os.kill(worker, signal.SIGKILL)
        until(lambda: not list(children(root.pid)))
        time.sleep(0.06)
        values = probe.read()
        began = time.perf_counter()
        assert values["loader_cpu_pct"] == 0 <= values["tree_cpu_pct"]
        assert probe.missing == {}


def test_new_processes_are_looked_for_once_a_second(start, opened, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(host_tree, "perf_counter", lambda: now)
    root = start(WORKERS)
    probe = opened(root.pid)
    looks = []
    monkeypatch.setattr(host_tree, "tree", lambda pid: looks.append(pid) or [pid])
    for _ in range(9):
        now += 0.25
        probe.read()
    assert looks == [root.pid] * 2


def test_the_successor_of_a_worker_that_ended_is_looked_for_at_once(start, opened, monkeypatch):
    monkeypatch.setattr(host_tree, "LOOK_SECONDS", 1e9)
    root = start(WORKERS)
    tell(root)
    until(lambda: has_worked(root.pid))
    probe = opened(root.pid)
    (worker,) = children(root.pid)
    os.kill(worker, signal.SIGKILL)
    until(lambda: not list(children(root.pid)))
    tell(root)
    until(lambda: has_worked(root.pid))
    shares = []
    for _ in range(2):
        time.sleep(0.06)
        shares.append(probe.read()["loader_cpu_pct"])
    assert shares[0] == 0 < shares[1]


def has_worked(pid: int) -> bool:
    """Returns whether there is a worker that waits after its work."""
    waiting = [Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[0] for each in children(pid)]
    return waiting == ["S"] and burnt(pid) >= 18


def tell(root: subprocess.Popen) -> None:
    root.stdin.write(b"\n")
    root.stdin.flush()


def until(condition) -> None:
    deadline = time.perf_counter() + 20
    while not condition():
        assert time.perf_counter() < deadline
        time.sleep(0.01)


def test_tree_is_a_process_and_all_below_it(start):
    root = start(LOADER)
    assert list(tree(root.pid)) == [root.pid, *children(root.pid)]
    assert len(list(tree(root.pid))) == 2
    assert root.pid in tree(os.getpid())


def test_what_has_ended_has_no_children_and_reads_as_nothing(opened):
    process = subprocess.Popen(["true"])
    process.wait()
    assert list(children(process.pid)) == []
    probe = opened(process.pid)
    assert probe.read()["tree_mem_gib"] == 0
    assert probe.missing == {}


def test_a_closed_probe_holds_no_files(start):
    root = start(LOADER)
    before = os.listdir("/proc/self/fd")
    probe = HostProbe()
    probe.open(root.pid, "")
    assert len(os.listdir("/proc/self/fd")) > len(before)
    assert probe.read_between_windows() == {}
    probe.close()
    assert os.listdir("/proc/self/fd") == before
    assert probe.read() == {}


def test_a_zone_that_a_container_hides_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(host_machine, "POWERCAP", tmp_path)
    (tmp_path / "intel-rapl:0").symlink_to(tmp_path / "masked")
    assert host_machine.energy_zones() == []
