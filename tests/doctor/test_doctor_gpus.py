"""The checks of GPUs, and of torch's build against them, from made-up facts."""

from __future__ import annotations

import dataclasses

import pytest

from sweeper.doctor import State, gpus
from sweeper.telemetry.nvml.devices import HANGS, GpuFacts

OK, WARN, FAIL = State.OK, State.WARN, State.FAIL

A10 = GpuFacts(
    index=0,
    name="NVIDIA A10",
    uuid="GPU-1",
    memory_gib=22.49,
    driver="580.65.06",
    cuda_driver_version="13.0",
    compute_mode="default",
)
TORCH = {
    "version": "2.13.0",
    "cuda": "13.0",
    "problem": "",
    "arch_list": ["sm_75", "sm_80", "sm_86", "sm_90"],
}
CPU_TORCH = {"version": "2.13.0+cpu", "cuda": "", "problem": "", "arch_list": []}


def changed(**changes) -> GpuFacts:
    return dataclasses.replace(A10, **changes)


# -- as the driver tells them ---------------------------------------------------------------------------


def test_no_gpu_is_all_right():
    (check,) = gpus.look("libnvidia-ml.so.1 was not found", [], is_present=False)
    assert (check.state, check.text) == (OK, "no GPU: trials run on the CPU")


def test_a_gpu_without_its_driver_is_not_passed_over():
    (check,) = gpus.look("libnvidia-ml.so.1 was not found: `--gpus all`", [], is_present=True)
    assert check.state is WARN
    assert check.remedy == "libnvidia-ml.so.1 was not found: `--gpus all`"


def test_cuda_that_works_without_nvml_is_not_said_to_train_on_the_cpu():
    (check,) = gpus.look("libnvidia-ml.so.1 was not found", [], is_present=True, num_seen=1)
    assert (check.state, check.remedy) == (WARN, "libnvidia-ml.so.1 was not found")
    assert (
        check.text == "CUDA works, but NVML does not: neither a GPU's load nor its other users are recorded"
    )
    # Even if the container hides the GPU's place on the bus.
    (hidden,) = gpus.look("no library", [], is_present=False, num_seen=1)
    assert hidden.state is WARN


def test_a_driver_that_lists_no_gpu_of_those_that_are_there():
    (check,) = gpus.look("", [], is_present=True, num_seen=0)
    assert check.state is WARN
    assert "its driver lists none: trials would run on the CPU" in check.text


def test_a_driver_that_hangs_fails_whatever_else_is_known():
    for is_present in (True, False):
        (check,) = gpus.look(HANGS, [], is_present=is_present)
        assert (check.state, check.text) == (FAIL, "the NVIDIA driver hangs, so the GPUs were not queried")
        assert "reboot" in check.remedy


@pytest.mark.parametrize(("free", "warns"), [(0.2, True), (0.99, True), (1.0, False), (None, False)])
def test_a_gpu_whose_memory_is_taken(free, warns):
    (check,) = gpus.look("", [changed(free_gib=free)], is_present=True)
    assert check.state is (WARN if warns else OK)
    assert ("only 0.2 of 22.5 GiB free" in check.text) == (free == 0.2)
    assert ("End what holds its memory" in check.remedy) == warns
    # Those that hold it are named, and the remedy is one.
    (taken,) = gpus.look("", [changed(free_gib=free, foreign=(4711,))], is_present=True)
    assert taken.remedy.count("End") == 1
    # An instance has memory of its own.
    (split,) = gpus.look("", [changed(free_gib=free, mig=True)], is_present=True)
    assert split.state is OK


def test_each_gpu_is_a_line():
    first, second = gpus.look("", [A10, changed(index=1, mig=True)], is_present=True)
    assert (first.name, first.state) == ("gpu 0", OK)
    assert first.text == "NVIDIA A10, 22.5 GiB, driver 580.65.06 (CUDA 13.0)"
    assert second.name == "gpu 1"
    assert "MIG" in second.text


def test_what_a_driver_does_not_tell():
    (check,) = gpus.look("", [GpuFacts(index=3)], is_present=True)
    assert check.state is OK
    assert "unknown" in check.text
    assert "0 GiB" not in check.text


def test_other_processes_on_a_gpu_are_named():
    (check,) = gpus.look("", [changed(foreign=(4711, 4712))], is_present=True)
    assert check.state is WARN
    assert check.text.endswith("other processes use it: 4711, 4712")
    assert "--device" in check.remedy


@pytest.mark.parametrize(
    ("mode", "foreign", "state", "remedy"),
    [
        ("exclusive process", (), OK, ""),
        ("exclusive process", (4711,), WARN, "nvidia-smi -i 2 -c 0"),
        ("exclusive thread", (4711,), WARN, "nvidia-smi -i 2 -c 0"),
        ("default", (4711,), WARN, "another GPU"),
        ("prohibited", (), WARN, "nvidia-smi -i 2 -c 0"),
    ],
)
def test_compute_modes(mode, foreign, state, remedy):
    (check,) = gpus.look("", [changed(index=2, compute_mode=mode, foreign=foreign)], is_present=True)
    assert check.state is state
    assert remedy in check.remedy
    assert (mode in check.text) == (mode != "default")


def test_persistence_mode_that_is_off_is_a_warning_with_its_remedy():
    off, on, unknown = gpus.look(
        "",
        [changed(index=3, persistence=False), changed(persistence=True), changed(persistence=None)],
        is_present=True,
    )
    assert (off.state, on.state, unknown.state) == (WARN, OK, OK)
    assert off.text.endswith(", persistence mode off")
    assert "`sudo nvidia-smi -i 3 -pm 1`" in off.remedy
    assert "nvidia-persistenced" in off.remedy
    # It hides nothing else.
    (both,) = gpus.look("", [changed(persistence=False, foreign=(4711,))], is_present=True)
    assert "4711" in both.text
    assert both.remedy.startswith("End them")
    assert "-pm 1" in both.remedy


# -- torch's list of architectures ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("archs", "capability", "runs"),
    [
        ("sm_70 sm_80 sm_90", (7, 0), True),
        ("sm_75 sm_80 sm_90", (7, 0), False),
        ("sm_80", (8, 6), True),
        ("sm_86", (8, 0), False),
        ("sm_80 sm_86", (9, 0), False),
        ("sm_80 compute_80", (9, 0), True),
        ("compute_90", (8, 6), False),
        ("sm_90a", (9, 0), True),
        ("sm_100a", (10, 3), False),
        ("sm_100f", (10, 3), True),
        ("compute_90a", (10, 0), False),
        ("sm_100 sm_120", (12, 0), True),
        ("sm_100", (12, 0), False),
        ("sm_90 compute_120", (12, 1), True),
        ("sm_80", (8, 7), False),
        ("sm_87", (8, 9), False),
        ("sm_87", (8, 7), True),
        ("", (7, 0), True),
        ("gfx90a", (7, 0), False),
    ],
)
def test_which_devices_a_build_has_code_for(archs, capability, runs):
    assert gpus.covers(archs.split(), capability) is runs


def test_machine_code_runs_where_torch_itself_says_so():
    cuda = pytest.importorskip("torch.cuda")
    table = getattr(cuda, "DEVICE_REQUIREMENT", None)
    if table is None:
        pytest.skip("this version of torch has no such table")
    compared = 0
    # 11.0 is the later name of 10.1: both are integrated.
    codes = [code for code in table if code not in (101, 110)]
    for code in codes:
        for device in codes:
            found = gpus.covers([f"sm_{code}"], divmod(device, 10))
            assert found is (device in table[code]), (code, device)
            compared += 1
    assert compared > 200


def test_a_gpu_that_torch_has_no_code_for():
    device = {"name": "Tesla V100", "capability": "7.0", "problem": "AcceleratorError: no kernel image"}
    check = gpus.torch_device(1, device, TORCH, "12.8")
    assert (check.name, check.state) == ("cuda:1", FAIL)
    assert "2.13.0 has no code for it (only for sm_75, sm_80, sm_86, sm_90)" in check.text
    assert "cu126" in check.remedy


def test_a_gpu_that_does_not_compute():
    device = {"name": "NVIDIA A10", "capability": "8.6", "problem": "AcceleratorError: uncorrectable ECC"}
    check = gpus.torch_device(0, device, TORCH, "13.0")
    assert check.state is FAIL
    assert "uncorrectable ECC" in check.text
    assert "xid" in check.remedy
    assert gpus.torch_device(0, {**device, "problem": ""}, TORCH, "13.0").state is OK


# -- torch's build --------------------------------------------------------------------------------------


def test_a_cpu_build_is_all_right_without_a_gpu():
    check = gpus.torch_build(CPU_TORCH, [], 0, None)
    assert (check.state, check.text) == (OK, "2.13.0+cpu, built without CUDA")
    no_driver = {**TORCH, "problem": "RuntimeError: Found no NVIDIA driver on your system"}
    assert gpus.torch_build(no_driver, [], 0, None).state is OK


def test_a_cpu_build_beside_a_gpu_fails():
    check = gpus.torch_build(CPU_TORCH, [A10], 0, None)
    assert check.state is FAIL
    assert "NVIDIA A10" in check.text
    assert "cu130" in check.remedy


@pytest.mark.parametrize(
    ("problem", "remedy"),
    [
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 12040)", "Update the"),
        ("AcceleratorError: CUDA-capable device(s) is/are busy or unavailable", "Another process"),
        ("RuntimeError: CUDA unknown error", "nvidia-smi"),
        ("", "nvidia-smi"),
    ],
)
def test_torch_cannot_use_the_gpu_that_is_there(problem, remedy):
    check = gpus.torch_build({**TORCH, "problem": problem}, [A10], 0, None)
    assert check.state is FAIL
    assert (problem or "it sees none") in check.text
    assert remedy in check.remedy


def test_a_driver_is_updated_once():
    problem = "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)"
    old = dataclasses.replace(A10, cuda_driver_version="11.4")
    remedy = gpus.torch_build({**TORCH, "problem": problem}, [old], 0, None).remedy
    assert remedy.startswith("Update the NVIDIA driver to 525 or newer; ")


@pytest.mark.parametrize("visible", ["", "-1"])
@pytest.mark.parametrize("build", [TORCH, CPU_TORCH])
def test_gpus_that_are_hidden_on_purpose(visible, build):
    check = gpus.torch_build({**build, "problem": "RuntimeError: No CUDA GPUs"}, [A10], 0, visible)
    assert check.state is WARN
    assert "CUDA_VISIBLE_DEVICES" in check.text


@pytest.mark.parametrize(
    ("visible", "is_none"),
    [("GPU-f", True), ("1", True), ("no gpu", True), ("GPU-1", False), ("0", False), ("MIG-1", False)],
)
def test_gpus_that_are_not_there(visible, is_none):
    problem = "RuntimeError: No CUDA GPUs are available"
    check = gpus.torch_build({**TORCH, "problem": problem}, [A10], 0, visible)
    assert check.state is FAIL
    assert (f"CUDA_VISIBLE_DEVICES={visible!r} names no GPU of this machine" in check.text) == is_none
    assert (check.remedy == "Unset it, or name one of GPU-1") == is_none


def test_gpus_that_are_left_out():
    check = gpus.torch_build(TORCH, [A10, changed(index=1)], 1, "0")
    assert check.state is OK
    assert "it sees 1 of 2 GPUs (CUDA_VISIBLE_DEVICES=0)" in check.text
    assert "sees" not in gpus.torch_build(TORCH, [A10], 1, None).text
