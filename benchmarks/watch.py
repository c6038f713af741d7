"""What it costs a script to be watched: the same steps with the hook and without, in fresh processes.

python benchmarks/watch.py [millisecond tiny verdicts]    writes benchmarks/results/<device>/watch.json

millisecond  steps of about 1 ms from a DataLoader: the ratio of their speeds
tiny         the smallest step that has a loader, a backward and an optimizer: the difference in microseconds
verdicts     scripts whose bottleneck is known: the verdict, the line
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from bottlenecks import CASES
from common import Figure, chosen, publish, spread

from sweeper import inject, metering
from sweeper.analysis.bottleneck import verdict_of
from sweeper.analysis.trial_card import card
from sweeper.core.progress import Silent
from sweeper.script.watch import NO_PARAMETERS, watch

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
    for _ in range(20):
        next(run)
    times.append((time.perf_counter() - began) / 20)
times.sort()
print(times[len(times) // 2])
"""


class Drain:
    """The sweep's end of the channel, which reads what comes."""

    def __init__(self) -> None:
        self.name = f"sweeper-bench-{os.getpid()}"
        self.messages = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(b"\0" + self.name.encode())
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._socket.recv(metering.MAX_BYTES)
            self.messages += 1


def seconds_per_step(width: int, environment: dict[str, str]) -> float:
    """The median step of a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(width), str(SECONDS)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def pairs(kind: str, drain: Drain) -> Iterator[tuple[float, float]]:
    """Seconds of a step with the hook and without, one process after the other, in random order."""
    plain = {**os.environ, metering.VARIABLE: drain.name}
    hooked = {**plain, **inject.environment(plain)}
    draw = random.Random(0)
    for _ in range(PAIRS[kind]):
        order = draw.sample((True, False), 2)
        found = {each: seconds_per_step(WIDTH[kind], hooked if each else plain) for each in order}
        yield found[True], found[False]


def mean(values: list[float]) -> Figure:
    """The mean, with the interval of a normal distribution."""
    centre, error = statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5
    return Figure(value=centre, low=centre - 1.96 * error, high=centre + 1.96 * error, repeats=len(values))


def millisecond(drain: Drain) -> Iterator[Figure]:
    """The cost of a usual step."""
    found = list(pairs("millisecond", drain))
    yield dataclasses.replace(
        mean([plain / hooked for hooked, plain in found]),
        figure="speed of a step of 1 ms, watched / not",
        unit="x",
        bar=">= 0.99",
    )
    usual = spread([1e3 * plain for _, plain in found])
    yield dataclasses.replace(usual, figure="that step", unit="ms")


def tiny(drain: Drain) -> Iterator[Figure]:
    """The cost in itself."""
    found = list(pairs("tiny", drain))
    yield dataclasses.replace(
        mean([1e6 * (hooked - plain) for hooked, plain in found]),
        figure="watching a step",
        unit="us",
        bar="<= 5",
    )


def verdicts(_: Drain) -> Iterator[Figure]:
    """How many bottlenecks are named, and the lines that cause them."""
    named = lines = 0
    for title, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "train.py").write_text(case.script, encoding="utf-8")
            with (
                (Path(folder) / "output").open("w", encoding="utf-8") as out,
                contextlib.redirect_stdout(out),
            ):
                found = watch((sys.executable, "train.py"), Path(folder), Silent())
        verdict = verdict_of(found, NO_PARAMETERS)
        shown = "\n".join(card(found, NO_PARAMETERS))
        is_line = not case.line_number or f"train.py:{case.line_number}" in shown
        named, lines = named + (verdict.kind == case.verdict), lines + is_line
        print(
            f"{title}: {verdict.kind}, for {case.verdict}; line {'' if is_line else 'not '}named", flush=True
        )
        print(shown, flush=True)
    for what, count in (("bottlenecks named", named), ("lines named", lines)):
        value = count / len(CASES)
        yield Figure(
            figure=what, value=value, low=value, high=value, bar=">= 0.9", unit="share", repeats=len(CASES)
        )


PARTS = {"millisecond": millisecond, "tiny": tiny, "verdicts": verdicts}


def main() -> None:
    """Runs the parts and writes their figures."""
    drain = Drain()
    parts = chosen(PARTS)
    figures = [figure for part in parts.values() for figure in part(drain)]
    assert drain.messages or [*parts] == ["verdicts"]
    publish("watch", figures, f"python benchmarks/watch.py {' '.join(parts)}")


if __name__ == "__main__":
    main()
