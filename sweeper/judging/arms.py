"""Prepares the two versions of a training that are compared, each in a folder where it can run."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.errors import UserError
from sweeper.script.run.mirror import make_mirror
from sweeper.script.run.sandbox import INSTEAD_OF
from sweeper.script.run.scratch import scratch_folder

PASSIVE = {"GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
"""Environment variables that make idle threads sleep, where two versions run at the same time."""
ABSENT, LINK, EXECUTABLE, SUBMODULE = "000000", "120000", "100755", "160000"
"""Modes of files, as git writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One version of a training.

    Attributes:
        name: Its name in a word or two, such as `before` or a git revision.
        folder: The folder where its command runs, or a mirror of that folder.
        mirrors: The folder and the mirror of it from which its modules are imported, even if the folder is
            installed, as by `pip install -e`; None if it has no mirror.
        cache: Folder of what its runs share, such as downloads; None if they share nothing.
    """

    name: str
    command: tuple[str, ...]
    folder: Path
    mirrors: tuple[Path, Path] | None = None
    cache: Path | None = None

    @property
    def env(self) -> Mapping[str, str]:
        """The environment variable of its mirror; empty without one, so that no other value is inherited."""
        return {INSTEAD_OF: "\n".join(map(str, self.mirrors or ()))}


def commands(before: Sequence[str], after: Sequence[str], folder: Path) -> tuple[Arm, Arm]:
    """Returns the arms of two commands in one folder."""
    return (
        Arm(name="before", command=tuple(before), folder=folder),
        Arm(name="after", command=tuple(after), folder=folder),
    )


@contextlib.contextmanager
def since(revision: str, command: Sequence[str], folder: Path) -> Iterator[tuple[Arm, Arm]]:
    """Yields the arms of one command: at a revision of its repository, and in the working tree.

    Files that git does not track, such as data, are the same in both.

    Raises:
        UserError: The folder is in no repository, the repository has no such revision, or git cannot read it.
    """
    root, commit = _commit_of(revision, folder)
    listed = _git(root, "diff", "--raw", "--no-renames", "-z", commit)
    if listed is None:
        raise UserError(
            f"git must be able to compare {revision!r} with the files of {str(root)!r}, but fails."
        )
    words = listed.decode(errors="surrogateescape").split("\0")
    changed = [(header[1:].split()[:2], path) for header, path in zip(words[::2], words[1::2], strict=False)]
    for modes, path in changed:
        if SUBMODULE in modes:
            raise UserError(
                f"`--ref` compares files, but the submodule {path!r} is not at the commit it has in "
                f"{revision!r}. Check that commit out first."
            )
    with _mirror_of(root, [path for _, path in changed]) as mirror:
        # Files that the revision lacks go first: one may be where the revision has a folder, or inside a
        # folder where it has a file.
        for (mode, _), path in sorted(changed, key=lambda change: change[0][0] != ABSENT):
            target = mirror / path
            _detach(target, mirror)
            if mode != ABSENT:
                target.parent.mkdir(parents=True, exist_ok=True)
                # As git would check it out: a file may be stored as a pointer to its content (git-lfs).
                blob = _git(root, "cat-file", "--filters", f"{commit}:{path}")
                if blob is None:
                    raise UserError(
                        f"git must be able to read {path!r} of {revision!r}, but fails. Fetch it first."
                    )
                _write(target, blob, mode)
        yield (
            _mirror_arm(revision, command, folder, root, mirror),
            Arm(name="working tree", command=tuple(command), folder=folder),
        )


def _write(target: Path, blob: bytes, mode: str) -> None:
    if mode == LINK:
        target.symlink_to(os.fsdecode(blob))
        return
    target.write_bytes(blob)
    if mode == EXECUTABLE:
        target.chmod(0o755)


@contextlib.contextmanager
def patched(text: bytes, name: str, command: Sequence[str], folder: Path) -> Iterator[tuple[Arm, Arm]]:
    """Yields the arms of one command: in the working tree, and in a mirror of it with a patch applied.

    Args:
        text: The patch, relative to the repository, or to the folder if it is in none.
        name: Name of the patch.

    Raises:
        UserError: The patch does not apply.
    """
    root = root_of(folder)
    paths = _paths(text, root)
    with _mirror_of(root, paths) as mirror:
        for path in paths:
            if (mirror / path).exists():
                _detach(mirror / path, mirror, keep=True)
        done = subprocess.run(
            ["git", "apply", "--whitespace=nowarn", "-"],
            input=text,
            cwd=mirror,
            env={**_plain_environment(), "GIT_CEILING_DIRECTORIES": str(mirror.parent)},
            capture_output=True,
        )
        if done.returncode:
            why = done.stderr.decode(errors="replace").strip().replace("\n", "; ")
            raise UserError(f"`--patch` must apply to {str(root)!r}, but {name!r} does not: {why}.")
        yield (
            Arm(name="working tree", command=tuple(command), folder=folder),
            _mirror_arm(name, command, folder, root, mirror),
        )


def _mirror_arm(name: str, command: Sequence[str], folder: Path, root: Path, mirror: Path) -> Arm:
    """Returns the arm of a command in the mirror of a repository.

    Absolute paths of the repository's files, which lead out of the mirror, become relative.
    """

    def move(word: str) -> str:
        option, equals, value = word.rpartition("=")
        path = Path(value)
        if not path.is_absolute() or not path.is_file():
            return word
        path = path.resolve()
        if not path.is_relative_to(root):
            return word
        # What is the same in both versions, such as a virtual environment, is a link.
        mirrored = (mirror / path.relative_to(root)).resolve()
        if not mirrored.is_relative_to(mirror) or not mirrored.exists():
            return word
        return f"{option}{equals}{os.path.relpath(path, folder.resolve())}"

    place = mirror / folder.relative_to(root)
    return Arm(name=name, command=tuple(map(move, command)), folder=place, mirrors=(root, mirror))


def root_of(folder: Path) -> Path:
    """Returns the folder that patches are relative to: the repository's root, or else the folder itself."""
    return _repository(folder) or folder.resolve()


def commits_of(revision: str, folder: Path) -> tuple[str, str]:
    """Returns the commit of the working tree, with `+` if files differ from it, and that of a revision.

    Raises:
        UserError: The folder is in no repository, or the repository has no such revision.
    """
    root, base = _commit_of(revision, folder)
    _, here = _commit_of("HEAD", folder)
    return here + "+" * bool(_git(root, "status", "--porcelain", "--untracked-files=no")), base


def _commit_of(revision: str, folder: Path) -> tuple[Path, str]:
    """Returns a folder's repository and the commit of a revision."""
    root = _repository(folder)
    if root is None:
        raise UserError(f"`--ref` needs a git repository, but {str(folder)!r} is in none.")
    output = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if output is None:
        raise UserError(f"`--ref` must be a revision of {str(root)!r}, but got {revision!r}.")
    return root, output.decode().strip()


def _repository(folder: Path) -> Path | None:
    output = _git(folder, "rev-parse", "--show-toplevel")
    return Path(output.decode().rstrip("\n")).resolve() if output else None


def _git(folder: Path, *words: str) -> bytes | None:
    """Returns what git prints; None if it fails."""
    try:
        done = subprocess.run(
            ["git", *words], cwd=folder, env=_plain_environment(), capture_output=True, check=False
        )
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def _plain_environment() -> dict[str, str]:
    """Returns the environment without the variables of a git hook, which may name another repository."""
    return {name: value for name, value in os.environ.items() if name not in ("GIT_DIR", "GIT_WORK_TREE")}


def _paths(patch: bytes, folder: Path) -> list[str]:
    """Returns the files that a patch changes."""
    done = subprocess.run(
        ["git", "apply", "--numstat", "-z", "-"],
        input=patch,
        cwd=folder,
        env={**_plain_environment(), "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        capture_output=True,
    )
    lines = done.stdout.decode(errors="surrogateescape").split("\0")
    return [line.split("\t", 2)[2] for line in lines if line.count("\t") >= 2]


@contextlib.contextmanager
def _mirror_of(root: Path, changed: Sequence[str]) -> Iterator[Path]:
    """Yields a mirror of a folder, in which files are links but code and what is changed."""
    with scratch_folder() as place:
        mirror = make_mirror(root, place / "mirror", opened={root / path for path in changed}).folder
        # With it, the mirrors of trials link to what surrounds the folder, as they do in a repository.
        (mirror / ".git").mkdir(exist_ok=True)
        yield mirror.resolve()


def _detach(path: Path, mirror: Path, *, keep: bool = False) -> None:
    """Removes a file from a mirror, or replaces its link by a copy; never changes the target of a link.

    Args:
        keep: Whether the file stays, as a copy.

    Raises:
        UserError: The file is in a folder that is a link in the mirror.
    """
    if not path.parent.resolve().is_relative_to(mirror):
        raise UserError(
            f"a changed file must not be in a folder of data, but {str(path.relative_to(mirror))!r} is."
        )
    if keep and path.is_symlink():
        source = path.resolve()
        path.unlink()
        shutil.copy2(source, path)
    elif not keep and path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif not keep:
        path.unlink(missing_ok=True)
