"""The mirror of a script's folder: what is copied, what is linked, what is around it."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from sweeper.errors import UserError
from sweeper.script.run import mirror
from sweeper.script.run.mirror import Mirror, check_size, leads_out, make_mirror, repository_of


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with code, data, results, a repository and a sweep's home."""
    monkeypatch.setattr(mirror, "MAX_ENTRIES", 8)
    folder = tmp_path / "source"
    for name in (
        "train.py",
        "config.yaml",
        "sub/helper.py",
        "sub/notes.txt",
        "wandb/__init__.py",
        ".git/config",
        "env/pyvenv.cfg",
        "home/sweeps/x",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "store.db").write_bytes(bytes(2000))
    (folder / "linked").symlink_to("train.py")
    for name in ("images/cats", "images/dogs"):
        (folder / name).mkdir(parents=True)
        for i in range(9):
            (folder / name / f"{i}.png").touch()
    return folder


def made(source: Path, **options) -> Mirror:
    return make_mirror(source, source / "home" / "sweeps" / "trial" / "work", **options)


def links(folder: Path) -> set[str]:
    """The links below a folder, as far as they are in it."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink()}


def test_code_and_databases_are_copies_and_all_else_is_a_link(source: Path):
    folder = made(source).folder
    assert links(folder) == {".git", "config.yaml", "env", "images", "linked", "sub/notes.txt"}
    assert (folder / "images").resolve() == source / "images"
    assert (folder / "linked").resolve() == folder / "train.py"
    assert (folder / "wandb" / "__init__.py").read_text() == "wandb/__init__.py"
    assert not (folder / "home").exists()


def test_a_large_folder_with_code_is_a_folder_of_links(source: Path):
    (source / "images" / "classes.py").touch()
    assert links(made(source).folder / "images") == {"cats", "dogs"}


def test_the_search_for_code_ends(source: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mirror, "MAX_SURVEYED", 2)
    assert {"images", "sub", "wandb"} < links(made(source).folder)


def test_the_upper_folders_come_first(source: Path, monkeypatch: pytest.MonkeyPatch):
    (source / "sub" / "deep").mkdir()
    (source / "sub" / "deep" / "code.py").touch()
    monkeypatch.setattr(mirror, "MAX_MADE", 10)
    assert {"sub/deep", "sub/notes.txt", "wandb"} < links(made(source).folder)


def test_copies_are_copies(source: Path):
    folder = made(source, copies=True).folder
    assert links(folder) == {"linked", "env"}
    assert len(list((folder / "images" / "cats").iterdir())) == 9


def test_what_is_unprotected_is_a_link(source: Path):
    folder = made(source, copies=True, linked={source / "sub", source / "images" / "cats"}).folder
    assert links(folder) == {"linked", "env", "sub", "images/cats"}


def test_what_was_written_before_is_a_copy(source: Path):
    folder = made(source, opened={source / "images" / "dogs" / "1.png"}).folder
    assert "images" not in links(folder)
    assert {"images/cats", "images/dogs/0.png"} < links(folder)
    assert "images/cats/0.png" not in links(folder)
    assert "images/dogs/1.png" not in links(folder)


def test_what_was_written_beside_the_folder_is_a_copy(source: Path):
    other = source.parent / "other" / "log.txt"
    other.parent.mkdir()
    other.write_text("x")
    (source / "out").symlink_to("../other")
    folder = made(source, opened={other}).folder
    assert not (folder / "../other").is_symlink()
    assert (folder / "out" / "log.txt").resolve() == folder.parent / "other" / "log.txt"


def test_a_folder_of_links_takes_the_place_of_a_link(source: Path):
    place = made(source)
    assert place.open_folder(str(place.folder / "images"))
    assert links(place.folder / "images") == {"cats", "dogs"}
    assert [path.name for path in place.root.iterdir() if path.name.startswith(".")] == []


def test_a_folder_of_links_without_an_exchange(source: Path, monkeypatch: pytest.MonkeyPatch):
    class Without:
        def renameat2(self, *arguments: object) -> int:
            return -1

    monkeypatch.setattr(mirror, "_libc", Without())
    place = made(source)
    assert place.open_folder(str(place.folder / "images"))
    assert links(place.folder / "images") == {"cats", "dogs"}
    assert sorted(path.name for path in (source / "images").iterdir()) == ["cats", "dogs"]


def test_what_cannot_be_completed_leaves_the_link(source: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    place = made(source)
    before = sorted(map(str, place.root.rglob("*")))
    monkeypatch.setattr(shutil, "copyfile", full)
    assert not place.copy_file(str(place.folder / "config.yaml"))
    monkeypatch.setattr(os, "symlink", full)
    assert not place.open_folder(str(place.folder / "images"))
    monkeypatch.undo()
    monkeypatch.setattr(mirror, "MAX_OPENED", 1)
    assert not place.open_folder(str(place.folder / "images"))
    assert sorted(map(str, place.root.rglob("*"))) == before


def test_the_home_leads_to_the_mirror(source: Path):
    home = source.parent
    (home / ".config").mkdir()
    place = made(source)
    place.add_home(home)
    assert place.home is not None
    assert (place.home / "source").resolve() == place.folder
    assert (place.home / ".config").resolve() == home / ".config"
    place.remove()
    assert not place.home.exists()
    assert (source / "train.py").exists()


def test_the_home_of_a_project_further_down_leads_to_the_mirror(
    source: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mirror, "MAX_ENTRIES", 100)
    deep = source / "sub" / "project"
    deep.mkdir()
    shutil.rmtree(source / ".git")
    place = make_mirror(deep, source / "home" / "work")
    place.add_home(source)
    assert place.home is not None
    assert (place.home / "sub" / "project").resolve() == place.folder
    assert (place.home / "sub" / "helper.py").resolve() == source / "sub" / "helper.py"
    assert (source / "sub" / "project").is_dir()


def test_a_home_that_is_too_large_is_not_mirrored(source: Path, monkeypatch: pytest.MonkeyPatch):
    place = made(source)
    monkeypatch.setattr(mirror, "MAX_ENTRIES", 1)
    place.add_home(source.parent)
    assert place.home is None
    monkeypatch.setattr(mirror, "MAX_ENTRIES", 100)
    monkeypatch.setattr(mirror, "MAX_OPENED", 1)
    deep = make_mirror(source / "sub", source / "home" / "work")
    shutil.rmtree(source / ".git")
    deep = make_mirror(source / "sub", source / "home" / "work")
    deep.add_home(source.parent)
    assert deep.home is None
    assert (source / "sub" / "helper.py").exists()


def test_a_copy_takes_the_place_of_a_link(source: Path):
    place = made(source)
    (source / "config.yaml").chmod(0o640)
    assert place.copy_file(str(place.folder / "config.yaml"))
    copy = place.folder / "config.yaml"
    assert not copy.is_symlink()
    assert copy.read_text() == "config.yaml"
    assert copy.stat().st_mode & 0o777 == 0o640
    assert place.copy_file(str(place.folder / "sub" / "notes.txt"), empty=True)
    assert (place.folder / "sub" / "notes.txt").read_text() == ""


def test_what_only_a_link_leads_to_is_known(source: Path):
    place = made(source)
    assert place.has_link_to(source / "images" / "cats" / "0.png")
    assert not place.has_link_to(source / "train.py")
    assert not place.has_link_to(source / "made")
    assert not place.has_link_to(Path("/elsewhere/x"))


def test_a_large_folder_is_not_copied(source: Path, monkeypatch: pytest.MonkeyPatch):
    check_size(source, ())
    monkeypatch.setattr(mirror, "MAX_COPY_FILES", 20)
    with pytest.raises(UserError, match="--unprotected PATH"):
        check_size(source, ())
    check_size(source, {source / "images"})


def test_removing_a_mirror_leaves_the_users_files(source: Path):
    place = made(source)
    (place.folder / "locked").mkdir()
    (place.folder / "locked" / "file").touch()
    (place.folder / "locked").chmod(0)
    place.remove()
    assert not place.folder.exists()
    assert (source / "store.db").exists()
    assert (source / "images" / "cats" / "8.png").exists()


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
    place = made(source)
    assert (place.folder / "../data/rows.txt").read_text() == "rows"
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
    place = make_mirror(folder, tmp_path / "repository" / "runs" / "work")
    names = ("train.py", "../helper.py", "../../data/rows.txt", "../../../beside.txt", "../../.git/config")
    assert all((place.folder / name).is_file() for name in names)
    assert place.translate(folder / "train.py") == place.folder / "train.py"
    assert place.translate(tmp_path / "beside.txt") == tmp_path / "beside.txt"
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


def test_a_home_under_version_control_is_no_repository(source: Path, monkeypatch: pytest.MonkeyPatch):
    (source.parent / ".git").mkdir()
    shutil.rmtree(source / ".git")
    assert made(source).top == source.parent
    monkeypatch.setenv("HOME", str(source.parent))
    assert made(source).top == source


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


def test_many_things_beside_the_folder_are_not_linked(source: Path):
    for i in range(9):
        (source.parent / f"{i}.txt").touch()
    assert [path.name for path in made(source).folder.parent.iterdir()] == ["source"]


def test_the_top_of_what_was_downloaded_without_git_is_known_by_what_it_needs(tmp_path: Path, monkeypatch):
    """`../../../data`, as seen from an example of a repository."""
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    example = home / "downloads" / "program" / "models" / "deep" / "example"
    example.mkdir(parents=True)
    (home / "LICENSE").touch()
    assert repository_of(example) == example
    (example / "requirements.txt").touch()
    top = example.parents[2]
    (top / "LICENSE").touch()
    assert repository_of(example) == top
    (top / "data").mkdir()
    (top / "data" / "rows.csv").write_text("1")
    mirror = make_mirror(example, tmp_path / "work")
    assert (mirror.folder / "../../../data/rows.csv").read_text() == "1"
    (example / ".git").mkdir()
    assert repository_of(example) == example
