"""Runs a script where it cannot change anything of the user's: in a mirror, under guard.

The mirror shows the user's files (`script.run.mirror`). Landlock lets the script write to scratch alone
(`system.landlock`), and what it writes is copied first (`script.run.copy_up`). A kernel without Landlock
gets a mirror of copies.

Landlock alone carries the promise for contents, names and sizes: what the mirror does not foresee is refused.
An overlay in a mount namespace would need user namespaces, which containers and Ubuntu refuse.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import stat
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeper.core.config import Scalar
from sweeper.core.script import UNPROTECTED, Script
from sweeper.core.template import render
from sweeper.errors import UserError
from sweeper.script.run.added import Addition, Store
from sweeper.script.run.copy_up import CopyUp
from sweeper.script.run.mirror import Mirror, check_size, make_mirror, remove_tree, repository_of
from sweeper.script.run.scratch import scratch_folder
from sweeper.system import landlock, seccomp
from sweeper.system.seccomp import CallListener

INSTEAD_OF = "SWEEPER_INSTEAD_OF"
"""Environment variable with a folder and its mirror, a line each (`sweeper/script/inside/site`)."""

SHARED_MEMORY = Path("/dev/shm")
CACHES: Mapping[str, str] = {
    "TORCH_HOME": "{cache}/torch",
    "TORCH_EXTENSIONS_DIR": "{cache}/torch_extensions",
    "TORCHINDUCTOR_CACHE_DIR": "",
    "TRITON_CACHE_DIR": "{home}/.triton",
    "HF_HOME": "{cache}/huggingface",
    "HF_HUB_CACHE": "",
    "HF_DATASETS_CACHE": "",
    "PIP_CACHE_DIR": "{cache}/pip",
    "UV_CACHE_DIR": "{cache}/uv",
    "CUDA_CACHE_PATH": "{home}/.nv",
    "CUDA_MPS_PIPE_DIRECTORY": "",
}
"""Caches that a script may write to: the variable that names each, and where it is without one."""
_NEEDED = ("TORCH_HOME", "TRITON_CACHE_DIR", "HF_HOME", "CUDA_CACHE_PATH")
"""Caches that take long to fill: where one is missing, the runs of a sweep share one of sweeper's own."""

MAX_NAMED = 3
MAX_SOCKET_FOLDER = 60
"""Longest name of a temporary folder: programs make sockets in it, whose paths have at most 107 bytes."""
_OWN_WORKING_DIRECTORY = 0x200
_libc = ctypes.CDLL(None, use_errno=True)


class BeginAgainError(Exception):
    """A script has resolved a link of its mirror by itself, and wants to write where it leads.

    Attributes:
        place: The file of the user's that the next mirror must have, or have room for.
    """

    def __init__(self, place: Path) -> None:
        super().__init__(str(place))
        self.place = place


@dataclass(slots=True)
class Sandbox:
    """The working directory of one run of a script, and the walls around it.

    Attributes:
        source: The user's folder.
        folder: Folder that the script runs in.
        scratch: The run's own folder, which the script may write to.
        cache: Folder of sweeper's own that runs share; empty if there is none.
        unprotected: Places of the user's that the script may write to.
    """

    source: Path
    folder: Path
    scratch: Path
    mirror: Mirror | None = None
    cache: str = ""
    unprotected: Sequence[Path] = ()
    _copy_up: CopyUp | None = field(default=None, init=False)
    _temporary: Path | None = field(default=None, init=False)
    _at_the_end: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)

    @property
    def is_guarded(self) -> bool:
        """Whether the script cannot write outside of its sandbox."""
        return (
            self.mirror is not None and landlock.version() > 0 and not _is_in_shared_memory(self.mirror.top)
        )

    @property
    def is_the_folder(self) -> bool:
        """Whether the script runs in the user's own folder."""
        return self.mirror is None

    @property
    def refused(self) -> list[str]:
        """What the script tried to write outside, as far as that is known."""
        return list(self._copy_up.refused) if self._copy_up else []

    def describe_refused(self) -> str:
        """Returns in words what the script could not write, without caches and settings of libraries."""
        places = [place for place in self.refused if not _is_of_a_library(place)]
        more = f" and {len(places) - MAX_NAMED} more" if len(places) > MAX_NAMED else ""
        return f"{', '.join(places[:MAX_NAMED])}{more}" if places else ""

    @property
    def num_refused(self) -> int:
        """Number of `refused` places."""
        return len(self._copy_up.refused) if self._copy_up else 0

    def check(self) -> None:
        """Checks that nothing was refused that another mirror would allow.

        Raises:
            BeginAgainError: Something was.
        """
        if self.mirror is not None:
            for place in map(Path, self.refused):
                if place not in self.mirror.opened and self.mirror.has_link_to(place):
                    raise BeginAgainError(place)

    def translate(self, command: Sequence[str]) -> list[str]:
        """Returns a command whose absolute paths below the user's repository lead into the mirror."""
        if (mirror := self.mirror) is None:
            return list(command)

        def translate_word(word: str) -> str:
            option, equals, value = word.rpartition("=")
            path = Path(os.path.normpath(value))
            return f"{option}{equals}{mirror.translate(path)}" if path.is_relative_to(mirror.top) else word

        program, *words = command
        # A virtual environment is the same, wherever it is used.
        if "/" in program and (self.source / program).parent.parent.joinpath("pyvenv.cfg").exists():
            return [str(self.source / program), *map(translate_word, words)]
        return [translate_word(program), *map(translate_word, words)]

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Returns the environment variables of the sandbox.

        Args:
            environment: The script's other variables.
        """
        if self.mirror is None:
            return {}
        # A mirror may itself be of a mirror, as of another revision.
        installed = environment.get(INSTEAD_OF, "").partition("\n")[0] or str(self.mirror.top)
        variables = {INSTEAD_OF: f"{installed}\n{self.mirror.mirrored_top}"}
        if not self.is_guarded:
            return variables
        if (
            not why_unguarded(self.source)
            and (home := Path(environment.get("HOME", "/"))).is_dir()
            and home != Path("/")
        ):
            self.mirror.add_home(home.resolve())
            if self.mirror.home is not None:
                variables["HOME"] = str(self.mirror.home)
        if not self._may_be_written(Path(environment.get("TMPDIR") or "/tmp")):
            variables["TMPDIR"] = str(self._make_temporary())
        for name in _NEEDED if self.cache else ():
            path = _cache(name, environment)
            if path is None or not path.is_dir() or not self._may_be_written(path):
                kept = Path(self.cache).resolve() / "of_scripts" / name.lower()
                kept.mkdir(parents=True, exist_ok=True)
                variables[name] = str(kept)
        return variables

    def _make_temporary(self) -> Path:
        if self._temporary is not None:
            return self._temporary
        self._temporary = self.scratch.resolve() / "tmp"
        if len(str(self._temporary)) > MAX_SOCKET_FOLDER:
            self._temporary = self._at_the_end.enter_context(scratch_folder())
        self._temporary.mkdir(exist_ok=True)
        return self._temporary

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], **options: Any
    ) -> subprocess.Popen[bytes]:
        """Starts a program inside.

        Args:
            options: Further options of `subprocess.Popen`.

        Raises:
            OSError: It cannot be started.
        """
        if not self.is_guarded:
            return subprocess.Popen(arguments, cwd=self.folder, env=dict(environment), **options)
        assert self.mirror is not None
        writable = self._rights(environment)
        answers: queue.SimpleQueue[CallListener | BaseException | None] = queue.SimpleQueue()
        processes: list[subprocess.Popen[bytes]] = []
        may_go_on = threading.Event()

        def run() -> None:
            # What is restricted here holds for this thread and for what it starts, for good.
            try:
                _call(_libc.unshare, _OWN_WORKING_DIRECTORY)
                os.chdir(self.folder)
                # Inside of another sweeper's sandbox, that one listens.
                answers.put(CallListener() if seccomp.is_available() else None)
                may_go_on.wait()
                landlock.restrict_thread(writable)
                processes.append(subprocess.Popen(arguments, env=dict(environment), **options))
            except BaseException as error:
                answers.put(error)
            else:
                answers.put(None)

        thread = threading.Thread(target=run, name="sweeper-start", daemon=True)
        thread.start()
        answer = answers.get()
        if isinstance(answer, CallListener):
            # Its thread must not be restricted, so it is started here.
            self._copy_up = CopyUp(answer, self.mirror, [path.resolve() for path in writable])
        if not isinstance(answer, BaseException):
            may_go_on.set()
            answer = answers.get()
        thread.join()
        if isinstance(answer, BaseException):
            raise answer
        return processes[0]

    def _rights(self, environment: Mapping[str, str]) -> dict[Path, int]:
        """Returns the rights of the script by place."""
        assert self.mirror is not None
        rights = dict.fromkeys([Path("/proc"), *_devices(Path("/dev"))], landlock.WRITE_FILE)
        shared = [SHARED_MEMORY, *_temporary_folders(), *_caches(environment)]
        folders = [self.mirror.root, self.scratch.resolve(), *([Path(self.cache)] if self.cache else [])]
        folders += [path for path in (self._temporary, self.mirror.home) if path is not None]
        folders += self.unprotected
        return {
            **rights,
            **dict.fromkeys([*filter(self._may_be_written, shared), *folders], landlock.EVERYTHING),
        }

    def _may_be_written(self, place: Path) -> bool:
        """Returns whether nothing of the user's lies below a place."""
        assert self.mirror is not None
        place = place.resolve()
        home = Path(os.path.expanduser("~")).resolve()
        return not any(path.is_relative_to(place) for path in (self.mirror.top, home))

    def relative_facts(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the facts of a training, with places in the mirror relative to the folder that it runs in.

        Args:
            facts: What torch reports (`sweeper.script.changes.facts`); its places are absolute.
        """
        root, folder = self.mirror.root if self.mirror else self.folder.resolve(), self.folder.resolve()
        places = {
            name: os.path.relpath(place, folder) if Path(place).is_relative_to(root) else place
            for name, place in facts.get("places", {}).items()
        }
        return {**facts, "places": places} if places else dict(facts)

    def keep_added(self, before_ns: int) -> list[Addition]:
        """Keeps for later runs what the script has added before it trained.

        Args:
            before_ns: The time of its first step on the wall clock, in nanoseconds.
        """
        if self.mirror is None or not self.cache:
            return []
        return Store(Path(self.cache), self.mirror.top).keep(self.mirror, before_ns)

    def close(self) -> None:
        """Stops to answer the script's processes, which have exited."""
        if self._copy_up is not None:
            self._copy_up.close()
        if self._temporary is not None:
            remove_tree(self._temporary)
        self._at_the_end.close()

    def remove(self) -> None:
        """Removes the mirror; links are not followed."""
        if self.mirror is not None:
            self.mirror.remove()


def make_sandbox(
    script: Script, values: Mapping[str, Scalar], place: Path, scratch: Path | None = None, cache: str = ""
) -> Sandbox:
    """Returns a sandbox with the script's files written.

    Args:
        place: Folder below which the mirror is made.
        scratch: The run's own folder; `place` by default.
        cache: Folder of sweeper's own that runs share.

    Raises:
        UserError: A file cannot be written there, or the folder is too large to be copied.
    """
    source = Path(script.folder).resolve()
    unprotected = [source / path for path in (*script.unprotected, *_unprotected_paths())]
    unprotected = [path.resolve() for path in unprotected]
    scratch = scratch or place
    if script.workdir == "here" or any(source.is_relative_to(path) for path in unprotected):
        sandbox = Sandbox(source, Path(script.folder), scratch)
    else:
        if is_unguarded := bool(why_unguarded(source)):
            check_size(source, unprotected)
        is_copied = is_unguarded or script.workdir == "copy"
        opened = recall(source, cache)
        store = Store(Path(cache), repository_of(source)) if cache else None
        opened |= {path for path in (store.paths() if store else ()) if not os.path.lexists(path)}
        mirror = make_mirror(source, place, copies=is_copied, opened=opened, linked=unprotected)
        if store is not None:
            store.show(mirror)
        sandbox = Sandbox(source, mirror.folder, scratch, mirror, cache, unprotected)
    for name, text in script.files.items():
        _write(sandbox, name, render(text, values))
    return sandbox


def why_unguarded(folder: Path) -> str:
    """Returns why a script in a folder needs a mirror of copies; empty if it needs none."""
    if not landlock.version():
        return (
            "the kernel does not offer Landlock (5.13 or newer, with `landlock` among its security modules)"
        )
    if not seccomp.is_available():
        return "system calls cannot be filtered, as inside of another sweeper's sandbox"
    if _is_in_shared_memory(folder):
        return f"the folder is in {SHARED_MEMORY}, where every script must be able to write"
    return ""


def _unprotected_paths() -> list[str]:
    return [path for path in os.environ.get(UNPROTECTED, "").split("\n") if path]


def _write(sandbox: Sandbox, path: str, text: str) -> None:
    target, folder = sandbox.folder / path, sandbox.folder.resolve()
    if sandbox.mirror is not None and not target.parent.resolve().is_relative_to(folder):
        raise UserError(
            f"`script.files` must be below the script's folder, but {path!r} leads through a link to"
            f" {str(target.parent.resolve())!r}. Write it elsewhere."
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # A link is removed first, so that the user's own file is not overwritten.
        if target.is_symlink():
            target.unlink()
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"`script.files` must be writable, but {path!r} is not ({error.strerror}).") from None


# -- what is remembered for later runs ---------------------------------------------------------------

_OPENED: dict[Path, set[Path]] = {}
_REMEMBERED = "written.txt"


def recall(source: Path, cache: str) -> set[Path]:
    """Returns what must not be a link in a mirror of `source`, as earlier runs have shown."""
    opened = set(_OPENED.get(source, ()))
    if cache:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            lines = (Path(cache) / _REMEMBERED).read_text(encoding="utf-8").splitlines()
            opened |= set(map(Path, lines))
    return opened


def remember(source: Path, cache: str, place: Path) -> None:
    """Remembers for later runs that a file or folder must not be a link."""
    _OPENED.setdefault(source, set()).add(place)
    if cache:
        with contextlib.suppress(OSError), open(Path(cache) / _REMEMBERED, "a", encoding="utf-8") as file:
            file.write(f"{place}\n")


# -- places that a script may write to ---------------------------------------------------------------


def _devices(folder: Path) -> Iterator[Path]:
    """Yields the devices that a script may write to: terminals, GPUs and the like, no disks, no memory."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            mode = path.lstat().st_mode
            if path.name == "pts" or (stat.S_ISCHR(mode) and path.name not in ("mem", "kmem", "port")):
                yield path
            elif stat.S_ISDIR(mode) and path != SHARED_MEMORY:
                yield from _devices(path)


def _temporary_folders() -> Iterator[Path]:
    for name in (os.environ.get("TMPDIR", "/tmp"), "/tmp", "/var/tmp"):
        yield Path(name)


def _caches(environment: Mapping[str, str]) -> Iterator[Path]:
    for name in CACHES:
        if (path := _cache(name, environment)) is not None:
            yield path


def _cache(name: str, environment: Mapping[str, str]) -> Path | None:
    home = environment.get("HOME") or os.path.expanduser("~")
    cache = environment.get("XDG_CACHE_HOME") or f"{home}/.cache"
    path = environment.get(name) or CACHES[name].format(home=home, cache=cache)
    return Path(path) if path.startswith("/") else None


def _is_of_a_library(place: str) -> bool:
    # Hidden files are caches and settings, which libraries do without.
    return any(part.startswith(".") or part == "__pycache__" for part in place.split("/"))


def _is_in_shared_memory(folder: Path) -> bool:
    """Returns whether a folder is below one that every script must be able to write to."""
    return folder.resolve().is_relative_to(SHARED_MEMORY)


def _call(function: Any, *arguments: int) -> None:
    if function(*arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
