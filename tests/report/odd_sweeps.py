"""Folders of sweeps in every state that a report may meet, written without running anything."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from thousand import write_sweep

from sweeper.core.job import OUTCOME
from sweeper.sweep.folder.journal import FINAL_RACE, INTERIM_RESULT, RESULT, Journal
from sweeper.sweep.folder.load import LoadedSweep, load_sweep

HOSTILE = (
    "<script>alert(1)</script>",
    "left\u202eright",
    "a|b `c` @somebody **d** [e](https://e.example) &amp; $f$",
    "%{x}<b>bold</b><extra></extra>",
)
MESSAGE = (
    f"<img src=x onerror=alert(2)> </script><script>alert(3)</script> \x1b[31mred\x1b[0m {HOSTILE[1]} \ud800"
)
TRIALS = 14


def finished(home: Path, name: str = "toy", **more: Any) -> Journal:
    return write_sweep(home, name, **{"trials": TRIALS, **more})


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))


def fail(journal: Journal, number: int, kind: str = "oom", message: str = "it broke") -> None:
    failure = {"schema": 1, "type": "failure", "kind": kind, "message": message, "stage": "warmup"}
    (journal.trial_folder(number) / OUTCOME).write_text(json.dumps(failure))


def no_result(journal: Journal) -> None:
    (journal.folder / RESULT).unlink()


def begun(home: Path) -> Journal:
    journal = finished(home)
    no_result(journal)
    shutil.rmtree(journal.folder / "trials")
    shutil.rmtree(journal.folder / "setup")
    return journal


def baseline_only(home: Path) -> Journal:
    journal = finished(home)
    no_result(journal)
    for number in range(1, TRIALS):
        shutil.rmtree(journal.trial_folder(number))
    return journal


def baseline_failed(home: Path) -> Journal:
    journal = baseline_only(home)
    fail(journal, 0, "user_error", "no such file: data.csv")
    return journal


def all_failed(home: Path) -> Journal:
    journal = finished(home)
    for number in range(1, TRIALS):
        fail(journal, number)
    lost = {"winner": None, "ratios": [], "ties": []}
    edit(journal.folder / RESULT, lambda tree: tree.update(lost))
    return journal


def no_winner(home: Path) -> Journal:
    """Confirmed: nothing is faster."""
    journal = finished(home, faster=1e-3)
    assert json.loads((journal.folder / RESULT).read_text())["winner"] is None
    return journal


def unconfirmed(home: Path) -> Journal:
    """Rounds of confirmation were not asked for."""
    journal = finished(home)
    empty = {"winner": None, "ratios": [], "ties": [], "disturbances": {}}
    edit(journal.folder / RESULT, lambda tree: tree.update(empty))
    return journal


def lucky(home: Path) -> Journal:
    """Confirmed: what was fast in the search is not."""
    journal = finished(home)

    def even(tree: dict[str, Any]) -> None:
        tree.update(winner=None, ties=[])
        for each in tree["ratios"]:
            each.update(ratio=1.0, low=0.9, high=1.1)
        del tree["ratios"][1:]

    edit(journal.folder / RESULT, even)
    return journal


def stopped(home: Path) -> Journal:
    journal = finished(home)
    (journal.folder / RESULT).rename(journal.folder / INTERIM_RESULT)
    edit(journal.folder / INTERIM_RESULT, lambda tree: tree.update(search_end="it was stopped"))
    shutil.rmtree(journal.trial_folder(TRIALS - 1))
    return journal


def stopped_unconfirmed(home: Path) -> Journal:
    journal = stopped(home)
    hasty = {
        "ratios": [],
    }
    edit(journal.folder / INTERIM_RESULT, lambda tree: tree.update(hasty))
    return journal


def unfinished(home: Path) -> Journal:
    """Killed: some trials have no outcome, and there is no result."""
    journal = finished(home)
    no_result(journal)
    for number in (TRIALS - 2, TRIALS - 1):
        (journal.trial_folder(number) / OUTCOME).unlink()
    return journal


def two_objectives(home: Path) -> Journal:
    objectives = [{"maximize": "throughput"}, {"minimize": "gpu_mem_peak_gib"}, {"minimize": "val_loss"}]
    journal = finished(home, changes={"objectives": objectives})
    for path in (journal.folder / "trials").glob("*/search_result.json"):
        edit(path, lambda tree: tree.update(values=[*tree["values"], 8.0, 0.42]))
    return journal


def constants(home: Path) -> Journal:
    """Nothing varies but one choice; trials differ in nothing that is shown."""
    space = {
        "batch_size": {"type": "int", "low": 256, "high": 256},
        "loader.kind": {"type": "categorical", "choices": ["resident"]},
        "optimizer.lr": {"type": "float", "low": 1e-4, "high": 1e-3, "log": True},
    }
    return finished(home, trials=10, changes={"space": space})


def nothing_known(home: Path) -> Journal:
    """Every figure that may be absent is, and series are broken."""
    journal = finished(home)

    def empty(tree: dict[str, Any]) -> None:
        if tree["type"] != "measurement":
            return
        tree.update(telemetry={}, versions={}, diagnosis=None, quality=None, gpu_mem_peak_gib=None)
        tree.update(step_ms=None, epoch_seconds=None, train_samples=0, startup_seconds=None, finished_at=None)
        tree.update(reported_by="the meter", breakdown=dict.fromkeys(tree["breakdown"], 0.0))
        for window in tree["windows"]:
            window.update(canary_ms=None, load=None)

    for folder in (journal.folder / "trials").iterdir():
        edit(folder / OUTCOME, empty)
        (folder / "series" / "time_s.npy").write_bytes(b"torn")
    edit(journal.trial_folder(2) / OUTCOME, lambda tree: tree.update(throughput=None))
    for folder in (journal.folder / "setup").iterdir():
        shutil.rmtree(folder)
    return journal


def one_round(home: Path) -> Journal:
    """A single round has no interval: its ends are written as null."""
    journal = finished(home)

    def cut(tree: dict[str, Any]) -> None:
        for each in tree["ratios"]:
            each.update(low=0.0, high=None, rounds=each["rounds"][:1])

    edit(journal.folder / RESULT, cut)
    log = journal.race_log(FINAL_RACE)
    events = log.read_text().splitlines(keepends=True)
    log.write_text("".join(event for event in events if json.loads(event)["life"] < 4))
    return journal


def hostile(home: Path) -> Journal:
    space = {
        "batch_size": {"type": "int", "low": 64, "high": 4096, "log": True},
        "loader.kind": {"type": "categorical", "choices": ["workers", "resident"]},
        "model.name": {"type": "categorical", "choices": list(HOSTILE)},
    }
    base: Mapping[str, Any] = {"loader.kind": "rows", "batch_size": 64, "model.name": HOSTILE[0]}
    journal = finished(
        home, device=f"A10 {HOSTILE[0]}", trials=30, changes={"space": space, "baseline": base}
    )
    for number in (3, 4, 5):
        fail(journal, number, "crash", MESSAGE)
    edit(journal.folder / RESULT, lambda tree: tree.update(search_end=MESSAGE))
    return journal


Make = Callable[[Path], Journal]

ODD: tuple[Make, ...] = (
    begun,
    baseline_only,
    baseline_failed,
    all_failed,
    no_winner,
    lucky,
    unconfirmed,
    stopped,
    stopped_unconfirmed,
    unfinished,
    two_objectives,
    constants,
    nothing_known,
    one_round,
    hostile,
    finished,
)


def loaded(journal: Journal) -> LoadedSweep:
    return load_sweep(journal)
