"""A race of scripts on a GPU, which is the strict stand-in: with room, without it, and with ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest
import strict_cuda
import stub_nvml

from sweeper.judging import speed
from sweeper.judging.arms import Arm
from sweeper.judging.speed import Speed, SpeedComparison, compare
from sweeper.race import race
from sweeper.race.log import Event, rounds_of

pytestmark = pytest.mark.soak

SCRIPT = """
import os, sys, time, types
# Under a name that is no file's: the stand-in is not the user's code.
strict_cuda = sys.modules["strict_cuda"] = types.ModuleType("strict_cuda")
exec(compile(open({stand_in!r}).read(), "<strict_cuda>", "exec"), vars(strict_cuda))
strict_cuda.StrictCuda().__enter__()
import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

pause = float(sys.argv[1])
ranks = int(os.environ.get("WORLD_SIZE", 1))
if ranks > 1:
    distributed.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
rows = TensorDataset(torch.randn(3200, 64), torch.randint(0, 4, (3200,)))
for epoch in range(10_000):
    for x, y in DataLoader(rows, batch_size=32, shuffle=True):
        loss = nn.functional.cross_entropy(model(x.to("cuda")), y.to("cuda"))
        optimizer.zero_grad()
        loss.backward()
        if ranks > 1:
            for parameter in model.parameters():
                shared = parameter.grad.cpu()
                distributed.all_reduce(shared)
                parameter.grad.copy_(shared / ranks)
        optimizer.step()
        time.sleep(pause)
"""
USED_MIB = 4096
"""Memory of an A10 that other programs use."""


@pytest.fixture
def race_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[SpeedComparison, list[Event]]]:
    """Races a script with one that pauses for 10 ms in each step; returns the answer, and the log."""
    (tmp_path / "train.py").write_text(SCRIPT.format(stand_in=strict_cuda.__file__))

    def made(launcher: Sequence[str], process_mib: int) -> tuple[SpeedComparison, list[Event]]:
        gpu = {**stub_nvml.A10, "mem_used_mib": [USED_MIB, USED_MIB + process_mib]}
        scenario = stub_nvml.write(tmp_path / "scenario", [stub_nvml.Gpu(values=gpu)])
        stub_nvml.loaded(monkeypatch, stub_nvml.build(tmp_path), scenario)
        logs: list[list[Event]] = []
        run = race.run

        def kept(policy, lives, log, *others):
            logs.append(log)
            return run(policy, lives, log, *others)

        monkeypatch.setattr(speed.race, "run", kept)
        before, after = (
            Arm(name=name, command=(*launcher, "train.py", pause), folder=tmp_path)
            for name, pause in (("before", "0.001"), ("after", "0.011"))
        )
        return compare((before, after), 60.0, lambda text: None), logs[0]

    return made


@pytest.mark.parametrize(("process_mib", "has_room"), [(4096, True), (16384, False)])
def test_scripts_on_a_gpu_take_turns_where_there_is_room(race_of, process_mib: int, has_room: bool):
    answer, log = race_of((sys.executable,), process_mib)
    assert [one.is_in_company for one in rounds_of(log)] == [has_room] * len(rounds_of(log))
    assert answer.answer is Speed.SLOWER
    assert answer.low < answer.ratio < answer.high < 1
    assert not [one for one in psutil.Process().children(recursive=True) if "train.py" in one.cmdline()]


def test_the_ranks_of_a_launcher_rest_together(race_of):
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    answer, log = race_of(launcher, 4096)
    assert all(one.is_in_company for one in rounds_of(log))
    assert min(len(life.turns) for one in rounds_of(log) for life in one.lives.values()) > 1
    assert answer.ratio < 0.9
