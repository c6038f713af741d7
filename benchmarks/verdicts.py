"""Whether verdicts are right, their next steps help, and disturbed timings are noticed.

python benchmarks/verdicts.py [bottlenecks next contention]   writes benchmarks/results/<device>/verdicts.json

bottlenecks   trainings with a known bottleneck, each 20 times, while another process loads a core
next          the next step on the card of a plain baseline, against every other loader setting
contention    100 trials, half of them with a busy loop on every core
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import ROOT, TESTS, Figure, chosen, publish, show, spread
from parts import bottlenecks

from sweeper.core.config import TrialConfig
from sweeper.core.job import PREPARE_RUNNER, PROBE_RUNNER, Job, MeasurePlan, write_job
from sweeper.core.measurement import Report
from sweeper.core.record import TrialRecord
from sweeper.launch.local import LocalLauncher
from sweeper.results.trial_card import trial_card
from sweeper.results.verdict.bottleneck import verdict_on
from sweeper.system.cpu import usable_cpus
from sweeper.telemetry.nvml.devices import full_uuid

BARS = ROOT.parent / "shared" / "data" / "stock_bars" / "bars"
RUNS = 20
TRIALS = 100
ROUNDS = 8
QUIET = 1.2
SHORT = MeasurePlan(window_seconds=0.5, repeats=2, warmup_cap_seconds=5)

EXPECTED = {"input": "input-bound", "compute": "compute-bound", "sync": "sync-bound"}
KNOWN: Mapping[str, Mapping[str, Any]] = {
    "input": {"batch_size": 64, "loader.kind": "rows"},
    "compute": {"batch_size": 512},
    "sync": {"batch_size": 64},
}
PLAIN = {
    "batch_size": 64,
    "loader.kind": "rows",
    "loader.num_workers": 4,
    "device.malloc": "default",
    "optimizer.name": "adam",
}
PEERS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "MLP": ("pipelines.tabular", {}, {"model.hidden_size": 128}),
    "LSTM": (
        "pipelines.stocks",
        {"path": str(BARS), "seq_length": 60} if BARS.is_dir() else {"seq_length": 60},
        {"model.hidden_size": 64},
    ),
}
LOADERS: Sequence[Mapping[str, Any]] = (
    *({"loader.kind": "rows", "loader.num_workers": n} for n in (0, 1, 2)),
    *({"loader.kind": "workers", "loader.num_workers": n} for n in (0, 1, 2, 4)),
    {"loader.kind": "stream", "loader.num_workers": 0},
    {"loader.kind": "resident", "loader.num_workers": 0},
)


class Bench:
    """Runs trials in separate processes, as a sweep does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.launcher = LocalLauncher(folder)
        self.count = itertools.count()
        values = self._run(Job(uid="probe", runner=PROBE_RUNNER, device="auto")).values
        self.canary_ms = float(values["canary_ms"])
        self.torch = str(values["versions"].get("torch", ""))
        uuid = str(values["devices"][0]["uuid"])
        self.device = full_uuid(uuid) if uuid else "cpu"

    def _run(self, job: Job) -> Any:
        place = self.folder / str(next(self.count))
        write_job(place, job)
        outcome = self.launcher.submit(place).result()
        return outcome

    def prepared(self, pipeline: str, data: Mapping[str, Any], *paths: Path) -> Job:
        """Returns the template of a pipeline's trials, its data prepared; its module may be in `paths`."""
        job = Job(
            uid="x",
            pipeline=pipeline,
            import_paths=tuple(map(str, (ROOT, ROOT / "benchmarks", TESTS, *paths))),
            device=self.device,
            data={"source": "synthetic", **data},
            prepared=str(self.folder / f"{pipeline}-data"),
        )
        done = self._run(replace(job, runner=PREPARE_RUNNER, device="cpu", plan=MeasurePlan(repeats=0)))
        assert isinstance(done, Report), done
        return job

    def trial(
        self, template: Job, changes: Mapping[str, Any] | TrialConfig, plan: MeasurePlan
    ) -> TrialRecord:
        """Returns the record of a trial."""
        config = changes if isinstance(changes, TrialConfig) else TrialConfig().replace(dict(changes))
        outcome = self._run(
            replace(template, config=config, plan=replace(plan, quiet_canary_ms=self.canary_ms))
        )
        return TrialRecord(number=0, uid="", stage="", config=config, outcome=outcome)


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Loads `count` cores with a process each."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    time.sleep(0.1)
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def known_bottlenecks(bench: Bench) -> Iterator[Figure]:
    """Yields how often a known bottleneck is named."""
    template = bench.prepared(bottlenecks.__name__, {})
    right = dict.fromkeys(EXPECTED, 0)
    with busy(1):
        for _ in range(RUNS):
            for kind in EXPECTED:
                record = bench.trial(template, {**KNOWN[kind], "model.kind": kind}, SHORT)
                verdict = verdict_on(record)
                assert verdict is not None
                right[kind] += verdict.kind == EXPECTED[kind]
                if verdict.kind != EXPECTED[kind]:
                    print(kind, *trial_card(record), sep="\n  ")
    for kind, count in right.items():
        yield Figure(
            figure=f"{EXPECTED[kind]} named, of {RUNS}",
            value=count,
            low=count,
            high=count,
            bar=">= 19",
            repeats=RUNS,
        )


def next_steps(bench: Bench) -> Iterator[Figure]:
    """Yields the gain of the baseline's next step, as a share of that of the best loader setting."""
    plan = MeasurePlan(window_seconds=1.0, repeats=1, warmup_cap_seconds=5, diagnose=False)
    for name, (pipeline, data, model) in PEERS.items():
        template = bench.prepared(pipeline, data)
        baseline = {**PLAIN, **model}
        record = bench.trial(template, baseline, replace(SHORT, window_seconds=1.0))
        verdict = verdict_on(record)
        assert verdict is not None
        print(name, *trial_card(record), sep="\n  ")
        contenders = {"baseline": baseline, "next": {**baseline, **verdict.changes}}
        for setting in LOADERS:
            contenders[json.dumps(setting)] = {**baseline, **setting}
        speeds: dict[str, list[float]] = {key: [] for key in contenders}
        for number in range(ROUNDS):
            order = list(contenders)
            random.Random(number).shuffle(order)
            for key in order:
                record = bench.trial(template, contenders[key], plan)
                assert record.measurement is not None
                speeds[key].append(record.measurement.throughput)
        ratios = {
            key: spread([mine / base for mine, base in zip(values, speeds["baseline"], strict=True)])
            for key, values in speeds.items()
        }
        for key, ratio in ratios.items():
            print(f"  {ratio.value:6.2f} [{ratio.low:.2f}, {ratio.high:.2f}]  {key}")
        best = max((key for key in ratios if key not in ("baseline", "next")), key=lambda k: ratios[k].value)
        yield replace(ratios["next"], figure=f"{name} next step / baseline", unit="x")
        yield replace(ratios[best], figure=f"{name} best loader setting / baseline", unit="x")
        shares = [
            (mine / base - 1) / (other / base - 1)
            for mine, other, base in zip(speeds["next"], speeds[best], speeds["baseline"], strict=True)
        ]
        yield replace(
            spread(shares), figure=f"{name} next step's gain / best loader's", bar=">= 0.5", unit="x"
        )


def contention(bench: Bench) -> Iterator[Figure]:
    """Yields how many disturbed trials are noticed, and how many quiet ones are flagged."""
    template = bench.prepared("pipelines.tabular", {})
    loads = [0, usable_cpus()] * (TRIALS // 2)
    random.Random(0).shuffle(loads)
    noticed = flagged = quiet = 0
    for load in loads:
        with busy(load):
            record = bench.trial(template, {"batch_size": 512}, SHORT)
        measurement = record.measurement
        assert measurement is not None
        seen = bool(measurement.repeated_windows or measurement.contamination)
        if load:
            noticed += seen
        elif max(window.canary_ms for window in measurement.windows) <= QUIET * bench.canary_ms:
            quiet += 1
            flagged += bool(measurement.contamination)
    injected = sum(map(bool, loads))
    yield Figure(
        figure=f"disturbed trials noticed, of {injected}",
        value=noticed,
        low=noticed,
        high=noticed,
        bar=">= 48",
        repeats=injected,
    )
    yield Figure(
        figure=f"quiet trials flagged, of {quiet}",
        value=flagged,
        low=flagged,
        high=flagged,
        bar="<= 2",
        repeats=quiet,
    )


PARTS = {"bottlenecks": known_bottlenecks, "next": next_steps, "contention": contention}


def main() -> None:
    """Runs the named parts, or all."""
    parts = chosen(PARTS)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        with contextlib.closing(bench.launcher):
            figures = [figure for part in parts.values() for figure in part(bench)]
    if sys.argv[1:]:
        show(figures)
    else:
        publish("verdicts", figures, "python benchmarks/verdicts.py")


if __name__ == "__main__":
    main()
