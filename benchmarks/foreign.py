"""How well sweeper reads other people's scripts, and whether their sweeps hold.

python benchmarks/foreign.py [output meter sweeps]    writes benchmarks/results/<device>/scripts.json

output     five scripts in common styles: throughput by their output over that by their meter, in the
           same run
meter      the cost of a step of the meter
sweeps     the five swept end to end with 8 trials each, winners confirmed
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import yaml
from common import Figure, chosen, publish

from sweeper.core.job import write_job
from sweeper.core.measurement import Measurement
from sweeper.launch.local import LocalLauncher
from sweeper.script.metering import METER_VARIABLE, meter

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from scripts import PARAMS, QUICK, SCRIPTS, SPACES, WILD, YAML, job_of  # noqa: E402

RUNS = 5
STEPS, BATCHES = 1000, 30


def output() -> Iterator[Figure]:
    """Yields how far the speed in a script's output is from that of its meter."""
    with (
        tempfile.TemporaryDirectory() as name,
        contextlib.closing(LocalLauncher(Path(name))) as launcher,
    ):
        for title, script in SCRIPTS.items():
            differences = []
            for count in range(RUNS):
                folder = Path(name) / f"{title}-{count}"
                write_job(folder, job_of(script, PARAMS[title]))
                outcome = launcher.submit(folder).result(timeout=120)
                assert isinstance(outcome, Measurement), outcome
                heard = json.loads((folder / "script.json").read_text())["heard"]
                quotient = heard["output_samples_per_s"] / heard["meter_samples_per_s"]
                differences.append(100 * abs(quotient - 1))
            yield Figure(
                figure=f"output against meter: {title}",
                value=max(differences),
                low=min(differences),
                high=max(differences),
                bar="<= 3",
                unit="%",
                repeats=RUNS,
            )


def cost() -> Iterator[Figure]:
    """Yields microseconds per step of the meter, with a loss, while its messages are received."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(b"\0sweeper-benchmark")
        os.environ[METER_VARIABLE] = "sweeper-benchmark"
        mine = meter()
        seconds = []
        for _ in range(BATCHES):
            began = time.perf_counter()
            for _ in range(STEPS):
                mine.step(samples=32, loss=0.5)
            seconds.append((time.perf_counter() - began) / STEPS)
    yield Figure(
        figure="a step of the meter",
        value=1e6 * statistics.median(seconds),
        low=1e6 * min(seconds),
        high=1e6 * max(seconds),
        unit="us",
        repeats=BATCHES,
    )


def sweeps() -> Iterator[Figure]:
    """Yields each sweep's confirmed ratio, and how many of them had a winner and nothing but measurements."""
    good = 0
    for title, space in SPACES.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            shutil.copytree(WILD, folder, dirs_exist_ok=True)
            (folder / "config.yaml.in").write_text(YAML)
            (folder / "space.yaml").write_text(yaml.safe_dump({"name": title, **space, **QUICK}))
            _sweeper(folder, "run", "space.yaml")
            shown = json.loads(_sweeper(folder, "show", title, "--json"))
            winner = shown["winner"]
            good += winner is not None and {t["outcome"] for t in shown["trials"]} == {"measured"}
            if winner is not None:
                yield Figure(
                    figure=f"sweep: {title}, confirmed ratio",
                    value=winner["ratio"],
                    low=winner["ratio_low"],
                    high=winner["ratio_high"],
                    repeats=1,
                )
    yield Figure(
        figure="sweeps with a confirmed winner", value=good, low=good, high=good, bar=">= 5", repeats=5
    )


def _sweeper(folder: Path, *arguments: str) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        [sys.executable, "-m", "sweeper", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"sweeper {' '.join(arguments)}: {done.stderr}")
    return done.stdout


PARTS = {"output": output, "meter": cost, "sweeps": sweeps}


def main() -> None:
    parts = chosen(PARTS)
    figures = [figure for part in parts.values() for figure in part()]
    publish("scripts", figures, f"python benchmarks/foreign.py {' '.join(parts)}")


if __name__ == "__main__":
    main()
