"""Some steps under the profiler: a file that opens, and what took the most."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path

from sweeper.core.progress import SilentProgress
from sweeper.trainer import trace as tracing


class Stages(SilentProgress):
    def __init__(self):
        super().__init__()
        self.seen = []

    def stage(self, name):
        self.seen.append(name)


def test_a_trace_and_the_operations_that_take_the_most(make_job, tmp_path: Path):
    path = tmp_path / "trace.json.gz"
    job = make_job({"model.hidden": 64}, repeats=0, warmup_cap_seconds=0.05)
    heard = Stages()
    values = tracing.run(dataclasses.replace(job, trace=str(path)), heard).values
    assert heard.seen == ["build", "warmup", "trace"]
    with gzip.open(path, "rt") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert "aten::addmm" in names
    operations = values["operations"]
    assert 0 < len(operations) <= tracing.TOP
    assert list(operations.values()) == sorted(operations.values(), reverse=True)
    # Parts of a step, of the time that is their own.
    assert 0 < sum(operations.values()) < 1.2 * values["step_ms"]
    assert set(operations) <= names
    assert (values["steps"], values["device_busy_pct"]) == (tracing.STEPS, None)
    assert values["flops_per_sample"] > 0
    assert values["matmul_flops"] > 1e9
