"""The judge sees each kind of change, and what each way does when nothing hinders it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import ways
from folder import Project, make_project
from runner import command_of, environment_of, outcomes, run_plainly, wait_until_alone
from snapshot import changes, snapshot

pytestmark = pytest.mark.slow

STARTER = """
import os, sys
import train

for name in sys.stdin:
    child = os.fork()
    if not child:
        train.main([name.strip()])
        sys.exit()
    os.waitpid(child, 0)
    print("over", flush=True)
"""
"""Goes each way in a process of its own, and spares it the start of an interpreter."""

TORCH_WRITES = {
    "torch_save_large": "ckpt/last.pt: contents",
    "torch_save_small": "ckpt/small.pt: contents",
    "torch_save_legacy": "files/torch_save_legacy: contents",
    "torch_from_file": "files/torch_from_file: contents",
    "torch_save_new": "new/torch_save_new: appeared",
    "loader_worker": "files/loader_worker: contents",
    "loader_worker_spawned": "files/loader_worker_spawned: contents",
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with one of each."""
    folder = tmp_path / "place"
    (folder / "sub" / "empty").mkdir(parents=True)
    (folder / "file").write_bytes(b"12345")
    (folder / "sub" / "other").write_bytes(b"12345")
    (folder / "link").symlink_to("file")
    (folder / "link_to_folder").symlink_to("sub")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "fifo")
    os.utime(folder / "file", (1000, 1000))
    return folder


def write_unnoticed(place: Path) -> None:
    """Same size, same time."""
    (place / "file").write_bytes(b"1234X")
    os.utime(place / "file", (1000, 1000))


def append(place: Path) -> None:
    with (place / "file").open("ab") as file:
        file.write(b"x")


def replace_by_equal(place: Path) -> None:
    (place / "new").write_bytes(b"12345")
    os.replace(place / "new", place / "file")


def point_elsewhere(place: Path) -> None:
    (place / "link").unlink()
    (place / "link").symlink_to("elsewhere")


def become_a_folder(place: Path) -> None:
    (place / "file").unlink()
    (place / "file").mkdir()


def bind(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        listener.bind("socket")


CHANGES: dict[str, tuple[Callable[[Path], object], str, bool]] = {
    # What is done; a line that must be there; whether it is seen without the metadata.
    "written": (lambda place: (place / "file").write_bytes(b"x"), "file: size 5 -> 1", True),
    "written, same size and time": (write_unnoticed, "file: contents", True),
    "appended": (append, "file: contents", True),
    "replaced by its equal": (replace_by_equal, "file: inode", True),
    "gone": (lambda place: (place / "sub" / "other").unlink(), "sub/other: is gone", True),
    "renamed": (lambda place: (place / "sub").rename(place / "under"), "under/other: appeared", True),
    "new file": (lambda place: (place / "sub" / "new").touch(), "sub/new: appeared", True),
    "new folder": (lambda place: (place / "sub" / "new").mkdir(), "sub: nlink", True),
    "folder gone": (lambda place: (place / "sub" / "empty").rmdir(), "sub/empty: is gone", True),
    "linked": (lambda place: os.link(place / "file", place.parent / "linked"), "file: nlink 1 -> 2", True),
    "link elsewhere": (point_elsewhere, "link: target 'file' -> 'elsewhere'", True),
    "another type": (become_a_folder, "file: type 'file' -> 'folder'", True),
    "socket": (bind, "socket: appeared", True),
    "name that is no text": (lambda place: os.mkdir(bytes(place) + b"/a\n\xff"), r"a\n\xff: appeared", True),
    "mode": (lambda place: (place / "file").chmod(0o600), "file: mode 644 -> 600", False),
    "mode of a folder": (lambda place: (place / "sub").chmod(0o700), "sub: mode 755 -> 700", False),
    "mode of the root": (lambda place: place.chmod(0o700), ": mode 755 -> 700", False),
    "time": (lambda place: os.utime(place / "file", (5, 5)), "file: mtime_ns", False),
    "time of a link": (
        lambda place: os.utime(place / "link", (5, 5), follow_symlinks=False),
        "link: mtime_ns",
        False,
    ),
    "access time set": (lambda place: os.utime(place / "file", (5, 1000)), "file: ctime_ns", False),
    "owner, the same": (lambda place: os.chown(place / "file", os.getuid(), -1), "file: ctime_ns", False),
    "made and gone": (
        lambda place: ((place / "sub" / "new").touch(), (place / "sub" / "new").unlink()),
        "sub: mtime_ns",
        False,
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_is_seen(place: Path, kind: str):
    change, line, is_more_than_metadata = CHANGES[kind]
    old_mask = os.umask(0o022)
    for path, mode in (("file", 0o644), ("sub", 0o755), ("", 0o755)):
        (place / path).chmod(mode)
    before = snapshot(place)
    change(place)
    os.umask(old_mask)
    after = snapshot(place)
    seen = changes(before, after)
    assert any(f"{place}/{line}" in text or f"{place}{line}" in text for text in seen), seen
    assert bool(changes(before, after, metadata=False)) == is_more_than_metadata
    assert seen == sorted(seen)
    assert not any("\n" in text for text in seen)


def test_an_attribute_is_seen(place: Path):
    before = snapshot(place)
    try:
        os.setxattr(place / "file", "user.way", b"1")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    after = snapshot(place)
    assert f"{place}/file: xattrs () -> (('user.way', b'1'),)" in changes(before, after)
    assert changes(before, after, metadata=False) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_an_owner_is_seen(place: Path):
    before = snapshot(place)
    os.chown(place / "file", 1234, 4321)
    after = snapshot(place)
    assert {f"{place}/file: uid 0 -> 1234", f"{place}/file: gid 0 -> 4321"} <= set(changes(before, after))
    assert changes(before, after, metadata=False) == []


def test_reading_is_no_change(place: Path):
    before = snapshot(place)
    os.utime(place / "file", ns=(0, before[str(place / "file")].mtime_ns))
    before = snapshot(place)
    (place / "file").read_bytes()
    list((place / "sub").iterdir())
    assert changes(before, snapshot(place)) == []
    assert len(before) == 10


def test_links_are_not_followed_and_what_is_ignored_is_not_seen(place: Path):
    before = snapshot(place, place / "sub", ignoring=[place / "sub" / "empty"])
    assert not {str(place / "sub" / "empty"), str(place / "link_to_folder" / "other")} & before.keys()
    (place / "sub" / "empty" / "new").touch()
    assert changes(before, snapshot(place, ignoring=[place / "sub" / "empty"])) == []
    assert changes(before, snapshot(place)) != []


def test_a_root_that_is_not_there_is_an_error(place: Path):
    with pytest.raises(FileNotFoundError):
        snapshot(place, place / "nowhere")


# What each way does.


def looked_at(project: Project) -> dict:
    return snapshot(project.home, project.data, ignoring=project.allowed)


@pytest.mark.soak
def test_each_way_is_seen(tmp_path: Path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    project = make_project(tmp_path, small=True)
    names = [name for name in ways.WAYS if name not in ways.TORCH]
    assert len(names) > 250
    unseen, refused = [], {}
    before = looked_at(project)
    with subprocess.Popen(
        [sys.executable, "-B", "-c", STARTER],
        cwd=project.folder,
        env=environment_of(project, scratch),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as starter:
        for name in names:
            starter.stdin.write(f"{name}\n")
            printed = "".join(iter(starter.stdout.readline, "over\n"))
            if name in ways.LATE:
                # The starter itself stays.
                wait_until_alone(project, but={starter.pid})
            after = looked_at(project)
            outcome = outcomes(printed).get(name, "nothing was said")
            if outcome != "wrote":
                refused[name] = outcome
            elif not changes(before, after) and name not in ways.ALLOWED:
                unseen.append(name)
            before = after
        starter.stdin.close()
    assert unseen == []
    assert {name: why for name, why in refused.items() if name not in ways.UNSURE} == {}


@pytest.mark.soak
def test_each_way_of_torch_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    project = make_project(tmp_path, small=True)
    assert TORCH_WRITES.keys() == ways.TORCH
    before = looked_at(project)
    monkeypatch.setattr("runner.NOT_INHERITED", ())
    monkeypatch.setenv("WAYS_EPOCHS", "2")
    printed = run_plainly(command_of("train", *ways.TORCH), project, scratch)
    assert outcomes(printed) == dict.fromkeys(ways.TORCH, "wrote")
    assert {f"{project.folder}/{line}" for line in TORCH_WRITES.values()} <= set(
        changes(before, looked_at(project), metadata=False)
    )
    assert printed.count("loss") == 2


def test_all_ways_in_one_process_are_gone_to_the_end(tmp_path: Path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    project = make_project(tmp_path, small=True)
    names = [name for name in ways.WAYS if name not in ways.TORCH]
    said = outcomes(run_plainly(command_of(*names), project, scratch))
    # It is the last to say something, and what only writes at the end says nothing wrong.
    assert said.keys() == set(names)
    refused = {name for name, outcome in said.items() if outcome != "wrote"}
    assert refused <= ways.UNSURE


def test_the_ways_are_listed(tmp_path: Path):
    listed = subprocess.check_output([sys.executable, ways.__file__, "--list"], text=True, cwd=tmp_path)
    assert listed.split() == list(ways.WAYS)
