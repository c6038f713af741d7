"""Reads data larger than memory: tables in parquet files, and samples in tar files (WebDataset)."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sweeper.errors import UserError
from sweeper.system.files import read_json, write_json
from sweeper.system.remote_data import check_room, data_cache
from sweeper.trainer.pipeline import Batch

ROWS_AT_ONCE = 65_536

Decode = Callable[[Mapping[str, bytes]], Mapping[str, Tensor]]
"""A function that makes tensors from a sample's files, given their contents by extension."""


class ParquetSource:
    """Rows of parquet files, read in any order.

    Parquet stores columns in compressed groups, so reading one row means reading a whole group. The
    columns are therefore written once, row by row, to files in the data cache, which are mapped into
    memory. They are written again if the parquet files change.
    """

    def __init__(
        self, path: str | Path, columns: Mapping[str, Sequence[str]], dtype: str = "float32"
    ) -> None:
        """Opens the rows.

        Args:
            path: A parquet file, or a folder of them.
            columns: The columns of each tensor of a batch, by its name: `{"x": ["a", "b"], "y": ["c"]}`.
            dtype: Type of the tensors, by numpy's name.

        Raises:
            UserError: There is no parquet file, it lacks a column or values, or the disk has too little room.
        """
        files = _files(Path(path), ".parquet")
        folder = data_cache() / _digest(files, [dict(columns), dtype])
        if not folder.exists():
            _write_rows(files, columns, dtype, folder)
        self._map(folder, tuple(columns))

    def _map(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        self._arrays = {
            name: torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False))
            for name in names
        }

    def __getstate__(self) -> tuple[Path, tuple[str, ...]]:
        """Returns the files that a loader worker maps; torch would copy the rows to shared memory."""
        return self._folder, tuple(self._arrays)

    def __setstate__(self, state: tuple[Path, tuple[str, ...]]) -> None:
        """Maps the rows again."""
        self._map(*state)

    def __len__(self) -> int:
        """Returns the number of rows."""
        return min(map(len, self._arrays.values()))

    def read(self, index: Tensor) -> Batch:
        """Returns the rows `index` (int64, shape [batch]), each tensor of shape [batch, columns]."""
        return {name: array.index_select(0, index) for name, array in self._arrays.items()}


class ShardSource:
    """Samples in tar files, as WebDataset writes them, read in any order.

    Files whose names differ only in their extension form one sample. Their positions in the tar files are
    stored in the data cache, so that each file is one read.
    """

    def __init__(self, path: str | Path, decode: Decode) -> None:
        """Opens the samples.

        Args:
            path: A tar file, or a folder of them.
            decode: Makes tensors from one sample's files; they are stacked into batches.

        Raises:
            UserError: There is no tar file, or one cannot be read.
        """
        self._files = _files(Path(path), ".tar")
        self._decode = decode
        index = data_cache() / f"{_digest(self._files, [])}.json"
        if not index.exists():
            index.parent.mkdir(parents=True, exist_ok=True)
            write_json(index, list(_samples(self._files)))
        self._samples: list[list[list[Any]]] = read_json(index)
        self._opened: dict[int, int] = {}
        self._process = 0

    def __len__(self) -> int:
        """Returns the number of samples."""
        return len(self._samples)

    def read(self, index: Tensor) -> Batch:
        """Returns the samples `index` (int64, shape [batch]), stacked."""
        if self._process != os.getpid():
            # A forked worker must not share its parent's descriptors.
            self._opened, self._process = {}, os.getpid()
        wanted = [self._samples[number] for number in index.tolist()]
        for sample in wanted:
            for shard, _, offset, size in sample:
                # The disk reads ahead while the first samples are decoded.
                os.posix_fadvise(self._descriptor(shard), offset, size, os.POSIX_FADV_WILLNEED)
        rows = [self._decode(dict(self._contents(sample))) for sample in wanted]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def _contents(self, sample: Sequence[Sequence[Any]]) -> Iterator[tuple[str, bytes]]:
        for shard, extension, offset, size in sample:
            yield extension, os.pread(self._descriptor(shard), size, offset)

    def _descriptor(self, shard: int) -> int:
        if shard not in self._opened:
            self._opened[shard] = os.open(self._files[shard], os.O_RDONLY)
        return self._opened[shard]


def _files(path: Path, kind: str) -> list[Path]:
    files = sorted(path.rglob(f"*{kind}")) if path.is_dir() else [path]
    if not files or not files[0].exists():
        packed = any(path.rglob(f"*{kind}.gz"))
        remedy = f", which has {kind}.gz files. Unpack them with `gunzip`" if packed else ""
        raise UserError(f"`data.path` must have {kind} files, but got {str(path)!r}{remedy}.")
    return files


def _digest(files: Sequence[Path], options: object) -> str:
    listed = [(str(file.resolve()), (about := file.stat()).st_size, about.st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps([listed, options]).encode()).hexdigest()[:16]


def _write_rows(
    files: Sequence[Path], columns: Mapping[str, Sequence[str]], dtype: str, folder: Path
) -> None:
    # Slow to import, and not needed by other trials.
    from pyarrow.lib import ArrowException
    from pyarrow.parquet import ParquetFile

    wanted = sorted({name for names in columns.values() for name in names})
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        opened = [ParquetFile(path) for path in files]
        for path, file in zip(files, opened, strict=True):
            _check_columns(path, file, wanted)
        count = sum(file.metadata.num_rows for file in opened)
        size = count * sum(map(len, columns.values())) * np.dtype(dtype).itemsize
        # Writing to a mapped file on a full disk would kill the trial with SIGBUS.
        check_room(folder.parent, size, "an uncompressed copy of `data.path`")
        arrays = {
            name: np.lib.format.open_memmap(
                temporary / f"{name}.npy", mode="w+", dtype=dtype, shape=(count, len(names))
            )
            for name, names in columns.items()
        }
        row = 0
        for path, file in zip(files, opened, strict=True):
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=wanted):
                _check_values(path, batch, wanted)
                for name, names in columns.items():
                    for place, column in enumerate(names):
                        values = batch.column(column).to_numpy(zero_copy_only=False)
                        arrays[name][row : row + len(batch), place] = values
                row += len(batch)
        for array in arrays.values():
            array.flush()
        os.rename(temporary, folder)
    except UserError:
        raise
    except (ArrowException, TypeError, ValueError) as error:
        raise UserError(f"`data.path` must have parquet files of numbers, but {error}.") from error
    except OSError:
        # Another process was first, with the same content.
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_columns(path: Path, file: Any, wanted: Sequence[str]) -> None:
    if lacking := [name for name in wanted if name not in file.schema_arrow.names]:
        raise UserError(f"{path} must have the column {lacking[0]!r}, but it has none of that name.")


def _check_values(path: Path, batch: Any, wanted: Sequence[str]) -> None:
    if lacking := [name for name in wanted if batch.column(name).null_count]:
        raise UserError(
            f"{path} must have a value in each row of the column {lacking[0]!r}, but has nulls. "
            "Fill them, or drop their rows."
        )


def _samples(files: Sequence[Path]) -> Iterator[list[list[Any]]]:
    """Yields the files of each sample: shard, extension, offset and size."""
    for shard, path in enumerate(files):
        samples: dict[str, list[list[Any]]] = {}
        try:
            with tarfile.open(path, "r:") as tar:
                for member in tar:
                    if member.isfile():
                        folder, _, name = member.name.rpartition("/")
                        key, _, extension = name.partition(".")
                        place = [shard, extension, member.offset_data, member.size]
                        samples.setdefault(f"{folder}/{key}", []).append(place)
        except tarfile.TarError as error:
            raise UserError(
                f"{path} must be a tar file that is not compressed, but {error}. Unpack it with `gunzip`."
            ) from error
        yield from samples.values()
