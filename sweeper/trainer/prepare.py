"""The prepare job: run the pipeline's `prepare` once and keep its arrays as memory-mapped files."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import numpy as np

from sweeper.core.errors import UserError
from sweeper.core.files import read_json, write_json
from sweeper.core.job import Job
from sweeper.core.measurement import Report
from sweeper.core.progress import Progress
from sweeper.trainer.pipeline import Prepared, load_module

META = "prepared.json"


def run(job: Job, progress: Progress) -> Report:
    """Prepares the data of `job` into `job.prepared`, unless it is there already.

    The folder appears under its final name in one rename, and is never replaced afterwards.
    """
    folder = Path(job.prepared)
    started = time.perf_counter()
    if not (folder / META).exists():
        progress.stage("prepare")
        prepared = load_module(job).prepare(dict(job.data))
        if not isinstance(prepared, Prepared):
            raise UserError(
                f"{job.pipeline}.prepare must return a Prepared, but got {type(prepared).__name__}."
            )
        try:
            _store(folder, prepared)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{job.pipeline}.prepare must return plain arrays and JSON values as `meta`, but {error}."
            ) from error
    about = read_json(folder / META)
    return Report(
        values={
            "synthetic": about["synthetic"],
            "notes": about["notes"],
            "seconds": round(time.perf_counter() - started, 3),
            "bytes": sum(file.stat().st_size for file in folder.glob("*.npy")),
        },
        finished_at=time.time(),
    )


def _store(folder: Path, prepared: Prepared) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        for name, array in prepared.arrays.items():
            with open(temporary / f"{name}.npy", "wb") as file:
                np.save(file, np.asarray(array, order="C"), allow_pickle=False)
                # The folder is never made again: what it holds has to be there after a power cut.
                file.flush()
                os.fsync(file.fileno())
        write_json(
            temporary / META,
            {
                "arrays": list(prepared.arrays),
                "meta": dict(prepared.meta),
                "synthetic": prepared.synthetic,
                "notes": list(prepared.notes),
            },
        )
        try:
            os.rename(temporary, folder)
        except OSError:
            # Another process was first; both made the same thing.
            if not (folder / META).exists():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load(folder: Path) -> Prepared:
    """Returns the prepared data in `folder`, mapped privately: a trial may write, no other sees it."""
    about = read_json(folder / META)
    return Prepared(
        arrays={
            name: np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False)
            for name in about["arrays"]
        },
        meta=about["meta"],
        synthetic=about["synthetic"],
        notes=about["notes"],
    )
