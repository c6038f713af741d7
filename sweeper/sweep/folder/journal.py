"""Reads and writes the files of a sweep folder. An outcome on disk is the commit.

Not all of the folder is written here. The drawing is in `docs/design.md`; paths below are in `sweeper/`.

    file                written by                        without it
    sweep.yaml          `begin`                           the sweep has not begun; its folder is removed
    lock, epoch         sweep/folder/lock.py              no supervisor has held the folder
    past.json           sweep/folder/past.py              the search starts from no earlier sweep
    study.log           search/study_file.py              it is rebuilt from search_result.json
    interim_result.json `write_interim_result`            no Ctrl-C has left a result so far
    result.json         `write_result`                    the sweep has not ended
    extension.json      `reopen`                          --extend has not raised the number of trials
    outputs.json        sweep/run.py                      the next run makes the report
    publication         sweep/publish.py                  the sweep, or the trial, is sent to MLflow
    server.log          launch/local.py                   no job has run on this machine
    jobs.json           launch/cluster.py                 the launcher has left no jobs in a batch system
    models.json         launch/cluster.py                 no worker had another model of device
    report.html         report/writing.py                 the sweep has no report
    best.yaml           production/handover.py            nothing is exported
    best.patch          cli/patch_script.py               no patch is exported

    in setup/:
    interference.json   sweep/phases/interference.py      the slots are measured
    preflight.json      sweep/phases/preflight.py         the values are tried

    in the folder of a job, which is setup/<name>, trials/<number> or races/<race>/<number>:
    config.json         core/job.py (1)                   there is no job
    outcome.json        core/job.py (2)                   the job has not ended: it runs again
    interrupted         sweep/job_runner.py               if there is no outcome, the attempt counts
    place.json          core/place.py                     where it ran is not known
    search_result.json  `write_search_result`             a trial's outcome is told to the sampler
    worker.log          worker/keeper.py                  the job has not run in a process
    series/             worker/keeper.py                  no telemetry is stored
    telemetry.log       worker/keeper.py                  no telemetry is stored
    trace.json.gz       trainer/trace.py                  the trial is not profiled
    attempt-N-*         sweep/job_runner.py               the environment has ended no attempt
    script.json         script/run/start.py               no script was started
    record-N.jsonl      script/inside/recorder.py         the script's first steps are not recorded
    warm.json           script/run/running.py             the record of the first steps is not complete
    verification.json   exports/verification.py           the trial's changes are not verified together

    in races/<race>/:
    race.jsonl          race/storage.py                   the race has not begun

1. `write_job`, which sweep/job_runner.py calls as it starts a job, sweep/trial_runner.py for a trial that is
   passed over, and tuning/lives.py for one whose changes are not all in effect.
2. `write_outcome`, which worker/keeper.py calls as a job ends, and launch/parcel.py as a cluster sends it;
   launch/inline.py as a job ends in this process, sweep/job_runner.py where a worker left none,
   sweep/trial_runner.py for a trial that is passed over, and tuning/ for one that was cut off or trains
   differently.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from sweeper.core.codec import decode, encode
from sweeper.core.job import CONFIG, SCHEMA, SEARCH_STAGE, Job, read_job, read_outcome
from sweeper.core.measurement import Failure, FailureKind, Outcome, Report
from sweeper.core.place import TrialPlace, read_place
from sweeper.core.record import SearchResult, TrialRecord
from sweeper.errors import EnvironmentStopError
from sweeper.race.log import Event, Round, comparable_rounds
from sweeper.race.storage import read
from sweeper.schema import SweepSpec, read_yaml, to_yaml
from sweeper.schema.reader import OWN, open_at_once
from sweeper.sweep.folder.result import SweepResult, decode_result, encode_result
from sweeper.system.files import read_json, reading, write_atomic, write_json

SWEEP = "sweep.yaml"
RESULT = "result.json"
INTERIM_RESULT = "interim_result.json"
EXTENSION = "extension.json"
SEARCH_RESULT = "search_result.json"
RACES = "races"
RACE = "race.jsonl"
FINAL_RACE, INTERIM_RACE = "final", "interim"
"""Races of a sweep's confirmation, and of the quick confirmation of one that was stopped."""
EARLY_RACE, REPEATED_RACE = "early", "repeat"
"""Beginnings of the names of races during the search, and of later ones (`sweeper confirm`)."""

ENDS_ANEW = "Restore it, or remove it and run the same command to finish the sweep again"
DAMAGED_RACE = "Restore it, or remove it to race again"
_SCHEMA = re.compile(r"schema: (\d+)\s*$")
_RESTORE = "Restore it, or run the same YAML with --new"
_REMOVE = "Remove it, and sweeper writes it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """The content of one job folder."""

    folder: Path
    job: Job
    outcome: Outcome | Report | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedJob(StoredJob):
    """The content of the folder of a trial, or of a process in a race, whose name is its number.

    Attributes:
        result: What the sampler was told of a trial; None while it was not.
    """

    number: int
    result: SearchResult | None


def sweeps_folder(home: Path) -> Path:
    """Returns the folder of all sweeps of a home."""
    return home / "sweeps"


def schema_of(folder: Path) -> int:
    """Returns the version of what a sweep's folder stores, the latest before the sweep has begun."""
    try:
        with open(folder / SWEEP, encoding="utf-8", errors="replace", opener=open_at_once) as file:
            first = file.readline()
    except (OSError, ValueError):
        # ValueError: a name that no file can have.
        return SCHEMA
    number = _SCHEMA.match(first)
    return int(number[1]) if number else 1 if first.startswith("about:") else SCHEMA


class Journal:
    """One sweep's folder, as this version writes it; `sweeper.sweep.folder.catalog.journal_at` opens any.

    A sweep calls these methods, in this order:

        begin                   writes sweep.yaml
        discard_interim_result  removes interim_result.json, which is there if the sweep was stopped before
        write_search_result     writes search_result.json of a trial that has an outcome.json
        write_interim_result    writes interim_result.json, if the user stops it
        write_result            writes result.json, if not, and removes interim_result.json
        reopen                  writes extension.json and removes result.json, for `--extend`
    """

    _search_result_file: ClassVar[str] = SEARCH_RESULT
    _interim_result_file: ClassVar[str] = INTERIM_RESULT
    _extension_file: ClassVar[str] = EXTENSION

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.study = self.folder / "study.log"

    @cached_property
    def schema(self) -> int:
        """The version of what is stored, the latest before the sweep has begun."""
        return schema_of(self.folder)

    @property
    def name(self) -> str:
        """The sweep's name, which is its folder's."""
        return self.folder.name

    @property
    def identity(self) -> str:
        """A name for shared services that is unique among all sweeps of this name."""
        place = f"{socket.gethostname()}:{self.folder.resolve()}"
        return f"{self.name}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"

    def trial_folder(self, number: int) -> Path:
        """Returns the folder of a trial."""
        return self.folder / "trials" / f"{number:04d}"

    def race_folder(self, race: str) -> Path:
        """Returns the folder of a race: its log and its processes."""
        return self.folder / RACES / race

    def setup_folder(self, name: str) -> Path:
        """Returns the folder of a job that is not a trial: probe, prepare, or a baseline's seed."""
        return self.folder / "setup" / name

    def begin(self, spec: SweepSpec, fingerprint: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Writes sweep.yaml, from which time the sweep exists.

        Args:
            about: The `device` in one line, whether the data is `synthetic`, and `notes` about it.
        """
        self.schema = SCHEMA
        document = {"schema": SCHEMA, "about": about, "spec": spec.to_dict(), "fingerprint": fingerprint}
        write_atomic(self.folder / SWEEP, to_yaml(encode(document)))

    @property
    def has_begun(self) -> bool:
        """Whether sweep.yaml exists."""
        # os.path treats a name that no file can have as one that does not exist.
        return os.path.exists(self.folder / SWEEP)

    def read_sweep_file(self) -> Mapping[str, Any]:
        """Returns sweep.yaml: `about`, `spec` and `fingerprint`.

        Raises:
            EnvironmentStopError: It is damaged, or of a later version.
        """
        path = self.folder / SWEEP
        if self.schema > SCHEMA:
            raise EnvironmentStopError(
                f"{path} must have schema {SCHEMA} or earlier, but has {self.schema}. Use the version of"
                " sweeper that wrote it, or a later one."
            )
        with reading(path, _RESTORE):
            document = self._read_document(path)
            for key in ("about", "spec", "fingerprint"):
                _require_mapping(document[key])
            _require_keys(document["about"], "device", "synthetic")
        return document

    def spec(self, document: Mapping[str, Any] | None = None) -> SweepSpec:
        """Returns the specification in sweep.yaml.

        Args:
            document: The result of `read_sweep_file`, if it was called before.

        Raises:
            EnvironmentStopError: It is damaged.
        """
        document = self.read_sweep_file() if document is None else document
        with reading(self.folder / SWEEP, _RESTORE):
            spec = SweepSpec.from_dict(document["spec"], is_stored=True)
        return spec

    def trials(self) -> Iterator[NumberedJob]:
        """Yields the trials in order of their numbers."""
        return self._entries(self.folder / "trials")

    def searched_trials(self) -> Iterator[NumberedJob]:
        """Yields the searched trials, without the configurations that were passed over as too large."""
        for entry in self.trials():
            end = entry.outcome
            is_passed_over = isinstance(end, Failure) and end.kind is FailureKind.OOM_EXPECTED
            if entry.job.stage == SEARCH_STAGE and not is_passed_over:
                yield entry

    def num_trials(self, file: str = CONFIG) -> int:
        """Returns the number of trials that have begun, or of those that have a `file` of that name."""
        return sum(1 for _ in (self.folder / "trials").glob(f"*/{file}"))

    def race_jobs(self, race: str) -> Iterator[NumberedJob]:
        """Yields the processes of a race, in order."""
        return self._entries(self.race_folder(race))

    def race_log(self, race: str) -> Path:
        """Returns the file of what happened in a race."""
        return self.race_folder(race) / RACE

    def rounds(self, race: str) -> list[Round]:
        """Returns the rounds of a race; none if there was no race."""
        return comparable_rounds(self.race_events(race))

    def race_events(self, race: str) -> list[Event]:
        """Returns the log of a race; empty if there was none.

        Raises:
            EnvironmentStopError: Its file is damaged.
        """
        path = self.race_log(race)
        with reading(path, DAMAGED_RACE):
            events = read(path)
        return events

    def rounds_in_result(self) -> list[Round]:
        """Returns the rounds in the result itself: none, since a race's log has them."""
        return []

    def early_races(self) -> list[str]:
        """Returns the races during the search, in order."""
        return sorted(path.name for path in (self.folder / RACES).glob(f"{EARLY_RACE}-*"))

    def race_folders(self) -> list[Path]:
        """Returns the folders with the processes of the races that the sweep's result rests on."""
        return [self.race_folder(race) for race in (*self.early_races(), FINAL_RACE, INTERIM_RACE)]

    def setup(self) -> Iterator[StoredJob]:
        """Yields the jobs that are not trials, such as a baseline's seeds, in order of their start."""
        parent = self.setup_folder("")
        if not os.path.lexists(parent):
            return
        _require_folder(parent)
        entries = []
        for name in os.listdir(parent):
            folder = parent / name
            if (folder / CONFIG).is_file():
                outcome = read_outcome(folder)
                entries.append(StoredJob(folder=folder, job=read_job(folder), outcome=outcome))
        yield from sorted(entries, key=lambda entry: entry.job.created_at)

    def _entries(self, parent: Path) -> Iterator[NumberedJob]:
        if not os.path.lexists(parent):
            return
        _require_folder(parent)
        for name in sorted(os.listdir(parent)):
            if not (name.isdecimal() and name.isascii()):
                continue
            folder = parent / name
            _require_folder(folder)
            try:
                job = read_job(folder)
            except FileNotFoundError:
                continue
            outcome, result = read_outcome(folder), _search_result(folder / self._search_result_file)
            yield NumberedJob(number=int(name), folder=folder, job=job, outcome=outcome, result=result)

    def trial_record(self, number: int, job: Job, outcome: Outcome | None) -> TrialRecord:
        """Returns the record of a trial that has begun or ended; nothing is derived yet."""
        folder = self.trial_folder(number)
        return TrialRecord(
            number=number,
            uid=job.uid,
            stage=job.stage,
            config=job.config,
            outcome=outcome,
            params=job.params,
            origin=job.origin,
            created_at=job.created_at,
            folder=str(folder),
            place=read_place(folder) if outcome is not None else TrialPlace(),
        )

    def write_search_result(self, number: int, result: SearchResult) -> None:
        """Writes a trial's result for the sampler, which is final."""
        write_json(self.trial_folder(number) / self._search_result_file, encode(result))

    @property
    def has_ended(self) -> bool:
        """Whether the sweep has a result, whatever its content.

        Raises:
            EnvironmentStopError: The result's file is damaged.
        """
        return mapping_in(self.folder / RESULT, ENDS_ANEW) is not None

    def result(self) -> SweepResult | None:
        """Returns the result of the sweep; None if it has not ended.

        Raises:
            EnvironmentStopError: The result's file is damaged.
        """
        return self._read_result(self.folder / RESULT, ENDS_ANEW)

    def write_result(self, result: SweepResult) -> None:
        """Writes the result of the sweep, which has ended, and discards the interim one."""
        write_json(self.folder / RESULT, encode_result(result))
        self.discard_interim_result()

    def discard_interim_result(self) -> None:
        """Removes the result of a stopped sweep, which continues or has ended now."""
        (self.folder / self._interim_result_file).unlink(missing_ok=True)
        # The rounds of the quick confirmation, some of which were cut off, go too.
        shutil.rmtree(self.race_folder(INTERIM_RACE), ignore_errors=True)

    def write_interim_result(self, result: SweepResult) -> None:
        """Writes the result so far of a sweep that was stopped; it has not ended."""
        write_json(self.folder / self._interim_result_file, encode_result(result))

    def interim_result(self) -> SweepResult | None:
        """Returns the result of a stopped sweep; None if it was never stopped, or has ended."""
        return self._read_result(self.folder / self._interim_result_file, "Remove it")

    def reopen(self, trials: int) -> None:
        """Reopens a sweep that has ended, with a budget of `trials` searched trials."""
        # The result is removed last: if this is cut off before, the sweep has still ended.
        shutil.rmtree(self.race_folder(FINAL_RACE), ignore_errors=True)
        write_json(self.folder / self._extension_file, {"trials": trials})
        (self.folder / RESULT).unlink()

    def raised_budget(self) -> int | None:
        """Returns the number of searched trials that the sweep was extended to; None if it never was."""
        path = self.folder / self._extension_file
        with reading(path, _RESTORE):
            extension = mapping_in(path, _RESTORE)
            trials = None if extension is None else int(extension["trials"])
        return trials

    def remove(self) -> None:
        """Removes the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _read_document(self, path: Path) -> Mapping[str, Any]:
        document: Mapping[str, Any] = read_yaml(path, times=OWN)
        return document

    def _decode_result(self, tree: Mapping[str, Any]) -> SweepResult:
        return decode_result(tree)

    def _read_result(self, path: Path, remedy: str) -> SweepResult | None:
        tree = mapping_in(path, remedy)
        if tree is None:
            return None
        with reading(path, remedy):
            result = self._decode_result(tree)
        return result


def _search_result(path: Path) -> SearchResult | None:
    mapping = mapping_in(path, _REMOVE)
    if mapping is None:
        return None
    with reading(path, _REMOVE):
        result = decode(SearchResult, mapping)
    return result


def mapping_in(path: Path, remedy: str) -> Mapping[str, Any] | None:
    """Returns the JSON object in one of the sweep's files, or None if there is no such file."""
    try:
        with reading(path, remedy):
            mapping = _require_mapping(read_json(path))
    except FileNotFoundError:
        return None
    return mapping


def _require_mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"it must be an object, but is {type(value).__name__}")
    return value


def _require_keys(mapping: Mapping[str, Any], *keys: str) -> None:
    for key in keys:
        if key not in mapping:
            raise KeyError(key)


def _require_folder(path: Path) -> None:
    """Makes sure that a path is a folder, so that nothing is read or written through a link.

    Raises:
        EnvironmentStopError: It is a link or a file.
    """
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        got = "a link" if path.is_symlink() else "a file"
        raise EnvironmentStopError(
            f"{path} must be a folder of the sweep, but it is {got}. Nothing was changed. Remove it."
        )
