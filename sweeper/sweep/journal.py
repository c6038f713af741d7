"""The sweep folder: what is in it, where, and how it is read back; an outcome on disk is the commit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.core.codec import decode, encode
from sweeper.core.files import read_json, write_atomic, write_json
from sweeper.core.job import CONFIG, Job, read_job, read_outcome
from sweeper.core.measurement import Outcome, Report
from sweeper.search import Told
from sweeper.spec import SweepSpec, read_yaml, to_yaml

SWEEP = "sweep.yaml"
RESULT = "result.json"
STOPPED = "stopped.json"
BUDGET = "budget.json"
TOLD = "told.json"


@dataclass(frozen=True, slots=True)
class Entry:
    """One job folder as it is on disk."""

    number: int
    folder: Path
    job: Job
    outcome: Outcome | Report | None
    told: Told | None


def sweeps_folder(home: Path) -> Path:
    """Returns where all sweeps of a home are."""
    return home / "sweeps"


class Journal:
    """One sweep's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.study = self.folder / "study.log"

    @property
    def name(self) -> str:
        """The sweep's name is its folder's."""
        return self.folder.name

    def trial_folder(self, number: int) -> Path:
        """Returns the folder of a trial."""
        return self.folder / "trials" / f"{number:04d}"

    def rounds_folder(self, place: str) -> Path:
        """Returns where the processes of a confirmation are: `confirm`, or another one's `place`."""
        return self.folder / place

    def setup_folder(self, name: str) -> Path:
        """Returns the folder of a job which is not a trial: probe, prepare, a seed of the baseline."""
        return self.folder / "setup" / name

    def begin(self, spec: SweepSpec, fingerprint: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Writes sweep.yaml, once: from here on the sweep exists.

        Args:
            about: `device` in one line, whether the data is `synthetic`, the `notes` on it.
        """
        document = {"about": about, "spec": spec.to_dict(), "fingerprint": fingerprint}
        write_atomic(self.folder / SWEEP, to_yaml(encode(document)))

    @property
    def begun(self) -> bool:
        """Whether sweep.yaml is there."""
        return (self.folder / SWEEP).exists()

    def read(self) -> Mapping[str, Any]:
        """Returns sweep.yaml: `about`, `spec` and `fingerprint`."""
        document: Mapping[str, Any] = read_yaml(self.folder / SWEEP)
        return document

    def trials(self) -> Iterator[Entry]:
        """Yields the trials in order of their numbers."""
        return self._entries(self.folder / "trials")

    def rounds(self, place: str) -> Iterator[Entry]:
        """Yields the processes of a confirmation in order."""
        return self._entries(self.rounds_folder(place))

    def _entries(self, parent: Path) -> Iterator[Entry]:
        if not parent.exists():
            return
        for folder in sorted(parent.iterdir()):
            if folder.name.isdigit() and (folder / CONFIG).exists():
                told = folder / TOLD
                yield Entry(
                    number=int(folder.name),
                    folder=folder,
                    job=read_job(folder),
                    outcome=read_outcome(folder),
                    told=decode(Told, read_json(told)) if told.exists() else None,
                )

    def write_told(self, number: int, told: Told) -> None:
        """Fixes what the search is told of a trial."""
        write_json(self.trial_folder(number) / TOLD, encode(told))

    def result(self) -> Mapping[str, Any] | None:
        """Returns how the sweep ended, or None while it has not."""
        path = self.folder / RESULT
        return read_json(path) if path.exists() else None

    def finish(self, result: Mapping[str, Any]) -> None:
        """Writes how the sweep ended."""
        write_json(self.folder / RESULT, encode(result))
        (self.folder / STOPPED).unlink(missing_ok=True)

    def stop(self, result: Mapping[str, Any]) -> None:
        """Writes what is known where the sweep was stopped; it has not ended."""
        write_json(self.folder / STOPPED, encode(result))

    def stopped(self) -> Mapping[str, Any] | None:
        """Returns what was known where the sweep was last stopped; None where it never was, or has ended."""
        path = self.folder / STOPPED
        return read_json(path) if path.exists() else None

    def reopen(self, trials: int) -> None:
        """Takes back that the sweep has ended: its budget was raised to `trials` searched trials."""
        # The result goes last: until then the sweep has ended, whatever is cut off here.
        shutil.rmtree(self.folder / "confirm", ignore_errors=True)
        write_json(self.folder / BUDGET, {"trials": trials})
        (self.folder / RESULT).unlink()

    def raised_budget(self) -> int | None:
        """Returns the searched trials the sweep was extended to; None where it never was."""
        path = self.folder / BUDGET
        return int(read_json(path)["trials"]) if path.exists() else None

    def remove(self) -> None:
        """Removes the folder: nothing in it was of use."""
        shutil.rmtree(self.folder, ignore_errors=True)
