"""The cost of telemetry to the training that it watches, and of a reading.

python benchmarks/telemetry.py            writes benchmarks/results/<device>/telemetry.json

A process trains without a pause. Another samples it, as a trial's keeper does, in one of each pair of
blocks, in random order; the cost is the difference within a pair. Both on one core is the worst case: the
sampler takes all of its time from the training.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import torch
from common import publish, spread

from pipelines import tabular
from sweeper.core.config import TrialConfig
from sweeper.launch.local import TRIAL_ENV
from sweeper.telemetry.host.probe import HostProbe
from sweeper.telemetry.nvml.probe import NvmlProbe
from sweeper.telemetry.sampler import ProbeSampler
from sweeper.trainer import device as devices
from sweeper.trainer.data import make_loader
from sweeper.trainer.step.clocks import NoClock
from sweeper.trainer.step.stepper import Stepper

PAIRS = 60
BLOCK_SECONDS = 0.5
READINGS = 100


def train() -> None:
    """Trains for a block per line on stdin, and answers with the samples per second."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    config = TrialConfig(batch_size=512)
    devices.apply(config, device)
    pipeline = tabular.build(config, tabular.prepare({}))
    stepper = Stepper(pipeline, config, device)
    loader = make_loader(pipeline.train, config.loader, config.batch_size, 0, device)
    loader.start()
    print(devices.describe(device).uuid, flush=True)
    while sys.stdin.readline():
        devices.synchronize(device)
        began = time.perf_counter()
        samples = 0
        while time.perf_counter() - began < BLOCK_SECONDS:
            samples += stepper.step(loader, NoClock())
        devices.synchronize(device)
        print(samples / (time.perf_counter() - began), flush=True)


@contextlib.contextmanager
def sampled(pid: int, uuid: str, on: bool) -> Iterator[None]:
    """Samples the process `pid` if `on`."""
    if not on:
        yield
        return
    sampler = ProbeSampler([HostProbe(), NvmlProbe()])
    sampler.start(pid, uuid)
    try:
        yield
    finally:
        sampler.stop()


def costs(cores: set[int]) -> list[float]:
    """Returns the percentage of the throughput that sampling costs, pair by pair, with both on `cores`."""
    os.sched_setaffinity(0, cores)
    trial = subprocess.Popen(
        [sys.executable, __file__, "train"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **TRIAL_ENV},
    )
    assert trial.stdin
    assert trial.stdout
    orders, answers = trial.stdin, trial.stdout
    uuid = answers.readline().strip()

    def block(on: bool) -> float:
        with sampled(trial.pid, uuid, on):
            print(file=orders, flush=True)
            return float(answers.readline())

    block(False)
    percentages = []
    for number in range(PAIRS):
        speeds = {on: block(on) for on in random.Random(number).sample((False, True), 2)}
        percentages.append(100 * (1 - speeds[True] / speeds[False]))
    trial.communicate()
    return percentages


def reading_ms() -> list[float]:
    """Returns the milliseconds of readings of this process, at the pace of a trial's."""
    probe = HostProbe()
    probe.open(os.getpid(), "")
    times = []
    for _ in range(READINGS):
        time.sleep(0.05)
        began = time.perf_counter()
        probe.read()
        times.append(1e3 * (time.perf_counter() - began))
    return times


def main() -> None:
    """Trains and samples in turns, and publishes the figures."""
    every = os.sched_getaffinity(0)
    figures = []
    for cores, where in (({min(every)}, "on one core with it"), (every, "on all cores")):
        cost = spread(costs(cores))
        print(f"{where}: half-width {(cost.high - cost.low) / 2:.2f} points")
        figures.append(
            replace(cost, figure=f"telemetry's cost {where}", bar="<= 1", unit="%", noisy=len(cores) > 1)
        )
    figures.append(replace(spread(reading_ms()), figure="a reading of the host", unit="ms"))
    publish("telemetry", figures, "python benchmarks/telemetry.py")


if __name__ == "__main__":
    train() if sys.argv[1:] == ["train"] else main()
