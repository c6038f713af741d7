"""A user's home with a project in it: what the ways of ways.py write to."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import ways

NUM_IMAGES = 2100
NUM_CLASSES, NUM_PER_CLASS = 30, 100
SMALL_BYTES, LARGE_BYTES = 300, 2_200_000


@dataclass(frozen=True, slots=True)
class Project:
    """Where what is the user's is; `home` is what HOME is for a run."""

    folder: Path
    home: Path
    data: Path

    @property
    def allowed(self) -> tuple[Path, ...]:
        """Where a script may write."""
        return (self.home / ".cache" / "torch",)


def make_project(base: Path, *, small: bool = False) -> Project:
    """Makes the home, the project and the data.

    Args:
        base: A folder that exists.
        small: With few entries in the large folders, for the ways that do not need them.
    """
    project = Project(base / "home" / "user" / "project", base / "home" / "user", base / "data")
    folder = project.folder
    for place in ("lib", "fresh", "wandb", "ckpt", "runs/2026/deep/er", "images", "files", "folders", "new"):
        (folder / place).mkdir(parents=True)
    _make_surroundings(project)
    _make_sources(project)
    _make_files(folder)
    _make_targets(folder)
    _make_links(project)
    _make_large(folder, *((20, 10, 3) if small else (NUM_IMAGES, NUM_CLASSES, NUM_PER_CLASS)))
    if shutil.which("git"):
        _make_repository(folder)
    return project


def _make_surroundings(project: Project) -> None:
    """What is outside of the project."""
    outside = project.home / "outside"
    (outside / "dir").mkdir(parents=True)
    (project.home / ".cache" / "torch").mkdir(parents=True)
    project.data.mkdir()
    for path in (
        *(outside / "linked.txt", outside / "absolute.txt", outside / "by_parent.txt", outside / "mode.txt"),
        *(outside / "dir" / "file.txt", outside / "dir" / "gone.txt", project.home / "home.txt"),
        *(project.data / "rows.csv", project.data / "shard.bin"),
    ):
        path.write_text(f"{path.name}\n" * 20)


def _make_sources(project: Project) -> None:
    folder = project.folder
    shutil.copyfile(ways.__file__, folder / "train.py")
    for package in ("lib", "fresh", "wandb"):
        (folder / package / "__init__.py").write_text('"""Of the user."""\n\nVALUE = 1\n')
    (folder / "compiled.py").write_text("VALUE = 2\n")
    (folder / "config.yaml").write_text(f"folder: {folder}\ndata: {project.data}\nlr: 0.1\n")


def _make_files(folder: Path) -> None:
    text = "epoch 1\nepoch 2\nan apple a day\n" * 10
    for name in (
        "notes.txt",
        "log.txt",
        "pair_a",
        "pair_c",
        "with_mode.sh",
        "with_xattr.txt",
        "read_only.txt",
    ):
        (folder / name).write_text(text)
    os.link(folder / "pair_a", folder / "pair_b")
    (folder / "with_mode.sh").chmod(0o750)
    (folder / "read_only.txt").chmod(0o444)
    with contextlib.suppress(OSError):
        os.setxattr(folder / "with_xattr.txt", "user.theirs", b"kept")
    (folder / "runs/2026/metrics.csv").write_text("step,loss\n1,0.9\n2,0.8\n")
    (folder / "runs/2026/deep/er/file.txt").write_text(text)
    (folder / "odd näme\n dir").mkdir()
    (folder / "odd näme\n dir" / "fi le.txt").write_text(text)
    generator = random.Random(0)
    (folder / "big.bin").write_bytes(generator.randbytes(3 * 2**20))
    # No checkpoints of torch's: nothing reads them, and torch takes long to import.
    (folder / "ckpt/last.pt").write_bytes(generator.randbytes(LARGE_BYTES))
    (folder / "ckpt/small.pt").write_bytes(generator.randbytes(SMALL_BYTES))
    np.save(folder / "table.npy", np.arange(1000.0))
    np.save(folder / "saved.npy", np.zeros(10))
    np.savez(folder / "saved.npz", rows=np.zeros(10))
    for name, journal in (("store.db", "DELETE"), ("store_wal.db", "WAL"), ("store_turned.db", "DELETE")):
        with contextlib.closing(sqlite3.connect(folder / name)) as store, store:
            store.execute(f"PRAGMA journal_mode={journal}")
            store.execute("CREATE TABLE rows (id INTEGER, text TEXT)")
            store.execute("INSERT INTO rows VALUES (0, 'theirs')")
    with zipfile.ZipFile(folder / "archive.zip", "w") as archive:
        archive.writestr("theirs.txt", text)
    with tarfile.open(folder / "archive.tar", "w") as archive:
        archive.add(folder / "notes.txt", "theirs.txt")
    with contextlib.suppress(ImportError):
        import h5py

        with h5py.File(folder / "table.h5", "w") as file:
            file.create_dataset("theirs", data=[1, 2, 3])


def _make_targets(folder: Path) -> None:
    """What each way is given, so that all can be gone one after another."""
    for name in ways.WAYS:
        target = folder / ways.target_of(name)
        if target.parent.name == "files":
            target.write_text(f"a line for {name}\n" * 10)
        elif target.parent.name == "folders":
            (target / "sub").mkdir(parents=True)
            (target / "a.txt").write_text("a line\n" * 10)
            (target / "sub" / "b.txt").write_text("a line\n" * 10)
    (folder / "new" / "theirs.txt").write_text("theirs\n")
    (folder / "files" / "symlink_target").write_text("theirs\n")
    (folder / "files" / os.fsdecode(b"\xff\xfe")).write_text("theirs\n")


def _make_links(project: Project) -> None:
    for name, target in (
        ("linked.txt", "../outside/linked.txt"),
        ("linked_dir", "../outside/dir"),
        ("linked_mode.txt", "../outside/mode.txt"),
        ("link_of_linked_dir", "linked_dir"),
        ("link_to_notes", "notes.txt"),
        ("link_to_log", "log.txt"),
        ("link_to_data", str(project.data)),
        ("absolute_link", str(project.home / "outside" / "absolute.txt")),
        ("dangling", "nowhere"),
        ("loop", "loop"),
    ):
        (project.folder / name).symlink_to(target)


def _make_large(folder: Path, num_images: int, num_classes: int, num_per_class: int) -> None:
    for index in range(num_images):
        (folder / "images" / f"{index:04}.png").write_bytes(b"picture %d" % index)
    for index in range(num_classes):
        place = folder / "large_tree" / f"class_{index:02}"
        place.mkdir(parents=True)
        for number in range(num_per_class):
            (place / f"{number:03}.txt").write_bytes(b"%d of %d" % (number, index))


def _make_repository(folder: Path) -> None:
    """With one commit, of few files, and no work of git's in the background."""
    git = ("git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "gc.auto=0")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    for words in (
        ("init", "-q", "--template="),
        ("add", "train.py", "notes.txt", "files/git_commit"),
        ("commit", "-qm", "first"),
    ):
        subprocess.run([*git, *words], check=True, env=environment)
