"""Call 1: the GPU works, a fork may use it, and trials of every kind run on it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_day.steps import ROOT, Day, FailedError, count_of, counted
from sweeper.core.job import MeasurePlan
from sweeper.core.measurement import Failure, Measurement
from sweeper.execution.local import SERVER_ENV

MODES = ("eager", "graph", "default", "reduce-overhead", "max-autotune")
"""The cheapest first: what a call has no time for are the ones that compile longest."""
LOADERS = ("rows", "workers", "stream", "resident")
PRECISIONS = ("fp32", "bf16", "fp16")
PIPELINES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "tabular": ({"rows": 20_000}, {"batch_size": 512}),
    "stocks": ({"stocks": 8, "days": 900}, {"batch_size": 128}),
    "sequence": ({"rows": 10_000, "columns": 4}, {"batch_size": 128}),
    "behaviour": ({"recordings": 12, "seconds": 60}, {"batch_size": 32, "model.hidden_size": 48}),
    "kuairand": (
        {"rows": 20_000, "users": 100, "videos": 1000, "val_samples": 2000},
        {"batch_size": 256},
    ),
    "sign_language": ({"clips": 80, "glosses": 20, "max_frames": 120}, {"batch_size": 8}),
}
"""By pipeline: its data, made small, and what all of its trials have."""
FINE = ("measured", "unsupported")
NO_TIME = "not run"
PLAIN_SECONDS, COMPILED_SECONDS = 60.0, 120.0
"""Limits of a trial, by whether torch compiles it."""
REHEARSED = 4
"""Trials of a rehearsal: one of each pipeline, and one that compiles."""


def threads(day: Day) -> str:
    """Counts the threads of the trial server, module by module, and uses CUDA in a fork of it."""
    # As the launcher starts it: what is imported below must start no thread.
    os.environ.update(SERVER_ENV)
    import sweeper.worker.trial  # noqa: F401
    from sweeper.trainer.preload import MODULES

    counts = {"python": _num_threads()}
    for name in MODULES:
        importlib.import_module(name)
        counts[name] = _num_threads()
    names = sorted(
        path.read_text(encoding="utf-8").strip() for path in Path("/proc/self/task").glob("*/comm")
    )
    pid = os.fork()
    if pid == 0:
        _use_device()
    _, status = os.waitpid(pid, 0)
    day.found(kind="threads", after=counts, names=names, fork_status=status)
    count_of(day, "gpu", "threads of the trial server after preload", counts[MODULES[-1]], "<= 1")
    said = f"{counts[MODULES[-1]]} thread(s) after preload; a fork's use of the device ended with {status}"
    if status or counts[MODULES[-1]] != 1:
        raise FailedError(f"{said}; threads: {', '.join(names)}; after {counts}")
    return said


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _use_device() -> None:
    """Multiplies two matrices on the device and ends this process."""
    status = 1
    with contextlib.suppress(BaseException):
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        x = torch.ones(256, 256, device=device)
        status = int(float((x @ x).sum()) != 256.0**3)
    os._exit(status)


def pytest_gpu(day: Day) -> str:
    """Runs the tests that are marked `gpu`; in a rehearsal each of them skips itself."""
    files = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if re.search(r"pytest\.mark\.gpu\b", path.read_text(encoding="utf-8"))
    ]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "--tb=short"]
        command += [f"--junitxml={report}", "-rfE", *files]
        # A stranger's plugins would warn, and a warning is an error there.
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        for plugin in ("pytest_timeout", "xdist.plugin"):
            with contextlib.suppress(ModuleNotFoundError):
                if importlib.util.find_spec(plugin):
                    command += ["-p", plugin]
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
        if not report.exists():
            raise FailedError(f"pytest ended with {done.returncode} and left no report")
        tests = list(ElementTree.parse(report).getroot().iter("testcase"))
    kinds = Counter[str]()
    for test in tests:
        kind, message = _outcome_of(test)
        kinds[kind] += 1
        if kind not in ("passed", "skipped"):
            name = f"{test.get('classname')}.{test.get('name')}"
            day.found(kind="test", test=name, outcome=kind, message=message[:3000])
    bad = kinds["failure"] + kinds["error"]
    count_of(day, "gpu", f"failed tests marked gpu, of {len(tests)}", bad, "<= 0")
    said = f"{len(tests)} tests in {len(files)} files: " + counted(kinds)
    # A few may want a second GPU; where all were skipped, none was found.
    if done.returncode or not (kinds["passed"] or day.rehearse):
        raise FailedError(said)
    return said


def _outcome_of(test: ElementTree.Element) -> tuple[str, str]:
    for child in test:
        if child.tag in ("failure", "error", "skipped"):
            return child.tag, f"{child.get('message', '')}\n{child.text or ''}"
    return "passed", ""


def drawn() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields 30 trials as (pipeline, changes): every compile mode with every pipeline.

    Loaders and precisions come as often as each other, in an order that never changes.
    """
    pairs = list(itertools.product(MODES, PIPELINES))
    draw = random.Random(0)
    loaders = draw.sample((LOADERS * 8)[: len(pairs)], len(pairs))
    precisions = draw.sample((PRECISIONS * 10)[: len(pairs)], len(pairs))
    for (mode, pipeline), loader, precision in zip(pairs, loaders, precisions, strict=True):
        changes: dict[str, Any] = {"compile.mode": mode, "loader.kind": loader, "precision.amp": precision}
        if loader != "resident":
            changes |= {"loader.num_workers": 0 if loader == "stream" else 2, "loader.pin_memory": True}
        yield pipeline, {**PIPELINES[pipeline][1], **changes}


def trials(day: Day) -> str:
    """Runs the 30 trials through the launcher; each has a row with its outcome."""
    from verdicts import Bench

    plan = MeasurePlan(
        window_seconds=0.1 if day.rehearse else 0.4,
        repeats=2,
        warmup_cap_seconds=0.5 if day.rehearse else 3.0,
        cap_seconds=3.0,
    )
    chosen = list(drawn())
    if day.rehearse:
        compiled = next(i for i, (name, given) in enumerate(chosen) if given["compile.mode"] == "default")
        chosen = [*chosen[: REHEARSED - 1], chosen[compiled]]
        # A CPU's steps are to be short.
        chosen = [(name, {**given, "batch_size": 8}) for name, given in chosen]
    kinds = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        with contextlib.closing(bench.launcher):
            templates = {}
            for number, (pipeline, changes) in enumerate(chosen):
                if pipeline not in templates:
                    made = bench.prepared(f"pipelines.{pipeline}", PIPELINES[pipeline][0])
                    templates[pipeline] = replace(made, cache=str(Path(folder) / "cache"))
                began = time.monotonic()
                row = _within(day, bench, templates[pipeline], changes, plan)
                kinds[row["outcome"]] += 1
                row |= {"number": number, "pipeline": pipeline, "changes": changes}
                day.found(kind="trial", seconds=round(time.monotonic() - began, 1), **row)
                print(number, pipeline, *changes.values(), row["outcome"], row["message"])
    said = f"{len(chosen)} trials: {counted(kinds)}"
    bad = sum(count for kind, count in kinds.items() if kind not in (*FINE, NO_TIME))
    count_of(day, "gpu", f"trials that failed, of {len(chosen) - kinds[NO_TIME]}", bad, "<= 0")
    if bad:
        raise FailedError(said)
    return said


def _within(
    day: Day, bench: Any, template: Any, changes: Mapping[str, Any], plan: MeasurePlan
) -> dict[str, Any]:
    """Runs a trial in the time that is left, and returns what a row says of it."""
    limit = PLAIN_SECONDS if changes["compile.mode"] in ("eager", "graph") else COMPILED_SECONDS
    left = day.left() - 10
    if left < 5:
        return {"outcome": NO_TIME, "message": "no time was left"}
    job = replace(template, timeout_seconds=min(limit, left))
    row = described(bench.trial(job, changes, plan).outcome)
    if row["outcome"] == "timeout" and left < limit:
        row["outcome"] = NO_TIME
    return row


def described(outcome: object) -> dict[str, Any]:
    """Returns what a row says of an outcome; its kind is `measured` where it is a measurement."""
    if isinstance(outcome, Measurement):
        return {
            "outcome": "measured",
            "message": "",
            "throughput": outcome.throughput,
            "step_ms": outcome.step_ms,
            "effective": dict(outcome.effective),
            "gpu_mem_peak_gib": outcome.gpu_mem_peak_gib,
            "startup_seconds": outcome.startup_seconds,
            "first_step_seconds": outcome.first_step_seconds,
            "steady": outcome.steady,
            "flags": outcome.contamination,
            "telemetry_missing": dict(outcome.telemetry_missing),
        }
    assert isinstance(outcome, Failure), outcome
    return {
        "outcome": str(outcome.kind),
        "message": outcome.message,
        "throughput": None,
        "effective": {},
        "stage": outcome.stage,
        "detail": outcome.detail[-3000:],
    }


def oom(day: Day) -> str:
    """Runs out of memory inside a capture, and says whether the GPU's memory is back afterwards."""
    from verdicts import SHORT, Bench

    from sweeper.telemetry.nvml.probe import memory_used_gib

    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        with contextlib.closing(bench.launcher):
            template = bench.prepared("gpu_day.jobs", {})
            before = memory_used_gib(bench.device)
            changes = {"batch_size": 256, "compile.mode": "eager" if bench.device == "cpu" else "graph"}
            row = described(bench.trial(template, changes, SHORT).outcome)
            ended = time.monotonic()
            while (after := memory_used_gib(bench.device)) is not None and before is not None:
                if after <= before + 0.05 or time.monotonic() - ended > 15:
                    break
                time.sleep(0.05)
            seconds = time.monotonic() - ended
    count_of(day, "gpu", "OOM inside a capture is told as one", row["outcome"] == "oom", ">= 1")
    day.found(kind="oom", before_gib=before, after_gib=after, seconds=round(seconds, 2), **row)
    said = f"{row['outcome']} ({row['message']}); {before} GiB before, {after} after {seconds:.1f} s"
    if row["outcome"] != "oom" or (before is not None and after is not None and after > before + 0.05):
        raise FailedError(said)
    return said
