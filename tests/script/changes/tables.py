"""Data sets whose rows could be read together, and such whose could not, each read twice. Prints JSON."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import torch
from lasting_workers import print_report
from loaders import ROWS
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate, get_worker_info

GENERATOR = np.random.default_rng(0)
IMAGES = GENERATOR.integers(0, 255, (ROWS, 4, 4, 3), dtype=np.uint8)
TABLE = GENERATOR.random((ROWS, 6), dtype=np.float32)
LABELS = GENERATOR.integers(0, 9, ROWS)


def rows_of(function: Any) -> Any:
    """Returns a data set whose rows a function of the data set and the row number makes."""

    class Made(Dataset[Any]):
        def __init__(self) -> None:
            self.table, self.images, self.labels = TABLE, IMAGES, LABELS
            self.tensor, self.list, self.count, self.mean = (
                torch.from_numpy(TABLE),
                LABELS.tolist(),
                0,
                TABLE.mean(0),
            )

        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, index: Any) -> Any:
            return function(self, index)

    return Made()


def in_file() -> Any:
    """Returns a data set whose rows are in a memory map."""
    path = f"{tempfile.mkdtemp()}/rows"
    TABLE.tofile(path)

    class Mapped(Dataset[Any]):
        def __init__(self) -> None:
            self.rows = np.memmap(path, np.float32, "r", shape=TABLE.shape)

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, index: Any) -> Any:
            return self.rows[index], LABELS[index]

    return Mapped()


class Itself(TensorDataset):
    def __getitems__(self, rows: Any) -> Any:
        return [self[row] for row in rows]


def counting(rows: Any, index: Any) -> Any:
    rows.count += 1
    return rows.tensor[index] + rows.count


def one_differs(rows: Any, index: Any) -> Any:
    return rows.tensor[index] * (2.0 if np.ndim(index) == 0 and index % 7 == 3 else 1.0)


def branch(rows: Any, index: Any) -> Any:
    return rows.tensor[index] if rows.labels[index] > 4 else -rows.tensor[index]


def by_worker(rows: Any, index: Any) -> Any:
    worker = get_worker_info()
    return rows.tensor[index] + (worker.id if worker else 0)


def pairs(batch: Any) -> Any:
    x, y = default_collate(batch)
    return {"x": x, "y": y}


HARMLESS = {
    "array": lambda rows, index: (rows.table[index], rows.labels[index]),
    "tensor": lambda rows, index: (rows.tensor[index], rows.labels[index]),
    "scaled": lambda rows, index: torch.from_numpy(rows.images[index]).float() / 255,
    "tensors": lambda rows, index: (torch.as_tensor(rows.table[index]), torch.as_tensor(rows.labels[index])),
    "normalised": lambda rows, index: (rows.table[index] - rows.mean, rows.labels[index]),
    "one": lambda rows, index: rows.tensor[index],
    "dict": lambda rows, index: {"x": rows.table[index], "y": {"label": rows.labels[index]}},
    "list": lambda rows, index: [rows.table[index], rows.tensor[index].double()],
    "part": lambda rows, index: rows.table[index, :3],
    "other": lambda rows, index: rows.table[(index + 1) % ROWS],
    "by worker": by_worker,
}
DIFFER, CANNOT, NOT_ONE = "differ from the same rows", "cannot be read together", "not one for each"
HARMFUL = {
    "noise": (lambda rows, index: rows.tensor[index] + torch.rand(6), "draws"),
    "own": (lambda rows, index: rows.table[index] + np.random.random(), "draws"),
    "counting": (counting, DIFFER),
    "one differs": (one_differs, DIFFER),
    "branch": (branch, CANNOT),
    "labels in a list": (lambda rows, index: (rows.tensor[index], rows.list[index]), CANNOT),
    "number": (lambda rows, index: (rows.tensor[index], int(rows.labels[index])), CANNOT),
    "mean": (lambda rows, index: rows.tensor[index].mean(), NOT_ONE),
    "standardised": (lambda rows, index: rows.tensor[index] - rows.tensor[index].mean(), DIFFER),
    "shape": (lambda rows, index: rows.table[index].reshape(-1), NOT_ONE),
    "first": (lambda rows, index: rows.images[index][0], NOT_ONE),
    "turned": (lambda rows, index: rows.images[index].transpose(2, 0, 1).copy(), CANNOT),
    "window": (lambda rows, index: rows.tensor[max(0, index - 3) : index + 1].sum(0), CANNOT),
    "text": (lambda rows, index: {"x": rows.tensor[index], "name": str(index)}, "parts of type str"),
}


def loaders() -> dict[str, Any]:
    """Returns what makes each loader, by name."""
    usual: dict[str, Any] = {"batch_size": 50, "shuffle": True}
    made = {
        name: lambda function=function: DataLoader(rows_of(function), **usual)
        for name, function in {**HARMLESS, **{name: pair[0] for name, pair in HARMFUL.items()}}.items()
    }
    return {
        **made,
        "file": lambda: DataLoader(in_file(), **usual),
        "workers": lambda: DataLoader(in_file(), num_workers=2, **usual),
        "tensor data": lambda: DataLoader(TensorDataset(torch.from_numpy(TABLE)), **usual),
        "own collate": lambda: DataLoader(in_file(), collate_fn=pairs, **usual),
        "ragged": lambda: DataLoader(in_file(), batch_size=37),
        "single": lambda: DataLoader(in_file(), batch_size=1),
        "subset": lambda: DataLoader(Subset(in_file(), range(0, ROWS, 2)), **usual),
        "itself": lambda: DataLoader(Itself(torch.from_numpy(TABLE)), **usual),
        "rows": lambda: DataLoader(in_file(), batch_size=None),
    }


EXPECTED = {
    **{name: why for name, (_, why) in HARMFUL.items()},
    "subset": "by itself",
    "itself": "by itself",
    "rows": "not in batches",
}


if __name__ == "__main__":
    print_report(loaders(), "loader=batched", EXPECTED)
