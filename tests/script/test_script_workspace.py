"""The mirror a script works in: what is copied, what is linked, what is left out, what is told."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from sweeper.core.script import Script
from sweeper.errors import UserError
from sweeper.script import workspace
from sweeper.script.workspace import leads_out, make


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with code, data, results, a sweep's home and what nobody needs."""
    monkeypatch.setattr(workspace, "COPIED_BYTES", 1000)
    monkeypatch.setattr(workspace, "MAX_ENTRIES", 5)
    folder = tmp_path / "source"
    for name in (
        "train.py",
        "sub/helper.py",
        ".git/config",
        "env/pyvenv.cfg",
        "home/sweeps/x",
        "__pycache__/a",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "large.bin").write_bytes(bytes(2000))
    (folder / "linked").symlink_to("train.py")
    (folder / "images").mkdir()
    for i in range(9):
        (folder / "images" / f"{i}.png").touch()
    return folder


def made(source: Path, **changes) -> workspace.Workspace:
    script = Script(command=("x",), folder=str(source), **changes)
    return make(script, {"size": 3}, source / "home" / "sweeps" / "trial" / "work")


def test_small_files_are_copies_and_large_ones_links(source: Path):
    place = made(source).folder
    assert sorted(p.name for p in place.iterdir()) == ["images", "large.bin", "linked", "sub", "train.py"]
    assert not (place / "train.py").is_symlink()
    assert (place / "large.bin").resolve() == source / "large.bin"
    assert (place / "images").resolve() == source / "images"
    assert (place / "linked").resolve() == place / "train.py"
    assert (place / "sub" / "helper.py").read_text() == "sub/helper.py"


def test_copies_are_copies(source: Path):
    place = made(source, workdir="copy").folder
    assert not any(path.is_symlink() for path in place.rglob("*") if path.name != "linked")
    assert len(list((place / "images").iterdir())) == 9


def test_what_is_written_through_a_link_is_noticed(source: Path):
    place = made(source)
    assert place.overwritten() == []
    with (place.folder / "large.bin").open("r+b") as file:
        file.write(b"x")
    assert place.overwritten() == [source / "large.bin"]


def test_places_in_a_mirror_are_given_from_its_folder(source: Path):
    place = made(source)
    assert place.mirror_root is not None
    root, installed = place.mirror_root.resolve(), str(source / "sub" / "helper.py:4")
    facts = {
        "threads": 2,
        "places": {
            "loader": f"{root}/source/sub/data.py:3",
            "optimizer": f"{root}/common.py:9",
            "x": installed,
        },
    }
    places = {"loader": "sub/data.py:3", "optimizer": "../common.py:9", "x": installed}
    assert place.observed(facts) == {"threads": 2, "places": places}
    assert place.observed({"threads": 2}) == {"threads": 2}


def test_removing_a_mirror_leaves_the_users_files(source: Path):
    place = made(source)
    place.remove()
    assert not place.folder.exists()
    assert (source / "large.bin").exists()
    assert (source / "images" / "8.png").exists()


def test_working_here_removes_nothing(source: Path):
    place = made(source, workdir="here")
    assert place.folder == source
    place.remove()
    assert (source / "train.py").exists()


def test_files_are_written_from_templates_never_through_a_link(source: Path):
    place = made(source, files={"large.bin": "size: {size}", "new/config.yaml": "{size}"})
    assert (place.folder / "large.bin").read_text() == "size: 3"
    assert (source / "large.bin").stat().st_size == 2000
    assert (place.folder / "new" / "config.yaml").read_text() == "3"


def test_a_mirror_is_made_anew(source: Path):
    left = made(source).folder / "left.txt"
    left.touch()
    made(source)
    assert not left.exists()


@pytest.mark.parametrize(
    ("argument", "is_told"),
    [
        ("../../..", True),
        ("--data=./../../../", True),
        # The rest of the repository, and what is beside it, is linked.
        ("../large.bin", False),
        ("../../data", False),
        ("../../nothing", False),
        ("/tmp/../data", False),
        ("a..b", False),
    ],
)
def test_a_path_that_leads_out_is_told(source: Path, argument: str, is_told: bool):
    folder = source / "sub"
    (source.parent / "data").mkdir()
    assert leads_out(["train.py", argument], folder) == (argument if is_told else "")


def test_what_is_beside_the_folder_is_beside_the_mirror(source: Path):
    (source.parent / "data").mkdir()
    (source.parent / "data" / "rows.txt").write_text("rows")
    (source.parent / ".git").mkdir()
    place = made(source)
    assert (place.folder / "../data/rows.txt").read_text() == "rows"
    assert not (place.folder / "../.git").exists()
    place.remove()
    assert (source.parent / "data" / "rows.txt").exists()
    assert not place.folder.parent.exists()


def test_what_is_in_its_repository_is_around_the_mirror(tmp_path: Path):
    folder = tmp_path / "repository" / "code" / "train"
    folder.mkdir(parents=True)
    for name in (".git/config", "data/rows.txt", "code/helper.py", "../beside.txt"):
        path = tmp_path / "repository" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    (folder / "train.py").write_text("")
    mirror = make(
        Script(command=("x",), folder=str(folder)), {}, tmp_path / "repository" / "runs" / "work"
    ).folder
    found = ("train.py", "../helper.py", "../../data/rows.txt", "../../../beside.txt")
    assert all((mirror / each).is_file() for each in found)
    assert not (mirror / "../../.git").exists()
    assert leads_out(["--data", "../../data"], folder) == ""
    assert leads_out(["../../../../" + tmp_path.name], folder) != ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list everything")
def test_a_folder_that_cannot_be_listed_is_not(source: Path):
    source.parent.chmod(0o311)
    try:
        assert (made(source).folder / "train.py").exists()
    finally:
        source.parent.chmod(0o755)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_cannot_be_read_is_linked(source: Path):
    (source / "sub").chmod(0)
    (source / "train.py").chmod(0)
    try:
        place = made(source).folder
        assert os.readlink(place / "sub") == str(source / "sub")
        assert os.readlink(place / "train.py") == str(source / "train.py")
    finally:
        (source / "sub").chmod(0o755)


def test_a_link_to_itself_is_one_in_the_mirror(source: Path):
    (source / "loop").symlink_to("loop")
    assert (made(source).folder / "loop").is_symlink()


def test_what_is_removed_meanwhile_is_left_out(source: Path, monkeypatch: pytest.MonkeyPatch):
    def copied(path: Path, to: Path) -> None:
        # As an editor does, while the files before it are copied.
        (source / "train.py").unlink(missing_ok=True)
        shutil.copyfile(path, to)

    monkeypatch.setattr(shutil, "copy2", copied)
    place = made(source).folder
    assert (place / "sub" / "helper.py").exists()
    assert not (place / "train.py").is_symlink()
    assert not (place / "train.py").exists()


def test_files_are_never_written_through_a_linked_folder(source: Path):
    (source.parent / "shared").mkdir()
    (source / "configs").symlink_to(source.parent / "shared")
    with pytest.raises(UserError, match="leads through a link"):
        made(source, files={"configs/run.yaml": "3"})
    assert not any((source.parent / "shared").iterdir())


def test_what_a_mirror_leaves_out_is_not_there(source: Path):
    (source.parent / ".venv").mkdir()
    assert leads_out(["../.venv"], source) == "../.venv"


def test_many_things_beside_the_folder_are_not_linked(source: Path):
    for i in range(9):
        (source.parent / f"{i}.txt").touch()
    assert [each.name for each in made(source).folder.parent.iterdir()] == ["source"]
