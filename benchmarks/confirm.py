"""Whether the intervals of the confirmation mean what they say, and its winners hold.

python benchmarks/confirm.py [recorded live winners peers]    writes benchmarks/results/<device>/confirm.json

recorded   2,000 confirmations drawn from recorded repeats of the same configuration: how often a
           difference is seen that is not there, rounds added as the sweep does
live       the same with real processes while another one loads a core: 20 of a configuration against
           itself, 20 against one whose steps are made 10 % longer
winners    20 quick sweeps: reported against re-measured throughput, and whether pairs agree
peers      an LSTM and an MLP against their plain baselines, in at most three minutes each
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common import Figure, device_folder, publish
from surfaces import FOLDER
from verdicts import BARS, Bench, busy

from sweeper.analysis.confirmation import interval, is_enough, log_ratios
from sweeper.core.job import MeasurePlan
from sweeper.core.measurement import Measurement
from sweeper.testing.recorded import rounds_of

ROOT = Path(__file__).parents[1]
DRAWS = 2000
LIVE = 20
SWEEPS = 20
ROUNDS, MOST_ROUNDS, PRECISION = 8, 4, 0.05
ONE_THREAD = "fix.device.cpu_threads=1"
"""Threads are not the question: two that wait for each other feel every neighbour on the host twice."""
PLAN = MeasurePlan(window_seconds=0.5, repeats=1, warmup_cap_seconds=5, cap_seconds=0.75, diagnose=False)


def recorded() -> Iterator[Figure]:
    """Yields the share of confirmations of one configuration against itself that see a difference."""
    rounds = rounds_of(device_folder(FOLDER) / "noise.csv")
    draw = random.Random(0)
    keys = sorted(rounds[0])
    false, widths, counts = 0, [], []
    for _ in range(DRAWS):
        key = draw.choice(keys)
        # Two processes of the same configuration, from neighbouring rounds: they share the machine's mood.
        starts = draw.sample(range(len(rounds) - 1), k=min(len(rounds) - 1, ROUNDS * MOST_ROUNDS))
        taken: list[dict[int, float]] = []
        for start in starts:
            pair = [rounds[start][key], rounds[start + 1][key]]
            draw.shuffle(pair)
            taken.append(dict(enumerate(pair)))
            if len(taken) >= ROUNDS and is_enough(taken, 0, PRECISION):
                break
        _, low, high = interval(log_ratios(taken, 1, 0))
        false += low > 0 or high < 0
        widths.append((high - low) / 2)
        counts.append(len(taken))
    share = 100 * false / DRAWS
    half = 196 * math.sqrt(false / DRAWS * (1 - false / DRAWS) / DRAWS)
    yield Figure(
        figure="recorded: false differences",
        value=share,
        low=share - half,
        high=share + half,
        bar="<= 7",
        unit="%",
        repeats=DRAWS,
    )
    yield Figure(
        figure="recorded: false differences (not too few)",
        value=share,
        low=share - half,
        high=share + half,
        bar=">= 3",
        unit="%",
        repeats=DRAWS,
    )
    yield _plain("recorded: half-width", 100 * statistics.median(widths), "%", DRAWS)
    yield _plain("recorded: rounds", statistics.median(counts), "", DRAWS)


def live() -> Iterator[Figure]:
    """Yields false and found differences between real processes, beside one that loads a core."""
    with tempfile.TemporaryDirectory() as folder, busy(1):
        bench = Bench(Path(folder))
        template = bench.prepared("sweeper.testing.bottlenecks", {})
        same = {"batch_size": 512, "model.kind": "compute", "device.cpu_threads": 1}
        for title, other, bar in (
            ("false differences", same, "<= 3"),
            ("planted 10 % found", {**same, "model.slower": 0.1}, ">= 18"),
        ):
            seen, widths = 0, []
            for count in range(LIVE):
                rounds: list[dict[int, float]] = []
                while len(rounds) < ROUNDS or (
                    len(rounds) < ROUNDS * MOST_ROUNDS and not is_enough(rounds, 0, PRECISION)
                ):
                    order = [0, 1]
                    random.Random(1000 * count + len(rounds)).shuffle(order)
                    found: dict[int, float] = {}
                    for number in order:
                        outcome = bench.trial(template, (same, other)[number], PLAN).outcome
                        assert isinstance(outcome, Measurement)
                        found[number] = outcome.throughput
                    rounds.append(found)
                _, low, high = interval(log_ratios(rounds, 1, 0))
                seen += low > 0 or high < 0
                widths.append(50 * (high - low))
                print(f"{title} {count}: {len(rounds)} rounds, half-width {widths[-1]:.1f} %", flush=True)
            yield Figure(figure=f"live: {title}", value=seen, low=seen, high=seen, bar=bar, repeats=LIVE)
            yield _plain(f"live: {title}, half-width", statistics.median(widths), "%", LIVE)
        bench.launcher.close()


def winners() -> Iterator[Figure]:
    """Yields how well the winners of quick sweeps hold when they are measured once more."""
    held = inside = 0
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as home:
        for count in range(SWEEPS):
            name = f"quick-{count}"
            changes = ("--set", f"name={name}", "--set", ONE_THREAD)
            _sweeper("run", "search_spaces/quick.yaml", *changes, "--home", home)
            result = json.loads((Path(home) / "sweeps" / name / "result.json").read_text())
            again = json.loads(_sweeper("confirm", name, "--json", "--home", home))
            show = json.loads(_sweeper("show", name, "--json", "--home", home))
            place = sorted((Path(home) / "sweeps" / name / "again").iterdir())[-1]
            winner = result["winner"]
            reported = next(r["throughput"] for r in result["ratios"] if r["number"] == winner)
            now = json.loads((place / "confirm.json").read_text())["ratios"][0]["throughput"]
            quotient = reported / now
            held += 0.95 <= quotient <= 1.05
            inside += again["before"]["low"] <= again["now"]["ratio"] <= again["before"]["high"]
            found.append({"config": show["winner"]["config"], "tied": result["tied"], "show": show})
            print(
                f"{name}: reported/re-measured {quotient:.3f}, {again['before']} -> {again['now']}",
                flush=True,
            )
    agree = sum(_agree(one, other) for one, other in zip(found[::2], found[1::2], strict=True))
    for title, value, bar in (
        ("winners: reported within 5 % of re-measured", held, ">= 18"),
        ("winners: re-measured ratio inside of the interval", inside, ">= 18"),
        ("winners: pairs that agree or declare a tie", agree, ">= 9"),
    ):
        yield Figure(figure=title, value=value, low=value, high=value, bar=bar, repeats=SWEEPS)


def _agree(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Returns whether two sweeps name the same winner, or one declares a tie with the other's."""
    configs = [
        {
            json.dumps(t["config"], sort_keys=True)
            for t in each["show"]["trials"]
            if t["number"] in each["tied"]
        }
        | {json.dumps(each["config"], sort_keys=True)}
        for each in (one, other)
    ]
    return bool(configs[0] & configs[1])


def peers() -> Iterator[Figure]:
    """Yields what the sweeps of the two workloads win over their plain baselines."""
    for title, space, bar in (("LSTM", "lstm", ">= 1.8"), ("MLP", "mlp", ">= 15")):
        changes = ["--set", f"data.path={BARS}"] if title == "LSTM" and BARS.is_dir() else []
        with tempfile.TemporaryDirectory() as home:
            began = time.perf_counter()
            _sweeper("run", f"benchmarks/peers/{space}.yaml", *changes, "--home", home)
            seconds = time.perf_counter() - began
            winner = json.loads(_sweeper("show", f"peer-{space}", "--json", "--home", home))["winner"]
        yield Figure(
            figure=f"peers: {title}, lower bound of the ratio",
            value=winner["ratio_low"],
            low=winner["ratio_low"],
            high=winner["ratio_high"],
            bar=bar,
            repeats=1,
        )
        yield Figure(
            figure=f"peers: {title}, minutes",
            value=seconds / 60,
            low=seconds / 60,
            high=seconds / 60,
            bar="<= 3",
            repeats=1,
        )


def _sweeper(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "sweeper", *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )
    # A winner that does not hold today is a finding, and exit code 1.
    if done.returncode not in (0, 1):
        raise RuntimeError(f"sweeper {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def _plain(title: str, value: float, unit: str, repeats: int) -> Figure:
    return Figure(figure=title, value=value, low=value, high=value, unit=unit, repeats=repeats)


def main() -> None:
    parts = {"recorded": recorded, "live": live, "winners": winners, "peers": peers}
    asked: Sequence[str] = sys.argv[1:] or list(parts)
    with contextlib.chdir(ROOT):
        figures = [dataclasses.replace(figure) for part in asked for figure in parts[part]()]
    publish("confirm", figures, f"python benchmarks/confirm.py {' '.join(asked)}")


if __name__ == "__main__":
    main()
