"""Collated data sets in files: found again where nothing has changed, and never half written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import json, pathlib, sys
import torch
from torch.utils.data import DataLoader, Dataset
from sweeper.interventions import collating

class Rows(Dataset):
    def __init__(self):
        self.scale = float(sys.argv[1])
    def __len__(self):
        return 300
    def __getitem__(self, index):
        path = pathlib.Path("reads")
        path.write_text(str(int(path.read_text()) + 1) if path.exists() else "1")
        return torch.tensor([index * self.scale, float(pathlib.Path("offset").read_text())]), index

loader = DataLoader(Rows(), batch_size=10)
whole = collating.collated(torch, loader)
pathlib.Path("result").write_text(json.dumps([each.tolist() for each in whole.gather([7, 299])]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "offset").write_text("5")
    (tmp_path / "kept").mkdir()
    return tmp_path


def collate(folder: Path, scale: str = "2") -> tuple[Any, int]:
    """Returns two rows, and how many were read."""
    (folder / "reads").unlink(missing_ok=True)
    env = {**os.environ, "SWEEPER_CHANGES_KEPT": str(folder / "kept"), "PYTHONPATH": os.getcwd()}
    subprocess.run([sys.executable, "train.py", scale], cwd=folder, env=env, check=True)
    reads = folder / "reads"
    return json.loads((folder / "result").read_text()), int(reads.read_text())


ROWS = [[[14.0, 5.0], [598.0, 5.0]], [7, 299]]


def test_a_second_process_reads_some_rows_only(folder: Path) -> None:
    rows, reads = collate(folder)
    assert rows == ROWS
    assert reads >= 300
    rows, reads = collate(folder)
    assert rows == ROWS
    assert reads < 300
    assert len(os.listdir(folder / "kept")) == 2


@pytest.mark.slow
def test_another_data_set_is_another(folder: Path) -> None:
    collate(folder)
    rows, _ = collate(folder, "3")
    assert rows[0][0] == [21.0, 5.0]


def test_data_that_have_changed_are_collated_anew(folder: Path) -> None:
    collate(folder)
    (folder / "offset").write_text("6")
    rows, _ = collate(folder)
    assert rows[0][0] == [14.0, 6.0]


@pytest.mark.slow
def test_other_code_collates_anew(folder: Path) -> None:
    collate(folder)
    (folder / "train.py").write_text(SCRIPT.replace("index * self.scale", "index + self.scale"))
    rows, _ = collate(folder)
    assert rows[0][0] == [9.0, 5.0]


@pytest.mark.slow
def test_what_a_killed_process_left_is_removed(folder: Path) -> None:
    for number in range(20):
        (folder / "kept" / f"abc{number}.4194999.rows").write_bytes(b"torn")
    collate(folder)
    _, reads = collate(folder)
    assert reads < 300
    assert len(os.listdir(folder / "kept")) == 2


@pytest.mark.slow
def test_a_damaged_description_is_no_obstacle(folder: Path) -> None:
    collate(folder)
    for path in (folder / "kept").glob("*.json"):
        path.write_text("{")
    rows, _ = collate(folder)
    assert rows == ROWS


@pytest.mark.slow
def test_without_a_folder_nothing_is_kept(folder: Path) -> None:
    (folder / "kept").rmdir()
    assert collate(folder)[0] == ROWS


TENSORS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from sweeper.interventions.kept import key_of
import sys
rows = torch.arange(60.0).view(20, 3) * float(sys.argv[1])
data = TensorDataset(rows.to(getattr(torch, sys.argv[2])), torch.zeros(20, dtype=torch.bool))
print(key_of(torch, DataLoader(data, batch_size=4)))
"""


@pytest.mark.slow
def test_the_key_is_that_of_the_numbers_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TENSORS)

    def key(*arguments: str) -> str:
        env = {**os.environ, "PYTHONPATH": os.getcwd()}
        command = [sys.executable, "train.py", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True, text=True)
        return done.stdout

    first = key("1", "float32")
    assert key("1", "float32") == first
    assert key("2", "float32") != first
    assert key("1", "float64") != first
