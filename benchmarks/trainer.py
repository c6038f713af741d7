"""Whether the trainer reaches what the machine can do: data path, step, breakdown, buckets, compile cache.

python benchmarks/trainer.py [NAME ...]        writes benchmarks/results/<device>/trainer.json

One thread. Contenders take turns in blocks, in a new order each round; each ratio is taken within a round.
`bare` trains on eight batches that are already on the device: the same model and precision, no data path.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ctc
import handwritten
import lstm as lstm_pipeline
import torch
from common import Figure, chosen, publish, spread

from pipelines import tabular
from sweeper.core.config import TrialConfig
from sweeper.core.job import Job, MeasurePlan, write_job
from sweeper.core.measurement import Measurement
from sweeper.core.progress import SilentProgress
from sweeper.launch.local import LocalLauncher
from sweeper.telemetry.nvml.devices import full_uuid
from sweeper.trainer import device as devices
from sweeper.trainer import prepare
from sweeper.trainer.data import make_loader
from sweeper.trainer.step.clocks import DATA, H2D, Clock, EventClock, HostClock, NoClock
from sweeper.trainer.step.graph import CapturedStep
from sweeper.trainer.step.stepper import Stepper

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if GPU else torch.device("cpu")
ROUNDS = 21
BLOCK_SECONDS = 0.3
PLAN = MeasurePlan(window_seconds=1, repeats=1, warmup_cap_seconds=3)
TRIALS = 7
COLD = 3
"""Number of compile caches that are filled."""

Block = Callable[[int], int]
"""Takes a number of steps and returns the samples."""


def bar(cpu: str, gpu: str) -> str:
    """Returns the bar for this machine."""
    return gpu if GPU else cpu


class Ours:
    """A trial's own stepper and loader, taking steps."""

    def __init__(self, workload: Any, changes: Mapping[str, Any], clock: Clock | None = None) -> None:
        config = TrialConfig().replace({"device.cpu_threads": 1, **changes})
        devices.apply(config, DEVICE)
        torch.manual_seed(0)
        pipeline = workload.build(config, workload.prepare({}))
        self.stepper = Stepper(pipeline, config, DEVICE)
        graph = config.compile.captures_step
        self.loader = make_loader(
            pipeline.train, config.loader, config.batch_size, 0, DEVICE, index_only=graph
        )
        if graph:
            self.stepper.capture(self.loader)
        self.loader.start()
        self.clock = clock or NoClock()
        self.refill_seconds = 0.3 if config.loader.num_workers else 0.0

    def __call__(self, steps: int) -> int:
        """Takes `steps` steps."""
        return sum(self.stepper.step(self.loader, self.clock) for _ in range(steps))


class Bare:
    """The same stepper on eight batches that never change, so that nothing else differs."""

    def __init__(self, ours: Ours) -> None:
        self.stepper = ours.stepper
        handed = [ours.loader.next() for _ in range(8)]
        self.size = handed[0].size
        batches = [
            ours.loader.materialise(ours.loader.to_device(batch.batch), batch.length) for batch in handed
        ]
        self.batches = [{name: value.clone() for name, value in batch.items()} for batch in batches]
        self.captured: CapturedStep | None = None
        if self.stepper.captured is not None:
            self.captured = self.stepper.make_captured_step(lambda batch, length: batch)

    def __call__(self, steps: int) -> int:
        """Takes `steps` steps."""
        stepper, clock, batches = self.stepper, NoClock(), self.batches
        for i in range(steps):
            if self.captured is None:
                stepper.train_through(batches[i % 8], clock, stepper.model)
            else:
                self.captured(batches[0], 0, True)
        return steps * self.size


class ByHand:
    """The hand-written script's loop."""

    def __init__(self, precision: str) -> None:
        self.train = handwritten.training(precision, DEVICE.type)

    def __call__(self, steps: int) -> int:
        """Takes `steps` steps."""
        self.train(steps)
        return steps * handwritten.BATCH


def timed(contender: Block, steps: int) -> float:
    """Returns samples per second over a block, after draining the contender's prefetch queue."""
    loader = getattr(contender, "loader", None)
    if loader is not None and loader.drain_steps > 1:
        clock, contender.clock = contender.clock, NoClock()  # type: ignore[attr-defined]
        contender(loader.drain_steps)
        contender.clock = clock  # type: ignore[attr-defined]
    devices.synchronize(DEVICE)
    began = time.perf_counter()
    samples = contender(steps)
    devices.synchronize(DEVICE)
    rate = samples / (time.perf_counter() - began)
    # Workers fill their queues before the next contender begins.
    time.sleep(getattr(contender, "refill_seconds", 0.0))
    return rate


def race(contenders: Mapping[str, Any], rounds: int = 0) -> dict[str, list[float]]:
    """Returns each contender's samples per second, round by round, for `rounds` or else `ROUNDS` rounds."""
    steps = {}
    for name, contender in contenders.items():
        contender(20)
        steps[name] = max(1, int(BLOCK_SECONDS * timed(contender, 20) / (contender(1) or 1)))
    for contender in contenders.values():
        if isinstance(getattr(contender, "clock", None), HostClock):
            contender.clock = HostClock()
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    draw = random.Random(0)
    for _ in range(rounds or ROUNDS):
        for name in draw.sample(list(contenders), len(contenders)):
            rates[name].append(timed(contenders[name], steps[name]))
    return rates


def ratio(rates: Mapping[str, Sequence[float]], over: str, under: str) -> Figure:
    """Returns the ratio of two contenders, paired by round."""
    return spread([a / b for a, b in zip(rates[over], rates[under], strict=True)])


def data_share(ours: Ours) -> float:
    """Returns the data path's share of the step, by the clock that ran in the rounds."""
    if GPU:
        ours.clock = EventClock()
        ours(200)
        devices.synchronize(DEVICE)
    seconds: list[float] = ours.clock.seconds  # type: ignore[attr-defined]
    return 100 * (seconds[DATA] + seconds[H2D]) / sum(seconds)


def against_bare(
    name: str, workload: Any, changes: Mapping[str, Any], share: str, least: str
) -> list[Figure]:
    """Returns the data path's share and the ratio to bare, in both precisions."""
    figures = []
    for precision in ("fp32", "bf16"):
        given = {**changes, "precision.amp": precision}
        if GPU:
            given["compile.mode"] = "graph"
        ours = Ours(workload, given, NoClock() if GPU else HostClock())
        rates = race({"ours": ours, "bare": Bare(ours)})
        eager = Ours(workload, {**given, "compile.mode": "eager"}) if GPU else ours
        percent = data_share(eager)
        figures += [
            dataclasses.replace(
                ratio(rates, "ours", "bare"), figure=f"{name} {precision} / bare", bar=least, noisy=True
            ),
            Figure(
                figure=f"{name} {precision} data path / step",
                value=percent,
                low=percent,
                high=percent,
                unit="%",
                bar=share,
                repeats=ROUNDS,
            ),
            dataclasses.replace(spread(rates["ours"]), figure=f"{name} {precision} throughput", unit="/s"),
        ]
    return figures


def mlp() -> list[Figure]:
    """The tabular MLP 30-128-128-1 at batch 512."""
    return against_bare("MLP", tabular, {"batch_size": 512}, bar("<= 4", ""), bar(">= 0.97", ">= 0.95"))


def lstm() -> list[Figure]:
    """An LSTM of 128 on windows of 30 at batch 256."""
    return against_bare(
        "LSTM", lstm_pipeline, {"batch_size": 256}, bar("<= 1", ""), bar(">= 0.99", ">= 0.95")
    )


def rows() -> list[Figure]:
    """Against the loader that collates rows, with the workers that suit it best."""
    base: dict[str, Any] = {"batch_size": 512}
    contenders = {"ours": Ours(tabular, {**base, **({"compile.mode": "graph"} if GPU else {})})}
    for workers in (0, 1, 2, 8):
        given = {**base, "loader.kind": "rows", "loader.num_workers": workers, "loader.pin_memory": GPU}
        contenders[f"rows {workers}"] = Ours(tabular, given)
    rates = race(contenders)
    for name in contenders:
        contenders[name].loader.close()
    figures = [
        dataclasses.replace(ratio(rates, "ours", name), figure=f"MLP resident / {name} workers")
        for name in contenders
        if name != "ours"
    ]
    best = min(figures, key=lambda figure: figure.value)
    figures.append(
        dataclasses.replace(best, figure="MLP resident / best rows", bar=bar(">= 3.9", ">= 10"), unit="x")
    )
    return figures


def hand() -> list[Figure]:
    """Against the step written by hand."""
    figures = []
    for precision in ("fp32", "bf16"):
        given = {"batch_size": 512, "precision.amp": precision}
        rates = race(
            {"ours": Ours(tabular, given, NoClock() if GPU else HostClock()), "hand": ByHand(precision)}
        )
        figures.append(
            dataclasses.replace(
                ratio(rates, "ours", "hand"), figure=f"MLP {precision} / by hand", bar=">= 0.98"
            )
        )
    return figures


def buckets() -> list[Figure]:
    """Clips padded to one of six lengths against clips padded to the longest."""
    base = {"batch_size": 32, **({"compile.mode": "graph"} if GPU else {})}
    padded = {**base, "compile.mode": "eager"}
    rates = race({"bucketed": Ours(ctc, {**base, "loader.buckets": 6}), "padded": Ours(ctc, padded)})
    figure = ratio(rates, "bucketed", "padded")
    return [dataclasses.replace(figure, figure="CTC bucketed / padded", bar=bar(">= 1.5", ">= 3"), unit="x")]


@contextlib.contextmanager
def trials(pipeline: str) -> Iterator[Callable[[Mapping[str, Any]], Measurement]]:
    """Yields a function that runs a whole trial of `pipeline` in a separate process, as a sweep does."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        root, here = Path(folder), Path(__file__).parent
        launcher = stack.enter_context(contextlib.closing(LocalLauncher(root)))
        job = Job(
            uid="b",
            pipeline=pipeline,
            import_paths=(str(here.parent), str(here)),
            prepared=str(root / "prepared"),
            cache=str(root / "cache"),
            device=full_uuid(uuid) if (uuid := devices.describe(DEVICE).uuid) else "cpu",
            plan=PLAN,
        )
        prepare.run(job, SilentProgress())
        numbers = itertools.count()

        def run(changes: Mapping[str, Any]) -> Measurement:
            here = root / str(next(numbers))
            config = TrialConfig().replace({"device.cpu_threads": 1, **changes})
            write_job(here, dataclasses.replace(job, config=config))
            outcome = launcher.submit(here).result()
            assert isinstance(outcome, Measurement), outcome
            return outcome

        yield run


def breakdown() -> list[Figure]:
    """The part of a step that a trial's phases leave unexplained, and the cost of measuring them."""
    with trials("pipelines.tabular") as run:
        breakdowns = [run({"batch_size": 512}).breakdown for _ in range(TRIALS)]
    gaps = [100 * parts.host_gap_s / parts.step_s for parts in breakdowns]
    figures = [dataclasses.replace(spread(gaps), figure="breakdown: unexplained", unit="%", bar="<= 3")]
    if not GPU:
        rates = race(
            {
                "told": Ours(tabular, {"batch_size": 512}, HostClock()),
                "plain": Ours(tabular, {"batch_size": 512}),
            },
            2 * ROUNDS + 1,
        )
        cost = spread([100 * (1 - a / b) for a, b in zip(rates["told"], rates["plain"], strict=True)])
        figures.append(dataclasses.replace(cost, figure="breakdown: cost", unit="%", bar="<= 1"))
    return figures


def caches() -> list[Figure]:
    """The first step of a compiled trial with a warm cache against a cold one, in separate processes."""
    ratios, cold = [], []
    for i in range(COLD):
        with trials("pipelines.tabular") as run:
            seconds = []
            for how in ("cold", "warm", "warm"):
                measurement = run({"batch_size": 512 + 64 * i, "compile.mode": "default"})
                assert measurement.compile_cache == how, measurement.compile_cache
                seconds.append(measurement.first_step_seconds)
        cold.append(seconds[0])
        ratios += [warm / seconds[0] for warm in seconds[1:]]
    return [
        dataclasses.replace(spread(cold), figure="first compiled step, cold", unit="s"),
        dataclasses.replace(spread(ratios), figure="first compiled step, warm / cold", bar="<= 0.3"),
    ]


def malloc() -> list[Figure]:
    """An LSTM with freed memory kept, against glibc's default, each in separate processes."""
    rates: dict[str, list[float]] = {
        f"{p} {how}": [] for p in ("fp32", "bf16") for how in ("retain", "default")
    }
    with trials("lstm") as run:
        for i in range(TRIALS):
            for name in random.Random(i).sample(list(rates), len(rates)):
                precision, how = name.split()
                given = {"batch_size": 256, "precision.amp": precision, "device.malloc": how}
                rates[name].append(run(given).throughput)
    return [
        dataclasses.replace(
            ratio(rates, f"{p} retain", f"{p} default"), figure=f"LSTM {p} malloc retain / default", unit="x"
        )
        for p in ("fp32", "bf16")
    ]


PARTS = {part.__name__: part for part in (mlp, lstm, rows, hand, buckets, breakdown, caches, malloc)}


def main() -> None:
    """Runs the named parts, or all."""
    torch.set_num_threads(1)
    figures = []
    for part in chosen(PARTS).values():
        part_figures = part()
        for figure in part_figures:
            print(f"{figure.figure:<40} {figure.value:.4g} [{figure.low:.4g}, {figure.high:.4g}]", flush=True)
        figures += part_figures
    if not sys.argv[1:]:
        publish("trainer", figures, "python benchmarks/trainer.py")


if __name__ == "__main__":
    main()
