"""The cost of watching a script: the same steps with and without the hook, in fresh processes.

python benchmarks/watch.py [millisecond tiny verdicts pipelines]   writes results/<device>/watch.json

millisecond  steps of about 1 ms from a DataLoader: the ratio of their speeds
tiny         the smallest step that has a loader, a backward and an optimizer: the difference in microseconds
verdicts     scripts with a known bottleneck: the verdict, and the line at fault
pipelines    the same workload as a script and as a pipeline: whether the verdicts agree
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from bottlenecks import CASES, Case
from common import Figure, chosen, publish, spread
from verdicts import Bench

from sweeper.core.job import MeasurePlan
from sweeper.core.measurement import Measurement
from sweeper.core.progress import SilentProgress
from sweeper.results.trial_card import card, trial_card
from sweeper.results.verdict.bottleneck import verdict_of, verdict_on
from sweeper.script import inside, metering
from sweeper.script.run.watch import NO_PARAMETERS, watch

PAIRS = {"millisecond": 40, "tiny": 12}
WIDTH = {"millisecond": 208, "tiny": 1}
SECONDS = 2.0
SCRIPT = """
import sys, time
import torch
from torch.utils.data import DataLoader

torch.manual_seed(0)
torch.set_num_threads(1)
width, seconds = int(sys.argv[1]), float(sys.argv[2])
batches = [(torch.randn(64, width), torch.randn(64, 1)) for _ in range(200)]
loader = DataLoader(batches, batch_size=None)
model = torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.ReLU(), torch.nn.Linear(4 * width, 1))
optimizer = torch.optim.SGD(model.parameters(), 1e-4)

def steps():
    while True:
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield

run = steps()
warm = time.perf_counter() + 0.5
while time.perf_counter() < warm:
    next(run)
times, end = [], time.perf_counter() + seconds
while (began := time.perf_counter()) < end:
    steps = 0
    # Some of the hook's messages are in each.
    while (taken := time.perf_counter() - began) < 0.1:
        for _ in range(20):
            next(run)
        steps += 20
    times.append(taken / steps)
times.sort()
# Other processes only add to it.
print(times[len(times) // 4])
"""


class Drain:
    """The sweep's end of the channel, which reads and drops all messages."""

    def __init__(self) -> None:
        self.name = f"sweeper-bench-{os.getpid()}-{id(self)}"
        self.messages = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(b"\0" + self.name.encode())
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._socket.recv(metering.MAX_BYTES)
            self.messages += 1


def seconds_per_step(width: int, environment: dict[str, str]) -> float:
    """Returns the seconds per step of a fresh process, in its undisturbed tenths of a second."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(width), str(SECONDS)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def pairs(kind: str, drain: Drain) -> Iterator[tuple[float, float]]:
    """Yields the seconds per step with and without the hook, one process after the other, in random order."""
    plain = {**os.environ, metering.METER_VARIABLE: drain.name}
    hooked = {**plain, **inside.environment(plain)}
    draw = random.Random(0)
    for _ in range(PAIRS[kind]):
        order = draw.sample((True, False), 2)
        seconds = {
            is_hooked: seconds_per_step(WIDTH[kind], hooked if is_hooked else plain) for is_hooked in order
        }
        yield seconds[True], seconds[False]


def millisecond(drain: Drain) -> Iterator[Figure]:
    """Yields the relative cost for a step of usual length."""
    times = list(pairs("millisecond", drain))
    yield dataclasses.replace(
        spread([plain / hooked for hooked, plain in times]),
        figure="speed of a step of 1 ms, watched / not",
        unit="x",
        bar=">= 0.99",
    )
    usual = spread([1e3 * plain for _, plain in times])
    yield dataclasses.replace(usual, figure="that step", unit="ms")


def tiny(drain: Drain) -> Iterator[Figure]:
    """Yields the absolute cost per step."""
    times = list(pairs("tiny", drain))
    yield dataclasses.replace(
        spread([1e6 * (hooked - plain) for hooked, plain in times]),
        figure="watching a step",
        unit="us",
        bar="<= 5",
    )


def watched(case: Case) -> Measurement:
    """Returns the measurement from watching a case's script."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(case.script, encoding="utf-8")
        with (
            (Path(folder) / "output").open("w", encoding="utf-8") as out,
            contextlib.redirect_stdout(out),
        ):
            return watch((sys.executable, "train.py"), Path(folder), SilentProgress())


def verdicts(_: Drain) -> Iterator[Figure]:
    """Yields how many bottlenecks are named, and how many of the lines at fault."""
    named, lines = [], []
    for title, case in CASES.items():
        measurement = watched(case)
        verdict = verdict_of(measurement, NO_PARAMETERS)
        shown = "\n".join(card(measurement, NO_PARAMETERS))
        named.append(verdict.kind == case.verdict)
        lines.append(not case.line_number or f"train.py:{case.line_number}" in shown)
        line = "the line" if lines[-1] else "no line"
        print(f"\n{title}: {verdict.kind}, for {case.verdict}; {line}\n{shown}", flush=True)
    yield share("bottlenecks named", named)
    yield share("lines named", lines)


def pipelines(_: Drain) -> Iterator[Figure]:
    """Yields how many workloads get the same verdict as a pipeline and as a script."""
    agree = []
    plan = MeasurePlan(window_seconds=0.5, repeats=2, warmup_cap_seconds=5)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        with contextlib.closing(bench.launcher):
            for number, (title, case) in enumerate(CASES.items()):
                if case.config is None:
                    continue
                module = f"case_{number}"
                (Path(folder) / f"{module}.py").write_text(case.pipeline, encoding="utf-8")
                record = bench.trial(bench.prepared(module, {}, Path(folder)), case.config, plan)
                verdict = verdict_on(record)
                assert verdict is not None, record
                script = verdict_of(watched(case), NO_PARAMETERS)
                agree.append(verdict.kind == script.kind)
                card_lines = "\n".join(trial_card(record))
                print(f"\n{title}: {verdict.kind}, as a script {script.kind}\n{card_lines}", flush=True)
    yield share("the same verdict as a script and as a pipeline", agree)


def share(what: str, flags: list[bool]) -> Figure:
    """Returns the share of right answers as a figure."""
    value = sum(flags) / len(flags)
    return Figure(
        figure=what, value=value, low=value, high=value, bar=">= 0.9", unit="share", repeats=len(flags)
    )


PARTS = {"millisecond": millisecond, "tiny": tiny, "verdicts": verdicts, "pipelines": pipelines}


def main() -> None:
    """Runs the parts and writes their figures."""
    drain = Drain()
    parts = chosen(PARTS)
    figures = [figure for part in parts.values() for figure in part(drain)]
    assert drain.messages or not {"millisecond", "tiny"} & {*parts}
    publish("watch", figures, f"python benchmarks/watch.py {' '.join(parts)}")


if __name__ == "__main__":
    main()
