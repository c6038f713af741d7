"""What the device and the data leave of the space, and which device it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import stub_nvml
from replays import spec_of

from sweeper.core.codec import encode
from sweeper.core.measurement import DeviceInfo, Failure, FailureKind
from sweeper.core.units import GIB
from sweeper.errors import EnvironmentStopError, UserError
from sweeper.schema import SweepSpec
from sweeper.schema.sections import ExecutionOptions
from sweeper.sweep.phases.search import hints_of
from sweeper.sweep.start import setup
from sweeper.system import cpu_shares
from sweeper.system.cpu import cpu_name
from sweeper.telemetry.gpu_advice import gpu_lines

CPU = DeviceInfo(kind="cpu", name="a CPU")
GPUS = [DeviceInfo(kind="cuda", name="NVIDIA A10", uuid=f"GPU-{i}", memory_gib=24.0) for i in range(2)]


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch, tmp_path):
    """Of this machine, whatever it has."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(cpu_shares, "TOPOLOGY", tmp_path)
    monkeypatch.setattr(cpu_shares, "usable_cpus", lambda: 16)


@pytest.fixture(autouse=True)
def gpus_without_faults(monkeypatch):
    """But where a test gives GPUs to this machine."""
    monkeypatch.setattr(setup, "gpu_lines", lambda *_, **__: [])


def machine(spec: SweepSpec, *devices: DeviceInfo, usable: int = 4) -> setup.Machine:
    values = {"devices": encode(list(devices or [CPU])), "usable_cpus": usable, "lacks": {}}
    return setup.machine_of(values, spec)


def test_the_probe_tells_how_long_the_canary_takes_on_the_quiet_machine():
    values = {"devices": encode([CPU]), "usable_cpus": 4, "lacks": {}}
    assert setup.machine_of({**values, "canary_ms": 20.5}, spec_of()).canary_ms == 20.5
    # A folder from before it did.
    assert setup.machine_of(values, spec_of()).canary_ms == 0


def space(**parameters: Any) -> dict[str, Any]:
    return {"batch_size": {"type": "int", "low": 64, "high": 1024}, **parameters}


def test_a_source_cannot_be_resident():
    spec, lines = setup.restrict(spec_of(), machine(spec_of()), {"source": True})
    assert lines == [
        "loader.kind: resident removed from the space (the pipeline reads its samples from a Source)."
    ]
    assert "loader.kind" not in spec.space
    assert spec.config({name: p.first_value() for name, p in spec.space.items()}).loader.kind == "workers"


def test_where_nobody_says_how_a_source_is_streamed():
    asked = spec_of(space=space(), baseline={"batch_size": 64}, also_try=[])
    spec, lines = setup.restrict(asked, machine(asked), {"source": True})
    assert lines == [
        "loader.kind: stream, unless a trial says otherwise (the pipeline reads its samples from a Source)."
    ]
    assert spec.baseline_config().loader.kind == "stream"
    assert spec.config({"batch_size": 64}).loader.kind == "stream"


@pytest.mark.parametrize(("held", "leaves"), [(19.0, False), (20.0, True)])
def test_data_larger_than_the_device_cannot_be_resident(held: float, leaves: bool):
    spec, lines = setup.restrict(spec_of(), machine(spec_of(), *GPUS), {"bytes": int(held * GIB)})
    assert ("loader.kind" not in spec.space) == leaves
    why = "the data takes 20 GiB and the device has 24 GiB"
    expected = f"loader.kind: resident removed from the space ({why})."
    assert lines == ([expected] if leaves else [])


ROOMY = DeviceInfo(kind="cpu", name="a CPU", host_memory_gib=64.0)
LARGE = {"samples": 1e9, "data_gib": 60.0}


@pytest.mark.parametrize(("device", "room"), [(GPUS[0], 24), (ROOMY, 64)], ids=["gpu", "cpu"])
def test_productions_data_larger_than_the_device_cannot_be_resident(device: DeviceInfo, room: int):
    asked = spec_of(production=LARGE)
    spec, lines = setup.restrict(asked, machine(asked, device))
    why = f"the production data takes 60 GiB and the device has {room} GiB"
    assert lines == [f"loader.kind: resident removed from the space ({why})."]
    assert "loader.kind" not in spec.space
    smaller = spec_of(production={"samples": 1e9, "data_gib": 19.0})
    assert setup.restrict(smaller, machine(smaller, device))[1] == []
    # Where nobody knows its size, nothing is left out.
    assert setup.restrict(asked, machine(asked))[1] == []


def test_resident_trials_that_are_written_out_are_said_to_be_unable_to_win():
    why = "(the production data takes 60 GiB and the device has 24 GiB)"
    line = f"loader.kind: resident is measured where configured, but cannot win {why}."
    fixed = spec_of(space=space(), fix={"loader.kind": "resident"}, production=LARGE)
    assert setup.restrict(fixed, machine(fixed, GPUS[0]))[1] == [line]
    also = spec_of(also_try=[{"loader.kind": "resident"}], production=LARGE)
    assert setup.restrict(also, machine(also, GPUS[0]))[1][-1] == line


@pytest.mark.parametrize(
    "parameter",
    [{"type": "int", "low": 1, "high": 16}, {"type": "categorical", "choices": [1, 2, 8, 16]}],
    ids=["int", "categorical"],
)
@pytest.mark.parametrize("name", ["loader.num_workers", "device.cpu_threads"])
def test_workers_and_threads_are_searched_up_to_the_cores_there_are(name: str, parameter: dict):
    asked = spec_of(space=space(**{name: parameter}))
    spec, lines = setup.restrict(asked, machine(asked))
    assert lines == [f"{name}: at most 4 here (4 usable cores)."]
    assert not spec.space[name].contains(8)
    assert spec.space[name].contains(2)
    unchanged, nothing = setup.restrict(asked, machine(asked, usable=16))
    assert (unchanged.space[name], nothing) == (asked.space[name], [])


def gpus(wanted: Any) -> SweepSpec:
    return spec_of(execution={"gpus": wanted})


def test_the_devices_are_those_asked_for():
    assert [slot.device for slot in machine(gpus("all"), *GPUS).slots] == ["GPU-0", "GPU-1"]
    assert [slot.device for slot in machine(gpus([1]), *GPUS).slots] == ["GPU-1"]
    assert [slot.device for slot in machine(gpus("all")).slots] == ["cpu"]
    assert [slot.device for slot in machine(gpus(0)).slots] == ["cpu"]
    with pytest.raises(UserError, match="must name GPUs of this machine, but got 2; it has 2"):
        machine(gpus([2]), *GPUS)
    with pytest.raises(UserError, match="must name each GPU once, but 'GPU-0' is named before"):
        machine(gpus([0, "GPU-0"]), *GPUS)
    with pytest.raises(UserError, match=r"needs a GPU, but got \[0\] where none can be used"):
        machine(gpus([0]))


def test_the_trials_of_a_sweep_run_on_one_model_of_gpu():
    """A trial on the faster model would win, whatever it changes."""
    other = DeviceInfo(kind="cuda", name="NVIDIA T4", uuid="GPU-9", memory_gib=16.0)
    found = machine(gpus("all"), GPUS[0], other, GPUS[1])
    assert [slot.device for slot in found.slots] == ["GPU-0", "GPU-1"]
    assert found.line == "2 x NVIDIA A10, 24 GiB"
    assert setup.restrict(spec_of(), found)[1] == [
        "execution.gpus: not using NVIDIA T4, since the trials of a sweep need GPUs of one model (here"
        " NVIDIA A10)."
    ]
    assert [slot.device for slot in machine(gpus([1]), GPUS[0], other).slots] == ["GPU-9"]
    for picked in (2, [0, 1]):
        with pytest.raises(UserError, match=r"must name GPUs of one model, .* but got NVIDIA A10, NVIDIA T4"):
            machine(gpus(picked), GPUS[0], other)


def test_a_job_of_a_batch_system_has_the_gpus_that_a_trial_may_take():
    count = {"type": "categorical", "choices": [1, 2, 4]}
    execution = {"launcher": "slurm", "gpus": 8}
    asked = spec_of(space=space(**{"device.count": count}), execution=execution)
    found = setup.unseen_machine(asked)
    assert setup.restrict(asked, found) == (asked, [])
    assert len(found.slots) == 2


def slots(wanted: dict, *devices: DeviceInfo) -> list[str]:
    return [slot.device for slot in machine(spec_of(**wanted), *devices).slots]


def test_a_slot_has_as_many_gpus_as_a_trial_may_take():
    three = [*GPUS, DeviceInfo(kind="cuda", name="NVIDIA A10", uuid="GPU-2")]
    count = {"type": "int", "low": 1, "high": 2}
    asked = {"space": space(**{"device.count": count})}
    assert slots(asked, *three) == ["GPU-0,GPU-1"]
    assert slots(asked, *three, *GPUS) == ["GPU-0,GPU-1", "GPU-2,GPU-0"]
    assert slots({"fix": {"device.count": 3}}, *three) == ["GPU-0,GPU-1,GPU-2"]
    assert slots({"also_try": [{"device.count": 2}]}, *three) == ["GPU-0,GPU-1"]
    assert slots(asked, *three[:1]) == ["GPU-0"]
    assert slots({}, *three) == ["GPU-0", "GPU-1", "GPU-2"]


@pytest.mark.parametrize("devices", [[CPU], GPUS[:1]], ids=["cpu", "one gpu"])
def test_one_device_is_what_one_device_has(devices: list[DeviceInfo]):
    asked = spec_of(space=space(**{"device.count": {"type": "int", "low": 1, "high": 8}}))
    spec, lines = setup.restrict(asked, machine(asked, *devices))
    assert lines == [f"device.count: at most 1 here ({int(devices == GPUS[:1])} GPUs)."]
    assert spec.config({"batch_size": 64, "device.count": 1}).device.count == 1


def test_no_gpu_is_looked_at_where_none_is_wanted(monkeypatch):
    assert setup.probe_job(gpus(0)).device == "cpu"
    assert setup.probe_job(gpus("all")).device == "auto"
    monkeypatch.setattr(setup, "gpu_names", lambda: ["NVIDIA A10", "NVIDIA A100"])
    assert (
        setup.device_model(ExecutionOptions()) == setup.device_model(ExecutionOptions(gpus=2)) == "NVIDIA A10"
    )
    assert setup.device_model(ExecutionOptions(gpus=[1])) == "NVIDIA A100"
    monkeypatch.setattr(setup, "gpu_uuids", lambda: [gpu.uuid for gpu in GPUS])
    assert setup.device_model(ExecutionOptions(gpus=[GPUS[1].uuid])) == "NVIDIA A100"
    assert setup.device_model(ExecutionOptions(gpus=0)) == cpu_name()
    assert setup.device_model(ExecutionOptions(launcher="slurm", gpus=8)) == "slurm"


def test_each_slot_has_its_share_of_the_cores_and_a_single_one_is_not_bound(monkeypatch):
    assert [slot.cpus for slot in machine(gpus([0]), *GPUS).slots] == [()]
    assert machine(gpus([0]), *GPUS, usable=16).usable_cpus == 16
    two = machine(gpus("all"), *GPUS, usable=16)
    assert [slot.cpus for slot in two.slots] == [tuple(range(8)), tuple(range(8, 16))]
    assert (two.usable_cpus, hints_of(two).cores) == (8, 8)
    near = {"GPU-0": frozenset({8, 9, 10, 11}), "GPU-1": frozenset({4, 5, 6, 7})}
    monkeypatch.setattr(setup, "cores_near", lambda uuid: near[uuid])
    two = machine(gpus("all"), *GPUS, usable=16)
    assert [slot.cpus for slot in two.slots] == [(8, 9, 10, 11), (4, 5, 6, 7)]
    assert two.usable_cpus == 4
    both = machine(spec_of(fix={"device.count": 2}), *GPUS, *GPUS, usable=16)
    assert [slot.cpus for slot in both.slots] == [(4, 5, 6, 7), (8, 9, 10, 11)]
    near.update({"GPU-0": frozenset(), "GPU-1": frozenset(range(8))})
    both = machine(spec_of(fix={"device.count": 2}), *GPUS, *GPUS, usable=16)
    assert [slot.cpus for slot in both.slots] == [tuple(range(8)), tuple(range(8, 16))]
    asked = spec_of(space=space(**{"loader.num_workers": {"type": "int", "low": 0, "high": 16}}))
    assert setup.restrict(asked, two)[1] == ["loader.num_workers: at most 4 here (4 usable cores)."]


def test_a_machine_without_gpus_has_the_slots_asked_for():
    four = machine(spec_of(execution={"slots": 4}), usable=16)
    assert [slot.device for slot in four.slots] == ["cpu"] * 4
    assert [slot.cpus[0] for slot in four.slots] == [0, 4, 8, 12]
    assert (four.usable_cpus, four.line) == (4, "a CPU, in 4 slots of 4 cores each")
    assert machine(spec_of(execution={"slots": 16}), usable=16).line == "a CPU, in 16 slots of 1 core each"
    assert machine(spec_of()).line == "a CPU"
    assert len(machine(spec_of(execution={"slots": 2, "gpus": 0})).slots) == 2


def test_slots_that_there_are_not_are_refused():
    with pytest.raises(
        UserError, match=r"needs a usable core per slot, but got 17 slots and 16 cores. Ask for"
    ):
        machine(spec_of(execution={"slots": 17}), usable=16)
    with pytest.raises(UserError, match="is for machines without GPUs, but got 2 where each GPU is a slot"):
        machine(spec_of(execution={"slots": 2}), GPUS[0])
    with pytest.raises(UserError, match=r"execution\.slots"):
        spec_of(execution={"slots": 0})


def test_what_a_worker_lacks_is_told_as_such():
    failure = Failure(kind=FailureKind.USER_ERROR, message="No module named 'tables'")
    with pytest.raises(UserError, match=r"^No module named 'tables'\. It ran on a worker, which needs"):
        setup.report_of(failure, "preparing the data", elsewhere=True)
    with pytest.raises(UserError, match=r"^No module named 'tables'$"):
        setup.report_of(failure, "preparing the data")


# -- what GPUs are called ---------------------------------------------------------------------------------

PART = stub_nvml.Mig("MIG-cccc1111-0000-5000-8000-000000000003")
SPLIT = stub_nvml.Gpu("GPU-cccccccc-0000-4000-8000-000000000005", "NVIDIA A100-SXM4-40GB", migs=(PART,))
WHOLE = stub_nvml.Gpu()


@pytest.fixture
def play(monkeypatch, tmp_path):
    """Gives GPUs to this machine; returns where their scenario lies."""
    if stub_nvml.compiler() is None:
        pytest.skip("no C compiler for the stand-in for NVML")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(setup, "gpu_lines", gpu_lines)
    library = stub_nvml.build(tmp_path)

    def play(*gpus: stub_nvml.Gpu, cuda: int = 13000) -> Path:
        scenario = stub_nvml.write(tmp_path / "scenario", gpus, cuda=cuda)
        stub_nvml.loaded(monkeypatch, library, scenario)
        return scenario

    return play


@pytest.fixture
def driver(play):
    """A driver that knows a GPU, and another that is split; returns where its scenario lies."""
    return play(WHOLE, SPLIT)


def told_as_gpus(*units: stub_nvml.Gpu | stub_nvml.Mig) -> list[DeviceInfo]:
    """As the probe reports them: with the prefix of a GPU."""
    names = [f"GPU-{unit.uuid.partition('-')[2]}" for unit in units]
    return [DeviceInfo(kind="cuda", name="NVIDIA A100", uuid=name, memory_gib=5.0) for name in names]


def test_slots_have_the_names_that_nvml_gives_to_gpus_and_to_their_instances(driver):
    found = machine(spec_of(), *told_as_gpus(PART, WHOLE))
    assert [slot.device for slot in found.slots] == [PART.uuid, WHOLE.uuid]
    assert [each.uuid for each in found.devices] == [PART.uuid, WHOLE.uuid]
    picked = machine(spec_of(execution={"gpus": [PART.uuid]}), *told_as_gpus(WHOLE, PART))
    assert [slot.device for slot in picked.slots] == [PART.uuid]


def test_nvml_is_open_while_gpus_are_named_or_each_would_wake_the_driver_anew(driver):
    machine(spec_of(), *told_as_gpus(PART, WHOLE))
    opens, log = 0, []
    for call in stub_nvml.calls(driver):
        opens += (call == "nvmlInitWithFlags") - (call == "nvmlShutdown")
        log.append(opens)
    # Once for the names, once for the cores near them.
    assert log.count(0) == 2


def test_without_nvml_gpus_have_the_names_that_cuda_tells(monkeypatch):
    monkeypatch.setenv(stub_nvml.SCENARIO, "/none")
    assert [slot.device for slot in machine(spec_of(), *GPUS).slots] == ["GPU-0", "GPU-1"]


def test_where_the_whole_traceback_is_is_told(tmp_path):
    log = tmp_path / "prepare.log"
    user = Failure(kind=FailureKind.USER_ERROR, message="KeyError: 'price' (mine.py:8)")
    crash = Failure(kind=FailureKind.CRASH, message="exit status 1", detail="SystemExit: 1")
    for text, of_user, of_crash in (
        (None, "", " SystemExit: 1"),
        ("no more\n", "", " SystemExit: 1"),
        ("Traceback (most recent call last):\n ...\n" + "x\n" * 100, f"The full traceback is in {log}.", ""),
    ):
        if text is not None:
            log.write_text(text)
        with pytest.raises(UserError) as told:
            setup.report_of(user, "preparing the data", log=log)
        assert str(told.value) == "KeyError: 'price' (mine.py:8)" + (of_user and f". {of_user}")
        with pytest.raises(EnvironmentStopError) as told:
            setup.report_of(crash, "preparing the data", log=log)
        assert str(told.value) == "preparing the data failed (crash): exit status 1." + (
            f" {of_user}" if of_user else of_crash
        )


# -- what is wrong with them ------------------------------------------------------------------------------

BUILD = {"versions": {"torch": "2.13.0+cpu"}, "usable_cpus": 4, "lacks": {}}
CUDA_BUILD = {**BUILD, "versions": {"torch": "2.14.1+cu130", "cuda": "13.0"}}


def test_the_cpu_of_a_machine_with_a_gpu_is_not_used_in_silence(play):
    play(WHOLE)
    values = {**BUILD, "devices": encode([CPU])}
    _, (line, *_) = setup.restrict(spec_of(), setup.machine_of(values, spec_of()))
    assert line.startswith(
        "This training can use the CPU only, not the GPU (NVIDIA A10): torch must be built"
    )
    # It was asked for.
    assert setup.machine_of(values, gpus(0)).notes == ()
    with pytest.raises(UserError) as caught:
        setup.machine_of(values, gpus([0]))
    assert str(caught.value) == (
        "`execution.gpus` needs a GPU, but got [0] where none can be used: torch must be built for CUDA, but "
        "2.13.0+cpu is not. `pip uninstall -y torch`, then `pip install torch` from PyTorch's wheel index "
        "`cu130`; `--device cpu` runs on the CPU."
    )


def test_a_gpu_that_is_full_or_taken_is_said_before_the_first_trial(play):
    full = stub_nvml.Gpu(processes=[(4100001, 22828)]).but(mem_used_mib=[22828])
    other = stub_nvml.Gpu("GPU-22222222-aaaa-4bbb-8ccc-000000000002")
    play(full, other)
    devices = [DeviceInfo(kind="cuda", name="NVIDIA A10", uuid=gpu.uuid) for gpu in (full, other)]
    values = {**CUDA_BUILD, "devices": encode(devices)}
    (note,) = setup.machine_of(values, spec_of()).notes
    assert note.startswith("GPU 0 (NVIDIA A10) must have 1 GiB free, but has 0.2 of 22.5 GiB")
    # Another one is used.
    assert setup.machine_of(values, gpus([1])).notes == ()


TOO_OLD = "RuntimeError: The NVIDIA driver on your system is too old (found version 12040)."
BUSY = "AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"


@pytest.mark.parametrize(
    ("message", "kind", "remedy"),
    [
        (TOO_OLD, FailureKind.CRASH, "Update the NVIDIA driver, or `pip uninstall -y torch`, then "),
        (BUSY, FailureKind.DEVICE_BUSY, "Another process holds the GPU (see `nvidia-smi`): end it, or "),
    ],
)
def test_a_gpu_that_torch_sees_and_cannot_use_is_one_line(play, message, kind, remedy):
    play(WHOLE, cuda=12040)
    failure = Failure(kind=kind, message=message, stage="probe", detail=f"{message} Please update it.")
    with pytest.raises(EnvironmentStopError) as caught:
        setup.probe_report(failure)
    said = str(caught.value)
    assert said.startswith(
        f"torch must be able to use the GPU that it sees, but {message.rstrip('.')}. {remedy}"
    )
    assert said.endswith("; `--device cpu` runs on the CPU.")
    assert "Please" not in said
    with pytest.raises(EnvironmentStopError, match="probing the device failed"):
        setup.probe_report(failure, elsewhere=True)
