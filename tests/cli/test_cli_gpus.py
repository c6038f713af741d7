"""What the commands say of a machine's GPUs before a training begins: once, and in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import stub_nvml

from sweeper.cli import judge
from sweeper.core.measurement import FailureKind
from sweeper.core.progress import TrialFailedError
from sweeper.errors import UserError
from sweeper.judging.arms import commands
from sweeper.sweep.observer import SweepObserver
from sweeper.telemetry import gpu_advice
from sweeper.telemetry.gpu_advice import Build
from sweeper.tuning import tune, watch

UUID = stub_nvml.Gpu().uuid
CPU_ONLY = "This training can use the CPU only, not the GPU (NVIDIA A10): torch must be built for CUDA, but "


@pytest.fixture
def scenario(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An A10 whose driver sleeps when nobody uses it, beside a torch without CUDA."""
    if stub_nvml.compiler() is None:
        pytest.skip("no C compiler for the stand-in for NVML")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpu_advice, "build_of", lambda command: Build("2.13.0+cpu"))
    (tmp_path / "train.py").write_text("")
    scenario = stub_nvml.write(tmp_path / "scenario", [stub_nvml.Gpu().but(persistence=[0])], cuda=13000)
    stub_nvml.loaded(monkeypatch, stub_nvml.build(tmp_path), scenario)
    return scenario


def is_awake(scenario: Path) -> bool:
    """Whether NVML is open, and has opened the GPU since."""
    calls = stub_nvml.calls(scenario)
    opens = [(call == "nvmlInitWithFlags") - (call == "nvmlShutdown") for call in calls]
    last = len(calls) - calls[::-1].index("nvmlInitWithFlags")
    return sum(opens) == 1 and f"nvmlDeviceGetHandleByUUID {UUID}" in calls[last:]


@pytest.mark.parametrize("command", [["watch"], ["watch", "--json"], ["tune"], ["judge", "--ref", "main"]])
def test_a_command_says_before_it_begins_what_keeps_the_script_from_the_gpu(
    in_process, scenario, monkeypatch, tmp_path, command
):
    states: list[bool] = []

    def begin(*_: object, **__: object) -> None:
        states.append(is_awake(scenario))
        raise TrialFailedError(FailureKind.NO_RESULT, "it begins here")

    monkeypatch.setattr(watch, "watch_script", begin)
    monkeypatch.setattr(tune, "run_sweep", begin)
    monkeypatch.setattr(judge, "judge_change", begin)
    python = [sys.executable, "train.py"]
    arms = commands(python, python, tmp_path)
    monkeypatch.setattr(judge, "_arms", lambda *_: _Entered(arms))
    done = in_process(*command, "--", *python)
    assert done.returncode == 1
    said = done.stderr if "--json" in command else done.stdout
    assert said.count("This training") == 1
    assert CPU_ONLY in said
    assert said.index("This training") < said.index("it begins here")
    # Kept awake, so that no process of the script waits for the driver.
    assert states == [True]
    assert stub_nvml.calls(scenario)[-1] == "nvmlShutdown"


class _Entered:
    def __init__(self, value: object) -> None:
        self._value = value

    def __enter__(self) -> object:
        return self._value

    def __exit__(self, *_: object) -> None:
        pass


def test_the_sweep_of_a_tune_does_not_say_it_again(in_process, scenario, monkeypatch):
    def run_sweep(home: object, spec: object, tracker: object, observer: SweepObserver, **_: object) -> None:
        (line,) = gpu_advice.gpu_lines(Build("2.13.0+cpu"))
        observer.line(line)
        observer.line("Running on a CPU.")
        raise UserError("it ends here")

    monkeypatch.setattr(tune, "run_sweep", run_sweep)
    done = in_process("tune", "--", sys.executable, "train.py")
    assert (done.returncode, done.stderr) == (2, "sweeper: it ends here\n")
    assert done.stdout.count(CPU_ONLY) == 1
    assert done.stdout.endswith("Running on a CPU.\n")


def test_without_a_gpu_they_say_nothing(in_process, monkeypatch, tmp_path):
    (tmp_path / "train.py").write_text("")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def begin(*_: object, **__: object) -> None:
        raise TrialFailedError(FailureKind.NO_RESULT, "it begins here")

    monkeypatch.setattr(watch, "watch_script", begin)
    done = in_process("watch", "--", sys.executable, "train.py")
    assert "GPU" not in done.stdout + done.stderr
