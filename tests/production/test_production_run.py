"""What a run says before it begins, of the GPUs, and what a failed one says about going on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import stub_nvml
from productions import block, commit, write

from sweeper.core.codec import encode
from sweeper.core.job import PROBE_RUNNER, Job
from sweeper.core.measurement import DeviceInfo, Failure, FailureKind, Report
from sweeper.errors import EnvironmentStopError, UserError
from sweeper.production import run
from sweeper.production.folder import RunFolder
from sweeper.production.request import RunRequest
from sweeper.production.run import _error_of

CRASH = Failure(kind=FailureKind.CRASH, message="it was killed")


@pytest.mark.parametrize(
    ("new", "same"), [(False, "the same command"), (True, "the same command without --new")]
)
def test_with_new_the_same_command_would_start_another_run(new: bool, same: str, folder: RunFolder):
    assert "same command" not in str(_error_of(CRASH, folder, new=new))
    write(folder, block(1, 1.0))
    commit(folder)
    assert str(_error_of(CRASH, folder, new=new)).endswith(f"; {same} resumes from the latest checkpoint.")


CPU = {"devices": encode([DeviceInfo(kind="cpu", name="a CPU")]), "canary_ms": 20.0}
TOO_OLD = "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)."


class Runner:
    """Ends each job at once: the probe with `probed`, the preparation with a report."""

    probed: Report | Failure

    def __init__(self, *_: Any) -> None:
        self.running: dict[int, Job] = {}

    def start(self, number: int, folder: Path, job: Job) -> None:
        self.running[number] = job

    def wait(self) -> list[tuple[int, Job, Report | Failure]]:
        ended = [
            (number, job, self.probed if job.runner == PROBE_RUNNER else Report(values={"notes": ()}))
            for number, job in self.running.items()
        ]
        self.running.clear()
        return ended


@pytest.fixture
def prepare(
    ask: Callable[..., RunRequest], folder: RunFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., list[str]]:
    """Prepares a run on a machine with an A10; returns what the user hears."""
    if stub_nvml.compiler() is None:
        pytest.skip("no C compiler for the stand-in for NVML")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(run, "JobRunner", Runner)
    scenario = stub_nvml.write(tmp_path / "scenario", [stub_nvml.Gpu()], cuda=13000)
    stub_nvml.loaded(monkeypatch, stub_nvml.build(tmp_path), scenario)

    def prepare(probed: Report | Failure, device: str = "auto") -> list[str]:
        said: list[str] = []
        monkeypatch.setattr(Runner, "probed", probed, raising=False)
        watcher: Any = SimpleNamespace(line=said.append)
        launcher: Any = None
        run._prepare_job(folder.path.parent, folder, ask(), launcher, device, watcher)
        return said

    return prepare


def test_training_on_the_cpu_of_a_machine_with_a_gpu_is_said_first(prepare: Callable[..., list[str]]):
    report = Report(values={**CPU, "versions": {"torch": "2.13.0+cpu"}})
    why, begins = prepare(report)
    assert why.startswith("This training can use the CPU only, not the GPU (NVIDIA A10): torch must be built")
    assert begins == "Training on a CPU."
    # It was asked for.
    assert prepare(report, "cpu") == [begins]
    with pytest.raises(
        UserError, match=r"`--device` needs a GPU, but got 'cuda:0': torch must be built for CUDA"
    ):
        prepare(report, "cuda:0")


def test_a_gpu_that_torch_cannot_start_ends_it_in_one_line(prepare: Callable[..., list[str]]):
    with pytest.raises(EnvironmentStopError) as caught:
        prepare(Failure(kind=FailureKind.CRASH, message=TOO_OLD, stage="probe"))
    assert str(caught.value).startswith(
        f"torch must be able to use the GPU that it sees, but {TOO_OLD} Update the NVIDIA driver, or "
    )
