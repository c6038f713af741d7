"""The prepare job: runs the pipeline's `prepare` once and stores its arrays as .npy files."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from sweeper.core.job import Job
from sweeper.core.measurement import Report
from sweeper.core.progress import Progress
from sweeper.errors import UserError
from sweeper.system.files import drop_from_page_cache, read_json, write_json
from sweeper.system.remote_data import data_cache
from sweeper.trainer.pipeline import Prepared, Source, load_module

META = "prepared.json"
FAULT_IN_SHARE = 0.5
_MADV_POPULATE_READ = 22


def run(job: Job, progress: Progress) -> Report:
    """Prepares the data of `job` in `job.prepared`, unless it is already there.

    The folder gets its final name in one rename and is never replaced.
    """
    folder = Path(job.prepared)
    started = time.perf_counter()
    if not (folder / META).exists():
        progress.stage("prepare")
        prepared = load_module(job).prepare(dict(job.data))
        if not isinstance(prepared, Prepared | Source):
            raise UserError(
                f"{job.pipeline}.prepare must return a Prepared or a Source, but got "
                f"{type(prepared).__name__}."
            )
        try:
            # Every trial opens a source itself; only its existence is stored.
            if isinstance(prepared, Source):
                _store(folder, Prepared(arrays={}), from_source=True)
            else:
                _store(folder, prepared, from_source=False)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{job.pipeline}.prepare must return plain arrays and JSON values as `meta`, but {error}."
            ) from error
    about = read_json(folder / META)
    return Report(
        values={
            "synthetic": about["synthetic"],
            "notes": about["notes"],
            "source": about.get("source", False),
            "seconds": round(time.perf_counter() - started, 3),
            "bytes": sum(file.stat().st_size for file in folder.glob("*.npy")),
        },
        finished_at=time.time(),
    )


def _store(folder: Path, prepared: Prepared, *, from_source: bool) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        for name, array in prepared.arrays.items():
            with open(temporary / f"{name}.npy", "wb") as file:
                np.save(file, np.asarray(array, order="C"), allow_pickle=False)
                # The folder is never written again, so its files must survive a power cut.
                file.flush()
                os.fsync(file.fileno())
        write_json(
            temporary / META,
            {
                "arrays": list(prepared.arrays),
                "meta": dict(prepared.meta),
                "synthetic": prepared.synthetic,
                "notes": list(prepared.notes),
                "source": from_source,
            },
        )
        try:
            os.rename(temporary, folder)
        except OSError:
            # Another process was first, with the same content.
            if not (folder / META).exists():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load(job: Job) -> Prepared | Source:
    """Returns the prepared data of `job`, or the source that its `prepare` opens.

    Arrays are mapped privately: no other trial sees writes. They are faulted in if they fit into
    half of the free memory, so that no timed step waits for a disk. If the job begins with a cold
    cache, its data is dropped from memory instead.
    """
    folder = Path(job.prepared)
    about = read_json(folder / META)
    if job.cold_cache:
        for place in (folder, data_cache(), Path(str(job.data.get("path") or folder)).expanduser()):
            drop_from_page_cache(place)
    if about.get("source"):
        source = load_module(job).prepare(dict(job.data))
        assert isinstance(source, Source)
        return source
    arrays = {
        name: np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in about["arrays"]
    }
    room = FAULT_IN_SHARE * psutil.virtual_memory().available
    if not job.cold_cache and sum(array.nbytes for array in arrays.values()) <= room:
        for array in arrays.values():
            _fault_in(array)
    return Prepared(arrays=arrays, meta=about["meta"], synthetic=about["synthetic"], notes=about["notes"])


def _fault_in(array: np.memmap[Any, Any]) -> None:
    # Linux before 5.14 lacks this advice, and an empty array has no mapping.
    with contextlib.suppress(OSError, AttributeError):
        array._mmap.madvise(_MADV_POPULATE_READ)  # type: ignore[attr-defined]
