"""One supervisor for many: a thousand workers, ten thousand trials.

python benchmarks/scale.py [PART ...]     writes benchmarks/results/<device>/scale.json

workers    1,000 workers whose trials take 60 s each (54 to 66 s, then all the same), 5,000 trials: the
           share of their time in which the workers are busy, from when all of them are busy until the
           last trial starts; and the supervisor's time per trial
trials     10,000 trials in one study: the seconds of one ask of each sampler, the memory of the supervisor,
           and the time to continue the sweep, to list and show it, and to write its report
neighbours two slots of one machine: how much a trial on one slows that on the other (scale_neighbours.py)
slurm, dask, ray, services
           a sweep on a real cluster, or behind real servers, disturbed in the middle (scale_clusters.py)

In the first two, time is virtual: the clock is the machine's own, but where the supervisor would wait for
the next trial to end, the clock jumps there. The supervisor's own work takes its real time, including syncs
to disk and writing the outcomes. There is no tracker.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import itertools
import queue
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from common import Figure, chosen, publish, spread
from parts.noop import synthetic
from parts.replay import ReplayLauncher
from scale_clusters import dask, ray, services, slurm
from scale_neighbours import neighbours

from sweeper.core.config import TrialConfig
from sweeper.core.job import Job, read_job
from sweeper.core.measurement import DeviceInfo, Measurement, Outcome, Report
from sweeper.core.record import SearchResult
from sweeper.schema import SweepSpec
from sweeper.search import Searcher
from sweeper.search.distributions import distribution, draw_value
from sweeper.sweep.memory_limit import Capacity
from sweeper.sweep.observer import QuietObserver
from sweeper.sweep.phases.search import Search
from sweeper.sweep.run import run_sweep
from sweeper.sweep.trial_runner import TrialRunner
from sweeper.tracking import NullTracker

WORKERS, TRIAL_SECONDS, TRIALS_OF_WORKERS = 1000, 60.0, 5000
TRIALS, SLOTS, ASKS = 10_000, 64, 10
SAMPLERS = ("auto", "climb", "tpe", "random", "qmc", "gp")
GPU = DeviceInfo(kind="cuda", name="NVIDIA A10", uuid="GPU-0", memory_gib=22.5)
PIPELINE = "def prepare(data): ...\ndef build(config, prepared): ...\n"
TREE: dict[str, Any] = {
    "name": "scale",
    "pipeline": "no_pipeline",
    "space": {
        "batch_size": {"type": "int", "low": 64, "high": 8192, "log": True},
        "loader.kind": {"type": "categorical", "choices": ["workers", "resident"]},
        "loader.num_workers": {"type": "int", "low": 0, "high": 16, "when": {"loader.kind": "workers"}},
        "precision.amp": {"type": "categorical", "choices": ["fp32", "bf16", "fp16"]},
        "precision.tf32": {"type": "categorical", "choices": [True, False]},
        "compile.mode": {"type": "categorical", "choices": ["eager", "default", "graph"]},
        "model.hidden_size": {"type": "categorical", "choices": [64, 128, 256]},
    },
    "baseline": {"loader.kind": "rows", "loader.num_workers": 4, "batch_size": 64, "model.hidden_size": 64},
    "constraints": {"val_loss": {"max_ratio_to_baseline": 1.02}},
    "measure": {"quality_samples": 60_000, "trace": False},
    "confirm": {"rounds": 0},
}


def spec_of(**search: Any) -> SweepSpec:
    """Returns the sweep's specification."""
    return SweepSpec.from_dict({**TREE, "search": {"minutes": None, **search}})


def speed(config: TrialConfig) -> float:
    """Returns the samples per second of a simulated trainer."""
    kind = {"rows": 0.1, "workers": 0.5 + 0.02 * config.loader.num_workers}.get(config.loader.kind, 1.0)
    amp = {"fp32": 1.0, "bf16": 1.6}.get(config.precision.amp, 1.5)
    width = int(config.model["hidden_size"] or 64)
    batch: float = (config.batch_size / 8192) ** 0.5
    return 1e5 * kind * amp * batch * (64 / width)


class Cluster(ReplayLauncher):
    """Simulated workers: each job ends at its time, on a clock that skips idle time.

    Attributes:
        begun: The start of each trial, and its seconds.
        stamps: The supervisor's own time, without what was skipped, at each start.
    """

    def __init__(self, workers: int, shares: Callable[[], float]) -> None:
        """Starts no processes.

        Args:
            shares: Draws a trial's length as a share of TRIAL_SECONDS.
        """
        noise = random.Random(0)

        def surface(config: TrialConfig) -> Measurement:
            peak = 0.5 + config.batch_size * int(config.model["hidden_size"] or 64) / 64 / 1000
            measured = synthetic(speed(config) * noise.gauss(1, 0.01))
            return dataclasses.replace(measured, gpu_mem_peak_gib=peak, device=GPU)

        devices = [dataclasses.replace(GPU, uuid=f"GPU-{i}") for i in range(workers)]
        super().__init__(surface, devices=devices)
        self._shares = shares
        self._monotonic, self._time = time.monotonic, time.time
        self._skipped, self._count = 0.0, 0
        self._ends: list[tuple[float, int, Path, Job, Future[Outcome | Report]]] = []
        self.begun: list[tuple[float, float]] = []
        self.stamps: list[float] = []

    def now(self) -> float:
        """Virtual seconds."""
        return self._monotonic() + self._skipped

    def submit(self, folder: Path) -> Future[Outcome | Report]:
        """Starts a job; one that is not a trial ends at once."""
        job, future = read_job(folder), Future[Outcome | Report]()
        seconds = 0.0
        if job.stage == "search" and job.plan.repeats:
            seconds = TRIAL_SECONDS * self._shares()
            self.begun.append((self.now(), seconds))
            self.stamps.append(self._monotonic())
        self._count += 1
        heapq.heappush(self._ends, (self.now() + seconds, self._count, folder, job, future))
        return future

    def deliver(self) -> None:
        """Ends the jobs that are due."""
        while self._ends and self._ends[0][0] <= self.now():
            _, _, folder, job, future = heapq.heappop(self._ends)
            future.set_result(self._run(folder, job))

    def skip(self) -> None:
        """Jumps to the end of the next job."""
        if self._ends:
            self._skipped += max(0.0, self._ends[0][0] - self.now())
            self.deliver()

    @contextlib.contextmanager
    def clock(self) -> Iterator[None]:
        """Makes this the process's clock, on which waiting for a job is a jump."""
        cluster, usual = self, queue.SimpleQueue

        class Ended(queue.SimpleQueue):  # type: ignore[type-arg]
            def empty(self) -> bool:
                cluster.deliver()
                return super().empty()

            def get(self, block: bool = True, timeout: float | None = None) -> Any:
                if timeout is not None:
                    cluster.skip()
                return super().get(block, timeout)

        time.monotonic, time.time = self.now, lambda: self._time() + self._skipped
        queue.SimpleQueue = Ended  # type: ignore[misc]
        try:
            yield
        finally:
            time.monotonic, time.time, queue.SimpleQueue = self._monotonic, self._time, usual  # type: ignore[misc]


def swept(home: Path, spec: SweepSpec, cluster: Cluster) -> None:
    """Runs a sweep on a cluster."""
    (home / "no_pipeline.py").write_text(PIPELINE)
    with contextlib.chdir(home), cluster.clock():
        run_sweep(home, spec, NullTracker(), QuietObserver(), launch=lambda folder: cluster)


WORK: Mapping[str, tuple[type, str]] = {
    "what to ask": (Searcher, "ask"),
    "whether it fits": (Capacity, "objection"),
    "starting it": (TrialRunner, "start"),
    "writing its outcome": (Cluster, "deliver"),
    "taking it in": (TrialRunner, "finish"),
    "telling it": (Search, "_tell"),
}


@contextlib.contextmanager
def timed() -> Iterator[Mapping[str, list[float]]]:
    """Yields the seconds of all calls of WORK, each without the time spent in others of them."""
    times: dict[str, list[float]] = {name: [] for name in WORK}
    inner = [0.0]

    def wrapped(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            inner.append(0.0)
            try:
                return method(*args, **kwargs)
            finally:
                seconds = time.perf_counter() - began
                times[name].append(seconds - inner.pop())
                inner[-1] += seconds

        return call

    with contextlib.ExitStack() as stack:
        for name, (owner, method) in WORK.items():
            usual = getattr(owner, method)
            stack.callback(setattr, owner, method, usual)
            setattr(owner, method, wrapped(name, usual))
        yield times


def busy_share(begun: Sequence[tuple[float, float]], start: float, end: float) -> float:
    """Returns the share of the workers' time from `start` to `end` in which they had a trial."""
    busy = sum(max(0.0, min(at + seconds, end) - max(at, start)) for at, seconds in begun)
    return busy / (WORKERS * (end - start))


def exactly(figure: str, value: float, unit: str = "", bar: str = "") -> Figure:
    """Returns a figure that was measured once."""
    return Figure(figure=figure, value=value, low=value, high=value, unit=unit, bar=bar, repeats=1)


def workers() -> Iterator[Figure]:
    """Yields how busy a thousand workers are, and their supervisor's time per trial."""
    draw = random.Random(1)
    for title, shares in (("", lambda: draw.uniform(0.9, 1.1)), (" (all alike)", lambda: 1.0)):
        cluster = Cluster(WORKERS, shares)
        with tempfile.TemporaryDirectory() as home, timed() as parts:
            swept(Path(home), spec_of(trials=TRIALS_OF_WORKERS), cluster)
        begun, stamps = cluster.begun, cluster.stamps
        first, full, last = begun[0][0], begun[WORKERS - 1][0], begun[-1][0]
        over = max(at + seconds for at, seconds in begun)
        yield exactly(f"1,000 workers, busy{title}", 100 * busy_share(begun, full, last), "%", ">= 95")
        yield exactly(
            f"1,000 workers, busy from first to last{title}", 100 * busy_share(begun, first, over), "%"
        )
        yield exactly(f"1,000 workers, until all are busy{title}", full - first, "s")
        costs = [1e3 * (b - a) for a, b in itertools.pairwise(stamps[WORKERS:])]
        yield dataclasses.replace(spread(costs), figure=f"supervisor, a trial{title}", unit="ms", bar="<= 60")
        late = sorted(costs)[int(0.99 * len(costs))]
        yield exactly(f"supervisor, a trial, 99th percentile{title}", late, "ms")
        for name, seconds in parts.items():
            yield exactly(f"supervisor, {name}{title}", 1e3 * sum(seconds) / len(begun), "ms")


def trials() -> Iterator[Figure]:
    """Yields the time and memory that ten thousand trials in one study cost."""
    spec = spec_of(trials=TRIALS)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        cluster = Cluster(SLOTS, lambda: 1.0)
        with timed() as parts:
            swept(home, spec, cluster)
        asks = parts["what to ask"][-TRIALS // 10 :]
        yield dataclasses.replace(spread(asks), figure="ask, auto, in the sweep", unit="s")
        yield exactly("ask, auto, in the sweep, longest of the last 1,000", max(asks), "s", "<= 0.5")
        # The first Sobol point imports scipy.stats, once.
        yield exactly("ask, auto, in the sweep, longest of all", max(parts["what to ask"]), "s")
        costs = [1e3 * (b - a) for a, b in itertools.pairwise(cluster.stamps)]
        for title, some in (("first", costs[:1000]), ("last", costs[-1000:])):
            yield dataclasses.replace(spread(some), figure=f"a trial of the {title} 1,000", unit="ms")
        gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        yield exactly("memory of the supervisor", gib, "GiB", "<= 0.93")
        state = home / "mlruns" if (home / "mlruns").exists() else home
        sweep = state / "sweeps" / spec.name
        (sweep / "result.json").unlink()
        began = time.perf_counter()
        swept(home, spec, Cluster(SLOTS, lambda: 1.0))
        yield exactly("continuing it, to its result", time.perf_counter() - began, "s")
        for command in (["list"], ["show", spec.name], ["report", spec.name]):
            began = time.perf_counter()
            line = [sys.executable, "-m", "sweeper", *command, "--home", str(state)]
            subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
            yield exactly(f"sweeper {command[0]}", time.perf_counter() - began, "s")
    yield from asks_of_samplers()


def asks_of_samplers() -> Iterator[Figure]:
    """Yields the seconds of one ask after ten thousand trials, with some running, by sampler."""
    draw = random.Random(0)
    told: dict[int, SearchResult] = {}
    spec = spec_of(trials=TRIALS)
    of = {name: distribution(parameter) for name, parameter in spec.space.items()}
    for number in range(1, TRIALS + 1):
        params = {name: draw_value(dist, draw) for name, dist in of.items()}
        reached = speed(spec.config(params)) * draw.gauss(1, 0.01)
        fits = draw.random() < 0.9
        told[number] = SearchResult(
            params=params, values=(reached,), constraints={"ran": 0.0, "val_loss": 1.0 - fits}
        )
    taken = {spec.config(search_result.params).key() for search_result in told.values()}
    for name in SAMPLERS:
        seconds = []
        with tempfile.TemporaryDirectory() as folder:
            known = dict(told)
            searcher = Searcher(Path(folder) / "study.log", spec_of(trials=2 * TRIALS, sampler=name), known)
            with contextlib.closing(searcher):
                for i in range(SLOTS + ASKS):
                    # The first asks fill the slots; a GP takes long.
                    if name == "gp" and i < SLOTS - ASKS:
                        continue
                    began = time.perf_counter()
                    params, _ = searcher.ask(TRIALS + 1 + i, taken)
                    seconds.append(time.perf_counter() - began)
                    taken.add(spec.config(params).key())
        yield dataclasses.replace(spread(seconds[-ASKS:]), figure=f"ask, {name}", unit="s", bar="<= 0.5")


PARTS: Mapping[str, Callable[[], Iterator[Figure]]] = {
    "workers": workers,
    "trials": trials,
    "neighbours": neighbours,
    "slurm": slurm,
    "dask": dask,
    "ray": ray,
    "services": services,
}


def main() -> None:
    """Runs the parts asked for, or all."""
    for name, part in chosen(PARTS).items():
        publish("scale", list(part()), f"python benchmarks/scale.py {name}")


if __name__ == "__main__":
    main()
