"""The GPU works: a fork may use it, its tests pass, trials run on it, and a lack of memory is understood."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import os
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

from gpu_day.steps import ROOT, Day, FailedError, counted
from sweeper.core.codec import encode
from sweeper.core.job import MeasurePlan
from sweeper.core.loaders import traits
from sweeper.core.measurement import Measurement
from sweeper.launch.local import SERVER_ENV

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
MODES = ("eager", "graph")
LOADERS = ("resident", "workers", "stream", "rows")
PRECISIONS = ("fp32", "bf16", "fp16")
FINE = ("measured", "unsupported")
NO_TIME = "not run"
TRIAL_SECONDS = 40.0
TESTS = "lstm or loader or scaler or trial or tf32"
"""Which of the tests that are marked `gpu` are run: those of what is most likely to be wrong."""


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
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    day.write("threads", after=counts, names=names, fork_status=status)
    last = counts[MODULES[-1]]
    day.figure("threads of the trial server after preload", last, bar="<= 1")
    said = f"{last} thread(s) after preload; a fork's use of CUDA ended with {status}"
    if status or last != 1:
        raise FailedError(f"{said}; threads: {', '.join(names)}; after {counts}")
    return said


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _use_device() -> None:
    """Multiplies two matrices on the device and ends this process."""
    status = 1
    try:
        import torch

        x = torch.ones(256, 256, device="cuda")
        status = int(float((x @ x).sum()) != 256.0**3)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    os._exit(status)


def tests(day: Day) -> str:
    """Runs the tests that need a GPU and are most likely to fail."""
    files = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if re.search(r"pytest\.mark\.gpu\b", path.read_text(encoding="utf-8"))
    ]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-k", TESTS, "-p", "no:cacheprovider"]
        command += ["--tb=short", f"--junitxml={report}", "-rfE", *files]
        # A stranger's plugins would warn, and a warning is an error there.
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        for plugin in ("pytest_timeout", "xdist.plugin"):
            with contextlib.suppress(ModuleNotFoundError):
                if importlib.util.find_spec(plugin):
                    command += ["-p", plugin]
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
        if not report.exists():
            raise FailedError(f"pytest ended with {done.returncode} and left no report")
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    kinds = Counter[str]()
    for case in cases:
        kind, message = _outcome_of(case)
        kinds[kind] += 1
        if kind not in ("passed", "skipped"):
            name = f"{case.get('classname')}.{case.get('name')}"
            day.write("test", test=name, outcome=kind, message=message[:3000])
    bad = kinds["failure"] + kinds["error"]
    day.figure(f"failed tests marked gpu, of {len(cases)}", bad, bar="<= 0")
    said = f"{len(cases)} tests in {len(files)} files: {counted(kinds)}"
    # Where all were skipped, there was no GPU.
    if done.returncode or not kinds["passed"]:
        raise FailedError(said)
    return said


def _outcome_of(case: ElementTree.Element) -> tuple[str, str]:
    for child in case:
        if child.tag in ("failure", "error", "skipped"):
            return child.tag, f"{child.get('message', '')}\n{child.text or ''}"
    return "passed", ""


def chosen() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields 12 trials as (pipeline, changes): eager and as a graph; loaders and precisions take turns."""
    for number, (mode, pipeline) in enumerate(itertools.product(MODES, PIPELINES)):
        loader = LOADERS[number % len(LOADERS)]
        # Shifted, so that a pipeline's graph has another precision than its eager step.
        precision = PRECISIONS[(number + number // len(PIPELINES)) % len(PRECISIONS)]
        changes = {"compile.mode": mode, "loader.kind": loader, "precision.amp": precision}
        if loader != "resident":
            changes |= {
                "loader.num_workers": 2 if traits(loader).has_workers else 0,
                "loader.pin_memory": True,
            }
        yield pipeline, {**PIPELINES[pipeline][1], **changes}


def trials(day: Day) -> str:
    """Runs the 12 trials through the launcher; each has a row with its outcome."""
    from verdicts import Bench

    plan = MeasurePlan(
        window_seconds=0.1 if day.rehearse else 0.4,
        repeats=2,
        warmup_cap_seconds=0.5 if day.rehearse else 3.0,
        cap_seconds=3.0,
        diagnose=False,
    )
    kinds = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        with contextlib.closing(bench.launcher):
            templates = {}
            for number, (pipeline, changes) in enumerate(chosen()):
                if pipeline not in templates:
                    made = bench.prepared(f"pipelines.{pipeline}", PIPELINES[pipeline][0])
                    templates[pipeline] = replace(made, cache=str(Path(folder) / "cache"))
                if day.rehearse:
                    # A CPU's steps are to be short.
                    changes = {**changes, "batch_size": 8}
                began = time.monotonic()
                row = _within(day, bench, templates[pipeline], changes, plan)
                kinds[row["outcome"]] += 1
                row |= {"number": number, "pipeline": pipeline, "changes": changes}
                day.write("trial", seconds=round(time.monotonic() - began, 1), **row)
                print(number, pipeline, *changes.values(), row["outcome"], row["message"])
    said = f"{sum(kinds.values())} trials: {counted(kinds)}"
    bad = sum(count for kind, count in kinds.items() if kind not in (*FINE, NO_TIME))
    day.figure(f"trials that failed, of {sum(kinds.values()) - kinds[NO_TIME]}", bad, bar="<= 0")
    if bad:
        raise FailedError(said)
    return said


def _within(
    day: Day, bench: Any, template: Any, changes: Mapping[str, Any], plan: MeasurePlan
) -> dict[str, Any]:
    """Runs a trial in the time that is left, and returns what a row says of it."""
    left = day.left() - 5
    if left < 5:
        return {"outcome": NO_TIME, "message": "no time was left"}
    job = replace(template, timeout_seconds=min(TRIAL_SECONDS, left))
    row = described(bench.trial(job, changes, plan).outcome)
    if row["outcome"] == "timeout" and left < TRIAL_SECONDS:
        row["outcome"] = NO_TIME
    return row


def described(outcome: Any) -> dict[str, Any]:
    """Returns what a row says of an outcome; its kind is `measured` where it is a measurement."""
    kind = "measured" if isinstance(outcome, Measurement) else str(outcome.kind)
    return {"outcome": kind, "message": getattr(outcome, "message", ""), "whole": encode(outcome)}


def oom(day: Day) -> str:
    """Runs out of memory inside a capture, and says whether the GPU's memory is back afterwards."""
    from verdicts import SHORT, Bench

    from sweeper.telemetry.nvml.devices import memory_used_gib

    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        with contextlib.closing(bench.launcher):
            template = bench.prepared("gpu_day.breaking", {})
            before = memory_used_gib(bench.device)
            changes = {"batch_size": 256, "compile.mode": "graph"}
            row = described(bench.trial(template, changes, SHORT).outcome)
            ended = time.monotonic()
            while (after := memory_used_gib(bench.device)) is not None and before is not None:
                if after <= before + 0.05 or day.left() < 3:
                    break
                time.sleep(0.05)
            seconds = time.monotonic() - ended
    day.figure("a lack of memory inside a capture is called one", row["outcome"] == "oom", bar=">= 1")
    day.write("oom", before_gib=before, after_gib=after, seconds=round(seconds, 2), **row)
    said = f"{row['outcome']} ({row['message']}); {before} GiB before, {after} after {seconds:.1f} s"
    if row["outcome"] != "oom" or (before is not None and after is not None and after > before + 0.05):
        raise FailedError(said)
    return said
