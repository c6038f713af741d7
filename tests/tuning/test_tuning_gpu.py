"""A tune of a script on a GPU, which is the strict stand-in: every change that asks something of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import strict_cuda

from sweeper.core.recording import Recording
from sweeper.race.record import Record
from sweeper.race.verify import OTHER_SEEDS, Claim, Reference
from sweeper.script.changes import CHANGES, variable_of
from sweeper.script.run.watch import record
from sweeper.tuning.verifier import missing_of

SCRIPT = """
import sys, types
# Under a name that is no file's: the stand-in is not the user's code.
strict_cuda = sys.modules["strict_cuda"] = types.ModuleType("strict_cuda")
exec(compile(open({stand_in!r}).read(), "<strict_cuda>", "exec"), vars(strict_cuda))
strict_cuda.StrictCuda().__enter__()
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Pictures(Dataset):
    def __init__(self):
        self.x, self.y = torch.randn(320, 1, 8, 8), torch.randint(0, 4, (320,))
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return self.x[i], self.y[i]

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)).to("cuda")
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
loader = DataLoader(Pictures(), batch_size=32, shuffle=True, pin_memory=True)
for epoch in range(3):
    for x, y in loader:
        assert x.is_pinned() or x.is_cuda
        x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.soak
def test_all_that_is_changed_on_a_gpu_trains_the_same(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(stand_in=strict_cuda.__file__))

    def recorded(env: Mapping[str, str] = {}, shift: int = 0) -> Record:
        recording = Recording(batches=40, seconds=60.0, shift=shift)
        return record([sys.executable, "train.py"], tmp_path, recording, env=env)

    reference = Reference()
    reference.enter(recorded())
    for shift in OTHER_SEEDS:
        reference.enter(recorded(shift=shift), shift)
    # Nothing can be compiled below the stand-in, and the loader has no workers.
    of_workers = ("augmentation_workers", "persistent_workers", "worker_threads")
    left_out = ("images", *of_workers, "batch_size", "ddp", "compile", "device.malloc")
    changes = {name: change for name, change in CHANGES.items() if name not in left_out}
    assert {"tf32", "cudnn_benchmark", "loader", "precision"} < changes.keys()
    for name, change in changes.items():
        value = change.choices[0]
        is_of_environment = change.is_of_environment
        env = change.environment(value, {"threads": 2}) if is_of_environment else variable_of({name: value})
        with_change = recorded(env)
        assert with_change.failure == "", name
        assert missing_of([name], with_change) == {}
        answer = reference.answer(with_change, Claim(kind=change.kind, rounding=change.rounding))
        assert answer.fault == "", name
