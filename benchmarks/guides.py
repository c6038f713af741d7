"""The guides' workloads: each one's before, its hand-tuned after, and what a sweep of 15 minutes finds.

python benchmarks/guides.py [NAME ...]        adds to benchmarks/results/<device>/guides.json

NAME is one of search_spaces/{kuairand,sequence,behaviour,stocks,sign_language}.yaml; all of them take some
two hours. Each is swept at the before's model size and at the after's. The sweeps are kept in mlruns/guides,
and the same command continues them. Then before, after and winner take turns: a fresh process each, round
by round in random order. `bare` is the winner's own step on a batch that is already on the device.
On a CPU, the guides' fp16 becomes bf16, the only mixed precision there.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from common import Figure, chosen, publish, spread
from verdicts import Bench

from sweeper.core.config import TrialConfig
from sweeper.core.job import MeasurePlan
from sweeper.core.measurement import Measurement
from sweeper.race.log import rounds_of_speeds
from sweeper.race.tally import Tally
from sweeper.schema import load
from sweeper.sweep.folder.catalog import sweeps_of_name

ROOT = Path(__file__).parents[1]
HOME = ROOT / "mlruns" / "guides"
WORKLOADS = ("kuairand", "sequence", "behaviour", "stocks", "sign_language")
ROUNDS = 12
SEARCH = {"minutes": 15, "patience": 15, "trials": 60, "seed": 0}
PLAN = MeasurePlan(window_seconds=1.0, repeats=2, warmup_cap_seconds=5.0, cap_seconds=10.0)
FIVE_TIMES = ("kuairand",)
"""Workloads whose before handles each row in Python."""

PENDING = 7
"""Exit status of a sweep that is not in MLflow yet."""

BEFORE, AFTER, WINNER = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class Case:
    """A workload at one model size.

    Attributes:
        space: The search space, the model's options fixed.
    """

    workload: str
    size: Mapping[str, Any]
    space: Mapping[str, Any]

    @property
    def title(self) -> str:
        """The workload, and its size if there are several."""
        size = " ".join(f"{name.removeprefix('model.')}={value}" for name, value in self.size.items())
        return f"{self.workload} ({size})" if size else self.workload

    @property
    def name(self) -> str:
        """The name of its sweep."""
        return "-".join(["guide", self.workload, *(str(value) for value in self.size.values())])


def cases(workload: str) -> Iterator[Case]:
    """Yields the workload at the before's size, and at the after's if that differs."""
    tree = load(ROOT / "search_spaces" / f"{workload}.yaml").to_dict()
    before, afters = _runnable(tree["baseline"]), [_runnable(after) for after in tree["also_try"]]
    sizes = []
    for config in (before, *afters):
        size = {name: value for name, value in config.items() if name.startswith("model.")}
        if size not in sizes:
            sizes.append(size)
    for size in sizes:
        asked = [_without_model(config) for config in (before, *afters)]
        space = {
            **tree,
            "space": _without_model(tree["space"]),
            "fix": {**tree["fix"], **size},
            "baseline": asked[0],
            "also_try": asked[1:],
            "search": {**tree["search"], **SEARCH},
        }
        case = Case(workload=workload, size=size, space=space)
        yield Case(workload=workload, size=size, space={**space, "name": case.name})


def _runnable(config: Mapping[str, Any]) -> dict[str, Any]:
    has_fp16 = torch.cuda.is_available()
    return {name: "bf16" if value == "fp16" and not has_fp16 else value for name, value in config.items()}


def _without_model(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if not name.startswith("model.")}


def swept(case: Case) -> dict[str, Any]:
    """Returns a sweep as `sweeper show --json` prints it, after running or continuing it if necessary."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "space.json"
        path.write_text(json.dumps(case.space), encoding="utf-8")
        done = subprocess.run(_command("run", str(path)), cwd=ROOT, check=False)
        if done.returncode not in (0, PENDING):
            raise RuntimeError(f"`sweeper run` ended with {done.returncode}")
    # If the code has changed since an earlier sweep, the new one is called `<name>-2` and so on.
    *_, latest = sweeps_of_name(HOME, case.name)
    shown = subprocess.run(_command("show", latest.name, "--json"), cwd=ROOT, check=True, capture_output=True)
    sweep: dict[str, Any] = json.loads(shown.stdout)
    return sweep


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sweeper", *arguments, "--home", str(HOME)]


def measured(
    case: Case, configs: Mapping[int, TrialConfig]
) -> tuple[list[dict[int, float]], list[Measurement]]:
    """Returns throughputs round by round, and the winner's measurements."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        template = bench.prepared(case.space["pipeline"], case.space["data"])
        draw = random.Random(0)
        rounds: list[dict[int, float]] = []
        winners: list[Measurement] = []
        for _ in range(ROUNDS):
            speeds: dict[int, float] = {}
            for key in draw.sample(list(configs), len(configs)):
                outcome = bench.trial(template, configs[key], PLAN).outcome
                assert isinstance(outcome, Measurement), outcome
                speeds[key] = outcome.throughput
                if key == WINNER:
                    winners.append(outcome)
            rounds.append(speeds)
        bench.launcher.close()
    return rounds, winners


def figures_of(case: Case) -> Iterator[Figure]:
    """Yields the figures of a case."""
    shown = swept(case)
    by_number = {trial["number"]: trial for trial in shown["trials"]}
    # References are numbered in the order of the space; one that this device cannot run has no speed.
    tried = [by_number[1 + place] for place in range(len(case.space["also_try"]))]
    afters = [trial for trial in tried if "throughput" in trial["metrics"]]
    winner = _winner(case, shown)
    if winner is None:
        yield Figure(figure=f"{case.title}: a winner", value=0, low=0, high=0, bar=">= 1", repeats=1)
        return
    after = max(afters, key=lambda trial: trial["metrics"]["throughput"])
    chosen = {BEFORE: by_number[0], AFTER: after, WINNER: winner}
    configs = {key: TrialConfig().replace(trial["config"]) for key, trial in chosen.items()}
    rounds, winners = measured(case, configs)
    for key, title in ((BEFORE, "before"), (AFTER, "after"), (WINNER, "winner")):
        yield _named(f"{case.title}: {title}", spread([speeds[key] for speeds in rounds]), "/s")
        yield from _loss(f"{case.title}: {title}'s loss", chosen[key])
    yield _over(f"{case.title}: winner over after", rounds, AFTER, 1.0)
    yield _over(
        f"{case.title}: winner over before", rounds, BEFORE, 5.0 if case.workload in FIVE_TIMES else 0.0
    )
    bare = [ratio for measurement in winners if (ratio := _over_bare(measurement)) is not None]
    share = [100 * measurement.breakdown.data_fraction for measurement in winners]
    # If clips have different lengths, there is no single batch for the bare step.
    reached = statistics.median(share) <= 5 or (bool(bare) and statistics.median(bare) >= 0.95)
    if bare:
        yield _named(f"{case.title}: winner over bare", spread(bare), "")
    yield _named(f"{case.title}: data path's share of the step", spread(share), "%")
    yield _holds(f"{case.title}: 0.95 of bare, or 5 % of the step in the data path", reached)
    yield _holds(f"{case.title}: winner's loss within the limit", winner["feasible"])
    for name in ("gpu_util_pct", "gpu_sm_active_pct"):
        for key, title in ((BEFORE, "before"), (AFTER, "after"), (WINNER, "winner")):
            value = chosen[key]["metrics"].get(name)
            if value is not None:
                yield _plain(f"{case.title}: {title}'s {name}", value, "%")


def _winner(case: Case, shown: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the sweep's winner, or the fastest trial of its search if the sweep confirms nothing."""
    if shown["winner"] is not None:
        number = shown["winner"]["number"]
        return dict(next(trial for trial in shown["trials"] if trial["number"] == number))
    searched = shown["trials"][1 + len(case.space["also_try"]) :]
    candidates = [trial for trial in searched if trial["feasible"] and "throughput" in trial["metrics"]]
    if case.space["confirm"]["rounds"] or not candidates:
        return None
    return dict(max(candidates, key=lambda trial: float(trial["metrics"]["throughput"])))


def _over_bare(measurement: Measurement) -> float | None:
    alone = measurement.diagnosis.device_samples_s if measurement.diagnosis is not None else None
    return measurement.throughput / alone if alone else None


def _loss(title: str, trial: Mapping[str, Any]) -> Iterator[Figure]:
    loss = trial["metrics"].get("val_loss")
    if loss is not None:
        yield _plain(title, loss, "")


def _over(title: str, rounds: Sequence[Mapping[int, float]], under: int, bar: float) -> Figure:
    """Returns the lower bound of a ratio, with the bar for that bound."""
    tally = Tally.of(rounds_of_speeds(rounds), WINNER, under)
    mean, low, high = map(math.exp, (tally.mean, *tally.interval()))
    print(f"{title}: {mean:.3g} [{low:.3g}, {high:.3g}]", flush=True)
    return Figure(
        figure=f"{title}, lower bound",
        value=low,
        low=low,
        high=high,
        bar=f">= {bar}" if bar else "",
        unit="x",
        repeats=len(rounds),
    )


def _named(title: str, figure: Figure, unit: str) -> Figure:
    return Figure(
        figure=title, value=figure.value, low=figure.low, high=figure.high, unit=unit, repeats=figure.repeats
    )


def _holds(title: str, holds: bool) -> Figure:
    return Figure(figure=title, value=holds, low=holds, high=holds, bar=">= 1", repeats=1)


def _plain(title: str, value: float, unit: str) -> Figure:
    return Figure(figure=title, value=value, low=value, high=value, unit=unit, repeats=1)


def main() -> None:
    """Measures the named workloads, or all, and publishes each as soon as it is done."""
    for name in chosen(dict.fromkeys(WORKLOADS)):
        for case in cases(name):
            publish("guides", list(figures_of(case)), f"python benchmarks/guides.py {name}")


if __name__ == "__main__":
    main()
