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
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import RESULTS, Figure, chosen, device_folder, publish
from surfaces import recordings
from verdicts import BARS, Bench, busy

from sweeper.analysis.confirmation import interval, is_enough, log_ratios
from sweeper.core.job import MeasurePlan
from sweeper.core.measurement import Measurement
from sweeper.testing.recorded import rounds_of

ROOT = Path(__file__).parents[1]
DRAWS = 2000
LIVE = 20
SWEEPS = 20
ROUNDS, MAX_ROUNDS, PRECISION = 8, 4, 0.05
ONE_THREAD = "fix.device.cpu_threads=1"
"""Threads are not the question: two that wait for each other feel every neighbour on the host twice."""
PLAN = MeasurePlan(window_seconds=0.5, repeats=1, warmup_cap_seconds=5, cap_seconds=0.75, diagnose=False)


def recorded() -> Iterator[Figure]:
    """Yields the share of confirmations of one configuration against itself that see a difference."""
    rounds = rounds_of(recordings() / "noise.csv")
    draw = random.Random(0)
    keys = sorted(rounds[0])
    false, widths, counts = 0, [], []
    for _ in range(DRAWS):
        key = draw.choice(keys)
        # Two processes of the same configuration, from neighbouring rounds: they share the machine's mood.
        starts = draw.sample(range(len(rounds) - 1), k=min(len(rounds) - 1, ROUNDS * MAX_ROUNDS))
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
                    len(rounds) < ROUNDS * MAX_ROUNDS and not is_enough(rounds, 0, PRECISION)
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
    """Yields how well the winners of quick sweeps hold when they are measured once more.

    Cut off, the same command goes on: a line of winners.jsonl is one sweep.
    """
    path = device_folder(RESULTS) / "winners.jsonl"
    known = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [json.loads(line) for line in known]
    with tempfile.TemporaryDirectory() as home:
        path.parent.mkdir(parents=True, exist_ok=True)
        for count in range(len(found), SWEEPS):
            found.append(_quick_sweep(home, f"quick-{count}"))
            line = json.dumps(found[-1])
            print(line, flush=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
    held = [0.95 <= each["reported"] / each["measured_again"] <= 1.05 for each in found]
    inside = [each["before"]["low"] <= each["now"]["ratio"] <= each["before"]["high"] for each in found]
    agree = [
        bool({*one["names"]} & {*other["names"]}) for one, other in zip(found[::2], found[1::2], strict=False)
    ]
    for title, each in (
        ("winners: reported within 5 % of re-measured", held),
        ("winners: re-measured ratio inside of the interval", inside),
        ("winners: pairs that agree or declare a tie", agree),
    ):
        share = 100 * statistics.fmean(each)
        yield Figure(
            figure=title, value=share, low=share, high=share, bar=">= 90", unit="%", repeats=len(each)
        )


def _quick_sweep(home: str, name: str) -> dict[str, Any]:
    """Returns a sweep's winner as it was reported, as it was found again, and what it is tied with."""
    changes = ("--set", f"name={name}", "--set", ONE_THREAD)
    _sweeper("run", "search_spaces/quick.yaml", *changes, "--home", home)
    _sweeper("confirm", name, "--json", "--home", home)
    return _of_folder(home, name)


def _of_folder(home: str, name: str) -> dict[str, Any]:
    folder = Path(home) / "sweeps" / name
    result = json.loads((folder / "result.json").read_text())
    again = json.loads((folder / "again" / "0001" / "confirm.json").read_text())["ratios"][0]
    shown = json.loads(_sweeper("show", name, "--json", "--home", home))
    before = next(each for each in result["ratios"] if each["number"] == result["winner"])
    chosen = {result["winner"], *result["tied"]}
    return {
        "reported": before["throughput"],
        "measured_again": again["throughput"],
        "before": {part: before[part] for part in ("ratio", "low", "high")},
        "now": {part: again[part] for part in ("ratio", "low", "high")},
        "names": [
            json.dumps(trial["config"], sort_keys=True)
            for trial in shown["trials"]
            if trial["number"] in chosen
        ],
    }


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


PARTS = {"recorded": recorded, "live": live, "winners": winners, "peers": peers}


def main() -> None:
    for name, part in chosen(PARTS).items():
        device = recordings().name if part is recorded else None
        with contextlib.chdir(ROOT):
            figures = list(part())
        publish("confirm", figures, f"python benchmarks/confirm.py {name}", device=device)


if __name__ == "__main__":
    main()
