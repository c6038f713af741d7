"""Loaders whose workers could live on, and such whose could not, each trained on twice. Prints JSON."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import random
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from loaders import ROWS, LazyBatches, Stream, X, Y, told
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)

from sweeper.script.changes import apply

PASSES = 3
EPOCH, COUNT, SEEN, BEGUN = 0, 0, [], set()
"""Globals: the first is the training's, the others are changed by workers."""


class Table(Dataset[Any]):
    """Rows of a table; subclasses read them in other ways."""

    def __init__(self) -> None:
        self.table, self.epoch = X.clone(), 0

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return self.row(index), Y[index]

    def row(self, index: int) -> torch.Tensor:
        return self.table[index]

    def set_epoch(self, epoch: int) -> None:
        """Called by the training as a pass begins."""


class AllNoise(Table):
    def row(self, index: int) -> torch.Tensor:
        return self.table[index] + torch.rand(5) + np.random.random() + random.random()


class Transformed(Table):
    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.transform = lambda row: row * factor + np.random.random()

    def row(self, index: int) -> torch.Tensor:
        return self.transform(self.table[index])


class Memo(Table):
    @staticmethod
    @functools.lru_cache
    def squared(index: int) -> int:
        return index * index

    def row(self, index: int) -> torch.Tensor:
        return self.table[index] + self.squared(index)


class ByWorker(Table):
    def row(self, index: int) -> torch.Tensor:
        worker = get_worker_info()
        return self.table[index] + worker.id + worker.seed % 1000


class Importing(Table):
    def row(self, index: int) -> torch.Tensor:
        import statistics

        return self.table[index] + statistics.fmean([index, 1])


class Lazy(Table):
    """Reads its factors with the first row of each process."""

    factors: Any = None

    def row(self, index: int) -> torch.Tensor:
        if self.factors is None:
            self.factors = np.arange(ROWS)
            BEGUN.add(os.getpid())
        return self.table[index] * self.factors[index]


class FirstRow(Table):
    """The first row of each process is another."""

    begun = False

    def row(self, index: int) -> torch.Tensor:
        begun, self.begun = self.begun, True
        return self.table[index] * (1 if begun else 2)


class Counted(Table):
    count = 0

    def row(self, index: int) -> torch.Tensor:
        self.count += 1
        return self.table[index] + self.count


class Cached(Table):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, torch.Tensor] = {}

    def row(self, index: int) -> torch.Tensor:
        if index not in self.cache:
            self.cache[index] = self.table[index] + np.random.random()
        return self.cache[index]


class History(Table):
    def __init__(self) -> None:
        super().__init__()
        self.history = [0]

    def row(self, index: int) -> torch.Tensor:
        self.history.append(index)
        return self.table[index] + self.history[-2]


class NumpyGenerator(Table):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(3)

    def row(self, index: int) -> torch.Tensor:
        return self.table[index] + self.generator.random()


class PythonGenerator(Table):
    def __init__(self) -> None:
        super().__init__()
        self.generator = random.Random(3)

    def row(self, index: int) -> torch.Tensor:
        return self.table[index] + self.generator.random()


class Opened(Table):
    handle: Any = None

    def row(self, index: int) -> torch.Tensor:
        if self.handle is None:
            self.handle = open(__file__, "rb")  # noqa: SIM115
        self.handle.seek(index % 100)
        return self.table[index] + self.handle.read(1)[0]


class InPlace(Table):
    def __init__(self) -> None:
        super().__init__()
        self.in_place = X.clone()

    def row(self, index: int) -> torch.Tensor:
        self.in_place[index] += 1
        return self.in_place[index].clone()


class Curriculum(Table):
    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def row(self, index: int) -> torch.Tensor:
        return self.table[index] * (1 + self.epoch)


class Reordered(Table):
    def __init__(self) -> None:
        super().__init__()
        self.order = list(range(ROWS))

    def set_epoch(self, epoch: int) -> None:
        self.order[epoch], self.order[-1] = self.order[-1], self.order[epoch]

    def row(self, index: int) -> torch.Tensor:
        return self.table[self.order[index]]


class Rewritten(Table):
    def set_epoch(self, epoch: int) -> None:
        self.table[epoch] += 1


class Shared(Table):
    def __init__(self) -> None:
        super().__init__()
        self.shared = torch.zeros(()).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        self.shared.fill_(epoch)

    def row(self, index: int) -> torch.Tensor:
        return self.table[index] + self.shared


class GlobalEpoch(Table):
    def set_epoch(self, epoch: int) -> None:
        global EPOCH
        EPOCH = epoch

    def row(self, index: int) -> torch.Tensor:
        return self.table[index] * (1 + EPOCH)


class GlobalCount(Table):
    def row(self, index: int) -> torch.Tensor:
        global COUNT
        COUNT += 1
        return self.table[index] + COUNT


class GlobalList(Table):
    def row(self, index: int) -> torch.Tensor:
        SEEN.append(index)
        return self.table[index] + len(SEEN)


class Unseeded(Table):
    def row(self, index: int) -> torch.Tensor:
        # It draws from the machine's own entropy, and changes nothing.
        return self.table[index] + (np.random.default_rng().random() > 2)


class Locked(Table):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Slow(Table):
    def __getstate__(self) -> Any:
        time.sleep(0.4)
        return self.__dict__


class Named(Table):
    def __getitem__(self, index: int) -> Any:
        return {"x": self.table[index], "name": str(index)}


class Keyed(Table):
    def __getitem__(self, index: int) -> Any:
        return {"x": self.table[index], "y": {"z": (Y[index], float(index))}}


class CountingCollate:
    """Collates, and numbers its batches."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, batch: Any) -> Any:
        self.count += 1
        x, y = default_collate(batch)
        return x + self.count, y


class OwnSampler:
    """Draws as it begins."""

    def __len__(self) -> int:
        return ROWS

    def __iter__(self) -> Any:
        return iter(torch.randperm(ROWS).tolist())


def seeded(worker: int) -> None:
    np.random.seed(torch.initial_seed() % 2**32)


def noisy(batch: Any) -> Any:
    x, y = default_collate(batch)
    return x + torch.rand(()), y


def by_epoch(worker: int) -> None:
    dataset: Any = get_worker_info().dataset
    dataset.table = dataset.table + EPOCH


def _loader(dataset: Any, **options: Any) -> Any:
    return DataLoader(dataset, **{"batch_size": 50, "shuffle": True, "num_workers": 1, **options})


HARMLESS = {
    "plain": lambda: _loader(Table(), num_workers=2),
    "tensors": lambda: _loader(TensorDataset(X, Y)),
    "in order": lambda: _loader(Table(), shuffle=False),
    "noise": lambda: _loader(AllNoise(), num_workers=2),
    "transformed": lambda: _loader(Transformed()),
    "memo": lambda: _loader(Memo()),
    "by worker": lambda: _loader(ByWorker(), num_workers=2),
    "importing": lambda: _loader(Importing()),
    "lazy": lambda: _loader(Lazy()),
    "keyed": lambda: _loader(Keyed()),
    "seeded": lambda: _loader(AllNoise(), num_workers=2, worker_init_fn=seeded),
    "own order": lambda: _loader(AllNoise(), generator=torch.Generator().manual_seed(3)),
    "weighted": lambda: _loader(Table(), shuffle=False, sampler=WeightedRandomSampler([1.0, 2.0] * 300, 600)),
    "subset": lambda: _loader(Subset(AllNoise(), range(0, ROWS, 3))),
    "random subset": lambda: _loader(Table(), shuffle=False, sampler=SubsetRandomSampler(range(0, ROWS, 3))),
    "batches": lambda: DataLoader(
        AllNoise(), num_workers=2, batch_sampler=BatchSampler(RandomSampler(Table()), 33, False)
    ),
    "drop last": lambda: _loader(AllNoise(), batch_size=70, drop_last=True),
    "prefetch": lambda: _loader(AllNoise(), num_workers=3, prefetch_factor=5),
    "collate": lambda: _loader(Table(), collate_fn=noisy),
    "lambda": lambda: _loader(Table(), collate_fn=lambda batch: noisy(batch)),
    "spawned": lambda: _loader(AllNoise(), multiprocessing_context=multiprocessing.get_context("spawn")),
    "unseeded": lambda: _loader(Unseeded()),
}
KEPT, CHANGED = "has changed since they were started", "changes its data set"
ROWS_DIFFER = "reads other rows"
HARMFUL = {
    "first row": (lambda: _loader(FirstRow()), ROWS_DIFFER),
    "a batch each": (lambda: _loader(Counted(), num_workers=2, batch_size=300), "too few batches"),
    "counted": (lambda: _loader(Counted(), num_workers=2), KEPT),
    "cached": (lambda: _loader(Cached()), KEPT),
    "history": (lambda: _loader(History()), KEPT),
    "numpy generator": (lambda: _loader(NumpyGenerator()), KEPT),
    "python generator": (lambda: _loader(PythonGenerator()), KEPT),
    "in place": (lambda: _loader(InPlace()), KEPT),
    "opened": (lambda: _loader(Opened()), "cannot begin another pass"),
    "global count": (lambda: _loader(GlobalCount()), KEPT),
    "global list": (lambda: _loader(GlobalList()), KEPT),
    "counting collate": (lambda: _loader(Table(), collate_fn=CountingCollate()), KEPT),
    "curriculum": (lambda: _loader(Curriculum()), CHANGED),
    "reordered": (lambda: _loader(Reordered()), CHANGED),
    "rewritten": (lambda: _loader(Rewritten()), CHANGED),
    "shared": (lambda: _loader(Shared()), KEPT),
    "global epoch": (lambda: _loader(GlobalEpoch()), ROWS_DIFFER),
    "init by epoch": (lambda: _loader(GlobalEpoch(), worker_init_fn=by_epoch), CHANGED),
    "text": (lambda: _loader(Named()), "no tensors"),
    "own sampler": (lambda: _loader(Table(), shuffle=False, sampler=OwnSampler()), "sampler is the script's"),
    "lazy batches": (
        lambda: DataLoader(Table(), num_workers=2, batch_sampler=LazyBatches()),
        "sampler is the script's",
    ),
    "stream": (lambda: DataLoader(Stream(), batch_size=50, num_workers=1), "stream"),
    "single rows": (lambda: DataLoader(Table(), batch_size=None, num_workers=1), "not in batches"),
    "locked": (lambda: _loader(Locked()), "pickle"),
    "slow": (lambda: _loader(Slow()), "in each pass"),
}
NO_WORKERS = {"no workers": lambda: _loader(Table(), num_workers=0)}


def trained(make: Any) -> str:
    """Returns a digest of all batches and of the generators after them."""
    import hashlib

    global EPOCH, COUNT
    EPOCH = COUNT = 0
    SEEN.clear()
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    found, loader = hashlib.sha256(), make()
    for epoch in range(PASSES):
        if hasattr(loader.dataset, "set_epoch"):
            loader.dataset.set_epoch(epoch)
        for number, batch in enumerate(loader):
            told(batch, found)
            torch.rand(1)
            if number == 3 and epoch == 1:
                # A second pass begins before the first has ended.
                told(next(iter(loader)), found)
            if number == 5 and epoch == 2:
                break
        found.update(b"the end")
    # As a training does that counts its steps.
    batches = iter(loader)
    for _ in range(2 * 12):
        try:
            told(next(batches), found)
        except StopIteration:
            batches = iter(loader)
    found.update(torch.get_rng_state().numpy().tobytes())
    found.update(repr((random.getstate(), np.random.get_state())).encode())
    return found.hexdigest()


def print_report(kinds: Mapping[str, Any], change: str, expected: Mapping[str, str]) -> None:
    """Trains on each kind of loader as it is and with a change, and prints what was equal.

    Args:
        expected: Why the change is not made, for kinds with which it must not be.
    """
    before = {name: trained(make) for name, make in kinds.items()}
    messages: list[Any] = []
    apply(torch, change, messages.append)
    report = {}
    for name, make in kinds.items():
        messages.clear()
        after = trained(make)
        changes = [message["change"] for message in messages]
        report[name] = {
            "equal": after == before[name],
            "applied": bool(changes) and all(change["applied"] for change in changes),
            "why": next((change["why"] for change in changes if change["why"]), ""),
            "expected": expected.get(name, ""),
        }
    print(json.dumps(report))


def main() -> None:
    kinds = {**HARMLESS, **NO_WORKERS, **{name: make for name, (make, _) in HARMFUL.items()}}
    if sys.argv[1:]:
        kinds = {name: kinds[name] for name in sys.argv[1].split(",")}
    print_report(kinds, "persistent_workers=on", {name: why for name, (_, why) in HARMFUL.items()})


if __name__ == "__main__":
    main()
