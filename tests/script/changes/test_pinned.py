"""Batches in page-locked memory, and the allocator's blocks: what is asked for, without a GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest
import strict_cuda
import torch
from hearing import run
from torch.utils.data import DataLoader

from sweeper.scaffold.known_options import of_environment
from sweeper.script.changes import CHANGES_VARIABLE
from sweeper.script.changes.environment import ALLOCATOR
from sweeper.script.changes.gpu import Pinned


def test_a_pass_pins_and_the_loader_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    reports: list[tuple[object, ...]] = []

    def get_iterator(loader: DataLoader[int]) -> Iterator[int]:
        seen.append(loader.pin_memory)
        return iter([1, 2])

    monkeypatch.setattr(DataLoader, "_get_iterator", get_iterator)
    Pinned().apply(torch, "on", lambda *said: reports.append(said))
    loader = DataLoader([1, 2])  # type: ignore[arg-type]
    assert list(loader) == [1, 2]
    assert seen == [True]
    assert not loader.pin_memory
    assert reports == [(True,)]


def test_the_allocator_is_changed_on_a_gpu_where_the_user_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    assert "allocator" not in of_environment({"device": "cpu"})
    dimension, variables = of_environment({"device": "cuda"})["allocator"]
    assert dimension.choices == ("default", "expandable")
    assert variables == {ALLOCATOR[0]: "{allocator: expandable -> expandable_segments:True}"}
    monkeypatch.setenv(ALLOCATOR[1], "max_split_size_mb:64")
    assert "allocator" not in of_environment({"device": "cuda"})


GATHERED = """
import sys, types
strict_cuda = sys.modules["strict_cuda"] = types.ModuleType("strict_cuda")
exec(compile(open({stand_in!r}).read(), "<strict_cuda>", "exec"), vars(strict_cuda))
strict_cuda.StrictCuda().__enter__()
import json, torch
from torch.utils.data import DataLoader, TensorDataset

rows = TensorDataset(torch.arange(12.0).reshape(6, 2), torch.arange(6))
pinned = []
original = torch.Tensor.pin_memory
torch.Tensor.pin_memory = lambda tensor, *_: pinned.append(tensor.is_pinned()) or original(tensor)
for _ in range(2):
    batches = list(DataLoader(rows, batch_size=2, pin_memory=True))
is_pinned = all(part.is_pinned() for batch in batches for part in batch)
print(json.dumps([is_pinned, all(pinned), [batch[1].tolist() for batch in batches]]))
"""


@pytest.mark.slow
def test_a_gathered_batch_is_made_in_pinned_memory_and_not_copied_there() -> None:
    code = GATHERED.format(stand_in=strict_cuda.__file__)
    found = run([sys.executable, "-c", code], {CHANGES_VARIABLE: "loader=gathered"}, is_forked=False)
    assert found.status == 0, found.errors
    is_pinned, is_made_there, rows = json.loads(found.output.splitlines()[-1])
    assert is_pinned
    assert is_made_there
    assert rows == [[0, 1], [2, 3], [4, 5]]
