"""Collated data sets in files: found again where nothing has changed, and never half written."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hearing import completed

from sweeper.script.changes.rows.dataset_file import KEPT_VARIABLE, DatasetFile

SCRIPT = """
import json, pathlib, sys
import torch
from torch.utils.data import DataLoader, Dataset
from sweeper.script.changes.rows import collating

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
whole = collating.collate(torch, loader)
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
    env = {"SWEEPER_CHANGES_KEPT": str(folder / "kept"), "PYTHONPATH": os.getcwd()}
    completed([sys.executable, "train.py", scale], env, folder)
    reads = folder / "reads"
    return json.loads((folder / "result").read_text()), int(reads.read_text())


def ends(folder: Path) -> list[str]:
    """Returns the kinds of the files that are kept."""
    found = [each.suffix[1:] for each in (folder / "kept").iterdir()]
    return sorted(each for each in found if each != "lock")


ROWS = [[[14.0, 5.0], [598.0, 5.0]], [7, 299]]


def test_a_second_process_reads_some_rows_only(folder: Path) -> None:
    rows, reads = collate(folder)
    assert rows == ROWS
    assert reads >= 300
    rows, reads = collate(folder)
    assert rows == ROWS
    assert reads < 300
    assert ends(folder) == ["json", "rows"]


@pytest.mark.slow
def test_ranks_that_start_at_once_share_one_file(folder: Path) -> None:
    env = {**os.environ, "SWEEPER_CHANGES_KEPT": str(folder / "kept"), "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "train.py", "2"]
    ranks = [subprocess.Popen(command, cwd=folder, env=env) for _ in range(3)]
    assert [each.wait() for each in ranks] == [0, 0, 0]
    assert json.loads((folder / "result").read_text()) == ROWS
    # Each row once and some of them again by the first; some more by the others.
    assert int((folder / "reads").read_text()) < 2 * 300 + 256 + 2 * 300
    assert ends(folder) == ["json", "rows"]


@pytest.mark.slow
def test_a_fifth_data_set_is_not_kept(folder: Path) -> None:
    kinds = ("", "", "pictures-", "pictures-")
    names = {f"{of}{number:032x}.{end}" for number, of in enumerate(kinds) for end in ("json", "rows")}
    for name in names:
        (folder / "kept" / name).write_text("{}")
    assert collate(folder)[0] == ROWS
    assert {each.name for each in (folder / "kept").iterdir() if each.suffix != ".lock"} == names


@pytest.mark.slow
def test_what_is_somebody_elses_stays(folder: Path) -> None:
    names = {"part.00017.pt", "README", "abc.4194999.rows", "config.json"}
    for name in names:
        (folder / "kept" / name).write_text("mine")
    assert collate(folder)[0] == ROWS
    assert names < {each.name for each in (folder / "kept").iterdir()}


@pytest.mark.slow
def test_a_file_that_the_data_set_names_is_part_of_what_it_is(folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT.replace("float(sys.argv[1])", "2.0; self.path = sys.argv[1]"))
    (folder / "table").write_text("1")
    collate(folder, str(folder / "table"))
    assert collate(folder, str(folder / "table"))[1] < 300
    (folder / "table").write_text("12")
    assert collate(folder, str(folder / "table"))[1] >= 300


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
    node = hashlib.blake2b(os.uname().nodename.encode(), digest_size=4).hexdigest()
    for number in range(20):
        (folder / "kept" / f"{number:032x}.4194999-{node}.rows").write_bytes(b"torn")
    collate(folder)
    _, reads = collate(folder)
    assert reads < 300
    assert ends(folder) == ["json", "rows"]


@pytest.mark.slow
def test_a_damaged_description_is_no_obstacle(folder: Path) -> None:
    collate(folder)
    for path in (folder / "kept").glob("*.json"):
        path.write_text("{")
    rows, _ = collate(folder)
    assert rows == ROWS


def test_no_older_description_is_left_for_new_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEPT_VARIABLE, str(tmp_path))

    def keep(about: Any, rows: bytes) -> None:
        kept = DatasetFile("0" * 32)
        kept.room(len(rows))[:] = rows
        try:
            kept.keep(about)
        finally:
            kept.drop()

    keep({"of": "some"}, b"some")
    about, rows = DatasetFile("0" * 32).read()
    assert (about, rows[:]) == ({"of": "some"}, b"some")
    # It ends between the two files.
    with pytest.raises(TypeError):
        keep({"of": object()}, b"new ones")
    assert DatasetFile("0" * 32).read() is None


@pytest.mark.slow
def test_without_a_folder_nothing_is_kept(folder: Path) -> None:
    (folder / "kept").rmdir()
    assert collate(folder)[0] == ROWS


TENSORS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from sweeper.script.changes.rows.dataset_file import key_of
import sys
rows = torch.arange(60.0).view(20, 3) * float(sys.argv[1])
data = TensorDataset(rows.to(getattr(torch, sys.argv[2])), torch.zeros(20, dtype=torch.bool))
print(key_of(torch, DataLoader(data, batch_size=4)))
"""


@pytest.mark.slow
def test_the_key_is_that_of_the_numbers_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TENSORS)

    def key(*arguments: str) -> str:
        command = [sys.executable, "train.py", *arguments]
        return completed(command, {"PYTHONPATH": os.getcwd()}, tmp_path).output

    first = key("1", "float32")
    assert key("1", "float32") == first
    assert key("2", "float32") != first
    assert key("1", "float64") != first
