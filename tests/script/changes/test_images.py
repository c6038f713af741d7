"""Pictures that are decoded once: the same pixels, draws and batches, whatever is drawn for a row."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hearing import completed

pytest.importorskip("PIL")

SCRIPT = """
import hashlib, io, json, os, random, sys, time
import numpy as np, torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from sweeper.script.changes import apply

kind, workers, changes = sys.argv[1], int(sys.argv[2]), sys.argv[3]
ROWS, told = 60, []
SUFFIX = ".png" if kind in ("png", "palette") else ".jpg"

def write(number, seed):
    pixels = np.random.default_rng(seed).integers(0, 255, (70 + number % 5, 90, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels).resize((400, 300))
    if kind == "palette":
        picture = picture.convert("P")
    picture.save(f"{number}{SUFFIX}")
    # All files have one size, so that it does not tell a file that is written again.
    with open(f"{number}{SUFFIX}", "ab") as file:
        file.write(bytes(1_000_000 - file.tell()))

if not os.path.exists(f"0{SUFFIX}"):
    for number in range(ROWS):
        write(number, number)

class Files(Dataset):
    def __len__(self):
        return ROWS
    def open(self, index):
        path = f"{index}{SUFFIX}"
        if kind == "bytes":
            with open(path, "rb") as file:
                return Image.open(io.BytesIO(file.read())).convert("RGB")
        if kind == "handle":
            with open(path, "rb") as file:
                return Image.open(file).convert("RGB")
        picture = Image.open(path)
        if kind == "draft":
            picture.draft("RGB", (200, 150))
        if kind == "loaded":
            picture.load()
            assert picture.getpixel((0, 0)) is not None
        return picture.convert("L" if kind == "grey" else "RGB")
    def __getitem__(self, index):
        if kind == "slow":
            time.sleep(0.015)
        picture = np.asarray(self.open(index))
        top, left = torch.randint(0, 50, (2,)).tolist()
        picture = picture[top : top + 64, left : left + 64]
        if random.random() < 0.5:
            picture = picture[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(picture)), index

decoders = []
original = Image._getdecoder
def getdecoder(mode, name, args, extra=()):
    decoders.append(name)
    return original(mode, name, args, extra)
Image._getdecoder = getdecoder
from PIL import ImageFile

apply(torch, changes, told.append)
torch.manual_seed(0)
random.seed(0)
digest = hashlib.sha256()
rows = list(range(ROWS)) if kind == "list" else Files()
loader = DataLoader(rows, batch_size=8, shuffle=True, num_workers=workers)
counts = []
for epoch in range(3):
    if kind == "rewritten" and epoch == 2:
        time.sleep(0.01)
        write(7, 1000)
    decoders.clear()
    for batch in loader:
        parts = [batch] if kind == "list" else batch
        for part in parts:
            digest.update(part.numpy().tobytes())
    counts.append(sum(name in ("jpeg", "zip") for name in decoders))
digest.update(torch.get_rng_state().numpy().tobytes() + repr(random.getstate()).encode())
print(json.dumps({"digest": digest.hexdigest(), "counts": counts, "told": told}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "kept").mkdir()
    return tmp_path


def trained(folder: Path, kind: str, workers: int = 0, changes: str = "images=decoded") -> dict[str, Any]:
    env = {"SWEEPER_CHANGES_KEPT": str(folder / "kept"), "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-W", "ignore", "train.py", kind, str(workers), changes]
    return completed(command, env, folder).truth


def why(found: dict[str, Any]) -> str:
    (told,) = found["told"]
    assert not told["change"]["applied"]
    return str(told["change"]["why"])


OTHERS = ("handle", "bytes", "draft", "loaded", "grey", "png")


@pytest.mark.parametrize("kind", ["path", *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)])
def test_no_picture_is_decoded_again_and_nothing_else_differs(folder: Path, kind: str) -> None:
    own = trained(folder, kind, changes="")
    found = trained(folder, kind)
    assert found["told"] == [{"change": {"name": "images", "applied": True, "why": ""}}]
    assert found["digest"] == own["digest"]
    assert (own["counts"], found["counts"]) == ([60] * 3, [0] * 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["path", "bytes"])
def test_workers_find_them_decoded(folder: Path, kind: str) -> None:
    assert trained(folder, kind, 2)["digest"] == trained(folder, kind, 2, "")["digest"]


def test_a_second_process_finds_them_too(folder: Path) -> None:
    first = trained(folder, "path")
    (rows,) = (folder / "kept").glob("images-*.rows")
    assert rows.stat().st_size > 60 * 400 * 300 * 3
    # Meanwhile, other ranks wait for it.
    assert rows.with_suffix(".lock").exists()
    again = trained(folder, "path")
    assert (again["digest"], again["counts"]) == (first["digest"], [0] * 3)


def test_a_picture_that_is_written_again_is_decoded_again(folder: Path) -> None:
    trained(folder, "path", changes="")
    found = trained(folder, "rewritten")
    assert found["counts"] == [0, 0, 1]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("list", "opens no images with Pillow"),
        ("palette", "opens no images with Pillow"),
        pytest.param("slow", "of the time to read its rows", marks=pytest.mark.soak),
    ],
)
def test_where_nothing_can_be_saved_it_says_so(folder: Path, kind: str, reason: str) -> None:
    found = trained(folder, kind)
    assert reason in why(found)
    assert found["digest"] == trained(folder, kind, changes="")["digest"]


def test_what_does_not_fit_into_memory_is_not_kept(folder: Path) -> None:
    limited = SCRIPT.replace(
        "apply(torch",
        "from sweeper.script.changes import images\nimages.available_bytes = lambda: 1000\napply(torch",
    )
    (folder / "train.py").write_text(limited)
    assert "a quarter of the free memory" in why(trained(folder, "path"))
