"""Whether production runs reach the speed that their sweeps promised, and survive being killed.

python benchmarks/production.py [promise kills]    writes benchmarks/results/<device>/export.json

promise   10 times a short sweep with its confirmation, `sweeper export`, and at once `sweeper train`: reached
          over promised speed; runs that other processes or a slow canary disturbed are counted separately
kills     `sweeper train` killed (SIGKILL) at 20 random moments, and the same command again each time:
          the final loss against that of an uninterrupted run
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from common import Figure, chosen, publish, spread

from sweeper.trainer.timing.conditions import canary_ms

ROOT = Path(__file__).parents[1]
SWEEPER = [sys.executable, "-m", "sweeper"]
RUNS, KILLS = 10, 20
TRAIN_MINUTES = 0.4
CANARY_RATIO = 1.3
DISTURBED = 0.05
# One thread: two that wait for each other would be slowed twice by other load on the host.
SPACE = [
    "search_spaces/quick.yaml",
    "--set=fix.device.cpu_threads=1",
    "--set=search.trials=2",
    "--set=search.minutes=0.8",
    "--set=measure.quality_samples=0",
    "--set=measure.trace=false",
]


def promise() -> Iterator[Figure]:
    """Yields reached over promised, of clean runs."""
    quiet = min(canary_ms() for _ in range(50))
    clean: list[float] = []
    dirty: list[float] = []
    for count in range(RUNS):
        with tempfile.TemporaryDirectory() as folder:
            home = ["--home", folder]
            _call("run", *SPACE, *home)
            best = str(Path(folder) / "best.yaml")
            _call("export", "quick", "--out", best, *home)
            before = canary_ms()
            options = ["--epochs", "100000", "--max-minutes", str(TRAIN_MINUTES), "--json"]
            report = json.loads(_call("train", best, *options, *home))
            canary = max(before, canary_ms())
        share = sum(report["disturbed"].values()) / (60 * TRAIN_MINUTES)
        is_dirty = share > DISTURBED or canary > CANARY_RATIO * quiet
        (dirty if is_dirty else clean).append(report["ratio"])
        print(
            f"run {count}: {report['ratio']:.3f}, disturbed {share:.0%}, canary {canary / quiet:.2f}",
            flush=True,
        )
    for title, ratios in (("clean", clean), ("dirty", dirty)):
        if ratios:
            figure = spread(ratios)
            yield Figure(
                figure=f"reached / promised, {title} runs",
                value=figure.value,
                low=figure.low,
                high=figure.high,
                repeats=len(ratios),
            )
            kept = 100 * sum(0.95 <= ratio <= 1.05 for ratio in ratios) / len(ratios)
            bar = ">= 90" if title == "clean" else ""
            yield Figure(
                figure=f"within 0.95 to 1.05, {title} runs",
                value=kept,
                low=kept,
                high=kept,
                bar=bar,
                unit="%",
                repeats=len(ratios),
            )


def kills() -> Iterator[Figure]:
    """Yields how many of the killed runs ended with the loss of the one that was not."""
    with tempfile.TemporaryDirectory() as folder:
        home = ["--home", folder]
        _call("run", *SPACE, "--set=search.trials=1", *home)
        best = str(Path(folder) / "best.yaml")
        _call("export", "quick", "--out", best, *home)
        # A checkpoint every few tenths of a second; an epoch takes about as long.
        options = ["--epochs", "60", "--set=train.checkpoint_minutes=0.003", "--set=train.schedule=cosine"]
        whole = json.loads(_call("train", best, "--json", *options, *home))
        draw = random.Random(0)
        resumed = 0
        command = [*SWEEPER, "train", best, "--json", *options, "--home", str(Path(folder) / "killed")]
        while resumed < KILLS:
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
            )
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=draw.uniform(1.0, 5.5))
                break
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            resumed += 1
        report = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
        equal = float(report["val_loss"] == whole["val_loss"] and report["best_loss"] == whole["best_loss"])
        print(f"{resumed} kills; loss {report['val_loss']!r}, of the whole run {whole['val_loss']!r}")
        yield Figure(
            figure="kills survived", value=resumed, low=resumed, high=resumed, bar=">= 20", repeats=1
        )
        yield Figure(
            figure="final loss bit-equal", value=equal, low=equal, high=equal, bar=">= 1", repeats=resumed
        )


def _call(*words: str) -> str:
    done = subprocess.run([*SWEEPER, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"sweeper {' '.join(words)}: {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


PARTS = {"promise": promise, "kills": kills}


def main() -> None:
    for name, part in chosen(PARTS).items():
        began = time.perf_counter()
        figures = list(part())
        publish("export", figures, f"python benchmarks/production.py {name}")
        print(f"{name}: {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
