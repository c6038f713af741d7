"""A script on a GPU, which is the strict stand-in: what is watched, without making the host wait."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import strict_cuda
import torch
from hearing import Run, run
from strict_cuda import CYCLES_PER_SECOND, StrictCuda

from sweeper.script.inside import gpu, lines
from sweeper.script.inside.laps import DeviceLaps

SLEEP_SECONDS = 0.02
SCRIPT = """
import json, sys, time, types
# Under a name that is no file's: the stand-in is not the user's code.
strict_cuda = sys.modules["strict_cuda"] = types.ModuleType("strict_cuda")
exec(compile(open({stand_in!r}).read(), "<strict_cuda>", "exec"), vars(strict_cuda))
cuda = strict_cuda.StrictCuda()
cuda.__enter__()
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
loader = DataLoader(TensorDataset(torch.randn(640, 8), torch.randn(640, 1)), batch_size=32)
steps, losses = 0, []
end = time.perf_counter() + {seconds}
while time.perf_counter() < end and steps < {steps}:
    for x, y in loader:
        x, y = x.to("cuda"), y.to("cuda")
        loss = nn.functional.mse_loss(model(x), y)
        torch.cuda._sleep(int({sleep} * strict_cuda.CYCLES_PER_SECOND))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        {after}
        steps += 1
torch.cuda.synchronize()
syncs = cuda.syncs
print(json.dumps({{"steps": steps, "syncs": syncs, "losses": [each.item() for each in losses]}}))
"""
FILE = "train.py"


def trained(folder: Path, *, after: str = "", **options: Any) -> Run:
    values = {"seconds": 60, "steps": 200, "sleep": 0, "stand_in": strict_cuda.__file__}
    with_hook, takes_apart = options.pop("with_hook", True), options.pop("takes_apart", False)
    (folder / FILE).write_text(SCRIPT.format(after=after or "pass", **{**values, **options}))
    found = run([sys.executable, FILE], folder=folder, with_hook=with_hook, takes_apart=takes_apart)
    assert found.status == 0, found.errors
    return found


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(SCRIPT.splitlines(), start=1) if text in line)


def test_the_host_waits_no_more_often_for_being_watched(tmp_path: Path) -> None:
    plain, watched = (trained(tmp_path, with_hook=with_hook) for with_hook in (False, True))
    assert watched.truth == plain.truth
    last = watched.last
    assert (last["steps"], last["samples"], last["facts"]["device"]) == (200, 6400, "cuda")
    losses = watched.truth["losses"]
    assert all(min(losses) <= each["loss"] <= max(losses) for each in watched.messages if "loss" in each)


@pytest.mark.slow
def test_its_steps_are_taken_apart_on_its_timeline(tmp_path: Path) -> None:
    found = trained(
        tmp_path, takes_apart=True, seconds=9, steps=10**9, sleep=SLEEP_SECONDS, after="loss.item()"
    )
    parts = {each["part"]: each for each in found.messages if "part" in each}
    assert not [each for each in found.messages if "failed" in each]
    expected = ["as it is", "lines", "waits", "kernels", "one batch", "loader", "halves", "done"]
    assert [*parts] == expected
    whole = parts["as it is"]
    assert sum(whole["wall"].values()) == pytest.approx(whole["seconds"], rel=0.03)
    # The device sleeps after the forward, and before the backward ends.
    asleep = whole["wall"]["forward"] + whole["wall"]["backward"]
    assert asleep > 0.9 * SLEEP_SECONDS * whole["steps"]
    # The host waits after the step, in which the device does nothing; copies wait, but they are copies.
    assert whole["host"]["rest"] > 5 * whole["wall"]["rest"]
    path = str((tmp_path / FILE).resolve())
    assert parts["waits"]["lines"] == [[path, line_of("{after}")]]
    # The stand-in has no kernels for a profiler.
    assert parts["kernels"]["seconds"] is None
    assert whole["copy"] > 0


def test_phases_that_the_host_runs_ahead_of_a_busy_gpu_take_no_time() -> None:
    with StrictCuda():
        torch.cuda.init()
        laps = DeviceLaps(torch, None)
        torch.cuda._sleep(int(0.05 * CYCLES_PER_SECOND))
        laps.lap("forward")
        laps.lap("data")
        assert laps.host["forward"] < 0.04
        assert laps.wall == {"forward": pytest.approx(0.05, rel=0.2), "data": pytest.approx(0, abs=0.01)}
        assert laps.arithmetic_s == laps.wall["forward"]


class Profile:
    """A profiler that saw some kernels, the last of which ends at a moment."""

    def __init__(self, *spans: tuple[float, float]) -> None:
        self.spans = spans

    def start(self) -> None:
        pass

    stop = start

    def events(self) -> list[SimpleNamespace]:
        kind = torch.autograd.DeviceType
        return [
            SimpleNamespace(device_type=on, name=name, time_range=SimpleNamespace(start=start, end=end))
            for on, name, spans in (
                (kind.CUDA, "gemm", self.spans),
                (kind.CPU, "aten::mm", self.spans),
                # A copy from the host is no work of the device's.
                (kind.CUDA, "Memcpy HtoD (Pageable -> Device)", [(0.7e6, 0.9e6)]),
            )
            for start, end in spans
        ]


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([], None),
        # A second and a half for two steps: 0.2 to 0.6 and 1.0 to 1.5, and what overlaps counts once.
        ([(-9e6, -8e6), (0.2e6, 0.5e6), (0.4e6, 0.6e6), (1.0e6, 1.5e6)], 0.45),
    ],
)
def test_a_steps_kernels_count_once_each(monkeypatch, spans, seconds) -> None:
    clock = iter((10.0, 11.5))
    monkeypatch.setattr(gpu, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    profiler = SimpleNamespace(
        profile=lambda activities: Profile(*spans), ProfilerActivity=SimpleNamespace(CUDA=1)
    )
    fake = SimpleNamespace(
        profiler=profiler, cuda=SimpleNamespace(synchronize=lambda device: None), autograd=SimpleNamespace()
    )
    kernels = gpu.KernelTime(fake, None)
    for _ in range(3):
        kernels.step_ended()
    assert kernels.stop() == (None if seconds is None else pytest.approx(seconds))


def test_lines_that_wait_in_every_step_are_named_and_copies_are_not(monkeypatch) -> None:
    monkeypatch.setattr(lines, "_LIBRARIES", (*lines._LIBRARIES, str(strict_cuda.__file__)))
    with StrictCuda():
        numbers = torch.ones(3, device="cuda")
        waits = gpu.Waits(torch)
        for step in range(3):
            torch.ones(2).to("cuda")
            waits.end_phase(is_wait=False)
            numbers.sum().item()
            torch.cuda.synchronize()
            if step == 1:
                numbers.tolist()
            waits.end_phase(is_wait=True)
        synchronize = torch.cuda.synchronize
        found = waits.stop(3)
    here = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert [here[line - 1].strip() for _, line in found] == [
        "numbers.sum().item()",
        "torch.cuda.synchronize()",
    ]
    assert torch.cuda.synchronize is not synchronize
