"""Prepared data, finding a pipeline, the probe, and what the server imports beforehand."""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from sweeper.core.job import Job
from sweeper.core.progress import SilentProgress
from sweeper.errors import UserError
from sweeper.system.files import drop_from_page_cache
from sweeper.trainer import prepare, probe, support
from sweeper.trainer.pipeline import Prepared, Source, load_module

MINE = """
import numpy as np
from sweeper.trainer.pipeline import Prepared

def prepare(data):
    with open(data["calls"], "a") as file:
        file.write("called\\n")
    return {returned}

def build(config, prepared):
    raise NotImplementedError
"""


def write_pipeline(folder: Path, name: str, returned: str, source: str = MINE) -> Job:
    (folder / f"{name}.py").write_text(source.replace("{returned}", returned))
    data = {"calls": str(folder / "calls")}
    target = str(folder / "cache" / name)
    return Job(uid="p", pipeline=name, import_paths=(str(folder),), data=data, prepared=target)


@pytest.fixture(autouse=True)
def own_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_arrays_and_meta_come_back_and_nothing_is_made_twice(tmp_path: Path):
    returned = (
        "Prepared(arrays={'a': np.arange(6).reshape(2, 3).T, 'none': np.zeros((0, 4)), 'one': np.float32(2)},"
        "meta={'n': [1, None]}, synthetic=True, notes=('made up',))"
    )
    job = write_pipeline(tmp_path, "mine_a", returned)
    report = prepare.run(job, SilentProgress())
    assert (report.values["synthetic"], report.values["notes"]) == (True, ["made up"])
    assert report.values["bytes"] > 0
    again = prepare.run(job, SilentProgress())
    assert again.values["notes"] == ["made up"]
    assert (tmp_path / "calls").read_text() == "called\n"
    loaded = prepare.load(job)
    assert np.array_equal(loaded.arrays["a"], np.arange(6).reshape(2, 3).T)
    assert loaded.arrays["a"].flags.c_contiguous
    assert loaded.arrays["none"].shape == (0, 4)
    assert loaded.arrays["one"].shape == ()
    assert loaded.meta == {"n": [1, None]}
    assert [entry.name for entry in Path(job.prepared).parent.iterdir()] == ["mine_a"]


def test_a_write_is_seen_by_nobody_else(tmp_path: Path):
    job = write_pipeline(tmp_path, "mine_b", "Prepared(arrays={'a': np.zeros(5)})")
    prepare.run(job, SilentProgress())
    first, second = prepare.load(job), prepare.load(job)
    first.arrays["a"][:] = 7
    assert first.arrays["a"].sum() == 35
    assert second.arrays["a"].sum() == 0
    assert prepare.load(job).arrays["a"].sum() == 0


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("{'a': 1}", "mine_c.prepare must return a Prepared or a Source, but got dict."),
        ("Prepared(arrays={}, meta={'n': np.int64(1)})", "Object of type int64 is not JSON serializable"),
        ("Prepared(arrays={}, meta={'n': float('nan')})", "mine_c.prepare must return plain arrays and JSON"),
        ("Prepared(arrays={'a': np.array([{}])})", "Object arrays cannot be saved"),
    ],
)
def test_what_cannot_be_kept_is_said_and_leaves_nothing(tmp_path: Path, returned: str, message: str):
    job = write_pipeline(tmp_path, "mine_c", returned)
    sys.modules.pop("mine_c", None)
    with pytest.raises(UserError) as caught:
        prepare.run(job, SilentProgress())
    assert message in str(caught.value)
    assert not Path(job.prepared).exists()
    assert list(Path(job.prepared).parent.glob(".*")) == []


def test_the_second_of_two_takes_what_the_first_made(tmp_path: Path):
    job = write_pipeline(tmp_path, "mine_d", "Prepared(arrays={'a': np.zeros(5)})")
    prepare.run(job, SilentProgress())
    other = prepare.Prepared(arrays={"a": np.ones(5)})
    prepare._store(Path(job.prepared), other, from_source=False)
    assert prepare.load(job).arrays["a"].sum() == 0
    assert list(Path(job.prepared).parent.glob(".*")) == []


def test_a_module_that_is_not_there_or_is_no_pipeline(tmp_path: Path):
    job = Job(uid="p", pipeline="nowhere.at_all", import_paths=(str(tmp_path),))
    with pytest.raises(UserError, match=r"got 'nowhere.at_all', which is not in .*" + tmp_path.name):
        load_module(job)
    half = write_pipeline(tmp_path, "mine_half", "", "def prepare(data): ...\n")
    with pytest.raises(UserError, match="mine_half must define `build`"):
        load_module(half)
    none = write_pipeline(tmp_path, "mine_none", "", "\n")
    with pytest.raises(UserError, match="mine_none must define `prepare` and `build`"):
        load_module(none)
    # What the module itself lacks is not blamed on its name.
    lacking = write_pipeline(tmp_path, "mine_lacking", "", "import not_installed_anywhere\n")
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        load_module(lacking)


def test_the_first_import_path_wins(tmp_path: Path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_pipeline(tmp_path / name, "mine_both", "", f"prepare = build = '{name}'\n")
    paths = (str(tmp_path / "one"), str(tmp_path / "two"))
    assert load_module(Job(uid="p", pipeline="mine_both", import_paths=paths)).prepare == "one"


def test_probe_tells_what_a_cpu_cannot_do(monkeypatch):
    job = Job(uid="p", device="cpu")
    canaries = itertools.cycle([25.0, 21.5, 30.0])
    monkeypatch.setattr(probe, "canary_ms", lambda: next(canaries))
    values = probe.run(job, SilentProgress()).values
    # Of the machine at its quietest.
    assert values["canary_ms"] == 21.5
    assert [device["kind"] for device in values["devices"]] == ["cpu"]
    assert values["usable_cpus"] == len(os.sched_getaffinity(0)) or values["usable_cpus"] >= 1
    assert "precision.tf32=True" in values["lacks"]
    assert "loader.pin_memory=True" in values["lacks"]
    assert "precision.amp=fp32" not in values["lacks"]
    monkeypatch.setenv("PATH", "")
    assert (
        probe.run(job, SilentProgress()).values["lacks"]["compile.mode=default"] == "no C compiler was found"
    )


@pytest.mark.parametrize(("capability", "num"), [("7.0", 3), ("8.0", 1), ("8.6", 1), ("9.0", 0)])
def test_what_older_gpus_lack(capability: str, num: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert len(support._lacks_cuda(capability)) == num


PRELOAD = """
import os, sys
from sweeper.trainer.preload import preload
preload()
import torch
from torch.utils._python_dispatch import TorchDispatchMode
assert "torch._dynamo" in sys.modules
assert not torch.cuda.is_initialized()
assert not {"optuna", "mlflow", "pandas", "pydantic"} & set(sys.modules), "too much"
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.slow
def test_preload_starts_no_thread():
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PRELOAD], env=env, capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("1", 0), done.stderr


def test_a_job_keeps_to_the_pipelines_data_section(tmp_path: Path):
    job = write_pipeline(tmp_path, "mine_e", "Prepared(arrays={}, meta=dict(data))")
    job = dataclasses.replace(job, data={**job.data, "source": "synthetic"})
    prepare.run(job, SilentProgress())
    assert prepare.load(job).meta == dict(job.data)


# -- sources --------------------------------------------------------------------------------------------

FROM_SOURCE = """
import torch

class Numbers:
    def __init__(self, calls):
        with open(calls, "a") as file:
            file.write("opened\\n")

    def __len__(self):
        return 7

    def read(self, index):
        return {"n": index * 2}

def prepare(data):
    return Numbers(data["calls"])

def build(config, prepared):
    raise NotImplementedError
"""


def test_a_source_is_opened_again_by_every_trial(tmp_path: Path):
    job = write_pipeline(tmp_path, "mine_source", "", FROM_SOURCE)
    values = prepare.run(job, SilentProgress()).values
    assert (values["source"], values["bytes"], values["synthetic"], values["notes"]) == (True, 0, False, [])
    assert (tmp_path / "calls").read_text() == "opened\n"
    # What is kept is that there is one; preparing it again opens nothing.
    assert prepare.run(job, SilentProgress()).values["source"] is True
    assert (tmp_path / "calls").read_text() == "opened\n"
    for _ in range(2):
        source = prepare.load(job)
        assert isinstance(source, Source)
        assert source.read(torch.tensor([3, 1]))["n"].tolist() == [6, 2]
    assert (tmp_path / "calls").read_text() == "opened\n" * 3


def test_arrays_are_told_apart_from_a_source(tmp_path: Path):
    job = write_pipeline(tmp_path, "mine_arrays", "Prepared(arrays={'a': np.zeros(5)})")
    assert prepare.run(job, SilentProgress()).values["source"] is False
    assert isinstance(prepare.load(job), Prepared)


# -- no timed step waits for a disk ---------------------------------------------------------------------

NUM_PAGES = 4096


def mapped_kib(array: np.memmap) -> int:
    """How much of the array's file this process has in its page table."""
    mappings = Path("/proc/self/smaps").read_text().split(str(array.filename))[1:]
    return sum(int(mapping.partition("Rss:")[2].split()[0]) for mapping in mappings)


def test_arrays_are_faulted_in_where_they_fit(tmp_path: Path, monkeypatch):
    returned = f"Prepared(arrays={{'a': np.ones({NUM_PAGES} * 4096, np.uint8), 'none': np.zeros((0, 4))}})"
    job = write_pipeline(tmp_path, "mine_large", returned)
    prepare.run(job, SilentProgress())
    size = NUM_PAGES * 4096
    assert mapped_kib(prepare.load(job).arrays["a"]) >= size / 1024
    free = psutil.virtual_memory()._replace(available=2 * size)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    assert mapped_kib(prepare.load(job).arrays["a"]) >= size / 1024
    free = free._replace(available=2 * size - 2)
    array = prepare.load(job).arrays["a"]
    assert mapped_kib(array) < size / 1024 / 4
    assert array[::4096].sum() == NUM_PAGES
    assert mapped_kib(array) >= size / 1024
    seen = []
    monkeypatch.setattr(prepare, "_fault_in", seen.append)
    prepare.load(job)
    assert seen == []
    free = free._replace(available=2 * size)
    prepare.load(job)
    assert [array.nbytes for array in seen] == [size, 0]


def test_a_kernel_without_the_advice_is_no_matter(tmp_path: Path, monkeypatch):
    job = write_pipeline(tmp_path, "mine_old_kernel", "Prepared(arrays={'a': np.ones(5), 'b': np.ones(3)})")
    prepare.run(job, SilentProgress())
    monkeypatch.setattr(prepare, "_MADV_POPULATE_READ", 12345)
    loaded = prepare.load(job)
    assert loaded.arrays["a"].sum() + loaded.arrays["b"].sum() == 8


# -- a cold cache ---------------------------------------------------------------------------------------

SIZE = 16 * 2**20


def cold_job(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A cold job whose data is prepared, from the file `rows`; copies of remote data are in `copies`."""
    monkeypatch.setenv("SWEEPER_DATA_CACHE", str(folder / "copies"))
    job = write_pipeline(folder, name, f"Prepared(arrays={{'a': np.ones({SIZE}, np.uint8)}})")
    (folder / "rows").write_bytes(b"1" * SIZE)
    job = dataclasses.replace(job, data={**job.data, "path": str(folder / "rows")}, cold_cache=True)
    prepare.run(job, SilentProgress())
    return job


def test_a_cold_trial_drops_all_its_data_and_faults_in_none(tmp_path: Path, monkeypatch):
    job = cold_job(tmp_path, "mine_cold", monkeypatch)
    dropped: list[Path] = []
    faulted: list[np.memmap] = []
    monkeypatch.setattr(prepare, "drop_from_page_cache", dropped.append)
    monkeypatch.setattr(prepare, "_fault_in", faulted.append)
    prepare.load(job)
    assert dropped == [Path(job.prepared), tmp_path / "copies", tmp_path / "rows"]
    assert faulted == []
    dropped.clear()
    prepare.load(dataclasses.replace(job, cold_cache=False))
    assert (dropped, len(faulted)) == ([], 1)


def in_memory(path: Path) -> int:
    """How many bytes of a file the kernel has in memory."""
    found = subprocess.run(["fincore", "-b", "-n", "-o", "RES", path], capture_output=True, text=True)
    return int(found.stdout)


@pytest.mark.skipif(shutil.which("fincore") is None, reason="needs fincore")
def test_a_cold_trials_data_is_not_in_memory(monkeypatch):
    # The tests' own folders are in memory.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        job = cold_job(folder, "mine_colder", monkeypatch)
        array, rows = Path(job.prepared) / "a.npy", folder / "rows"
        (folder / "other").write_bytes(b"1" * SIZE)
        os.sync()
        drop_from_page_cache(folder / "other")
        if in_memory(folder / "other"):
            pytest.skip("this file system is memory")
        assert min(in_memory(array), in_memory(rows)) >= SIZE
        loaded = prepare.load(job)
        assert in_memory(rows) == 0
        # The kernel reads ahead from the array's header.
        assert in_memory(array) < SIZE / 4
        assert loaded.arrays["a"].sum() == SIZE
