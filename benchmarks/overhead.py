"""The cost of a trial beyond its own work (ask, fork, run, record, tell), vs starting Python with torch.

python benchmarks/overhead.py            writes benchmarks/results/<device>/overhead.json
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import TESTS, publish, spread
from parts.noop import RUNNER

from sweeper.core.job import Job, MeasurePlan, write_job
from sweeper.core.measurement import Measurement
from sweeper.launch.local import LocalLauncher
from sweeper.results.numbers.trial_table import TrialTable
from sweeper.schema import SweepSpec
from sweeper.search import Searcher
from sweeper.sweep.folder.journal import Journal

TRIALS = 50
FRESH = 10

SPEC = {
    "name": "overhead",
    "pipeline": "none",
    "space": {
        "batch_size": {"type": "int", "low": 1, "high": 100_000, "log": True},
        "loader.kind": {"type": "categorical", "choices": ["workers", "resident"]},
        "loader.num_workers": {"type": "int", "low": 0, "high": 16},
        "precision.amp": {"type": "categorical", "choices": ["fp32", "bf16"]},
        "compile.mode": {"type": "categorical", "choices": ["eager", "default"]},
    },
    "baseline": {"batch_size": 64},
    "search": {"trials": TRIALS},
}


def trial(
    spec: SweepSpec,
    journal: Journal,
    table: TrialTable,
    searcher: Searcher,
    launcher: LocalLauncher,
    number: int,
) -> None:
    """One whole trial that does nothing, as the supervisor does it."""
    params, _ = searcher.ask(number, table.trial_numbers)
    job = Job(
        uid=str(number),
        runner=RUNNER,
        config=spec.config(params),
        params=params,
        plan=MeasurePlan(repeats=1),
    )
    folder = journal.trial_folder(number)
    table.enter(journal.trial_record(number, job, None))
    write_job(folder, job)
    outcome = launcher.submit(folder).result()
    assert isinstance(outcome, Measurement), outcome
    table.enter(journal.trial_record(number, job, outcome))
    result = table.new_result(number, params)
    journal.write_search_result(number, result)
    table.record_result(number, result)
    searcher.tell(number, result)


def fresh_python() -> float:
    """Seconds of a new interpreter that imports torch and ends."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


def main() -> None:
    """Interleaves no-op trials of both kinds of isolation with fresh interpreters."""
    spec = SweepSpec.from_dict(SPEC)
    times: dict[str, list[float]] = {"fork": [], "exec": [], "fresh": []}
    paths = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    environ = {**os.environ, "PYTHONPATH": paths}
    with tempfile.TemporaryDirectory() as folder:
        kinds = {}
        for isolation in ("fork", "exec"):
            journal = Journal(Path(folder) / isolation)
            journal.folder.mkdir()
            launcher = LocalLauncher(journal.folder, isolation=isolation, environ=environ)
            kinds[isolation] = (spec, journal, TrialTable(spec), Searcher(journal.study, spec, {}), launcher)
            trial(*kinds[isolation], 0)
        for i in range(TRIALS):
            for isolation in ("fork", "exec"):
                began = time.perf_counter()
                trial(*kinds[isolation], i + 1)
                times[isolation].append(time.perf_counter() - began)
            if i % (TRIALS // FRESH) == 0:
                times["fresh"].append(fresh_python())
        for *_, launcher in kinds.values():
            launcher.close()
    fork, exec_, fresh = (spread([1e3 * t for t in times[kind]]) for kind in ("fork", "exec", "fresh"))
    ratios = spread([f / (fork.value / 1e3) for f in times["fresh"]])
    publish(
        "overhead",
        [
            dataclasses.replace(fork, figure="no-op trial, isolation fork", unit="ms", bar="<= 30"),
            dataclasses.replace(exec_, figure="no-op trial, isolation exec", unit="ms"),
            dataclasses.replace(fresh, figure="fresh python importing torch", unit="ms"),
            dataclasses.replace(ratios, figure="fresh python / no-op trial (fork)", unit="x"),
        ],
        "python benchmarks/overhead.py",
    )


if __name__ == "__main__":
    main()
