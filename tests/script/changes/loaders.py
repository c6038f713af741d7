"""Loaders of many kinds, each trained on twice: as it is, then changed. Prints what was equal as JSON."""

from __future__ import annotations

import collections
import hashlib
import json
import random
import sys
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from sweeper.script.changes import apply

ROWS = 600
torch.manual_seed(0)
X, Y = torch.randn(ROWS, 5), torch.randint(0, 9, (ROWS,))
RARELY: dict[str, Any] = {
    "numpy noise": lambda rows: np.random.random() < 0.001,
    "python noise": lambda rows: random.random() < 0.001,
    "own generator": lambda rows: rows.generator.random() < 0.001,
    "own unseeded": lambda rows: np.random.default_rng().random() < 0.05,
}
CHANGING = ("late", "hard", "shared", "in place", "midway")
"""What the training process changes in its data set after the first pass."""
Pair = collections.namedtuple("Pair", "x y")


class Rows(Dataset[Any]):
    """Rows of a table; what else they do is said by the kind."""

    def __init__(self, kind: str = "") -> None:
        self.kind, self.epoch, self.generator = kind, 0, np.random.default_rng(0)
        self.handle = None
        self.order, self.table = list(range(ROWS)), X.clone()
        self.shared = torch.zeros(()).share_memory_()

    def __len__(self) -> int:
        return ROWS

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        if self.kind == "shared":
            self.shared.fill_(epoch)
        if self.kind == "in place" and epoch == 3:
            self.table.mul_(2)
        if self.kind == "hard" and epoch:
            # A tenth of the rows, as in the mining of hard examples.
            self.order = [index - index % 10 if index % 10 == epoch else index for index in range(ROWS)]

    def __getitem__(self, index: int) -> Any:
        x, y = X[index], Y[index]
        kind = self.kind
        if kind == "noise":
            x = x + torch.rand(5)
        elif kind in RARELY and RARELY[kind](self):
            x = -x
        elif kind == "curriculum":
            x = x * (1 + self.epoch)
        elif kind == "midway":
            x = x * (1 + (self.epoch == 9))
        elif kind == "late":
            x = x * (1 + (self.epoch > 4))
        elif kind == "hard":
            x = X[self.order[index]]
        elif kind == "shared":
            x = x * (1 + self.shared.item())
        elif kind == "in place":
            x = self.table[index]
        elif kind == "by worker":
            worker = get_worker_info()
            x = x + (worker.id if worker else 7)
        elif kind == "by seed":
            x = x + (get_worker_info().seed % 7 if get_worker_info() else 0)
        elif kind == "ragged":
            x = torch.ones(1 + index % 3)
        elif kind == "text":
            return {"x": x, "name": str(index)}
        elif kind == "named":
            return Pair(x, y)
        elif kind == "keyed":
            return {7: x, "y": {"z": y}}
        elif kind == "odd keys":
            return {None: x}
        elif kind == "nested":
            return {"inputs": [x, x.double()], "y": (y, float(index))}
        elif kind == "broken" and index == 417:
            raise ValueError("a broken row")
        return x, y


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(X, Y, strict=True))


class LazyBatches:
    """A batch sampler that draws with each batch."""

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Any:
        for _ in range(12):
            yield torch.randint(0, ROWS, (50,)).tolist()


class Keys(Dataset[Any]):
    """Rows by a key that is no number."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, key: Any) -> Any:
        return X[int(key)], Y[int(key)]


class Negative(LazyBatches):
    def __iter__(self) -> Any:
        return iter([[-1, -2, 3]] * 12)


def by_length(batch: Any) -> Any:
    return torch.utils.data.default_collate(sorted(batch, key=lambda row: float(row[0].sum())))


def normalised(batch: Any) -> Any:
    x, y = torch.utils.data.default_collate(batch)
    return x - x.mean(0), y


def mixed(batch: Any) -> Any:
    x, y = torch.utils.data.default_collate(batch)
    return x + torch.rand(()), y


def rotated(batch: Any) -> Any:
    return torch.utils.data.default_collate(batch[1:] + batch[:1])


def turned(batch: Any) -> Any:
    x, y = torch.utils.data.default_collate(batch)
    return x.T.contiguous().T, y


def with_size(batch: Any) -> Any:
    return [*torch.utils.data.default_collate(batch), len(batch)]


def seeded(worker: int) -> None:
    random.seed(worker)


def loaders() -> dict[str, Any]:
    """Makes each kind of loader, by name."""
    usual: dict[str, Any] = {"batch_size": 50, "shuffle": True}
    found = {
        "plain": lambda: DataLoader(Rows(), **usual),
        "tensors": lambda: DataLoader(TensorDataset(X, Y), **usual),
        "workers": lambda: DataLoader(Rows(), num_workers=2, **usual),
        "persistent": lambda: DataLoader(Rows(), num_workers=2, persistent_workers=True, **usual),
        "prefetch": lambda: DataLoader(Rows(), num_workers=1, prefetch_factor=5, **usual),
        "init": lambda: DataLoader(Rows(), num_workers=1, worker_init_fn=seeded, **usual),
        "in order": lambda: DataLoader(Rows(), batch_size=70),
        "drop last": lambda: DataLoader(Rows(), batch_size=70, drop_last=True),
        "own order": lambda: DataLoader(Rows(), generator=torch.Generator().manual_seed(3), **usual),
        "weighted": lambda: DataLoader(
            Rows(), batch_size=50, sampler=WeightedRandomSampler([1.0] * 300 + [2.0] * 300, 600)
        ),
        "subset": lambda: DataLoader(Rows(), batch_size=50, sampler=SubsetRandomSampler(range(0, ROWS, 3))),
        "batches": lambda: DataLoader(Rows(), batch_sampler=BatchSampler(RandomSampler(Rows()), 33, False)),
        "lazy": lambda: DataLoader(Rows(), batch_sampler=LazyBatches()),
        "lazy workers": lambda: DataLoader(Rows(), batch_sampler=LazyBatches(), num_workers=2),
        "negative": lambda: DataLoader(Rows(), batch_sampler=Negative()),
        "single": lambda: DataLoader(Rows(), batch_size=1, shuffle=True),
        "rows": lambda: DataLoader(Rows(), batch_size=None),
        "stream": lambda: DataLoader(Stream(), batch_size=50),
        "keys": lambda: DataLoader(Keys(), batch_size=50, sampler=[str(each) for each in range(ROWS)]),
        "by worker workers": lambda: DataLoader(Rows("by worker"), num_workers=2, **usual),
        "by seed workers": lambda: DataLoader(Rows("by seed"), num_workers=1, **usual),
        "noise workers": lambda: DataLoader(Rows("noise"), num_workers=2, **usual),
    }
    for kind in ("noise", "numpy noise", "python noise", "own generator", "own unseeded", "curriculum"):
        found[kind] = lambda kind=kind: DataLoader(Rows(kind), **usual)
    for kind in CHANGING:
        found[f"{kind} persistent"] = lambda kind=kind: DataLoader(
            Rows(kind), num_workers=2, persistent_workers=True, **usual
        )
        found[f"{kind} workers"] = lambda kind=kind: DataLoader(Rows(kind), num_workers=2, **usual)
    for kind in ("ragged", "text", "named", "keyed", "odd keys", "nested", "broken"):
        found[kind] = lambda kind=kind: DataLoader(Rows(kind), batch_size=1 if kind == "ragged" else 50)
    for collate in (by_length, normalised, mixed, rotated, turned, with_size):
        found[collate.__name__] = lambda collate=collate: DataLoader(Rows(), collate_fn=collate, **usual)
    return found


def trained(make: Any) -> tuple[str, str]:
    """Returns a digest of all batches and of the generators after them, over three passes, and an error."""
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    found, error = hashlib.sha256(), ""
    loader = make()
    try:
        changes = getattr(loader.dataset, "kind", "") in CHANGING
        for epoch in range(8 if changes else 3):
            if isinstance(loader.dataset, Rows):
                loader.dataset.set_epoch(epoch)
            for number, batch in enumerate(loader):
                told(batch, found)
                # Dropout, between two batches.
                torch.rand(1)
                if changes and loader.dataset.kind == "midway" and number == 6 and epoch == 5:
                    loader.dataset.set_epoch(9)
                if number == 5 and epoch == 0:
                    # A second pass begins before the first has ended.
                    told(next(iter(loader)), found)
            found.update(b"the end")
    except ValueError as raised:
        error = str(raised).strip().splitlines()[-1]
    found.update(torch.get_rng_state().numpy().tobytes())
    found.update(repr((random.getstate(), np.random.get_state())).encode())
    return found.hexdigest(), error


def told(batch: Any, found: Any) -> None:
    found.update(type(batch).__name__.encode())
    if isinstance(batch, torch.Tensor):
        found.update(repr((batch.shape, batch.stride(), batch.dtype)).encode())
        found.update(batch.contiguous().numpy().tobytes())
    elif isinstance(batch, dict):
        for key, each in batch.items():
            found.update(repr(key).encode())
            told(each, found)
    elif isinstance(batch, (list, tuple)):
        for each in batch:
            told(each, found)
    else:
        found.update(repr(batch).encode())


def _kind_of(make: Any) -> str:
    return "workers" if make().num_workers else "none"


def main() -> None:
    kinds = loaders()
    if sys.argv[2:]:
        asked = sys.argv[2].split(",")
        kinds = {name: make for name, make in kinds.items() if {name, _kind_of(make)} & {*asked}}
    # One of the script's own seeds per worker is not ours to repeat.
    before = {name: trained(make) for name, make in kinds.items()}
    messages: list[Any] = []
    apply(torch, f"loader={sys.argv[1]}", messages.append)
    report = {}
    for name, make in kinds.items():
        messages.clear()
        after = trained(make)
        report[name] = {
            "equal": after == before[name],
            "applied": bool(messages) and all(each["change"]["applied"] for each in messages),
            "why": next((each["change"]["why"] for each in messages if each["change"]["why"]), ""),
            "error": after[1],
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
