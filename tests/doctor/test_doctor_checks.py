"""The checks of host, storage and packages, from made-up facts."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from sweeper.core.units import GIB, MIB
from sweeper.doctor import State, host, software, storage
from sweeper.doctor.software import TESTED
from sweeper.system import cpu
from sweeper.system.installed import CORE
from sweeper.system.memory import available_bytes, group_memory

REPOSITORY = Path(__file__).parents[2]
OK, WARN, FAIL = State.OK, State.WARN, State.FAIL


# -- host -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "usable", "cores", "state", "text"),
    [
        ({"affinity": 2.0}, 2, 2, OK, "all 2 cores are usable"),
        (
            {"affinity": 64.0, "the control group's quota": 2.5},
            2,
            64,
            OK,
            "2 of 64 cores are usable, limited by the control group's quota",
        ),
        ({"affinity": 64.0, "SLURM_CPUS_PER_TASK": 4.0}, 4, 64, OK, "SLURM_CPUS_PER_TASK"),
        ({"affinity": 1.0}, 1, 8, WARN, "1 of 8 cores are usable, limited by affinity"),
        ({"affinity": 1.0}, 1, 1, WARN, "a single core"),
    ],
)
def test_cores_and_what_limits_them(limits, usable, cores, state, text):
    check = host.cores(limits, usable, cores)
    assert check.state is state
    assert text in check.text
    assert bool(check.remedy) == (state is WARN)


def test_the_number_of_cores_is_the_one_that_workers_are_clipped_to(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(cpu, "_CGROUPS", tmp_path)
    monkeypatch.setattr(cpu, "_OWN_CGROUP", tmp_path / "none")
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    looks = dict(host.looks())
    assert looks["cores"]().text == "16 of 64 cores are usable, limited by affinity"
    (tmp_path / "cpu.max").write_text("350000 100000")
    assert looks["cores"]().text == "3 of 64 cores are usable, limited by the control group's quota"
    assert cpu.usable_cpus() == 3
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "2")
    assert looks["cores"]().text == "2 of 64 cores are usable, limited by SLURM_CPUS_PER_TASK"
    assert cpu.usable_cpus() == 2


@pytest.mark.parametrize(
    ("pressure", "load", "cores", "state"),
    [
        (0.0, 0.3, 2, OK),
        (9.0, 0.3, 2, OK),
        (10.0, 0.3, 2, WARN),
        (None, 0.9, 2, OK),
        (None, 1.1, 2, WARN),
        (0.0, 1.1, 2, WARN),
        (0.0, 1.1, 64, OK),
    ],
)
def test_what_else_runs(pressure, load, cores, state):
    check = host.load(pressure, load, cores)
    assert check.state is state
    assert ("timings will be repeated" in check.remedy) == (state is WARN)
    assert ("last 10 s" in check.text) == (pressure is not None)


def test_pressure_is_read_as_the_kernel_tells_it(monkeypatch, tmp_path):
    monkeypatch.setattr(host, "PRESSURE", tmp_path)
    assert host.pressure("cpu") is None
    (tmp_path / "cpu").write_text(
        "some avg10=12.50 avg60=0.08 avg300=0.44 total=873499652\nfull avg10=0.00 avg60=0 avg300=0 total=0\n"
    )
    assert host.pressure("cpu") == 12.5
    (tmp_path / "cpu").write_text("rubbish")
    assert host.pressure("cpu") is None


@pytest.mark.parametrize(
    ("free", "group", "state", "text"),
    [
        (20 * GIB, None, OK, "20 of 24 GiB are free"),
        (1 * GIB, None, WARN, "1 of 24 GiB are free"),
        (20 * GIB, (4 * GIB, 3 * GIB), OK, "leaves 3 of 4 GiB"),
        (20 * GIB, (4 * GIB, 1 * GIB), WARN, "leaves 1 of 4 GiB"),
        # Version 1 writes no limit as a very large one.
        (20 * GIB, (2**63 - 4096, 2**63 - 5000), OK, "20 of 24 GiB are free"),
    ],
)
def test_memory(free, group, state, text):
    check = host.memory(24 * GIB, free, group)
    assert check.state is state
    assert check.text.endswith(text)


@pytest.mark.parametrize(
    ("own", "place", "names", "cached"),
    [
        ("0::/job/step\n", ".", ("memory.max", "memory.current"), "inactive_file"),
        (
            "4:memory:/job/step\n",
            "memory",
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            "total_inactive_file",
        ),
    ],
    ids=["v2", "v1"],
)
def test_the_control_group_that_leaves_least(monkeypatch, tmp_path, own, place, names, cached):
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(cpu, "_OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr(cpu, "_CGROUPS", tmp_path / "groups")
    step = tmp_path / "groups" / place / "job" / "step"
    step.mkdir(parents=True)
    assert group_memory() is None

    def write(group: Path, limit: str, used: int, inactive: int) -> None:
        (group / names[0]).write_text(f"{limit}\n")
        (group / names[1]).write_text(f"{used}\n")
        active = cached.replace("inactive", "active")
        (group / "memory.stat").write_text(f"anon 7\n{cached} {inactive - 9}\n{active} 9\n")

    write(step.parent, "8000", 3000, 1000)
    assert group_memory() == (8000, 6000)
    write(step, "5000", 4000, 500)
    assert group_memory() == (5000, 1500)
    write(step, "max", 4000, 500)
    assert group_memory() == (8000, 6000)
    assert available_bytes() == 6000


def test_swap_disturbs_only_while_it_is_read():
    assert host.swap(0, 0.0).state is OK
    assert host.swap(2 * GIB, 0.0) == host.swap(2 * GIB, None)
    check = host.swap(2 * GIB, 30.0)
    assert check.state is WARN
    assert check.text == "2 GiB are swapped out, and processes waited for memory 30% of the last 10 s"
    assert host.swap(0, 30.0).state is OK


@pytest.mark.parametrize(
    ("total", "free", "state", "says"),
    [
        (64 * MIB, 64 * MIB, WARN, "64 MiB (Docker's default), 64 MiB free"),
        (512 * MIB, 512 * MIB, WARN, "512 MiB, 512 MiB"),
        (8 * GIB, 8 * GIB, OK, "8 GiB, 8 GiB"),
        (8 * GIB, 100 * MIB, WARN, "8 GiB, 100 MiB"),
    ],
)
def test_shared_memory(total, free, state, says):
    check = host.shared_memory(total, free)
    assert check.state is state
    assert says in check.text
    assert ("--shm-size" in check.remedy) == (total < GIB)


def test_shared_memory_of_this_machine(monkeypatch, tmp_path):
    found = os.statvfs("/dev/shm")
    check = dict(host.looks())["shared memory"]()
    assert check.text.startswith(f"/dev/shm has {host._size(found.f_blocks * found.f_frsize)}")
    monkeypatch.setattr(host, "SHM", tmp_path / "none")
    check = dict(host.looks())["shared memory"]()
    assert check.state is WARN
    assert "mount -t tmpfs" in check.remedy


@pytest.mark.parametrize(
    ("soft", "hard", "state", "remedy"),
    [
        (20000, 20000, OK, ""),
        (4096, 4096, OK, ""),
        (1024, 1048576, WARN, "`ulimit -n 65536`"),
        (1024, 10000, WARN, "`ulimit -n 10000`"),
        (1024, resource.RLIM_INFINITY, WARN, "`ulimit -n 4096`"),
        (1024, 1024, WARN, "limits.conf"),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, OK, ""),
    ],
)
def test_open_files(soft, hard, state, remedy):
    check = host.open_files(soft, hard)
    assert check.state is state
    assert remedy in check.remedy
    assert bool(check.remedy) == bool(remedy)


# -- storage --------------------------------------------------------------------------------------------


def test_a_home_that_is_not_there_yet_can_be_made(tmp_path):
    home = tmp_path / "a" / "b"
    check = storage.write_access(home)
    assert (check.state, check.text) == (OK, f"{home} can be created")
    assert not home.exists()
    home.mkdir(parents=True)
    assert storage.write_access(home).text == f"{home} is writable"
    assert list(home.iterdir()) == []


def test_a_file_in_the_place_of_the_home(tmp_path):
    (tmp_path / "home").write_text("")
    for home in (tmp_path / "home", tmp_path / "home" / "below"):
        check = storage.write_access(home)
        assert check.state is FAIL
        assert "Not a directory" in check.text
        assert "--home" in check.remedy


def test_a_home_that_takes_no_files():
    assert storage.write_access(Path("/proc/home")).state is FAIL


@pytest.mark.parametrize(
    ("free", "state"), [(100.0, OK), (5.0, OK), (4.9, WARN), (0.5, WARN), (0.49, FAIL), (0.0, FAIL)]
)
def test_free_disk(free, state):
    check = storage.disk(int(free * GIB))
    assert check.state is state
    assert f"{free:.3g} GiB" in check.text


MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
40 27 0:40 / /home rw shared:7 master:2 - nfs4 server:/export rw,vers=4.2
41 40 0:41 / /home/me/fast rw - xfs /dev/sdb rw
42 40 0:42 / /home/me/with\\040space rw - lustre mds:/scratch rw
43 27 0:43 / /over rw - cifs //server/share rw
44 27 0:44 / /over rw - tmpfs tmpfs rw
45 27 0:45 / /mnt/ssh rw - fuse.sshfs me@host:/ rw
"""


@pytest.mark.parametrize(
    ("home", "kind", "state"),
    [
        ("/srv/home", "ext4 at /", OK),
        ("/home", "nfs4 at /home", WARN),
        ("/home/me/mlruns", "nfs4 at /home", WARN),
        ("/home/me/fast/mlruns", "xfs at /home/me/fast", OK),
        ("/home/me/faster", "nfs4 at /home", WARN),
        ("/home/me/with space/mlruns", "lustre at /home/me/with space", WARN),
        ("/homeless", "ext4 at /", OK),
        ("/over/mlruns", "tmpfs at /over", OK),
        ("/mnt/ssh/mlruns", "fuse.sshfs at /mnt/ssh", WARN),
    ],
)
def test_the_file_system_of_the_home(home, kind, state):
    check = storage.file_system(Path(home), MOUNTS)
    assert check.text.startswith(kind)
    assert check.state is state
    assert ("SQLite" in check.remedy) == (state is WARN)


def test_the_file_system_of_this_machine(tmp_path):
    check = dict(storage.looks(tmp_path))["file system"]()
    kind = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True).stdout
    assert check.text.split()[0][:3] in (kind.strip()[:3], "ove")


def database(home: Path) -> Path:
    path = home / "mlflow.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE runs (id INTEGER PRIMARY KEY, text TEXT)")
        db.executemany("INSERT INTO runs (text) VALUES (?)", [("x" * 500,)] * 2000)
        db.execute("CREATE INDEX by_text ON runs (text)")
    db.close()
    return path


def test_a_store_is_looked_through_and_left_as_it_is(tmp_path):
    assert storage.store(tmp_path / "mlflow.db").text == "mlflow.db will be created"
    path = database(tmp_path)
    before = path.read_bytes(), path.stat().st_mtime_ns
    check = storage.store(path)
    assert check.state is OK
    assert check.text.startswith("mlflow.db is intact (")
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["mlflow.db", "with ? and % in it"])
def test_a_damaged_page_is_found(tmp_path, name):
    path = database(tmp_path).rename(tmp_path / name)
    with open(path, "r+b") as file:
        file.seek(40 * 4096)
        file.write(os.urandom(3 * 4096))
    check = storage.store(path)
    assert check.state is FAIL
    assert "is damaged" in check.text
    assert "\n" not in check.text
    assert "tracked" in check.remedy


def test_what_is_no_database_fails(tmp_path):
    (tmp_path / "mlflow.db").write_bytes(b"not a database, whatever it is called " * 100)
    assert storage.store(tmp_path / "mlflow.db").state is FAIL


def test_a_locked_store_is_not_called_damaged(tmp_path, monkeypatch):
    path = database(tmp_path)
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k, timeout=0.05))
    holder = connect(path, isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        check = storage.store(path)
    finally:
        holder.close()
    assert check.state is WARN
    assert "locked" in check.text


def test_what_a_killed_writer_leaves_is_not_touched(tmp_path):
    path = database(tmp_path)
    writer = sqlite3.connect(path, isolation_level=None)
    try:
        # With so small a cache what is being written is on the disk, beside the journal.
        writer.execute("PRAGMA cache_size = 2")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE runs SET text = 'y' || text")
        shutil.copytree(tmp_path, tmp_path / "left")
    finally:
        writer.close()
    before = {each.name: each.read_bytes() for each in (tmp_path / "left").iterdir()}
    assert before.keys() == {"mlflow.db", "mlflow.db-journal"}
    check = storage.store(tmp_path / "left" / "mlflow.db")
    assert check.state is OK
    assert "its writer was killed" in check.text
    assert {each.name: each.read_bytes() for each in (tmp_path / "left").iterdir()} == before


def test_a_large_store_is_looked_at_for_a_while_only(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "STORE_SECONDS", -1.0)
    check = storage.store(database(tmp_path))
    assert check.state is OK
    assert "no fault found in" in check.text


# -- packages -------------------------------------------------------------------------------------------

DEMANDS = ["torch>=2.9", "optuna<6,>=5", "mlflow<4,>=3.17", "nvidia-ml-py>=12", 'ray>=2.40; extra == "ray"']
HERE = {"torch": "2.13.0+cpu", "optuna": "5.0.0", "mlflow": "3.17.2", "nvidia-ml-py": "13.615.71"}


def found(**changes: str) -> list:
    versions = {**HERE, **{name.replace("_", "-"): version for name, version in changes.items()}}
    return list(software.packages(DEMANDS, lambda name: versions.get(name, "")))


def test_packages_as_demanded_are_one_line():
    (check,) = found()
    assert check.state is OK
    assert all(f"{name} {version}" in check.text for name, version in HERE.items())


@pytest.mark.parametrize("version", ["2.14.0.dev20261101+cu130", "2.9.0", "3.0"])
def test_nightly_builds_of_later_versions_will_do(version):
    assert {check.state for check in found(torch=version)} == {OK}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, []),
        ({"torch": f"{TESTED['torch'][-1]}+cu130"}, []),
        ({"torch": "2.14.0.dev20261101+cu130"}, []),
        ({"torch": "3.0", "mlflow": "3.99.1"}, ["torch", "mlflow"]),
        ({"optuna": "5.99.0"}, ["optuna"]),
    ],
)
def test_a_version_that_is_newer_than_those_tested_is_one_line(changes, names):
    _, *lines = found(**changes)
    assert [(line.name, line.state, line.remedy) for line in lines] == [(name, OK, "") for name in names]
    assert all(f"{changes[line.name]} is newer than {TESTED[line.name][-1]}" in line.text for line in lines)


def test_the_versions_that_are_tested_are_those_that_are_installed_for_the_tests():
    text = (REPOSITORY / "constraints.txt").read_text()
    pinned = dict(line.split("==") for line in text.splitlines() if "==" in line)
    assert all(pinned[name] in versions for name, versions in TESTED.items())
    (others,) = re.findall(r"torch: (\[.*\])", (REPOSITORY / ".github/workflows/check.yml").read_text())
    assert {pinned["torch"], *json.loads(others)} == {*TESTED["torch"]}
    # The oldest that may be installed is among them.
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    needed = project["optional-dependencies"]["whole"]
    assert TESTED["torch"][0].startswith(next(each for each in needed if "torch" in each).partition(">=")[2])


def test_the_core_alone_is_fine():
    demands = ["psutil>=6", "torch>=2.9; extra == 'whole'", "ray>=2; extra == 'ray'"]
    (check,) = software.packages(demands, {"psutil": "6.1"}.get)
    assert check.state is OK
    assert "`pip install sweeper-torch` brings the rest" in check.text
    (check,) = software.packages(demands, {"psutil": "6.1", "optuna": "5.0"}.get)
    assert (check.name, check.state) == ("torch", FAIL)


@pytest.mark.parametrize(
    ("changes", "name", "text"),
    [
        ({"torch": "2.8.1"}, "torch", "torch 2.8.1 is installed, but torch>=2.9 is needed"),
        ({"optuna": "4.6.0"}, "optuna", "optuna 4.6.0 is installed"),
        ({"optuna": "6.0"}, "optuna", "optuna 6.0 is installed"),
        ({"nvidia_ml_py": ""}, "nvidia-ml-py", "nvidia-ml-py is missing, but nvidia-ml-py>=12 is needed"),
    ],
)
def test_a_package_that_does_not_fit_fails(changes, name, text):
    (check,) = found(**changes)
    assert (check.name, check.state) == (name, FAIL)
    assert text in check.text
    assert f'`pip install "{name}' in check.remedy
    assert "CVE" not in check.text


def test_an_old_mlflow_has_known_holes():
    (check,) = found(mlflow="3.9.0")
    assert check.state is FAIL
    assert "CVE-2026-2614" in check.text


def test_each_wrong_package_is_named():
    assert [check.name for check in found(torch="2.0", mlflow="")] == ["torch", "mlflow"]


def test_python():
    assert software.python("3.11.2", ">=3.11").state is OK
    assert software.python("3.15.0rc1", ">=3.11").state is OK
    assert software.python("3.10.9", ">=3.11").state is FAIL


def names(monkeypatch, **versions: str) -> dict[str, State]:
    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    return {check.name: check.state for check in software.look()}


def test_the_packages_of_this_environment(monkeypatch):
    everything = {
        entry.partition(";")[0].split(">")[0].split("<")[0]: "9999" for entry in metadata.requires(CORE)
    }
    everything |= {name: versions[-1] for name, versions in TESTED.items()}
    assert names(monkeypatch, **everything) == {"python": OK, "packages": OK}
    assert names(monkeypatch, **everything, pynvml="12.0.0")["pynvml"] is WARN


def test_without_its_own_metadata_nothing_is_known(monkeypatch):
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    (check,) = software.look()
    assert check.state is WARN
    assert "pip install" in check.remedy


def test_the_supervisor_side_imports_neither_torch_nor_mlflow():
    code = (
        "import sys, sweeper.cli.doctor;"
        "print({'torch', 'mlflow', 'optuna', 'pynvml'} & set(sys.modules) or 'none')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "none\n", done.stderr


@pytest.mark.parametrize(
    ("isolated", "stolen", "says"),
    [
        ("", 0.2, "no core is kept free of other processes"),
        ("2-3,6", 0.0, "cores 2-3,6 are kept free of other processes"),
        ("", 7.4, "the host gave 7% of this machine's time to others"),
    ],
)
def test_cores_that_are_kept_free_are_named(isolated, stolen, says):
    found = host.quiet_cores(isolated, stolen)
    assert found.state is OK
    assert says in found.text
    assert ("gave" in found.text) == (stolen > 1)
