"""Packs a job with its code, and its results, as bytes, so that no shared file system is needed."""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from sweeper.core.codec import decode, encode
from sweeper.core.job import CONFIG, OUTCOME, Job, decode_outcome, write_outcome
from sweeper.system.files import make_folder, write_atomic

_ABOUT, _CODE = "about.json", "code/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A job as it is sent to a worker.

    Attributes:
        sweep: Unique name of the job's sweep.
        epoch: Number of the sweep's supervisor; jobs of an earlier one are ended.
        isolation: `execution.isolation`.
        env: Values of the variables in `execution.pass_env` in the supervisor's environment.
        pass_env: Names in `execution.pass_env`, for variables of the worker's own environment.
        code: Text of the user's modules by path, relative to the import path.
    """

    job: Job
    sweep: str
    epoch: int
    isolation: str = "fork"
    env: Mapping[str, str] = field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    code: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Returns the parcel as a zip archive."""
        plain = {name: value for name, value in encode(self).items() if name != "code"}
        files = {_ABOUT: json.dumps(plain).encode()}
        files.update({_CODE + name: text.encode() for name, text in self.code.items()})
        return _pack(files)

    @classmethod
    def from_bytes(cls, data: bytes) -> Parcel:
        """Returns the parcel in `data`."""
        files = _unpack(data)
        about = decode(cls, json.loads(files.pop(_ABOUT)))
        code = {name.removeprefix(_CODE): content.decode() for name, content in files.items()}
        return dataclasses.replace(about, code=code)


def pack_folder(folder: Path) -> bytes:
    """Packs the files that a job has left in its folder, except config.json."""
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*"))}
    # The target of a link does not belong to the job.
    sent = {name: path for name, path in files.items() if path.is_file() and not path.is_symlink()}
    return _pack({name: path.read_bytes() for name, path in sent.items() if name != CONFIG})


def unpack_into(folder: Path, data: bytes) -> None:
    """Unpacks a worker's files into the job's folder, the outcome last, since it commits the rest.

    Raises:
        ValueError: `data` is damaged, its outcome cannot be read, or a path leaves the folder.
    """
    files = _unpack(data)
    try:
        outcome = decode_outcome(json.loads(files.pop(OUTCOME))) if OUTCOME in files else None
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"a worker sent an outcome that cannot be read ({error})") from error
    for name, content in files.items():
        make_folder((folder / name).parent)
        (folder / name).write_bytes(content)
    if outcome is not None:
        write_outcome(folder, outcome)


def write_code(folder: Path, code: Mapping[str, str]) -> None:
    """Writes modules under `folder`, each at its path."""
    for name, text in code.items():
        make_folder((folder / name).parent)
        write_atomic(folder / name, text)


def _pack(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def _unpack(data: bytes) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"a worker sent a damaged parcel ({error})") from error
    for name in files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or name != str(path):
            raise ValueError(f"a worker sent a file with a path outside its folder: {name!r}")
    return files
