"""Whether the intervals of the confirmation mean what they say, and whether its winners hold.

python benchmarks/confirm.py [recorded live winners to_loss peers by_hand]
                                        writes benchmarks/results/<device>/confirm.json

recorded   2,000 confirmations drawn from recorded repeats of the same configuration: how often they see a
           difference that is not there, with rounds added as in a sweep
live       the same with real processes while another one loads a core: 20 of a configuration against
           itself, 20 against one whose steps are made 10% longer
winners    20 short sweeps of five workloads: whether their intervals hold later, and in production
to_loss    three sweeps whose winner trains to the baseline's loss: 20 more trainings of both with other seeds
peers      an LSTM and an MLP against their plain baselines, in at most three minutes each
by_hand    the MLP's winner against a loop written by hand, at the best of its settings that keep the loss
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common import RESULTS, Figure, chosen, device_folder, publish, spread
from recorded.surfaces import read
from surfaces import recordings
from verdicts import BARS, Bench, busy

from sweeper.core.job import Job, MeasurePlan, read_job, write_job
from sweeper.core.measurement import Measurement, Report
from sweeper.launch.local import LocalLauncher
from sweeper.race.log import rounds_of_speeds
from sweeper.race.policy import Policy
from sweeper.race.tally import Tally
from sweeper.results.numbers.projection import samples_to_loss

ROOT = Path(__file__).parents[1]
DRAWS = 2000
LIVE = 20
SWEEPS = 20
MINUTES, LATER_MINUTES, TRAIN_MINUTES = 2.5, 10.0, 0.4
"""Length of a sweep; least time from its end to the second measurement; length of a production run."""
TO_LOSS = {"search_spaces/quick.yaml": 7, "benchmarks/peers/mlp.yaml": 7, "search_spaces/sequence.yaml": 6}
"""Number of later trainings of each."""
NEW_SEED = 1000
BETWEEN = 3
"""Sweeps that run before a winner is measured again."""
WORKLOADS = (
    "search_spaces/quick.yaml",
    "benchmarks/peers/mlp.yaml",
    "benchmarks/peers/lstm.yaml",
    "search_spaces/sequence.yaml",
    "search_spaces/kuairand.yaml",
)
ROUNDS, MAX_ROUNDS = 4, 4
RULES = Policy(arms=(0, 1), seconds=math.inf, precision=math.log(1.05))
ONE_THREAD = "fix.device.cpu_threads=1"
"""One thread each: two threads that wait for each other would be slowed twice by other load on the host."""
PLAN = MeasurePlan(window_seconds=0.5, repeats=1, warmup_cap_seconds=5, cap_seconds=0.75, diagnose=False)
TRAINING_PLAN = replace(PLAN, window_seconds=1.0, repeats=3, cap_seconds=4.0)
"""Measures for about as long as the baselines' trainings take."""
HAND_BATCHES, HAND_ROUNDS = (256, 512, 1024, 2048), 15
LOSS_SAMPLES, MAX_LOSS_RATIO = 102_400, 1.05
"""The same values as in benchmarks/peers/mlp.yaml."""


def recorded() -> Iterator[Figure]:
    """Yields the share of confirmations of one configuration against itself that see a difference."""
    own = (read(path).rounds for path in recordings())
    rounds = [
        {key: speed for speeds in together for key, speed in speeds.items()}
        for together in zip(*own, strict=True)
    ]
    draw = random.Random(0)
    keys = sorted(rounds[0])
    false, widths, counts = 0, [], []
    for _ in range(DRAWS):
        key = draw.choice(keys)
        # Two processes of the same configuration, from neighbouring rounds: the machine's pace was the same.
        starts = draw.sample(range(len(rounds) - 1), k=min(len(rounds) - 1, ROUNDS * MAX_ROUNDS))
        taken: list[dict[int, float]] = []
        for start in starts:
            pair = [rounds[start][key], rounds[start + 1][key]]
            draw.shuffle(pair)
            taken.append(dict(enumerate(pair)))
            if len(taken) >= ROUNDS and RULES.is_clear(rounds_of_speeds(taken)):
                break
        low, high = Tally.of(rounds_of_speeds(taken), 1).interval()
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
    """Yields false and found differences between real processes, while another process loads a core."""
    with tempfile.TemporaryDirectory() as folder, busy(1):
        bench = Bench(Path(folder))
        template = bench.prepared("parts.bottlenecks", {})
        same = {"batch_size": 512, "model.kind": "compute", "device.cpu_threads": 1}
        for title, other, bar in (
            ("false differences", same, "<= 3"),
            ("planted 10 % found", {**same, "model.slower": 0.1}, ">= 18"),
        ):
            seen, widths = 0, []
            for count in range(LIVE):
                rounds: list[dict[int, float]] = []
                while len(rounds) < ROUNDS or (
                    len(rounds) < ROUNDS * MAX_ROUNDS and not RULES.is_clear(rounds_of_speeds(rounds))
                ):
                    order = [0, 1]
                    random.Random(1000 * count + len(rounds)).shuffle(order)
                    speeds: dict[int, float] = {}
                    for number in order:
                        outcome = bench.trial(template, (same, other)[number], PLAN).outcome
                        assert isinstance(outcome, Measurement)
                        speeds[number] = outcome.throughput
                    rounds.append(speeds)
                low, high = Tally.of(rounds_of_speeds(rounds), 1).interval()
                seen += low > 0 or high < 0
                widths.append(50 * (high - low))
                print(f"{title} {count}: {len(rounds)} rounds, half-width {widths[-1]:.1f} %", flush=True)
            yield Figure(figure=f"live: {title}", value=seen, low=seen, high=seen, bar=bar, repeats=LIVE)
            yield _plain(f"live: {title}, half-width", statistics.median(widths), "%", LIVE)
        bench.launcher.close()


def winners() -> Iterator[Figure]:
    """Yields whether the winners of short sweeps hold later: in new rounds, and in production.

    If interrupted, the same command continues: each line of winners.jsonl is one sweep.
    """
    path = device_folder(RESULTS) / "winners.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    sweeps = (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    )
    ended: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as home:
        waiting: list[str] = []
        left = list(range(len(sweeps), SWEEPS))
        while left or waiting:
            if left:
                waiting.append(_short_sweep(home, left.pop(0)))
                ended[waiting[-1]] = time.monotonic()
            if len(waiting) > BETWEEN or not left:
                name = waiting.pop(0)
                time.sleep(max(0.0, 60 * LATER_MINUTES - (time.monotonic() - ended[name])))
                if (line := _measured_later(home, name, ended[name])) is not None:
                    sweeps.append(line)
                    print(json.dumps(line), flush=True)
                    with path.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
    before, now = ([sweep[when] for sweep in sweeps] for when in ("before", "now"))
    inside = [b["low"] <= n["ratio"] <= b["high"] for b, n in zip(before, now, strict=True)]
    now_inside = [
        b["sitting_low"] <= n["ratio"] <= b["sitting_high"] for b, n in zip(before, now, strict=True)
    ]
    yield _share("winners: later ratio inside of the interval", inside, ">= 90")
    yield _share("winners: later ratio inside of the interval of the same hour", now_inside, "")
    widths = [100 * (math.sqrt(interval["high"] / interval["low"]) - 1) for interval in before]
    yield _plain("winners: half-width of the interval", statistics.median(widths), "%", len(widths), "<= 15")
    kept = [sweep["trained"].startswith("kept") for sweep in sweeps]
    yield _share("winners: production speed inside of its interval", kept, ">= 90")


def _short_sweep(home: str, count: int) -> str:
    """Runs one, and returns its name."""
    space, name = WORKLOADS[count % len(WORKLOADS)], f"winner-{count}"
    _run(space, home, f"name={name}", f"search.minutes={MINUTES}")
    return name


def _run(space: str, home: str, *changes: str) -> None:
    is_asked = "device.cpu_threads" in (ROOT / space).read_text(encoding="utf-8")
    whole = (*changes, "measure.trace=false", *(() if is_asked else (ONE_THREAD,)))
    _sweeper("run", space, *(f"--set={change}" for change in whole), "--home", home)


def _measured_later(home: str, name: str, ended: float) -> dict[str, Any] | None:
    """Returns a winner's ratio as reported and now, and its production run; None without a winner."""
    result = json.loads((Path(home) / "sweeps" / name / "result.json").read_text(encoding="utf-8"))
    if result["winner"] is None:
        print(f"{name}: no winner", flush=True)
        return None
    minutes = (time.monotonic() - ended) / 60
    _sweeper("confirm", name, "--json", "--home", home)
    again = Path(home) / "sweeps" / name / "races" / "repeat-0001" / "result.json"
    best = str(Path(home) / f"{name}.yaml")
    _sweeper("export", name, "--out", best, "--home", home)
    options = ("--epochs", "100000", "--max-minutes", str(TRAIN_MINUTES), "--json")
    trained = json.loads(_sweeper("train", best, *options, "--home", home))
    before = next(ratio for ratio in result["ratios"] if ratio["trial"] == result["winner"])
    return {
        "name": name,
        "minutes_later": round(minutes, 1),
        "before": {k: v for k, v in before.items() if k != "rounds"},
        "early": len(list((Path(home) / "sweeps" / name / "races").glob("early-*"))),
        "now": {k: v for k, v in json.loads(again.read_text())["ratios"][0].items() if k != "rounds"},
        "trained": trained["verdict"],
        "reached": trained["ratio"],
    }


def _share(title: str, flags: Sequence[bool], bar: str) -> Figure:
    share = 100 * statistics.fmean(flags)
    return Figure(figure=title, value=share, low=share, high=share, bar=bar, unit="%", repeats=len(flags))


def to_loss() -> Iterator[Figure]:
    """Yields how often new trainings' time to a loss is inside the interval that was shown."""
    inside, ratios = [], []
    with tempfile.TemporaryDirectory() as home:
        for space, repeats in TO_LOSS.items():
            name = Path(space).stem
            _run(space, home, f"name={name}", "confirm.to_loss=true")
            folder = Path(home) / "sweeps" / name
            result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            estimate = result.get("to_loss")
            if estimate is None:
                print(f"{name}: no time to a loss", flush=True)
                continue
            print(
                f"{name}: {estimate['ratio']:.2f}x [{estimate['low']:.2f}, {estimate['high']:.2f}]",
                flush=True,
            )
            arms = [_Arm.of(folder, number, estimate["loss"]) for number in (0, result["winner"])]
            for repeat in range(repeats):
                places = (Path(home) / f"{name}-{repeat}-{part}" for part in ("before", "after"))
                seconds = [arm.seconds(place, repeat) for arm, place in zip(arms, places, strict=True)]
                later = seconds[0] / seconds[1]
                print(f"  later {later:.2f}x", flush=True)
                inside.append(estimate["low"] <= later <= estimate["high"])
                ratios.append(later / estimate["ratio"])
    yield _share("time to loss: later ratio inside of the interval", inside, ">= 90")
    yield _plain("time to loss: later ratio / shown", statistics.median(ratios), "x", len(ratios))


@dataclass(frozen=True)
class _Arm:
    """Jobs of a configuration: one that trains it to a loss, and one that measures its speed."""

    trains: Job
    measures: Job
    loss: float

    @classmethod
    def of(cls, folder: Path, number: int, loss: float) -> _Arm:
        """Returns the two jobs for a sweep's trial."""
        trains = read_job(folder / "setup" / (f"to-loss-{number}-0" if number else "loss-0"))
        parts = 3 * trains.plan.quality_parts if number == 0 else trains.plan.quality_parts
        samples = 3 * trains.plan.quality_samples if number == 0 else trains.plan.quality_samples
        plan = replace(trains.plan, quality_samples=samples, quality_parts=parts, until_loss=loss)
        measures = replace(read_job(folder / "trials" / f"{number:04d}"), plan=TRAINING_PLAN)
        return cls(trains=replace(trains, plan=plan), measures=measures, loss=loss)

    def seconds(self, folder: Path, repeat: int) -> float:
        """Returns the seconds that it trains to the loss with a new seed: samples, at its present speed."""
        seeded = replace(self.trains, config=self.trains.config.replace({"seed": NEW_SEED + repeat}))
        folder.mkdir(parents=True)
        launcher = LocalLauncher(folder)
        outcomes = []
        for number, job in enumerate((seeded, self.measures)):
            place = folder / str(number)
            write_job(place, replace(job, uid=f"{folder.name}-{number}"))
            outcomes.append(launcher.submit(place).result())
        launcher.close()
        trained, measured = outcomes
        assert isinstance(trained, Report), trained
        assert isinstance(measured, Measurement), measured
        samples = samples_to_loss([tuple(point) for point in trained.values["curve"]], self.loss)
        return samples[0] / measured.throughput if samples else math.inf


def peers() -> Iterator[Figure]:
    """Yields how much faster the winners of the two workloads are than their plain baselines."""
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


def by_hand() -> Iterator[Figure]:
    """Yields the speed of the MLP's winner, divided by that of the best loop written by hand."""
    with tempfile.TemporaryDirectory() as home:
        _sweeper("run", "benchmarks/peers/mlp.yaml", "--home", home)
        trials = Path(home) / "sweeps" / "peer-mlp" / "trials"
        number = json.loads(_sweeper("show", "peer-mlp", "--json", "--home", home))["winner"]["number"]
        winner, baseline = read_job(trials / f"{number:04d}"), read_job(trials / "0000")
        print(f"winner: {winner.config.flatten()}", flush=True)
        bench = Bench(Path(home))

        def measured(job: Job, plan: MeasurePlan = PLAN, **changes: Any) -> Measurement:
            outcome = bench.trial(job, job.config.replace(changes), plan).outcome
            assert isinstance(outcome, Measurement), outcome
            return outcome

        def loss(job: Job, **changes: Any) -> float:
            quality = measured(job, replace(PLAN, quality_samples=LOSS_SAMPLES), **changes).quality
            assert quality is not None
            return quality.val_loss

        limit = MAX_LOSS_RATIO * loss(baseline)
        batches = (
            (precision, size)
            for precision, size in itertools.product(("fp32", "bf16"), HAND_BATCHES)
            if loss(winner, batch_size=size, **{"precision.amp": precision}) <= limit
        )
        tried = {
            (precision, size, threads): _hand_written(precision, size, threads)
            for precision, size in batches
            for threads in (1, 2)
        }
        best = max(tried, key=lambda setting: tried[setting])
        print(f"by hand: {best} of {tried}", flush=True)
        ratios = []
        for count in range(HAND_ROUNDS):
            # In turns, since what runs first may find the machine in another state.
            first = _hand_written(*best) if count % 2 else 0.0
            own = measured(winner, TRAINING_PLAN).throughput
            ratios.append(own / (first or _hand_written(*best)))
        bench.launcher.close()
    yield replace(spread(ratios), figure="peers: MLP, winner / by hand", bar=">= 1.0", unit="x")


def _hand_written(precision: str, size: int, threads: int) -> float:
    script = str(ROOT / "benchmarks" / "handwritten.py")
    command = [sys.executable, script, precision, str(size), str(threads)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _sweeper(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "sweeper", *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )
    # A winner that does not hold today is a finding, and exit code 1.
    if done.returncode not in (0, 1):
        raise RuntimeError(f"sweeper {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def _plain(title: str, value: float, unit: str, repeats: int, bar: str = "") -> Figure:
    return Figure(figure=title, value=value, low=value, high=value, bar=bar, unit=unit, repeats=repeats)


PARTS = {
    "recorded": recorded,
    "live": live,
    "winners": winners,
    "to_loss": to_loss,
    "peers": peers,
    "by_hand": by_hand,
}


def main() -> None:
    for name, part in chosen(PARTS).items():
        device = recordings()[0].parent.name if part is recorded else None
        with contextlib.chdir(ROOT):
            figures = list(part())
        publish("confirm", figures, f"python benchmarks/confirm.py {name}", device=device)


if __name__ == "__main__":
    main()
